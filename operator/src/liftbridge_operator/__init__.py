"""The Kubernetes operator: reconcile custom resources into brokers and streams.

`model` defines the resources and is the only source of the CRDs that
`python -m liftbridge_operator.crds` writes; `catalogue` holds every condition, reason and event
that the operator may report. Both are plain values: nothing in them knows a clock, a file or the
network.
"""
