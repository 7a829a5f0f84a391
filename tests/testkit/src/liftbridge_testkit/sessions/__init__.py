"""Partitions on three brokers with the real fetch sessions, cores and controller."""
