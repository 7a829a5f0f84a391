"""Admin of the brokers of a cluster: a port, and its adapter over gRPC."""
