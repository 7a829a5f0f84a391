"""The operator: resources of Kubernetes become brokers and streams.

`model` says what the resources are and is the one source of the definitions that
`python -m liftbridge_operator.crds` writes; `catalogue` holds every condition, reason and event the
operator may tell. Both are plain values: nothing in them knows a clock, a file or the network.
"""
