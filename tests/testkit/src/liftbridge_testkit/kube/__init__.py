"""Around the Kubernetes cluster of the end-to-end tests: what it needs, which one, its audit log.

The cluster itself is made by the scripts in `tests/e2e/cluster`, which call this with the
machine's own Python: only the standard library is used here.
"""
