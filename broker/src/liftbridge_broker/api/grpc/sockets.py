"""State and address of the sockets of clients."""

import asyncio
import socket
from collections.abc import Callable
from ipaddress import IPv6Address
from typing import Final

_CLOSED: Final = 7
_CLOSE_WAIT: Final = 8
"""States of `TCP_INFO` on Linux."""

_NETWORK_TEXT: Final = 19


def is_reset(client: socket.socket | asyncio.Transport) -> bool:
    """Return whether the client reset the connection, which the loop notices only at a read."""
    if isinstance(client, socket.socket):
        return _state(client.getsockopt) == _CLOSED
    # Once it is closing, the number of its file may belong to another connection.
    found = None if client.is_closing() else client.get_extra_info("socket")
    return found is not None and _state(found.getsockopt) == _CLOSED


def has_closed(client: socket.socket) -> bool:
    """Return whether the client closed its side."""
    return _state(client.getsockopt) == _CLOSE_WAIT


def _state(read_option: Callable[[int, int, int], bytes]) -> int:
    """State of the connection, from an option of its socket; 0 where the system has none."""
    if not hasattr(socket, "TCP_INFO"):  # the in-memory broker runs elsewhere than on Linux, too
        return 0
    return read_option(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


def peer_text(name: object) -> str:
    """Format the address of a peer as `host:port`, with brackets around an IPv6 address."""
    if isinstance(name, tuple) and len(name) >= 2:
        host, port = name[0], name[1]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return str(name or "unknown")


def source_of(peer: str) -> str:
    """Return the host of a peer; for an IPv6 address, its network half (RFC 4291 2.5.4)."""
    host = peer.rpartition(":")[0]
    if not host.startswith("["):
        return host
    return IPv6Address(host[1:-1].partition("%")[0]).exploded[:_NETWORK_TEXT]
