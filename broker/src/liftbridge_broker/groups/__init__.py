"""Cores of what clients keep at the broker: cursors."""
