"""The kubectl plugin: shows clusters and requests changes, with the rights of its user.

It changes nothing except annotations of `LiftbridgeCluster` resources; the operator decides what
follows from them. `cli` parses and prints; `describe`, `annotate` and `bundle` are the commands;
`port` is their interface to the API server.
"""
