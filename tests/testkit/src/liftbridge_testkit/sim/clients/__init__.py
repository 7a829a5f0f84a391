"""Clients of the brokers: publishers, readers, administrators, each with its own behaviour."""
