"""What the deterministic layers ask of the outside, as structural types; adapters and the test kit implement them."""
