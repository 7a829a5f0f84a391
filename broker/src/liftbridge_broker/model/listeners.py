"""Further listeners: names under which brokers serve clients at additional addresses."""

import re
from typing import Final, NamedTuple

LISTENERS_MAX: Final = 8
"""Further listeners per broker."""

HOST_LENGTH_MAX: Final = 255
PORT_MAX: Final = 65_535
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")


class ListenerAddress(NamedTuple):
    """Address of a broker at one of its further listeners.

    Attributes:
        name: Listener; every broker uses this name for it.
        host: Advertised host.
        port: Advertised port.
    """

    name: str
    host: str
    port: int


def is_listener_name(text: str) -> bool:
    """Return whether a text is 1 to 40 lower-case letters, digits and dashes, no dash at an end."""
    return _NAME.fullmatch(text) is not None


def fault_of(listeners: tuple[ListenerAddress, ...]) -> str:
    """The rule that advertised addresses of a broker break; empty when none."""
    if len(listeners) > LISTENERS_MAX:
        return f"{len(listeners)} listed, at most {LISTENERS_MAX}"
    if len({listener.name for listener in listeners}) < len(listeners):
        return "a name is listed twice"
    for name, host, port in listeners:
        if not is_listener_name(name):
            return f"{name[:40]!r} must be 1 to 40 letters a-z, digits and dashes"
        if not host or len(host) > HOST_LENGTH_MAX or not host.isprintable():
            return f"{name} needs a host of 1 to {HOST_LENGTH_MAX} printable characters"
        if not 0 < port <= PORT_MAX:
            return f"{name} needs a port from 1 to {PORT_MAX}"
    return ""
