"""Real implementations of the ports: NATS, files, clocks, logs. The only I/O below `api`."""
