"""The Kubernetes operator: reconcile custom resources into brokers and streams.

`model` defines the resources and is the only source of the CRDs, which
`python -m liftbridge_operator.model.crds` writes; `model.catalogue` holds every condition, reason
and event that the operator may report. Both are plain values without a clock or the network.
`cluster`, `streams` and `pipelines` reconcile one resource each, through the ports of `kube`;
`process` runs them, and `app` assembles it. `plugin` is the kubectl plugin.
"""
