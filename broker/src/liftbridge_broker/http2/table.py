"""The streams of one connection: opening, ending, resetting, and the state of closed ones."""

from typing import Final

from liftbridge_broker.http2.deadlines import StreamDeadlines
from liftbridge_broker.http2.events import (
    Event,
    MessageRefused,
    RequestEnded,
    RequestHead,
    RequestReceived,
    StreamCancelled,
)
from liftbridge_broker.http2.frames import (
    FLAG_END_STREAM,
    ConnectionFaultError,
    Http2Code,
    rst_stream_frame,
)
from liftbridge_broker.http2.guard import Guard
from liftbridge_broker.http2.limits import Limits
from liftbridge_broker.http2.sender import Sender
from liftbridge_broker.http2.stream import STREAM_BYTES, Stream
from liftbridge_broker.model.units import SECOND_NS

CLOSED_REMEMBERED_MAX: Final = 1024
SETTLED_NS: Final = SECOND_NS
"""Age from which the reset of a stream is not rapid."""
_RESOURCE_EXHAUSTED: Final = 8
_INTERNAL: Final = 13


class StreamTable:
    """Open streams, and whether the peer may still have frames in flight on those just closed.

    Attributes:
        streams: Open streams by number.
        deadlines: Their deadlines.
        last_id: Highest stream number that the client has used.
        opened_count: Number of streams that the client has opened.
        has_ended: Whether the connection has ended: the streams left take no more output.
        is_refusing: Whether new streams are refused because the connection is being drained.
        events: Events since the owner last took them.
        now: Time of the call being handled, nanoseconds.
        partial_bytes: Bytes of incomplete messages and incomplete requests of all streams.
        stream_bytes: Cost of the open streams.
        reset_count: Resets that counted against the budget.
    """

    __slots__ = (
        "_closed",
        "_guard",
        "_limits",
        "_sender",
        "deadlines",
        "events",
        "has_ended",
        "is_refusing",
        "last_id",
        "now",
        "opened_count",
        "partial_bytes",
        "reset_count",
        "stream_bytes",
        "streams",
    )

    def __init__(self, limits: Limits, sender: Sender, guard: Guard) -> None:
        self._limits = limits
        self._sender = sender
        self._guard = guard
        self._closed: dict[int, bool] = {}
        self.streams: dict[int, Stream] = {}
        self.deadlines = StreamDeadlines(self.streams)
        self.last_id = 0
        self.opened_count = 0
        self.has_ended = False
        self.is_refusing = False
        self.events: list[Event] = []
        self.now = 0
        self.partial_bytes = 0
        self.stream_bytes = 0
        self.reset_count = 0

    def open(self, stream_id: int, flags: int, head: RequestHead | None) -> Stream | None:
        """Open a new stream; None if it was malformed or one too many, and has been reset."""
        assert stream_id > self.last_id
        self.last_id = stream_id
        if head is None:
            self.refuse(stream_id, Http2Code.PROTOCOL_ERROR)
            return None
        if self.is_refusing or len(self.streams) >= self._limits.streams_max:
            self.refuse(stream_id, Http2Code.REFUSED_STREAM)
            return None
        stream = Stream(stream_id, is_grpc=head.is_grpc, window=self._sender.stream_window)
        stream.opened_ns = self.now
        stream.encoding = head.encoding
        stream.content_left = head.content_length
        stream.is_refused = head.refusal is not None
        stream.is_direct = head.is_grpc and not stream.is_refused and head.content_length is None
        stream.size = STREAM_BYTES + head.text_bytes
        self.stream_bytes += stream.size
        self.streams[stream_id] = stream
        if head.timeout_ns is not None:
            stream.deadline_ns = self.now + head.timeout_ns
            self.deadlines.watch(stream, stream.deadline_ns)
        self.opened_count += 1
        self.events.append(RequestReceived(stream_id, head))
        if flags & FLAG_END_STREAM:
            self.end_request(stream)
        return stream

    def end_request(self, stream: Stream) -> None:
        """Handle END_STREAM from the client."""
        stream.is_remote_closed = True
        stream.is_direct = False
        stream.message_deadline_ns = 0
        if stream.content_left:
            self.reset(stream, Http2Code.PROTOCOL_ERROR)
        elif stream.partial:
            self.refuse_message(stream, _INTERNAL, "request ended inside a message")
        else:
            self.drop_partial(stream)
            self.events.append(RequestEnded(stream.id))

    def refuse_message(self, stream: Stream, status: int, text: str) -> None:
        """Request that the owner refuse an unacceptable message; drop later input."""
        self.drop_partial(stream)
        stream.is_direct = False
        stream.message_deadline_ns = 0
        if not stream.is_refused:
            stream.is_refused = True
            self.events.append(MessageRefused(stream.id, status, text))

    def add_partial(self, stream: Stream, size: int) -> None:
        """Count bytes that are not usable yet, within the bound of the connection."""
        self.partial_bytes += size
        if self.partial_bytes > self._limits.partial_bytes_max:
            text = "too many bytes in incomplete messages on this connection"
            self.refuse_message(stream, _RESOURCE_EXHAUSTED, text)

    def drop_partial(self, stream: Stream) -> None:
        """Drop the start of a message, and what was retained before it."""
        self.partial_bytes -= len(stream.partial) + stream.kept_bytes
        stream.partial = bytearray()
        stream.kept_bytes = 0

    def refuse(self, stream_id: int, code: Http2Code) -> None:
        """Reset a stream that was never opened.

        Raises:
            ConnectionFaultError: Refusals are too frequent.
        """
        self._sender.control(rst_stream_frame(stream_id, code))
        self._remember(stream_id, may_send=True)
        self._spend_reset()

    def reset(self, stream: Stream, code: Http2Code) -> None:
        """Reset an open stream and notify the owner.

        Raises:
            ConnectionFaultError: The peer has caused too many resets.
        """
        self._sender.control(rst_stream_frame(stream.id, code))
        self.events.append(StreamCancelled(stream.id, code))
        self.remove(stream, may_send=not stream.is_remote_closed)
        self._spend_reset()

    def remove(self, stream: Stream, *, may_send: bool) -> None:
        """Forget an open stream; `may_send` if the peer may not know yet that it is closed."""
        self.let_go(stream)
        del self.streams[stream.id]
        self._remember(stream.id, may_send=may_send)

    def let_go(self, stream: Stream) -> None:
        """Release the memory of a stream, which is no longer read or sent."""
        self._sender.forget(stream)
        self.drop_partial(stream)
        self.stream_bytes -= stream.size
        stream.size = 0

    def on_reset(self, stream_id: int, code: int) -> None:
        """Handle RST_STREAM (RFC 9113 6.4).

        Raises:
            ConnectionFaultError: The stream was never open, or resets come too often.
        """
        stream = self.streams.get(stream_id)
        if stream is not None:
            self.events.append(StreamCancelled(stream_id, code))
            self.remove(stream, may_send=False)
            if self.now - stream.opened_ns >= SETTLED_NS:
                return  # it counted as open; clients may end all streams at once
        else:
            self.require_opened(stream_id)
            if self._closed.get(stream_id):
                self._closed[stream_id] = False
                return  # it crossed our own reset
        # A frame of 13 bytes must not cost the broker a request each time (rapid reset).
        self._spend_reset()

    def on_stray_data(self, stream_id: int) -> None:
        """Handle DATA on a stream that is not open (RFC 9113 5.1).

        Raises:
            ConnectionFaultError: The stream was never open, or such frames come too often.
        """
        self.require_opened(stream_id)
        if self._closed.get(stream_id):
            return  # in flight when the broker closed it
        self._sender.control(rst_stream_frame(stream_id, Http2Code.STREAM_CLOSED))
        self._guard.spend("stray", self.now)

    def on_stray_headers(self, stream_id: int) -> None:
        """Handle HEADERS on a stream that is not open and not new (RFC 9113 5.1, 5.1.1).

        Raises:
            ConnectionFaultError: They were not in flight when the broker closed the stream.
        """
        may_send = self._closed.get(stream_id)
        if may_send is None:
            text = f"stream {stream_id} after stream {self.last_id}"
            raise ConnectionFaultError(Http2Code.PROTOCOL_ERROR, text)
        if not may_send:
            text = f"HEADERS on closed stream {stream_id}"
            raise ConnectionFaultError(Http2Code.STREAM_CLOSED, text)

    def require_opened(self, stream_id: int) -> None:
        """Refuse a frame on a stream whose number the client has not used (RFC 9113 5.1).

        Raises:
            ConnectionFaultError: The frame is on such a stream.
        """
        if stream_id > self.last_id or not stream_id & 1:
            text = f"frame on idle stream {stream_id}"
            raise ConnectionFaultError(Http2Code.PROTOCOL_ERROR, text)

    def _spend_reset(self) -> None:
        """Count a reset.

        Raises:
            ConnectionFaultError: There were too many resets.
        """
        self.reset_count += 1
        self._guard.spend("reset", self.now)

    def _remember(self, stream_id: int, *, may_send: bool) -> None:
        """Record how a stream was closed, for the latest streams only."""
        closed = self._closed
        closed[stream_id] = may_send
        if len(closed) > CLOSED_REMEMBERED_MAX:
            del closed[next(iter(closed))]
