"""A world in memory: files that lose what was not synced, a NATS without sockets, virtual time.

Tests run the broker on it, ours and those of users.
"""
