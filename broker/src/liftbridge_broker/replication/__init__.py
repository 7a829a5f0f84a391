"""Partition cores: state that every replica derives from the same log (L1 to L8, F1 to F5)."""
