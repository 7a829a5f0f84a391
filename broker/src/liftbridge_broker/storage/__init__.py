"""Segments, journal, recovery, retention and compaction over the port `Files`; deterministic."""
