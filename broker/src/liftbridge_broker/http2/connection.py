"""One server-side HTTP/2 connection that carries gRPC, without I/O (RFC 9113).

Input: `receive` takes bytes from the socket, `on_time` reports that time has passed, and the owner
sends on streams. Output: events, and the bytes of `take_output`. The hot loop is in `messages`;
everything else takes a plain path.
"""

from collections.abc import Sequence
from typing import Final

from liftbridge_broker.http2 import frames, grpc
from liftbridge_broker.http2.control import ControlFrames
from liftbridge_broker.http2.deadlines import Deadlines
from liftbridge_broker.http2.events import (
    DeadlineExpired,
    Event,
    StreamWritable,
)
from liftbridge_broker.http2.frames import ConnectionFaultError, Http2Code
from liftbridge_broker.http2.guard import Guard
from liftbridge_broker.http2.header_frames import HeaderFrames
from liftbridge_broker.http2.lifecycle import Lifecycle
from liftbridge_broker.http2.limits import Limits
from liftbridge_broker.http2.messages import MessageReader
from liftbridge_broker.http2.reader import FrameReader
from liftbridge_broker.http2.sender import Sender
from liftbridge_broker.http2.stream import Buffer, Stream
from liftbridge_broker.http2.table import StreamTable
from liftbridge_broker.model.units import MIB, SECOND_NS

UNREAD_CONTROL_BYTES_MAX: Final = MIB
SHARES_OF_FREE: Final = 8
SHARE_BYTES_MIN: Final = 16 << 10
ROOM_BYTES_MIN: Final = 4 << 10
_KEEPALIVE_PING: Final = b"alive???"
_DEADLINE_EXCEEDED: Final = 4


class Connection:
    """State of one connection; owned by one transport.

    After a `ConnectionEnded` event no bytes are processed; queued bytes may still be taken.

    Attributes:
        lifecycle: State of the connection, and ways to end it.
        reader: Reader of received bytes; while it `has_unread`, call `receive` again.
    """

    def __init__(self, limits: Limits, now: int) -> None:
        self._limits = limits
        self._sender = Sender(limits.low_mark_bytes)
        self._deadlines = Deadlines()
        guard = Guard(limits)
        self._table = StreamTable(limits, self._sender, guard)
        self._table.now = now
        self._control = ControlFrames(self._table, self._sender, guard)
        self._messages = MessageReader(limits, self._table, self._sender, guard)
        headers = HeaderFrames(limits, self._table, guard, self._deadlines)
        self.reader = FrameReader(limits, self._control, headers, self._messages, self._deadlines)
        self.lifecycle = Lifecycle(
            limits, self._table, self._sender, self._control, self.reader, self._deadlines
        )
        self._is_blocked = False
        self._has_pinged = False
        self._received_ns = now
        self._start_clocks(now)

    @property
    def stream_count(self) -> int:
        """Open streams, including those whose last bytes wait for a window."""
        return len(self._table.streams)

    @property
    def has_ended(self) -> bool:
        """Return whether a `ConnectionEnded` event was reported."""
        return self._table.has_ended

    @property
    def queued_bytes(self) -> int:
        """Message bytes that wait for a window or for the socket."""
        return self._sender.queued_bytes

    @property
    def reset_count(self) -> int:
        """Resets so far that count: those that cost the client less than the broker."""
        return self._table.reset_count

    @property
    def stream_bytes(self) -> int:
        """Fixed cost of the open streams, whether anything was sent on them or not."""
        return self._table.stream_bytes

    @property
    def partial_bytes(self) -> int:
        """Bytes of incomplete requests, and of unread frames."""
        reader = self.reader
        return self._table.partial_bytes + (reader.held_bytes if reader.held else 0)

    def next_deadline(self) -> int:
        """Return a lower bound of the next time to call `on_time`, in nanoseconds."""
        return self._deadlines.wake

    def receive(self, data: bytes, now: int) -> list[Event]:
        """Handle received bytes, cut anywhere, or a part of them; return the events."""
        table, reader = self._table, self.reader
        table.now = self._received_ns = now
        self._has_pinged = False
        reader.has_unread = False
        if table.has_ended or (reader.held and not (data := reader.join(data))):
            return []
        try:
            position = reader.read(data)
            self._messages.settle()
            self._after_frames()
        except ConnectionFaultError as fault:
            self.lifecycle.fail(fault)
        else:
            if position:
                self._deadlines.clear("frame")
            if position < len(data):
                reader.hold(data[position:], now)
        return self.take_events()

    def on_time(self, now: int) -> list[Event]:
        """Handle due deadlines; return the events."""
        self._table.now = now
        if self._table.has_ended:
            return []
        try:
            for name in self._deadlines.take_due(now):
                self._on_due(name, now)
            self._after_frames()
        except ConnectionFaultError as fault:
            self.lifecycle.fail(fault)
        return self.take_events()

    def take_events(self) -> list[Event]:
        """Return events since the last call; after sending, those caused by it."""
        events = self._table.events
        if not events:
            return []
        self._table.events = []
        return events

    def room(self, stream_id: int) -> int:
        """Return the bytes that a stream may queue before it must wait.

        It shrinks the more the connection holds already, so that a thousand slow readers do not
        take a thousand times the memory of one.
        """
        stream = self._table.streams.get(stream_id)
        return 0 if stream is None else max(self._mark() - stream.queued, ROOM_BYTES_MIN)

    def _mark(self) -> int:
        """Queue size from which a stream must wait: a part of the free space (dynamic threshold).

        With `n` equally slow readers each queue settles at about 1 / (n + 8) of three quarters of
        the bound; the last quarter serves the smallest share, which every stream gets.
        """
        free = self._limits.queued_bytes_max * 3 // 4 - self._sender.queued_bytes
        mark = min(self._limits.high_mark_bytes, max(free // SHARES_OF_FREE, SHARE_BYTES_MIN))
        self._sender.low_mark = min(self._limits.low_mark_bytes, mark // 4)
        return mark

    def begin(self, stream_id: int, fields: Sequence[tuple[bytes, bytes]]) -> None:
        """Send the response headers, with further fields, before the first message."""
        table = self._table
        stream = table.streams.get(stream_id)
        if stream is not None and not (stream.has_headers or stream.final or table.has_ended):
            stream.has_headers = True
            block = b"".join(grpc.literal(name, value) for name, value in fields)
            self._sender.headers(stream_id, grpc.RESPONSE_BLOCK + block)

    def send(self, stream_id: int, chunks: bytes | Sequence[Buffer]) -> bool:
        """Queue framed messages on a stream, the response headers before the first.

        Returns:
            Whether the owner may continue; otherwise a `StreamWritable` event follows.
        """
        table = self._table
        stream = table.streams.get(stream_id)
        if stream is None or stream.final is not None or table.has_ended:
            return False
        if not stream.has_headers:
            stream.has_headers = True
            self._sender.headers(stream_id, grpc.RESPONSE_BLOCK)
        self._sender.queue(stream, chunks)
        if stream.queued >= self._mark():
            stream.is_throttled = True
            if self._sender.queued_bytes > self._limits.queued_bytes_max:
                self.lifecycle.shed_answers("responses are not being read")
        return not stream.is_throttled

    def finish(self, stream_id: int, status: int, text: str, error_code: str = "") -> None:
        """End a call: trailers after the queue, one block with the headers if it was empty."""
        table = self._table
        stream = table.streams.get(stream_id)
        if stream is None or stream.final is not None or table.has_ended:
            return
        block = grpc.trailers_block(status, text, error_code)
        if not stream.has_headers:
            stream.has_headers = True
            block = grpc.RESPONSE_BLOCK + block
        self._finish(stream, block)

    def respond_plain(self, stream_id: int, status: int, body: bytes) -> None:
        """Answer a request that is not gRPC with a short text."""
        table = self._table
        stream = table.streams.get(stream_id)
        if stream is None or stream.final is not None or table.has_ended:
            return
        stream.has_headers = True
        self._sender.headers(stream_id, grpc.plain_block(status, len(body)))
        if body:
            self._sender.queue(stream, body)
        self._finish(stream, b"")

    def set_reading(self, stream_id: int, *, is_reading: bool) -> None:
        """Withhold or return flow-control credit for later bytes of a stream."""
        table = self._table
        stream = table.streams.get(stream_id)
        if stream is not None and not table.has_ended:
            self._messages.set_reading(stream, is_reading=is_reading)

    def expect_request(self, stream_id: int) -> None:
        """Bound the time of a whole request by `Limits.message_ns`, as for a unary call."""
        stream = self._table.streams.get(stream_id)
        if stream is not None and not stream.is_remote_closed and self._limits.message_ns:
            deadline = self._table.now + self._limits.message_ns
            stream.is_awaited = True
            stream.message_deadline_ns = deadline
            self._table.deadlines.watch(stream, deadline)
            self._deadlines.bring_forward("streams", deadline)

    def keep(self, stream_id: int, size: int) -> None:
        """Count request bytes that the owner retains until the request ends as still incomplete.

        A `MessageRefused` event follows when incomplete requests hold too much.
        """
        stream = self._table.streams.get(stream_id)
        if stream is not None and not (stream.is_remote_closed or stream.is_refused):
            stream.kept_bytes += size
            self._table.add_partial(stream, size)

    def take_output(self, now: int) -> list[Buffer]:
        """Return the pieces of the next write; empty while the socket is full or nothing waits.

        A write is bounded, so there may be more: `has_more_output`.
        """
        table, sender = self._table, self._sender
        table.now = now
        if not table.has_ended:
            if self._is_blocked:
                return []
            sender.pump()
            self._after_sending()
            self.lifecycle.watch_idleness()
        pieces = sender.out
        sender.out = []
        sender.out_bytes = 0
        return pieces

    def has_more_output(self) -> bool:
        """Return whether `take_output` would return something now."""
        sender = self._sender
        return not self._is_blocked and (bool(sender.out) or sender.has_work)

    def on_write_paused(self, now: int) -> None:
        """Retain output because the socket's buffer is full."""
        self._is_blocked = True
        if self._limits.write_stall_ns:
            self._deadlines.set("stall", now + self._limits.write_stall_ns)

    def on_write_resumed(self) -> None:
        """Resume output: the socket accepts bytes again."""
        self._is_blocked = False
        self._deadlines.clear("stall")

    # Receiving.

    def _after_frames(self) -> None:
        """Apply the consequences of control frames and of closed streams."""
        control, lifecycle = self._control, self.lifecycle
        if control.has_settings:
            self._deadlines.clear("handshake")
        if self._table.deadlines.entries:
            self._deadlines.bring_forward("streams", self._table.deadlines.entries[0][0])
        if control.pongs:
            lifecycle.on_pongs()
        if self._sender.out_bytes > UNREAD_CONTROL_BYTES_MAX and self._is_blocked:
            text = "answers are not being read"
            raise ConnectionFaultError(Http2Code.ENHANCE_YOUR_CALM, text, flood="unread")
        lifecycle.watch_idleness()
        lifecycle.end_if_empty()

    # Sending.

    def _finish(self, stream: Stream, final: bytes) -> None:
        """End a stream after its queue; later input from the client is dropped."""
        stream.is_direct = False
        stream.is_refused = True
        stream.message_deadline_ns = 0
        self._table.drop_partial(stream)
        self._sender.finish(stream, final)
        self._after_sending()

    def _after_sending(self) -> None:
        """Report streams that became writable and remove those that sent their last frame."""
        sender = self._sender
        if sender.writable:
            for stream in sender.writable:
                if stream.final is None:
                    self._table.events.append(StreamWritable(stream.id))
            sender.writable.clear()
        if sender.ended:
            for stream in sender.ended:
                if not stream.is_remote_closed:
                    # The answer is complete: the rest of the request is not needed (RFC 9113 8.1).
                    sender.control(frames.rst_stream_frame(stream.id, Http2Code.NO_ERROR))
                self._table.remove(stream, may_send=not stream.is_remote_closed)
            sender.ended.clear()
            self.lifecycle.end_if_empty()

    # Time.

    def _start_clocks(self, now: int) -> None:
        """Set the deadlines that run from the start."""
        limits = self._limits
        if limits.handshake_ns:
            self._deadlines.set("handshake", now + limits.handshake_ns)
        if limits.keepalive_ns:
            self._deadlines.set("keepalive", now + limits.keepalive_ns)
        if limits.idle_ns:
            self._deadlines.set("idle", now + limits.idle_ns)

    def _on_due(self, name: str, now: int) -> None:
        """Handle one deadline."""
        limits = self._limits
        match name:
            case "streams":
                self._on_stream_deadlines(now)
            case "keepalive":
                self._on_keepalive(now)
            case "idle":
                self.lifecycle.on_idle(now)
            case "drain":
                self.lifecycle.send_final_goaway()
            case "stall":
                text = f"socket took nothing for {limits.write_stall_ns // SECOND_NS} s"
                self.lifecycle.abort(Http2Code.ENHANCE_YOUR_CALM, text, "unread")
            case "handshake":
                text = f"no SETTINGS within {limits.handshake_ns // SECOND_NS} s"
                raise ConnectionFaultError(Http2Code.SETTINGS_TIMEOUT, text, flood="slow")
            case _:
                text = f"{name} incomplete for {limits.frame_ns // SECOND_NS} s"
                raise ConnectionFaultError(Http2Code.ENHANCE_YOUR_CALM, text, flood="slow")

    def _on_stream_deadlines(self, now: int) -> None:
        """End calls whose deadline has passed."""
        table = self._table
        for stream in table.deadlines.take_due(now):
            if stream.deadline_ns and stream.deadline_ns <= now:
                stream.deadline_ns = stream.message_deadline_ns = 0
                if stream.queued:
                    # Trailers would wait behind bytes that the client does not read.
                    table.reset(stream, Http2Code.CANCEL)
                else:
                    table.events.append(DeadlineExpired(stream.id))
                continue
            text = f"request incomplete after {self._limits.message_ns // SECOND_NS} s"
            table.refuse_message(stream, _DEADLINE_EXCEEDED, text)
            if stream.deadline_ns:
                table.deadlines.watch(stream, stream.deadline_ns)

    def _on_keepalive(self, now: int) -> None:
        """Probe a silent peer, then end the connection."""
        limits = self._limits
        if self._has_pinged:
            self.lifecycle.abort(Http2Code.NO_ERROR, "keepalive PING was not answered")
            return
        silent_until = self._received_ns + limits.keepalive_ns
        if silent_until <= now:
            self._has_pinged = True
            self._sender.control(frames.ping_frame(_KEEPALIVE_PING))
            silent_until = now + limits.keepalive_timeout_ns
        self._deadlines.set("keepalive", silent_until)
