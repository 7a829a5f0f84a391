"""A listening address: serves a few new connections in each turn of the event loop.

Event loops accept all waiting connections in one turn, up to the backlog, and start a handshake
with every client whose first message has arrived. A thousand TLS handshakes in a row block the loop
for 0.4 s. So this listener queues clients and starts a few in each turn. TLS clients join the queue
once the whole `ClientHello` has arrived (RFC 8446 4.1.2), whose handling is the expensive part.

Connections that clients end while they wait cost almost nothing, so that a flood of short
connections does not fill the kernel's queue.
"""

import asyncio
import contextlib
import errno
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from liftbridge_broker.api.grpc.sockets import has_closed, is_reset
from liftbridge_broker.api.grpc.tls import ServerTls

LISTEN_BACKLOG: Final = 65_535
"""Clients in the kernel's queue; the kernel allows fewer, 4096 by default (`somaxconn`). Once it is
full, packets of new clients are dropped: they try again after 1, 3, 7, 15, ... seconds."""

ACCEPTS_MAX: Final = 128
"""Connections taken from the kernel's queue in one turn; each costs some 15 us."""

LINE_MAX: Final = 256
"""Maximum number of clear text clients in the listener's queue."""

STARTS_MAX: Final = 16
"""Clear text connections started in one turn; each costs some 70 us."""

HANDSHAKES_MAX: Final = 4
"""TLS handshakes started in one turn; each costs some 0.5 ms, with RSA 1 ms."""

HANDSHAKE_SECONDS: Final = 10.0
ACCEPT_AGAIN_SECONDS: Final = 1.0
"""Pause after the system refused a connection, mostly for lack of file descriptors."""

_RECORD_BYTES: Final = 5
_RECORD_BYTES_MAX: Final = _RECORD_BYTES + (1 << 14)
_HEAD_BYTES: Final = 9
"""Header of a record (type, version, length) and of the message in it (type, length)."""

_HANDSHAKE: Final = 22


@dataclass(slots=True)
class _Greeting:
    """A client whose first message is incomplete.

    Attributes:
        timer: Ends the wait for the message.
        needed: Bytes to inspect next: the headers, then the record.
        is_marked: Whether the kernel signals only when `needed` bytes have arrived.
    """

    timer: asyncio.TimerHandle
    needed: int = _HEAD_BYTES
    is_marked: bool = False


class Listener:
    """Listening socket that starts a few connections in each turn of the loop.

    Args:
        sockets: Bound; see `bound_sockets`.
        make: Creates the protocol of a connection.
        tls: TLS of the listener, `None` for clear text.
        greetings_max: Maximum number of connected clients that have not sent a whole first message.
        files_max: File descriptor number from which on a connection is closed at once. The system
            assigns the lowest free number: higher ones are reserved for other uses than clients.
        on_refused: Called with the reason why no connection was accepted.
    """

    def __init__(
        self,
        sockets: list[socket.socket],
        make: Callable[[], asyncio.BaseProtocol],
        tls: ServerTls | None,
        *,
        greetings_max: int,
        files_max: int,
        on_refused: Callable[[OSError], None],
    ) -> None:
        """Create the listener; it admits no client yet."""
        self._loop = asyncio.get_running_loop()
        self._sockets = sockets
        self._make = make
        self._tls = tls
        self._greetings_max = greetings_max
        self._files_max = files_max
        self._on_refused = on_refused
        self._greetings: dict[socket.socket, _Greeting] = {}
        self._line: deque[socket.socket] = deque()
        self._taken: dict[socket.socket, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}
        self._is_closed = False

    @property
    def port(self) -> int:
        """Port of the first address."""
        port: int = self._sockets[0].getsockname()[1]
        return port

    def listen(self) -> None:
        """Accept clients.

        Raises:
            OSError: Another process took the address after the bind.
        """
        for each in self._sockets:
            each.listen(LISTEN_BACKLOG)
            self._loop.add_reader(each, self._accept, each)

    def close(self) -> None:
        """Accept no more clients, and drop those before the handshake; may be called twice.

        Clear text connections that are being started are still made within a turn or two, and their
        owner ends them: event loops close a cancelled connection without `connection_lost`.
        """
        if self._is_closed:
            return
        self._is_closed = True
        for timer in self._pauses.values():
            timer.cancel()
        for each in self._sockets:
            self._loop.remove_reader(each)
            each.close()
        for each in list(self._greetings):
            self._drop(each)
        while self._line:
            self._line.popleft().close()
        if self._tls is not None:
            for task in self._tasks:
                task.cancel()
            for each in self._taken:
                each.close()  # a task cancelled before it starts has no socket

    def _accept(self, listening: socket.socket) -> None:
        """Accept some waiting clients; the rest in the next turn."""
        for _ in range(min(ACCEPTS_MAX, LINE_MAX - len(self._line))):
            try:
                client = self._accepted(listening)
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # The listening socket stays readable: an immediate retry would consume all turns.
                self._loop.remove_reader(listening)
                self._pauses[listening] = self._loop.call_later(
                    ACCEPT_AGAIN_SECONDS, self._loop.add_reader, listening, self._accept, listening
                )
                self._on_refused(error)
                return
            client.settimeout(0)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is None:
                self._enqueue(client)
            else:
                if len(self._greetings) >= self._greetings_max:
                    longest_silent = next(iter(self._greetings))
                    self._drop(longest_silent)
                timer = self._loop.call_later(HANDSHAKE_SECONDS, self._drop, client)
                self._greetings[client] = _Greeting(timer)
                self._loop.add_reader(client, self._on_greeting, client)

    def _accepted(self, listening: socket.socket) -> socket.socket:
        """Accept a connection.

        Raises:
            OSError: No connection waits, or the system refuses it.
        """
        client, _ = listening.accept()
        if client.fileno() >= self._files_max:
            client.close()
            raise OSError(errno.EMFILE, "connections use all files that are not reserved for logs")
        return client

    def _on_greeting(self, client: socket.socket) -> None:
        """Queue a client once its first message has arrived."""
        greeting = self._greetings[client]
        while True:
            try:
                begun = client.recv(greeting.needed, socket.MSG_PEEK)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self._drop(client)
                return
            if len(begun) < greeting.needed:
                if greeting.is_marked or not begun:
                    self._drop(client)  # the client has closed its side, or disconnected
                else:
                    self._mark(client, greeting.needed)
                    greeting.is_marked = True
                return
            if greeting.needed > _HEAD_BYTES or begun[0] != _HANDSHAKE:
                break  # OpenSSL answers anything else
            record = _RECORD_BYTES + int.from_bytes(begun[3:5], "big")
            message = _HEAD_BYTES + int.from_bytes(begun[6:9], "big")
            if not message <= record <= _RECORD_BYTES_MAX:
                self._drop(client)  # no honest client sends it in several records
                return
            greeting.needed, greeting.is_marked = max(record, _HEAD_BYTES + 1), False
        self._forget(client)
        self._mark(client, 1)
        self._enqueue(client)

    def _enqueue(self, client: socket.socket) -> None:
        self._line.append(client)
        if len(self._line) == 1:
            self._loop.call_soon(self._start)

    def _start(self) -> None:
        """Start connections with a few queued clients, and close those that their clients ended."""
        left = STARTS_MAX if self._tls is None else HANDSHAKES_MAX
        # A client that closed only its side may still read an answer; but a long queue is a flood.
        is_crowded = len(self._line) > ACCEPTS_MAX
        while self._line and left:
            client = self._line.popleft()
            if is_reset(client) or (is_crowded and has_closed(client)):
                client.close()
            else:
                self._take(client)
                left -= 1
        if self._line:
            self._loop.call_soon(self._start)

    def _take(self, client: socket.socket) -> None:
        """Create the connection."""
        self._taken[client] = None
        task = self._loop.create_task(self._connect(client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, client: socket.socket) -> None:
        del self._taken[client]  # from here on the loop closes it
        tls = None if self._tls is None else self._tls.context
        seconds = None if tls is None else HANDSHAKE_SECONDS
        with contextlib.suppress(OSError):  # a failed handshake concerns only the client
            await self._loop.connect_accepted_socket(
                self._make, client, ssl=tls, ssl_handshake_timeout=seconds
            )

    def _drop(self, client: socket.socket) -> None:
        self._forget(client)
        client.close()

    def _forget(self, client: socket.socket) -> None:
        self._greetings.pop(client).timer.cancel()
        self._loop.remove_reader(client)

    @staticmethod
    def _mark(client: socket.socket, needed: int) -> None:
        """Set the number of bytes from which the kernel signals (`SO_RCVLOWAT`)."""
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, needed)


async def bound_sockets(host: str, port: int) -> list[socket.socket]:
    """Create sockets at all addresses of a host, bound and not listening.

    Raises:
        OSError: An address cannot be used; no socket stays bound.
    """
    loop = asyncio.get_running_loop()
    infos = await loop.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(infos):
            each = socket.socket(family, kind, protocol)
            sockets.append(each)
            each.settimeout(0)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            each.bind(address)
    except OSError:
        for each in sockets:
            each.close()
        raise
    return sockets
