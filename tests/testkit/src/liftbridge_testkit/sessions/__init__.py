"""Some partitions on three brokers with the shipped fetch sessions, cores and controller."""
