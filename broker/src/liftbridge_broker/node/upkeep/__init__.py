"""Periodic work: scrubbing, auto pause, retention cursors, restart checks."""
