"""Evaluate custom resources as the API server does, as far as possible without one.

`schema` fills in defaults and checks types and bounds, `rules` evaluates CEL, `examples` reads the
tables of accepted and refused objects, which also run against a real API server.
"""
