"""Long check of consumer groups on real brokers; `python -m liftbridge_testkit.consumers`."""
