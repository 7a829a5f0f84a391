"""One partition of this broker: intake, checks, sealing, pending acks, its role."""
