"""The closed catalogue of what the operator tells: conditions, waits, steps, risks, events.

`catalogue.yaml` is the one source. `load` reads it, `names` holds its words as enumerations (it is
generated; a test compares), and the reference pages, labels of metrics and alerts are made of it.
"""
