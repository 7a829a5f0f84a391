"""Interfaces of the deterministic layers to the outside, as structural types.

Adapters and the test kit implement them.
"""
