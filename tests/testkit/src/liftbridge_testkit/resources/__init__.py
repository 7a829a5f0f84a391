"""What the API server does with a custom resource, as far as it can be done without one.

`schema` fills in defaults and checks types and bounds, `rules` evaluates CEL, `examples` reads the
tables of accepted and refused objects that are also given to a real API server.
"""
