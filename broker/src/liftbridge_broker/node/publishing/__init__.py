"""How messages reach their partition: from NATS, and over NATS to other brokers."""
