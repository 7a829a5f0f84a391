"""The broker without I/O: partitions, metadata and subscriptions over ports, plain synchronous code."""
