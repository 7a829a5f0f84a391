"""Cores of client state kept by brokers: cursors."""
