"""Raft groups in memory: a disk that can lose, a network that can misbehave, scripts and chaos."""
