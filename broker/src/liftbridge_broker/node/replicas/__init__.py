"""Replicas on this broker: applied metadata, leading, following, fetch sessions."""
