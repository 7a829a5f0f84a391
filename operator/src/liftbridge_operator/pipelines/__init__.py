"""Reconcile `StreamPipeline` resources: each is a Spark job on streams of a cluster.

`render.render` purely renders the objects that run it, `conditions.conditions` its conditions;
`reconciler.PipelineReconciler` observes, applies the objects, requests the progress of an archive
from the brokers, and writes the status. Controllers of Kubernetes restart pods.
"""
