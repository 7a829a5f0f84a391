"""Bytes between the broker and NATS or clients, in both directions: envelopes, acks, subjects.

Deterministic; protobuf is allowed. Offsets here are the inclusive ones of the wire.
"""
