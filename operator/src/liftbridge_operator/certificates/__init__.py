"""Certificates: what stands in them, when they are made anew, and in which order they go around."""
