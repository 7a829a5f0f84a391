"""Bytes that leave the broker towards NATS and clients, and back: envelopes, acks, subjects.

Deterministic; protobuf is allowed. Offsets here are the inclusive ones of the wire.
"""
