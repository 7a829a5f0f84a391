"""What the status of a cluster says: conditions with the texts of the catalogue, and all fields.

Computed from one observation and one decision, and from the status before only where time is kept.
"""
