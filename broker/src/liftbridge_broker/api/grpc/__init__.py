"""The gRPC server: listening, connections, calls and their turns, and gRPC's own services."""
