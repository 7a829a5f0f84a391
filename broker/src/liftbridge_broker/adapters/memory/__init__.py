"""An environment in memory: files that lose unsynced data, NATS without sockets, virtual time.

Tests of this project and of its users run the broker on it.
"""
