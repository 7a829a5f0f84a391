"""Encrypted streams on this broker: their creation, rotation of master keys, and its report."""
