"""What the deterministic layers ask of the outside, as structural types.

Adapters and the test kit implement them.
"""
