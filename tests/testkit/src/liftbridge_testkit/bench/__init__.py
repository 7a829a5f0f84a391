"""The benchmark behind `make bench`: this broker beside NATS JetStream on the same machine."""
