"""Ports on the real world: NATS, files, clocks, logs. The only place below `api` with I/O."""
