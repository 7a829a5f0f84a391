"""Commands about who may use a cluster."""
