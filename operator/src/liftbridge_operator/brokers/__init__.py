"""The brokers of a cluster as the operator asks them: a port, and its adapter over gRPC."""
