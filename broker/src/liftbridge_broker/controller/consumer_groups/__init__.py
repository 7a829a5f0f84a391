"""Decisions about consumer groups: members, assignments, coordinators."""
