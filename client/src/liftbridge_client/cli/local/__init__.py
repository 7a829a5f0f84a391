"""Brokers as child processes of a command: `liftbridge dev` and `liftbridge demo`."""
