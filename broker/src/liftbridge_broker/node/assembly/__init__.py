"""The broker on its ports: builds all parts, starts them, and stops them in order."""
