"""Retention and compaction: what is removed from logs, and when."""
