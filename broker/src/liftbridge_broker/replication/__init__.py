"""Partition cores.

The leader, its followers, and their state derived from the log (L1 to L8, F1 to F5).
"""
