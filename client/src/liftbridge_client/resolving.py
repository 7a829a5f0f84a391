"""The addresses of a name, as targets that gRPC can be pointed at one by one."""

import asyncio
import socket


async def targets_of(address: str) -> list[str]:
    """Targets of the addresses of a host, with its port, in the order in which they are told.

    Raises:
        OSError: The host is not known.
        UnicodeError: It cannot be a name.
    """
    host, _, port = address.rpartition(":")
    found = await asyncio.get_running_loop().getaddrinfo(
        host.removeprefix("[").removesuffix("]"), int(port), type=socket.SOCK_STREAM
    )
    return [
        f"ipv6:[{told[0]}]:{port}" if family is socket.AF_INET6 else f"ipv4:{told[0]}:{port}"
        for family, _, _, _, told in found
    ]
