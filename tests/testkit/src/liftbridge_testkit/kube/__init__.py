"""Tools for the Kubernetes cluster of the end-to-end tests: requirements, choice, audit log.

The scripts in `tests/e2e/cluster` create the cluster and call this package with the machine's own
Python, so it uses only the standard library.
"""
