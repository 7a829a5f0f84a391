"""Channels to the port of brokers that operators use."""

from typing import Final

import grpc
import grpc.aio

MESSAGE_BYTES_MAX: Final = 16 << 20

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # A pod that was made again has another address, and gRPC would ask for it after 30 s.
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
)


def open_channel(address: str, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    """A channel that soon finds a broker that comes back, and soon notices one that hangs.

    Args:
        address: Host and port.
        credentials: To trust and to show; None is plaintext, offered on loopback only.
    """
    if credentials is None:
        return grpc.aio.insecure_channel(address, list(_OPTIONS))
    return grpc.aio.secure_channel(address, credentials, list(_OPTIONS))
