"""Decisions about callers: their tokens, what they may do, and how much they may use."""
