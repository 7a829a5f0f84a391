"""Reads from a partition: subscriptions, bulk reads, cursors, answers about offsets."""
