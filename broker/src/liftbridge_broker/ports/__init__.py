"""Interfaces of the deterministic layers to the outside, as structural types.

Adapters, storage, the node and the test kit implement them.
"""
