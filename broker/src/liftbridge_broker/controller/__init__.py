"""The metadata of the cluster as a deterministic state machine (C1 to C21).

A log entry is a *command*; `decide` holds every guard and turns it into *records*, `replay` changes
the state by them. No I/O, no clock: the command carries all input besides the state.
"""
