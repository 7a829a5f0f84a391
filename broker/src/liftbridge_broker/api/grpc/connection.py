"""One client connection of the gRPC server: an asyncio protocol around the HTTP/2 core.

Work is done in slices (`turns`): read bytes, pass events to services, build long answers. Output of
a slice leaves as one write at its end; output sent between slices requests a slice.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, Final, NamedTuple, cast

from liftbridge_broker.api.grpc.call import MAIN_LISTENER, Call, PeerCertificate
from liftbridge_broker.api.grpc.owner import ConnectionOwner
from liftbridge_broker.api.grpc.sockets import is_reset, peer_text
from liftbridge_broker.api.grpc.turns import SLICE_NS
from liftbridge_broker.errors import GrpcStatus, LiftbridgeError
from liftbridge_broker.http2.connection import Connection
from liftbridge_broker.http2.deadlines import NEVER
from liftbridge_broker.http2.events import (
    ConnectionEnded,
    DeadlineExpired,
    Event,
    MessageRefused,
    MessagesReceived,
    RequestEnded,
    RequestHead,
    RequestReceived,
    StreamCancelled,
    StreamWritable,
)
from liftbridge_broker.http2.stream import Buffer
from liftbridge_broker.model.units import SECOND_NS

LINGER_SECONDS: Final = 1.0
LINGER_BYTES_MAX: Final = 1 << 20
TURN_BYTES: Final = 128 * 1024
"""Bytes from a client after which the other clients come first."""

WRITE_BUFFER_BYTES: Final = 256 << 10
MESSAGES_MAX: Final = 2_048
"""Maximum number of messages passed to a call at once."""

QUEUED_NS: Final = 20_000
"""Approximate cost of queueing output of a call, plus about 1 ns for each byte."""

TIMER_SLACK_SECONDS: Final = 0.001
UNKNOWN_METHOD: Final = "unknown"
_ROOT_TEXT: Final = b"liftbridge: gRPC over HTTP/2\n"


class _StepsBegun(NamedTuple):
    """An internal event: a call has a long answer to build."""

    call: Call
    steps: Iterator[None]


class GrpcConnection(asyncio.Protocol):
    """Protocol of one connection: sockets and timers in, calls of services out."""

    def __init__(
        self, owner: ConnectionOwner["GrpcConnection"], listener: str = MAIN_LISTENER
    ) -> None:
        self._owner = owner
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._core = Connection(owner.limits, self._now())
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, Call] = {}
        self._root_requests: set[int] = set()
        self._peer = ""
        self._turns = owner.turns
        self._unread: list[bytes] = []
        self._unread_bytes = 0
        self._in_transport = 0
        self.received_bytes = self.unsent_bytes = 0
        self._told_resets = 0
        self._events: deque[Event | _StepsBegun] = deque()
        self._steps: tuple[Call, Iterator[None]] | None = None
        self._is_in_turn = False
        self._is_time_due = False
        self._is_in_line = False
        self._wants_slice = False
        self._is_held = False
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
        self._peer = peer_text(transport.get_extra_info("peername"))
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
        self._unread_bytes += len(data)
        turns = self._turns
        if turns.is_free and not self._is_held:
            began = turns.now()
            has_more = self._slice()
            turns.spend(turns.now() - began)
        else:
            has_more = True
            self._count_held()
        # uvloop would continue to read, up to 32 times 256 kB, while other clients and NATS wait.
        if (has_more or len(data) >= TURN_BYTES) and not self._is_held:
            self._hold()

    def _hold(self) -> None:
        """Pause reading until all received bytes were processed."""
        if self._transport is not None and not self._is_closing:
            self._is_held = True
            self._transport.pause_reading()
            self._schedule()

    def work(self) -> bool:
        """Do a slice of the waiting work; return whether more is left."""
        self._wants_slice = False
        transport = self._transport
        if transport is None:
            self._forget_work()
            self._cancel_calls()
            return False
        if self._is_held and is_reset(transport):
            transport.abort()  # its requests need no answers; `connection_lost` follows
            self._is_in_line = False
            return False
        has_more = self._slice()
        if self._is_held and not has_more:
            self._is_held = False
            if self._transport is not None and not self._is_closing:
                self._transport.resume_reading()
        self._is_in_line = has_more or self._wants_slice
        return self._is_in_line

    def _slice(self) -> bool:
        """Process received or remaining bytes; serve them, and write."""
        if self._transport is None:
            return False
        try:
            if self._is_time_due:
                self._is_time_due = False
                self._events += self._core.on_time(self._now())
            if not (self._events or self._steps) and (self._unread or self._core.reader.has_unread):
                data = self._unread[0] if len(self._unread) == 1 else b"".join(self._unread)
                self._unread.clear()
                self._unread_bytes = 0
                self._events += self._core.receive(data, self._now())
            self._handle()
            self._flush()
            self._count_held()
            self._count_resets()
            lifecycle = self._core.lifecycle
            self._owner.on_state(self, lifecycle.state, lifecycle.idle_since_ns)
        except BaseException:
            # A bug: any later answer to the client could be wrong.
            if self._transport is not None:
                self._transport.abort()
            raise
        return bool(self._events or self._steps or self._unread or self._core.reader.has_unread)

    def pause_writing(self) -> None:
        """The socket is full: answers wait in the core."""
        if self._transport is not None:
            self._in_transport = self._transport.get_write_buffer_size()
        self._core.on_write_paused(self._now())
        self._arm()

    def resume_writing(self) -> None:
        """The socket takes bytes again."""
        self._in_transport = 0
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
        self._owner.on_held(-self.received_bytes, -self.unsent_bytes)
        self.received_bytes = self.unsent_bytes = 0
        self._owner.on_closed(self)
        if self._turns.is_free:
            began = self._turns.now()
            self._cancel_calls()
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
        for stream_id, call in list(self._calls.items()):
            if not self._owner.is_unary(call.method):
                self._end_call(stream_id, GrpcStatus.UNAVAILABLE, text)
        self._flush()

    @property
    def peer(self) -> str:
        """Address of the client."""
        return self._peer

    def evict(self, text: str) -> None:
        """Close the connection to free its slot for a new one."""
        self._core.lifecycle.evict(text)
        self._schedule()

    def shed_answers(self, text: str) -> None:
        """End the connection because the client does not read its answers."""
        self._core.lifecycle.shed_answers(text)
        self._count_held()
        self._schedule()

    def shed_resets(self, text: str) -> None:
        """End the connection because of the streams that it resets."""
        self._core.lifecycle.shed_resets(text)
        self._schedule()

    def shed_requests(self, text: str) -> None:
        """Refuse its incomplete requests, or end the connection."""
        self._core.lifecycle.shed_requests(text)
        self._count_held()
        self._schedule()

    def close(self) -> None:
        """End the connection and, with UNAVAILABLE, its calls."""
        for stream_id in list(self._calls):
            self._end_call(stream_id, GrpcStatus.UNAVAILABLE, "server is shutting down")
        self._forget_work()
        self._core.lifecycle.end("closing")
        self._flush()

    # Calls of `Call`.

    def room(self, stream_id: int) -> int:
        """Return the bytes that a stream may queue before it must wait."""
        return self._core.room(stream_id)

    def begin(self, stream_id: int, fields: Sequence[tuple[bytes, bytes]]) -> None:
        """Send the response headers with further fields."""
        self._core.begin(stream_id, fields)

    def queue(self, stream_id: int, frames: bytes | Sequence[Buffer]) -> bool:
        """Queue framed bytes; return whether to continue writing."""
        core = self._core
        if self._is_in_turn:
            return core.send(stream_id, frames)
        before = core.queued_bytes
        is_writable = core.send(stream_id, frames)
        self._turns.spend(QUEUED_NS + core.queued_bytes - before)
        self._count_held()
        self._schedule()
        if is_writable and not self._turns.is_free:
            # Other connections run before this connection builds more.
            self._events.append(StreamWritable(stream_id))
            return False
        return is_writable

    def go_on(self, call: Call, steps: Iterator[None]) -> None:
        """Run the steps of a call in the turns of this connection.

        Steps started by an event run before later input of the client.
        """
        if self._is_in_turn and self._steps is None:
            self._steps = call, steps
            return
        self._events.append(_StepsBegun(call, steps))
        if not self._is_in_turn:
            self._schedule()

    def finish(self, call: Call, code: int, text: str, error_code: str) -> None:
        """Queue the trailers and forget the call."""
        del self._calls[call.stream_id]
        self._owner.on_call_ended(self._label(call.method), code)
        self._core.finish(call.stream_id, code, text, error_code)
        if not self._is_in_turn:
            self._schedule()

    def expect_request(self, stream_id: int) -> None:
        """Bound the time in which the whole request must arrive."""
        self._core.expect_request(stream_id)
        if not self._is_in_turn:
            self._schedule()

    def keep(self, stream_id: int, size: int) -> None:
        """Count request bytes that are retained until the request ends."""
        self._core.keep(stream_id, size)
        if not self._is_in_turn:
            self._schedule()

    def set_reading(self, stream_id: int, *, is_reading: bool) -> None:
        """Withhold or give the flow-control credit of a stream."""
        self._core.set_reading(stream_id, is_reading=is_reading)
        if not self._is_in_turn:
            self._schedule()

    def peer_certificate(self) -> PeerCertificate | None:
        """Return the verified certificate of the client."""
        if self._transport is None:
            return None
        return cast("PeerCertificate | None", self._transport.get_extra_info("peercert")) or None

    # Events of the core.

    def _handle(self) -> None:
        """Pass events to their methods for a slice; their output leaves with the next flush."""
        handlers, events, now = self._HANDLERS, self._events, self._turns.now
        end = now() + SLICE_NS
        self._is_in_turn = True
        try:
            while True:
                if self._steps is not None:
                    self._step(end)
                if not events or self._steps is not None:
                    return
                event = events.popleft()
                handlers[type(event)](self, event)
                if now() >= end:
                    return
        finally:
            self._is_in_turn = False

    def _step(self, end: int) -> None:
        """Continue a long answer until the slice is over."""
        assert self._steps is not None
        call, steps = self._steps
        now = self._turns.now
        try:
            while call.is_open:
                next(steps)
                if now() >= end:
                    return
        except StopIteration:
            pass
        except LiftbridgeError as error:
            call.refuse(error)
        self._steps = None

    def _count_held(self) -> None:
        """Report changes of the bytes held to the server; no-op once the connection is closed."""
        if self._transport is None:
            return
        received = self._core.stream_bytes + self._core.partial_bytes + self._unread_bytes
        unsent = self._core.queued_bytes + self._in_transport
        if received != self.received_bytes or unsent != self.unsent_bytes:
            more_received = received - self.received_bytes
            more_unsent = unsent - self.unsent_bytes
            self.received_bytes, self.unsent_bytes = received, unsent
            self._owner.on_held(more_received, more_unsent)

    def _count_resets(self) -> None:
        """Report the streams reset since the last call to the server."""
        resets = self._core.reset_count - self._told_resets
        if resets and self._transport is not None:
            self._told_resets += resets
            self._owner.on_resets(self, resets, self._now())

    def _forget_work(self) -> None:
        """Drop the waiting work."""
        self._unread.clear()
        self._unread_bytes = 0
        self._events.clear()
        self._steps = None

    def _on_request(self, event: RequestReceived) -> None:
        """Open a call, or answer a request that is not one."""
        stream_id, head = event
        if not head.is_grpc or head.verb != "POST":
            self._answer_plain(stream_id, head)
            return
        deadline = None
        if head.timeout_ns is not None:
            deadline = self._loop.time() + head.timeout_ns / SECOND_NS
        call = Call(
            self,
            stream_id,
            method=head.path,
            peer=self._peer,
            deadline=deadline,
            listener=self._listener,
        )
        self._calls[stream_id] = call
        self._owner.on_call_opened()
        handler = self._owner.method(head.path)
        if head.refusal is not None:
            call.finish(*head.refusal)
        elif handler is None:
            call.finish(GrpcStatus.UNIMPLEMENTED, self._owner.unknown_method_text(head.path))
        else:
            try:
                handler(call)
            except LiftbridgeError as error:
                call.refuse(error)

    def _answer_plain(self, stream_id: int, head: RequestHead) -> None:
        """Answer HTTP that is not gRPC, perhaps at its end."""
        if (answer := head.plain_answer()) is not None:
            self._core.respond_plain(stream_id, *answer)
        else:
            self._root_requests.add(stream_id)
            self._core.expect_request(stream_id)

    def _on_messages(self, event: MessagesReceived) -> None:
        """Pass on all messages of a turn."""
        call = self._calls.get(event.stream_id)
        if call is not None:
            messages = event.messages
            if len(messages) > MESSAGES_MAX:
                rest = MessagesReceived(event.stream_id, messages[MESSAGES_MAX:])
                self._events.appendleft(rest)
                messages = messages[:MESSAGES_MAX]
            try:
                call.on_messages(messages)
            except LiftbridgeError as error:
                call.refuse(error)

    def _on_request_end(self, event: RequestEnded) -> None:
        """Notify the service that the client sends no more."""
        call = self._calls.get(event.stream_id)
        if call is not None:
            try:
                steps = call.on_half_close()
            except LiftbridgeError as error:
                call.refuse(error)
                return
            if steps is not None:
                self._steps = call, steps
        elif event.stream_id in self._root_requests:
            self._root_requests.remove(event.stream_id)
            self._core.respond_plain(event.stream_id, 200, _ROOT_TEXT)

    def _on_steps(self, event: _StepsBegun) -> None:
        """Start a long answer; other input waits until it is complete."""
        self._steps = event.call, event.steps

    def _on_stream_cancelled(self, event: StreamCancelled) -> None:
        """Notify the service that the stream was reset; nothing is sent."""
        call = self._calls.pop(event.stream_id, None)
        if call is not None:
            self._owner.on_call_ended(self._label(call.method), GrpcStatus.CANCELLED)
            call.cancel()
        self._root_requests.discard(event.stream_id)

    def _on_refused(self, event: MessageRefused) -> None:
        """Answer a message that is refused."""
        if event.stream_id in self._root_requests:
            self._root_requests.remove(event.stream_id)
            self._core.respond_plain(event.stream_id, 408, event.text.encode() + b"\n")
        self._end_call(event.stream_id, event.status, event.text)

    def _on_deadline(self, event: DeadlineExpired) -> None:
        """End a call whose deadline has passed."""
        self._end_call(event.stream_id, GrpcStatus.DEADLINE_EXCEEDED, "deadline exceeded")

    def _on_writable(self, event: StreamWritable) -> None:
        """Let the producer of a stream continue."""
        call = self._calls.get(event.stream_id)
        if call is not None:
            call.writable = True
            if call.on_writable is not None:
                try:
                    call.on_writable()
                except LiftbridgeError as error:
                    call.refuse(error)

    def _on_ended(self, event: ConnectionEnded) -> None:
        """Send the remaining bytes, then close so that the peer can still read them."""
        self._owner.on_ended(self._peer, event)
        self._forget_work()
        self._cancel_calls()
        transport = self._transport
        if self._is_closing or transport is None:
            return
        self._is_closing = True
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

    # Helpers.

    def _end_call(self, stream_id: int, code: int, text: str) -> None:
        """End a call from outside: trailers to the client, a cancellation to the service."""
        call = self._calls.pop(stream_id, None)
        if call is not None:
            self._owner.on_call_ended(self._label(call.method), code)
            self._core.finish(stream_id, code, text)
            call.cancel()

    def _cancel_calls(self) -> None:
        """Cancel every call, in order of arrival."""
        calls = list(self._calls.values())
        self._calls.clear()
        for call in calls:
            self._owner.on_call_ended(self._label(call.method), GrpcStatus.CANCELLED)
            call.cancel()

    def _label(self, path: str) -> str:
        """Return the path for the counters: invented paths must not add counters."""
        return UNKNOWN_METHOD if self._owner.method(path) is None else path

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
            self._events += events
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

    # Not of each connection: bound methods would leave a closed one to the garbage collector.
    _HANDLERS: ClassVar[Mapping[type[Event | _StepsBegun], Callable[..., None]]] = {
        _StepsBegun: _on_steps,
        RequestReceived: _on_request,
        MessagesReceived: _on_messages,
        RequestEnded: _on_request_end,
        StreamCancelled: _on_stream_cancelled,
        MessageRefused: _on_refused,
        DeadlineExpired: _on_deadline,
        StreamWritable: _on_writable,
        ConnectionEnded: _on_ended,
    }
