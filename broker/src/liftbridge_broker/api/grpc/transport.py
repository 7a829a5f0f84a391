"""The gRPC server: the table of methods, listening, draining, counting.

Bytes go through `liftbridge_broker.http2`, one `GrpcConnection` for each client; services register
handlers and get `Call` objects.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from liftbridge_broker.api.grpc.call import MAIN_LISTENER, Authorize, Call, allow
from liftbridge_broker.api.grpc.connection import GrpcConnection
from liftbridge_broker.api.grpc.identities import OutlivedCalls
from liftbridge_broker.api.grpc.listener import Listener, bound_sockets
from liftbridge_broker.api.grpc.resets import RESETS_MAX, Resets
from liftbridge_broker.api.grpc.sockets import source_of
from liftbridge_broker.api.grpc.tls import ServerTls
from liftbridge_broker.api.grpc.turns import Turns
from liftbridge_broker.errors import GrpcStatus
from liftbridge_broker.http2.events import ConnectionEnded
from liftbridge_broker.http2.limits import Limits
from liftbridge_broker.http2.slots import ConnectionSlots, ConnectionState
from liftbridge_broker.ports.authenticator import Authenticator
from liftbridge_broker.ports.observe import Observer

UnaryHandler = Callable[[Call, bytes], Iterator[None] | None]
"""Answers a call: immediately, later, or in the steps that it returns (`Call.on_half_close`)."""

StreamHandler = Callable[[Call], None]

HELD_BYTES_MAX: Final = 256 << 20
"""Maximum number of bytes of requests, and of answers, that all connections hold together."""

CLOSE_SECONDS: Final = 2.0


@dataclass(slots=True)
class ServerStats:
    """Plain counters of a server, read at scrape time.

    Attributes:
        connections_open: Open connections.
        connections_total: Connections ever accepted.
        streams_open: Open calls.
        bytes_received: Bytes read from sockets, after TLS.
        bytes_sent: Bytes passed to sockets, before TLS.
        requests: Finished calls by method path (`unknown` for paths without a handler) and status.
        protocol_errors: Connections ended for an error, by HTTP/2 error code.
        floods: Connections ended for abuse, by kind.
        received_held: Bytes of open calls, and of requests that are incomplete or wait for a
            turn.
        unsent_held: Bytes of answers that wait to be sent.
        sheds: Number of times the largest user was shed because the total exceeded its limit, by
            kind.
    """

    connections_open: int = 0
    connections_total: int = 0
    streams_open: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    requests: dict[tuple[str, int], int] = field(default_factory=dict)
    protocol_errors: dict[int, int] = field(default_factory=dict)
    floods: dict[str, int] = field(default_factory=dict)
    received_held: int = 0
    unsent_held: int = 0
    sheds: dict[str, int] = field(default_factory=lambda: {"receive": 0, "send": 0})


class _UnaryRequest:
    """Collects the one request of a unary call."""

    __slots__ = ("_call", "_handler", "_messages")

    def __init__(self, call: Call, handler: UnaryHandler) -> None:
        self._call = call
        self._handler = handler
        self._messages: list[bytes] = []

    def on_messages(self, messages: list[bytes]) -> None:
        """Keep the request; refuse a second one."""
        self._messages += messages
        if len(self._messages) > 1:
            text = "more than one request message in a unary call"
            self._call.finish(GrpcStatus.INTERNAL, text)
        else:
            self._call.keep(len(self._messages[0]))

    def on_half_close(self) -> Iterator[None] | None:
        """Pass on the request."""
        if not self._messages:
            self._call.finish(GrpcStatus.INTERNAL, "no request message in a unary call")
            return None
        return self._handler(self._call, self._messages[0])


class GrpcServer:
    """Serves gRPC over HTTP/2; handlers run on the event loop and must not block.

    It may have several addresses, called listeners, which share methods, limits and counters; a
    call has the name of its listener.

    A handler, or a callback of its call except `on_cancel`, may raise a `LiftbridgeError`: the call
    then finishes with its status and text. Any other exception is a bug: it closes the connection
    and reaches the loop's exception handler.

    Attributes:
        limits: Bounds of each connection.
        stats: Counters.
        turns: Scheduler of the connections' work.
        authenticator: Finds out who calls; None if everyone is anonymous.
        outlived: Ends calls that outlive the identity they began with.
        authorize: Refuses calls that the caller may not make; see `Call.authorize`.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        connections_max: int = 10_000,
        receive_bytes_max: int = HELD_BYTES_MAX,
        send_bytes_max: int = HELD_BYTES_MAX,
        resets_max: int = RESETS_MAX,
        files_max: int = sys.maxsize,
        observer: Observer | None = None,
        authenticator: Authenticator | None = None,
        authorize: Authorize = allow,
    ) -> None:
        self.authorize = authorize
        self.limits = limits or Limits()
        self.stats = ServerStats()
        self.turns = Turns()
        self.authenticator = authenticator
        self.outlived = OutlivedCalls(self.turns)
        self._connections_max = connections_max
        self._receive_bytes_max = receive_bytes_max
        self._send_bytes_max = send_bytes_max
        self._resets_max = resets_max
        self._files_max = files_max
        self._resets: Resets[GrpcConnection] = Resets(resets_max)
        self._observer = observer
        self._methods: dict[str, StreamHandler] = {}
        self._unary_methods: set[str] = set()
        self._open_methods: set[str] = set()
        self._connections: dict[GrpcConnection, None] = {}
        self._slots: ConnectionSlots[GrpcConnection] = ConnectionSlots(connections_max)
        self._listeners: dict[str, Listener] = {}
        self._emptied = asyncio.Event()
        self._is_stopping = False

    def unary(self, path: str, handler: UnaryHandler) -> None:
        """Serve a unary method: `handler` gets the call and its one request.

        The handler answers exactly once, immediately or later, by `call.reply` or by `call.finish`
        with a code.
        """

        def take(call: Call) -> None:
            request = _UnaryRequest(call, handler)
            call.on_messages = request.on_messages
            call.on_half_close = request.on_half_close
            call.expect_request()

        self.streaming(path, take)
        self._unary_methods.add(path)

    def streaming(self, path: str, handler: StreamHandler) -> None:
        """Serve a method that streams in either direction; `handler` installs the callbacks."""
        assert path.startswith("/")
        assert path not in self._methods
        self._methods[path] = handler

    def open_to_all(self, path: str) -> None:
        """Serve a registered method to callers without an identity too."""
        assert path in self._methods
        self._open_methods.add(path)

    @property
    def services(self) -> list[str]:
        """Full names of the services with a registered method, sorted."""
        return sorted({path[1:].rpartition("/")[0] for path in self._methods})

    async def start(self, host: str, port: int, tls: ServerTls | None = None) -> int:
        """Bind and listen; see `bind` and `listen`. May be called once."""
        port = await self.bind(host, port, tls)
        self.listen()
        return port

    async def bind(
        self,
        host: str,
        port: int,
        tls: ServerTls | None = None,
        *,
        listener: str = MAIN_LISTENER,
    ) -> int:
        """Bind an address; connections are refused until `listen`. Once for each listener.

        Returns:
            The port, even when 0 was requested.

        Raises:
            OSError: The address cannot be used.
        """
        assert listener not in self._listeners
        bound = Listener(
            await bound_sockets(host, port),
            lambda: GrpcConnection(self, listener),
            tls,
            greetings_max=self._connections_max,
            files_max=self._files_max,
            on_refused=self._on_none_accepted,
        )
        self._listeners[listener] = bound
        return bound.port

    def listen(self, listener: str = MAIN_LISTENER) -> None:
        """Accept connections at a bound address.

        Raises:
            OSError: Another process took the address after `bind`.
        """
        self._listeners[listener].listen()

    async def drain(self, grace: float) -> bool:
        """Accept no new connection, let running calls end for `grace` seconds, then close all.

        Streaming calls would never end: they are ended at once, after their queued bytes.

        Returns:
            Whether every call ended in time.
        """
        self._stop_listening()
        for connection in list(self._connections):
            connection.end_streams("broker is stopping")
            connection.begin_drain()
        await self._wait_until_empty(grace)
        is_empty = not self._connections
        await self.close()
        return is_empty

    async def close(self) -> None:
        """Stop listening and end every connection; calls are cancelled."""
        self._stop_listening()
        for connection in list(self._connections):
            connection.close()
        await self._wait_until_empty(CLOSE_SECONDS)

    def _stop_listening(self) -> None:
        """Close the listening sockets."""
        self._is_stopping = True
        self.outlived.close()
        for listener in self._listeners.values():
            listener.close()

    def _on_none_accepted(self, error: OSError) -> None:
        """Report that the system refused a connection, for lack of files or memory."""
        if self._observer is not None:
            self._observer.transition("grpc_accept_failed", {"reason": error.strerror or ""})

    async def _wait_until_empty(self, seconds: float) -> None:
        """Wait until no connection is left, for at most `seconds`."""
        if self._connections:
            self._emptied.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._emptied.wait()
            except TimeoutError:
                return

    # Calls of connections.

    def on_open(self, connection: GrpcConnection, now: int) -> bool:
        """Count a connection; if there is no free slot, evict another.

        Return whether it got a slot.
        """
        self._connections[connection] = None
        self.stats.connections_open += 1
        self.stats.connections_total += 1
        has_slot, evicted = self._slots.admit(connection, source_of(connection.peer), now)
        if evicted is not None:
            evicted.evict(
                f"all {self._connections_max} connections are taken (grpc.max.connections) and "
                "this one had no open call: it was closed for a new one; connect again to call"
            )
        if self._is_stopping:  # it was being started
            connection.close()
        return has_slot

    def on_state(
        self, connection: GrpcConnection, state: ConnectionState, idle_since_ns: int
    ) -> None:
        """Note the state of a connection, by which it may be evicted."""
        self._slots.update(connection, state, idle_since_ns)

    def on_closed(self, connection: GrpcConnection) -> None:
        """Forget a connection."""
        del self._connections[connection]
        self._slots.release(connection)
        self._resets.forget(connection)
        self.outlived.forget(connection)
        self.stats.connections_open -= 1
        if not self._connections:
            self._emptied.set()

    def on_ended(self, peer: str, event: ConnectionEnded) -> None:
        """Count why a connection ended, and report it when the client caused it."""
        if event.code:
            errors = self.stats.protocol_errors
            errors[event.code] = errors.get(event.code, 0) + 1
        if event.flood:
            floods = self.stats.floods
            floods[event.flood] = floods.get(event.flood, 0) + 1
        if self._observer is not None and (event.code or event.flood):
            fields = {"peer": peer, "code": event.code, "text": event.text, "flood": event.flood}
            self._observer.transition("grpc_connection_refused", fields)

    def on_held(self, received: int, unsent: int) -> None:
        """Count bytes held by connections; above the limit, shed the connection that holds most."""
        stats = self.stats
        stats.received_held += received
        stats.unsent_held += unsent
        if received > 0 and stats.received_held > self._receive_bytes_max:
            largest = max(self._connections, key=lambda one: one.held.received)
            held, limit = largest.held.received, self._receive_bytes_max
            self._report_shed("receive", largest, held, limit)
            largest.shed_requests(
                f"calls and incomplete requests of all connections hold more than {limit} bytes "
                f"(grpc.receive.max.bytes), those of this one most of it: {held}; end some "
                "before beginning others"
            )
        if unsent > 0 and stats.unsent_held > self._send_bytes_max:
            largest = max(self._connections, key=lambda one: one.held.unsent)
            held, limit = largest.held.unsent, self._send_bytes_max
            self._report_shed("send", largest, held, limit)
            largest.shed_answers(
                f"unread answers of all connections hold more than {limit} bytes "
                f"(grpc.send.max.bytes), those of this one most of it: {held}; read them"
            )

    def _report_shed(self, kind: str, largest: GrpcConnection, held: int, limit: int) -> None:
        """Count and report a shed connection."""
        self.stats.sheds[kind] += 1
        if self._observer is not None:
            fields = {"peer": largest.peer, "kind": kind, "bytes": held, "limit": limit}
            self._observer.transition("grpc_largest_user_shed", fields)

    def on_resets(self, connection: GrpcConnection, resets: int, now: int) -> None:
        """Count resets; above the limit, end the connection with the most resets."""
        largest = self._resets.count(connection, resets, now)
        if largest is not None:
            one, most = largest
            one.shed_resets(
                f"all connections together reset more than {self._resets_max} streams in a second, "
                f"this one most of them: {most}; let calls end or live longer"
            )

    def on_bytes(self, *, received: int = 0, sent: int = 0) -> None:
        """Count bytes."""
        self.stats.bytes_received += received
        self.stats.bytes_sent += sent

    def on_call_opened(self) -> None:
        """Count a call."""
        self.stats.streams_open += 1

    def on_call_ended(self, method: str, code: int) -> None:
        """Count the end of a call."""
        stats = self.stats
        stats.streams_open -= 1
        key = (method, int(code))
        stats.requests[key] = stats.requests.get(key, 0) + 1

    def method(self, path: str) -> StreamHandler | None:
        """Return the handler of a path."""
        return self._methods.get(path)

    def needs_identity(self, path: str) -> bool:
        """Return whether a call of a method must come from an accepted identity."""
        return path not in self._open_methods

    def is_unary(self, path: str) -> bool:
        """Return whether a method answers one request and ends."""
        return path in self._unary_methods

    def unknown_method_text(self, path: str) -> str:
        """Return the error text for a path without a handler, as in other gRPC servers."""
        service, separator, name = path[1:].rpartition("/")
        if not path.startswith("/") or not separator:
            return f"malformed method name: {path!r}"
        if any(known.startswith(f"/{service}/") for known in self._methods):
            return f"unknown method {name} for service {service}"
        return f"unknown service {service}"
