"""Decisions and codecs of the client, without I/O."""
