"""Addresses of brokers: `host:port`, several with commas, optionally as a `liftbridge://` URL."""

from typing import Final

from liftbridge_client.errors import UsageError

SCHEME: Final = "liftbridge://"
PORT_DEFAULT: Final = 9292
ADMIN_PORT: Final = 9294
"""Default port of a broker."""


def parse_addresses(text: str, port: int = PORT_DEFAULT) -> tuple[str, ...]:
    """Split and check a list of addresses; `port` is for those that name none.

    Raises:
        UsageError: An address is empty or its port is no number from 1 to 65535.
    """
    addresses = tuple(_parse(part.strip(), port) for part in text.removeprefix(SCHEME).split(","))
    return tuple(dict.fromkeys(addresses))


def written(host: str, port: int) -> str:
    """Format an address to connect to, with IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _parse(address: str, port_default: int) -> str:
    host, colon, port = address.rpartition(":")
    if not colon or (address.startswith("[") and address.endswith("]")):
        host, port = address, str(port_default)
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"address {address!r}: must be HOST or HOST:PORT")
    return f"{host}:{port}"
