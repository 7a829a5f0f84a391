"""One TCP or TLS connection to a NATS server, from the first byte to the last.

During the handshake it collects lines for nats-py. From `begin` on, it passes each chunk from the
socket to the parser of `wire.nats` and then to the handler, without a task, queue or callback for
each message. All output of a turn of the loop is sent with one write.
"""

import asyncio
import ssl
from collections import deque
from typing import Final, Protocol, cast

from liftbridge_broker.adapters.nats.handshake_lines import HandshakeLines
from liftbridge_broker.errors import UnavailableError
from liftbridge_broker.ports.messaging import Arrival, SubscriptionId
from liftbridge_broker.wire.nats import INFO_BYTES_MAX, PING, PONG, NatsParser, NatsProtocolError

SILENT_PINGS_MAX: Final = 2
READ_BYTES: Final = 262_144
"""Bytes of one read of the socket at most."""

BACKLOG_READ_BYTES: Final = 65_536
"""Bytes of a read after which more input is probably waiting."""

READ_MESSAGES: Final = 2_500
"""Messages of one read, by the size of those before: parsing them takes about 2 ms of a turn."""

ERROR_SECONDS: Final = 1.0
CLOSED_SILENTLY: Final = "closed by the server"


class ConnectionHandler(Protocol):
    """Owner of a connection."""

    def on_messages(
        self, subscription: SubscriptionId, arrivals: list[Arrival], payloads: list[bytes]
    ) -> None:
        """Receive the messages of a subscription in a chunk."""
        ...

    def on_info(self, body: bytes) -> None:
        """Handle `INFO` after the handshake, as JSON."""
        ...

    def on_server_error(self, text: str) -> None:
        """Handle `-ERR`; the connection ends after most errors."""
        ...

    def on_fault(self, error: Exception) -> None:
        """Handle an exception of the owner: a bug, which a callback would swallow."""
        ...

    def on_lost(self, connection: "Connection", reason: str) -> None:
        """Handle the end of the connection for any reason; called once, only after `begin`."""
        ...


class Connection(asyncio.BufferedProtocol):
    """Connection to a NATS server.

    Args:
        handler: Receives the input.
        loop: The running event loop.
        pending_bytes_max: Bytes not yet taken by the socket above which `send` refuses.
        ping_interval_s: Interval of pings to the server; without a byte from it after
            `SILENT_PINGS_MAX` pings the connection is closed.

    Attributes:
        lines: What the server sends before `begin`.
        bytes_in: Bytes received.
        bytes_out: Bytes passed to the socket.
        behind_at: Loop time of the latest read of `BACKLOG_READ_BYTES` or of a full buffer; 0 for
            none.
        is_secure: Whether TLS is in use.
    """

    def __init__(
        self,
        handler: ConnectionHandler,
        loop: asyncio.AbstractEventLoop,
        *,
        pending_bytes_max: int,
        ping_interval_s: float,
    ) -> None:
        self._handler = handler
        self._loop = loop
        self._pending_bytes_max = pending_bytes_max
        self._ping_interval_s = ping_interval_s
        self._transport: asyncio.Transport | None = None
        self._lost: asyncio.Future[None] = loop.create_future()
        self._is_lost = False
        self._reason = ""
        self._error_text, self._error_at = "", -ERROR_SECONDS

        self._reads = _ReadBuffer()
        self._parser: NatsParser | None = None

        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._is_paused = False
        self._is_reading = True
        self._pongs: deque[asyncio.Future[None] | None] = deque()
        self._silent_count = 0
        self._timer: asyncio.TimerHandle | None = None

        self.lines = HandshakeLines(loop)
        self.bytes_in = 0
        self.bytes_out = 0
        self.behind_at = 0.0
        self.is_secure = False

    # Callbacks of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Record the transport of the connected socket."""
        # uvloop's transports are not subclasses of asyncio's.
        transport = cast("asyncio.Transport", transport)
        self._use(transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio passes it
        """Return the buffer of the next read."""
        return self._reads.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Handle a chunk from the socket."""
        reads = self._reads
        data = bytes(reads.buffer[:nbytes])
        self.bytes_in += nbytes
        self._silent_count = 0
        if nbytes >= min(len(reads.buffer), BACKLOG_READ_BYTES):
            self.behind_at = self._loop.time()
        if self._parser is not None:
            reads.message_count = 0
            self._feed(data)
            reads.fit(nbytes)
            return
        if self.lines.unread_bytes + nbytes > INFO_BYTES_MAX:
            self._fail(f"more than {INFO_BYTES_MAX} bytes before the handshake was over")
        self.lines.add(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the socket."""
        if self._is_lost:
            return
        self._is_lost = True
        if not self._reason:
            is_recent = self._loop.time() - self._error_at < ERROR_SECONDS
            self._reason = self._error_text if is_recent else f"{exc}" if exc else CLOSED_SILENTLY
        reason = self._reason
        if self._timer is not None:
            self._timer.cancel()
        for pong in self._pongs:
            if pong is not None and not pong.done():
                pong.set_exception(ConnectionResetError(reason))
        self._pongs.clear()
        self._pending.clear()
        self._lost.set_result(None)
        self.lines.end()
        if self._parser is not None:
            self._handler.on_lost(self, reason)

    def pause_writing(self) -> None:
        """Record that the socket is full: `pending_bytes_max` are waiting."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Record that half of it was sent."""
        self._is_paused = False

    # The handshake

    async def start_tls(self, context: ssl.SSLContext, host: str, timeout_s: float) -> None:
        """Switch to TLS.

        Raises:
            OSError: The handshake failed, or clear-text bytes arrived before TLS, which may be an
                attacker's.
        """
        if self.lines.unread_bytes:
            raise ConnectionAbortedError("the server sent data between INFO and TLS")
        transport = self._transport
        assert transport is not None
        secured = await self._loop.start_tls(
            transport, self, context, server_hostname=host, ssl_handshake_timeout=timeout_s
        )
        if secured is None:
            raise ConnectionAbortedError("the connection ended during the TLS handshake")
        self.is_secure = True
        self._use(secured)

    def begin(self) -> None:
        """Finish the handshake: from now on parse, watch, and call the handler."""
        assert self._parser is None
        self._parser = NatsParser(self)
        if self._is_lost:
            self._handler.on_lost(self, self._reason)
            return
        self._timer = self._loop.call_later(self._ping_interval_s, self._ping)
        rest = self.lines.take_rest()
        if rest:
            self._feed(rest)

    # Writing

    def write(self, data: bytes) -> None:
        """Write after everything sent before; for protocol lines, which are never held back."""
        self._flush()
        if self._transport is not None and not self._is_lost:
            self.bytes_out += len(data)
            self._transport.write(data)

    def send(self, data: bytes) -> None:
        """Write together with all other output of this turn of the loop.

        Raises:
            UnavailableError: The connection ended, or too much is waiting; nothing was written.
        """
        if self._is_lost:
            raise UnavailableError("NATS connection is down")
        if self._is_paused or self._pending_bytes > self._pending_bytes_max:
            raise UnavailableError("NATS connection busy")
        if not self._pending:
            self._loop.call_soon(self._flush)
        self._pending.append(data)
        self._pending_bytes += len(data)

    def pause_reading(self) -> None:
        """Pause reading from the socket until `resume_reading`."""
        if self._is_reading and not self._is_lost and self._transport is not None:
            self._is_reading = False
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading."""
        if not self._is_reading and not self._is_lost and self._transport is not None:
            self._is_reading = True
            self._transport.resume_reading()

    def set_pending_bytes_max(self, bytes_max: int) -> None:
        """Set the bound of bytes not yet taken by the socket."""
        self._pending_bytes_max = bytes_max
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=bytes_max, low=bytes_max // 2)

    @property
    def pending_bytes(self) -> int:
        """Bytes published and not yet taken by the socket."""
        waiting = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return self._pending_bytes + waiting

    async def flushed(self) -> None:
        """Wait until the server has read everything written, and its answers so far are handled.

        Raises:
            OSError: The connection ended before.
        """
        if self._is_lost:
            raise ConnectionResetError(self._reason)
        pong: asyncio.Future[None] = self._loop.create_future()
        self._pongs.append(pong)
        self.write(PING)
        await pong

    # The end

    @property
    def reason(self) -> str:
        """Return the reason of the end, given by this side or an `-ERR`; empty otherwise."""
        return "" if self._reason == CLOSED_SILENTLY else self._reason

    @property
    def is_lost(self) -> bool:
        """Return whether the connection ended."""
        return self._is_lost

    def close(self) -> None:
        """End the connection after all written bytes are sent."""
        self._flush()
        self._reason = self._reason or "closed by the broker"
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        """End the connection now; `reason` is reported unless an earlier reason is known."""
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()

    async def wait_lost(self) -> None:
        """Wait until the connection ended."""
        await asyncio.shield(self._lost)

    # Callbacks of the parser

    def on_messages(
        self, subscription: SubscriptionId, arrivals: list[Arrival], payloads: list[bytes]
    ) -> None:
        """Pass messages on to the handler."""
        self._reads.message_count += len(payloads)
        self._handler.on_messages(subscription, arrivals, payloads)

    def on_ping(self) -> None:
        """Answer the server."""
        self.write(PONG)

    def on_pong(self) -> None:
        """Handle the server's answer to the earliest ping."""
        pong = self._pongs.popleft() if self._pongs else None
        if pong is not None and not pong.done():
            pong.set_result(None)

    def on_ok(self) -> None:
        """No-op: sent only in verbose mode, which is off."""

    def on_error(self, text: str) -> None:
        """Keep the text as the reason in case the connection ends now."""
        self._error_text, self._error_at = text, self._loop.time()
        self._handler.on_server_error(text)

    def on_info(self, body: bytes) -> None:
        """Pass the server's update on."""
        self._handler.on_info(body)

    # Inside

    def _use(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.set_pending_bytes_max(self._pending_bytes_max)

    def _feed(self, data: bytes) -> None:
        if self._is_lost or self._parser is None:
            return
        try:
            self._parser.feed(data)
        except NatsProtocolError as error:
            self._fail(f"NATS protocol: {error}")
        except Exception as error:  # noqa: BLE001 - asyncio would log it and carry on without data
            self._handler.on_fault(error)
            self._fail("the broker failed to handle a message")

    def _flush(self) -> None:
        """Write the output of this turn."""
        if not self._pending:
            return
        data = self._pending[0] if len(self._pending) == 1 else b"".join(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        if self._transport is not None and not self._is_lost:
            self.bytes_out += len(data)
            self._transport.write(data)

    def _ping(self) -> None:
        """Send a ping, and abort if too many stayed unanswered."""
        if self._silent_count >= SILENT_PINGS_MAX:
            self._fail("the server does not answer")
            return
        self._silent_count += 1
        self._pongs.append(None)
        self.write(PING)
        self._timer = self._loop.call_later(self._ping_interval_s, self._ping)

    def _fail(self, reason: str) -> None:
        """Abort the connection; asyncio reports its end in the next turn."""
        self.abort(reason)


class _ReadBuffer:
    """Buffer for reads of a socket, about as large as `READ_MESSAGES` messages like the last ones.

    Attributes:
        buffer: Buffer of the next read.
        message_count: Messages of the present read, counted by the connection.
    """

    def __init__(self) -> None:
        self._whole = memoryview(bytearray(READ_BYTES))
        self.buffer = self._whole
        self.message_count = 0

    def fit(self, nbytes: int) -> None:
        """Size the next read by the messages of a read of `nbytes`, which are counted."""
        fitting = nbytes * READ_MESSAGES // (self.message_count or 1)
        self.buffer = self._whole[: min(max(fitting, READ_BYTES // 16), READ_BYTES)]
