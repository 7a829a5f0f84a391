"""Resolution of a host name to gRPC targets that can be tried one by one."""

import asyncio
import socket


async def targets_of(address: str) -> list[str]:
    """Resolve a host to gRPC targets with its port, in the resolver's order.

    Raises:
        OSError: The host is unknown.
        UnicodeError: It is not a valid name.
    """
    host, _, port = address.rpartition(":")
    infos = await asyncio.get_running_loop().getaddrinfo(
        host.removeprefix("[").removesuffix("]"), int(port), type=socket.SOCK_STREAM
    )
    return [
        f"ipv6:[{sockaddr[0]}]:{port}"
        if family is socket.AF_INET6
        else f"ipv4:{sockaddr[0]}:{port}"
        for family, _, _, _, sockaddr in infos
    ]
