"""What the operator does with the API server: the port, the kinds it knows, the adapter.

Everything above works on `port.Kube`; `client` is the one place that knows the library. Objects are
plain dictionaries, as they stand in JSON, and belong to whoever was handed them.
"""
