"""From what the planner decided to calls: of the API server, and of brokers."""
