"""Turns of the event loop and time: deadlines, long work in steps, cluster time."""
