"""Invariants of true state, watched after every turn: replication.md 1.11, one subject a file."""
