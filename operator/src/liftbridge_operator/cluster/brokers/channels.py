"""gRPC channels to the admin port of brokers."""

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
    # A recreated pod has another address, which gRPC would resolve only after 30 s.
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
)


def open_channel(address: str, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    """Open a channel that reconnects quickly to a restarted broker, and soon notices a hung one.

    Args:
        address: Host and port.
        credentials: CA and client certificate; None for plaintext, which brokers offer on loopback
            only.
    """
    if credentials is None:
        return grpc.aio.insecure_channel(address, list(_OPTIONS))
    return grpc.aio.secure_channel(address, credentials, list(_OPTIONS))
