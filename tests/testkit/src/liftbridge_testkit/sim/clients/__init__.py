"""Who uses the brokers: publishers, readers, administrators, each with a life of its own."""
