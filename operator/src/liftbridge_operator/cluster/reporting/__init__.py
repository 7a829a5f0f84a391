"""Status of a cluster: conditions with the texts of the catalogue, and all fields.

Computed from one observation and one decision; the former status supplies times and accumulated
fields, such as drift and last restarts.
"""
