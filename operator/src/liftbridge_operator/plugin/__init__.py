"""The plugin of kubectl: what a person looks at and asks for, with the rights of that person.

It reads and annotates `LiftbridgeCluster` resources, and nothing else is ever changed: what follows
from an annotation is the operator's to decide. `cli` parses and prints; `describe`, `annotate` and
`bundle` are the commands; `port` is the API server as they know it.
"""
