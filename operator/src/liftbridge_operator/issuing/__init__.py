"""Keys and certificates: the one place that knows the library, chance and the clock."""
