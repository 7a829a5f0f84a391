"""The Liftbridge broker: durable, replicated message streams on top of NATS."""
