"""An environment in memory: files that lose unsynced data, NATS without sockets, virtual time.

Tests run the broker on it, ours and those of users.
"""
