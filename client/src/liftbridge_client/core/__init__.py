"""What the client decides and decodes, without I/O."""
