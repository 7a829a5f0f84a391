"""Bytes of the log: record frames, batches, index blocks. Pure functions, no files, no clock."""
