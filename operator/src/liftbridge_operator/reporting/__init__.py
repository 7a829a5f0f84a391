"""Status of a cluster: conditions with the texts of the catalogue, and all fields.

Computed from one observation and one decision; the former status only supplies times.
"""
