"""The asyncio side of the gRPC server: sockets, timers and the table of methods.

Bytes go through `liftbridge_broker.http2`; services register handlers and get `Call` objects.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from liftbridge_broker.api.call import Call
from liftbridge_broker.http2.limits import Limits

UnaryHandler = Callable[[Call, bytes], None]
StreamHandler = Callable[[Call], None]


@dataclass(slots=True)
class ServerStats:
    """Plain counters of a server, read at scrape time.

    Attributes:
        connections_open: Connections now.
        connections_total: Connections ever accepted.
        streams_open: Calls now.
        bytes_received: Bytes read from sockets, after TLS.
        bytes_sent: Bytes handed to sockets, before TLS.
        requests: Finished calls by method path (`unknown` for paths without a handler) and status.
        protocol_errors: Connections ended for an error, by HTTP/2 error code.
        floods: Connections ended for abuse, by kind.
    """

    connections_open: int = 0
    connections_total: int = 0
    streams_open: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    requests: dict[tuple[str, int], int] = field(default_factory=dict)
    protocol_errors: dict[int, int] = field(default_factory=dict)
    floods: dict[str, int] = field(default_factory=dict)


class GrpcServer(Protocol):
    """Serves gRPC over HTTP/2 on one address; handlers run on the event loop and must not block.

    Constructor: `GrpcServer(limits: Limits = Limits(), *, connections_max: int = 10_000)`.

    A handler, or a callback of its call, may raise a `LiftbridgeError`: the call then finishes with
    its status and text. Any other exception is a bug: it reaches the loop's exception handler.
    """

    limits: Limits
    stats: ServerStats

    def unary(self, path: str, handler: UnaryHandler) -> None:
        """Serve a unary method: `handler` gets the call and its one request.

        It answers then or later by `call.reply`, or `call.finish` with a code, exactly once.
        """
        ...

    def streaming(self, path: str, handler: StreamHandler) -> None:
        """Serve a method that streams in either direction; `handler` installs the callbacks."""
        ...

    async def start(self, host: str, port: int, ssl_context: ssl.SSLContext | None = None) -> int:
        """Listen; the port, also when 0 was asked for. May be called once."""
        ...

    async def drain(self, grace: float) -> None:
        """Take no new call, let running ones end for `grace` seconds, then close everything."""
        ...

    async def close(self) -> None:
        """Stop listening and cut every connection; calls are cancelled."""
        ...
