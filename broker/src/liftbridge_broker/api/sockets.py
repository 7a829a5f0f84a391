"""State and address of the sockets of clients."""

import asyncio
import socket
from typing import Final, Protocol

_CLOSED: Final = 7
_CLOSE_WAIT: Final = 8
"""States of `TCP_INFO` on Linux."""


class _HasOptions(Protocol):
    """A socket, or a transport's view of a socket."""

    def getsockopt(self, level: int, name: int, size: int, /) -> bytes: ...


def is_reset(client: socket.socket | asyncio.Transport) -> bool:
    """Return whether the client reset the connection, which the loop notices only at a read."""
    if isinstance(client, socket.socket):
        return _state(client) == _CLOSED
    # Once it is closing, its file descriptor may belong to another connection.
    found = None if client.is_closing() else client.get_extra_info("socket")
    return found is not None and _state(found) == _CLOSED


def has_closed(client: socket.socket) -> bool:
    """Return whether the client closed its side."""
    return _state(client) == _CLOSE_WAIT


def _state(client: _HasOptions) -> int:
    """Return the state of the connection; 0 if the system does not report it."""
    if not hasattr(socket, "TCP_INFO"):  # the in-memory broker runs on any system
        return 0
    return client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


def peer_text(name: object) -> str:
    """Format the address of a peer as `host:port`, with brackets around an IPv6 address."""
    if isinstance(name, tuple) and len(name) >= 2:
        host, port = name[0], name[1]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return str(name or "unknown")
