"""Issue keys and certificates: the only place that knows the library and its randomness."""
