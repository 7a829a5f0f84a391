"""The closed catalogue of what the operator reports: conditions, waits, steps, risks, events.

`catalogue.yaml` is the single source. `load` reads it, `names` has its names as enumerations
(generated; a test compares), and the reference pages, labels of metrics and alerts are generated
from it.
"""
