"""Master keys: from a file, the environment, or a program that asks a key service."""
