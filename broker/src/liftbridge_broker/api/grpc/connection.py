"""One client connection of the gRPC server: an asyncio protocol around the HTTP/2 core.

Work is done in slices (`turns`): read bytes, pass events to the calls, build long answers. Output
of a slice leaves as one write at its end; output sent between slices requests a slice.
"""

import asyncio
from collections.abc import Iterator
from typing import Final, cast

from liftbridge_broker.api.grpc.call import MAIN_LISTENER
from liftbridge_broker.api.grpc.calls import Calls
from liftbridge_broker.api.grpc.held import HeldBytes
from liftbridge_broker.api.grpc.owner import ConnectionOwner
from liftbridge_broker.api.grpc.sockets import is_reset, peer_text
from liftbridge_broker.http2.connection import Connection
from liftbridge_broker.http2.deadlines import NEVER
from liftbridge_broker.http2.events import ConnectionEnded
from liftbridge_broker.model.units import MIB, SECOND_NS

LINGER_SECONDS: Final = 1.0
LINGER_BYTES_MAX: Final = MIB
TURN_BYTES: Final = 128 * 1024
"""Bytes from a client after which the other clients come first."""

WRITE_BUFFER_BYTES: Final = 256 << 10
TIMER_SLACK_SECONDS: Final = 0.001


class GrpcConnection(asyncio.Protocol):
    """Protocol of one connection: sockets and timers in, slices of work for its calls out.

    Attributes:
        peer: Address of the client.
        held: Bytes that it holds.
    """

    def __init__(
        self, owner: ConnectionOwner["GrpcConnection"], listener: str = MAIN_LISTENER
    ) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._core = Connection(owner.limits, self._now())
        self.held = HeldBytes(self._core, owner.on_held)
        self._calls = Calls(owner, self._core, self.held, listener)
        self._transport: asyncio.Transport | None = None
        self.peer = ""
        self._turns = owner.turns
        self._unread: list[bytes] = []
        self._reported_resets = 0
        self._is_watched = False
        self._is_time_due = False
        self._is_in_line = False
        self._wants_slice = False
        self._is_paused = False
        self._is_closing = False
        self._discarded = 0
        self._timer: asyncio.TimerHandle | None = None
        self._armed_ns = NEVER
        self._linger: asyncio.TimerHandle | None = None

    # Calls of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start, if there is a free slot."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self.peer = peer_text(transport.get_extra_info("peername"))
        self._calls.connect(self._transport, self.peer, self._schedule)
        if not self._owner.on_open(self, self._core.lifecycle.idle_since_ns):
            self._core.lifecycle.refuse()
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Pass received bytes to the core and its events to the services, then write once."""
        if self._is_closing:
            self._discard(len(data))
            return
        self._owner.on_bytes(received=len(data))
        self._unread.append(data)
        self.held.unread += len(data)
        turns = self._turns
        if turns.is_free and not self._is_paused:
            began = turns.now()
            has_more = self._slice()
            turns.spend(turns.now() - began)
        else:
            has_more = True
            self.held.count()
        # uvloop would continue to read, up to 32 times 256 kB, while other clients and NATS wait.
        if (has_more or len(data) >= TURN_BYTES) and not self._is_paused:
            self._pause_reading()

    def _pause_reading(self) -> None:
        """Pause reading until all received bytes were processed."""
        if self._transport is not None and not self._is_closing:
            self._is_paused = True
            self._transport.pause_reading()
            self._schedule()

    def work(self) -> bool:
        """Do a slice of the waiting work; return whether more is left."""
        self._wants_slice = False
        transport = self._transport
        if transport is None:
            self._forget_work()
            self._calls.cancel_all()
            return False
        if self._is_paused and is_reset(transport):
            transport.abort()  # its requests need no answers; `connection_lost` follows
            self._is_in_line = False
            return False
        has_more = self._slice()
        if self._is_paused and not has_more:
            self._is_paused = False
            if self._transport is not None and not self._is_closing:
                self._transport.resume_reading()
        self._is_in_line = has_more or self._wants_slice
        return self._is_in_line

    def _slice(self) -> bool:
        """Process received or remaining bytes; serve them, and write."""
        if self._transport is None:
            return False
        core, calls = self._core, self._calls
        events = calls.events
        try:
            if self._is_time_due:
                self._is_time_due = False
                events += core.on_time(self._now())
            if not (events or calls.steps) and (self._unread or core.reader.has_unread):
                unread = self._unread
                data = unread[0] if len(unread) == 1 else b"".join(unread)
                unread.clear()
                self.held.unread = 0
                events += core.receive(data, self._now())
            calls.handle()
            if calls.ended is not None:
                self._on_ended(calls.ended)
            self._flush()
            self.held.count()
            self._count_resets()
            if calls.may_be_outlived and not self._is_watched:
                self._is_watched = True
                self._owner.outlived.watch(self, self.end_outlived)
            lifecycle = core.lifecycle
            self._owner.on_state(self, lifecycle.state, lifecycle.idle_since_ns)
        except BaseException:
            # A bug: any later answer to the client could be wrong.
            if self._transport is not None:
                self._transport.abort()
            raise
        return bool(events or calls.steps or self._unread or core.reader.has_unread)

    def pause_writing(self) -> None:
        """The socket is full: answers wait in the core."""
        if self._transport is not None:
            self.held.in_transport = self._transport.get_write_buffer_size()
        self._core.on_write_paused(self._now())
        self._arm()

    def resume_writing(self) -> None:
        """The socket takes bytes again."""
        self.held.in_transport = 0
        self._core.on_write_resumed()
        self._schedule()

    def connection_lost(self, _exc: Exception | None) -> None:
        """Cancel the calls of the connection in their services."""
        self._is_closing = True
        for timer in (self._timer, self._linger):
            if timer is not None:
                timer.cancel()
        self._timer = self._linger = None
        self._forget_work()
        self._transport = None
        self._calls.disconnect()
        self.held.release()
        self._owner.on_closed(self)
        if self._turns.is_free:
            began = self._turns.now()
            self._calls.cancel_all()
            self._turns.spend(self._turns.now() - began)
        else:
            self._turns.join(self)  # many are lost at once; to be in line twice does no harm then

    # Calls of the server.

    def begin_drain(self) -> None:
        """Ask the client to leave; the connection closes after its last call."""
        self._core.lifecycle.begin_drain(self._now())
        self._flush()

    def end_streams(self, text: str) -> None:
        """End streaming calls with UNAVAILABLE, after their queued bytes."""
        self._calls.end_streams(text)
        self._flush()

    def end_outlived(self) -> Iterator[None]:
        """End streaming calls whose identity no longer holds, in steps.

        After the end of its certificate, ask the client to leave: it needs a new handshake.
        """
        for _ in self._calls.end_outlived():
            self._flush()
            yield
        if self._calls.must_reconnect:
            self._core.lifecycle.begin_drain(self._now())
        self._flush()

    def evict(self, text: str) -> None:
        """Close the connection to free its slot for a new one."""
        self._core.lifecycle.evict(text)
        self._schedule()

    def shed_answers(self, text: str) -> None:
        """End the connection because the client does not read its answers."""
        self._core.lifecycle.shed_answers(text)
        self.held.count()
        self._schedule()

    def shed_resets(self, text: str) -> None:
        """End the connection because of the streams that it resets."""
        self._core.lifecycle.shed_resets(text)
        self._schedule()

    def shed_requests(self, text: str) -> None:
        """Refuse its incomplete requests, or end the connection."""
        self._core.lifecycle.shed_requests(text)
        self.held.count()
        self._schedule()

    def close(self) -> None:
        """End the connection and, with UNAVAILABLE, its calls."""
        self._calls.end_all("server is shutting down")
        self._forget_work()
        self._core.lifecycle.end("closing")
        self._flush()

    # Helpers.

    def _count_resets(self) -> None:
        """Report the streams reset since the last call to the server."""
        resets = self._core.reset_count - self._reported_resets
        if resets and self._transport is not None:
            self._reported_resets += resets
            self._owner.on_resets(self, resets, self._now())

    def _forget_work(self) -> None:
        """Drop the waiting work."""
        self._unread.clear()
        self.held.unread = 0
        self._calls.forget_work()

    def _on_ended(self, event: ConnectionEnded) -> None:
        """Send the remaining bytes, then close so that the peer can still read them."""
        transport = self._transport
        if self._is_closing or transport is None:
            return
        self._is_closing = True
        self._forget_work()
        if event.is_abrupt:
            transport.abort()
            return
        self._write()
        # Closing with unread input resets the connection, and the peer may lose the GOAWAY.
        self._linger = self._loop.call_later(LINGER_SECONDS, transport.abort)
        if not transport.can_write_eof():
            transport.close()
            return
        try:
            transport.write_eof()
        except OSError:  # the peer has closed already
            transport.abort()

    def _discard(self, size: int) -> None:
        """Read and drop input after the end, with a bound, so that the peer gets our last bytes."""
        self._discarded += size
        if self._discarded > LINGER_BYTES_MAX and self._transport is not None:
            self._transport.abort()

    def _now(self) -> int:
        """Return the event loop time in nanoseconds."""
        return int(self._loop.time() * SECOND_NS)

    def _schedule(self) -> None:
        """Ask for a slice, once."""
        self._wants_slice = True
        if not self._is_in_line:
            self._is_in_line = True
            self._turns.join(self)

    def _flush(self) -> None:
        """Write queued bytes, schedule producers to refill, and schedule the remaining work."""
        if self._is_closing:
            return
        self._write()
        events = self._core.take_events()
        if events:
            self._calls.events += events
        if events or self._core.has_more_output():
            self._schedule()
        self._arm()

    def _write(self) -> None:
        """One write of everything that may be sent now."""
        pieces = self._core.take_output(self._now())
        if pieces and self._transport is not None:
            data = b"".join(pieces)
            self._owner.on_bytes(sent=len(data))
            self._transport.write(data)

    def _arm(self) -> None:
        """Set the timer to fire no later than the core's next deadline."""
        wake = self._core.next_deadline()
        if wake < self._armed_ns and not self._is_closing:
            if self._timer is not None:
                self._timer.cancel()
            self._armed_ns = wake
            # Event loops round timers to a millisecond and may fire early.
            at = wake / SECOND_NS + TIMER_SLACK_SECONDS
            self._timer = self._loop.call_at(at, self._on_timer)

    def _on_timer(self) -> None:
        """Pass the time to the core, in a turn: ten thousand calls may have deadlines."""
        self._timer = None
        self._armed_ns = NEVER
        self._is_time_due = True
        self._schedule()
