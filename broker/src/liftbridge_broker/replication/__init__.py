"""Partition cores: state that every replica derives from the same log (replication protocol)."""
