"""The durable log of a member of the metadata group."""
