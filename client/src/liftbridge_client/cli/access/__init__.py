"""Commands about who may use a cluster, for what, and how much."""
