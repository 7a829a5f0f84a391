"""Certificates: their names, when they are renewed, and in which order they are rolled out."""
