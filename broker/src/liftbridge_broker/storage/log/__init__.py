"""The log of one partition: segments, indexes, readers and recovery."""
