"""Proves who a caller is: client certificates, JSON web tokens, API tokens of the cluster."""
