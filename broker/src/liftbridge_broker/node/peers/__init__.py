"""Messages to and from other brokers: sessions of their processes, signatures, dispatch."""
