"""`StreamPipeline` resources: each a job of Spark on streams of a cluster.

`render.render` is pure and says which objects run it, `conditions.conditions` what is told of it;
`reconciler.PipelineReconciler` looks, brings the objects, asks the brokers how far an archive has
come, and writes the status. What restarts is restarted by the controllers of Kubernetes.
"""
