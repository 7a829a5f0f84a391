"""The broker without I/O: partitions, metadata and subscriptions over ports, synchronous code."""
