"""The metadata of the cluster as a deterministic state machine (replication protocol 1.3, 1.5).

A log entry is a *command*; `decide` holds every guard and turns it into *records*, `replay` changes
the state by them. No I/O, no clock: the command carries all input besides the state.
"""
