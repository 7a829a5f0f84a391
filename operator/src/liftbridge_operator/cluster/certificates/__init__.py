"""Certificates: subject names, time of renewal, and order of the rollout."""
