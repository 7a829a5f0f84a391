"""Delivers messages to their partition: from NATS, and over NATS to other brokers."""
