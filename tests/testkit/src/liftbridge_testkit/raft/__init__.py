"""Raft groups in memory.

A disk that can lose data, a network that can misbehave, scripts and chaos.
"""
