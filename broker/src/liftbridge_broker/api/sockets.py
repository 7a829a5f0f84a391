"""Facts about the sockets of clients."""

import socket
from typing import Final, Protocol

_CLOSED: Final = 7
_CLOSE_WAIT: Final = 8
"""States of `TCP_INFO` on Linux."""


class _HasOptions(Protocol):
    """A socket, or the view of one that a transport gives."""

    def getsockopt(self, level: int, name: int, size: int, /) -> bytes: ...


def is_reset(client: _HasOptions | None) -> bool:
    """Whether the client reset the connection, which the loop does not notice before it reads."""
    return client is not None and _state(client) == _CLOSED


def has_closed(client: _HasOptions) -> bool:
    """Whether the client closed its side."""
    return _state(client) == _CLOSE_WAIT


def _state(client: _HasOptions) -> int:
    return client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


def peer_text(name: object) -> str:
    """Address of a peer as `host:port`, with brackets around an IPv6 address."""
    if isinstance(name, tuple) and len(name) >= 2:
        host, port = name[0], name[1]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return str(name or "unknown")
