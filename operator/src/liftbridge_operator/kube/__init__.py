"""Access to the API server: the port, the known kinds, the adapter.

Everything above works on `port.Kube`; only `client` and `user` know the library. Objects are plain
dictionaries in JSON form, and belong to the caller that received them.
"""
