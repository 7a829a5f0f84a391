"""Frames that carry header blocks: HEADERS and CONTINUATION open calls, or end requests."""

from liftbridge_broker.http2 import frames
from liftbridge_broker.http2.control import ControlFrames
from liftbridge_broker.http2.deadlines import Deadlines
from liftbridge_broker.http2.frames import ConnectionFaultError, Http2Code
from liftbridge_broker.http2.guard import Guard
from liftbridge_broker.http2.headers import HeaderBlock, HeaderDecoder
from liftbridge_broker.http2.limits import Limits
from liftbridge_broker.http2.table import StreamTable


class HeaderFrames:
    """Handler of header blocks; every one passes the decoder, whose table follows the client's.

    Attributes:
        block: The block that is open; until its end, only CONTINUATION frames may follow.
    """

    __slots__ = ("_deadlines", "_decoder", "_guard", "_limits", "_table", "block")

    def __init__(
        self, limits: Limits, table: StreamTable, guard: Guard, deadlines: Deadlines
    ) -> None:
        self._limits = limits
        self._table = table
        self._guard = guard
        self._deadlines = deadlines
        self._decoder = HeaderDecoder(limits)
        self.block = HeaderBlock(limits)

    def on_headers(self, stream_id: int, flags: int, payload: bytes) -> None:
        """Start a header block (RFC 9113 6.2).

        Raises:
            ConnectionFaultError: The frame, or its whole block, breaks a rule of the connection.
        """
        if not stream_id & 1:
            text = f"HEADERS on stream {stream_id}"
            raise ConnectionFaultError(Http2Code.PROTOCOL_ERROR, text)
        start, stop = 0, len(payload)
        if flags & frames.FLAG_PADDED:
            start = 1
            stop -= payload[0] if payload else 1
        if flags & frames.FLAG_PRIORITY:
            start += 5
        if start > stop:
            code = Http2Code.PROTOCOL_ERROR if start <= len(payload) else Http2Code.FRAME_SIZE_ERROR
            raise ConnectionFaultError(code, "HEADERS with more padding than payload")
        if flags & frames.FLAG_PRIORITY:
            ControlFrames.check_dependency(stream_id, payload[start - 5 : start])
        self.block.begin(stream_id, flags, payload[start:stop])
        if flags & frames.FLAG_END_HEADERS:
            self._on_block()
        elif self._limits.frame_ns:
            self._deadlines.set("headers", self._table.now + self._limits.frame_ns)

    def on_continuation(self, stream_id: int, flags: int, payload: bytes) -> None:
        """Extend the open header block (RFC 9113 6.10).

        Raises:
            ConnectionFaultError: The frame, or its whole block, breaks a rule of the connection.
        """
        if not self.block.stream_id:
            text = f"CONTINUATION on stream {stream_id} without HEADERS"
            raise ConnectionFaultError(Http2Code.PROTOCOL_ERROR, text)
        self.block.extend(payload)
        if flags & frames.FLAG_END_HEADERS:
            self._deadlines.clear("headers")
            self._on_block()

    def _on_block(self) -> None:
        """Handle a complete header block: a new request, or trailers."""
        table = self._table
        stream_id, flags = self.block.stream_id, self.block.flags
        block = self.block.finish()
        stream = table.streams.get(stream_id)
        if stream is not None:
            are_good = self._decoder.trailers_are_good(block)
            self._count_lost_fields()
            if stream.is_remote_closed:
                table.reset(stream, Http2Code.STREAM_CLOSED)
            elif not are_good or not flags & frames.FLAG_END_STREAM:
                table.reset(stream, Http2Code.PROTOCOL_ERROR)
            else:
                table.end_request(stream)
        elif stream_id > table.last_id:
            stream = table.open(stream_id, flags, self._decoder.head(block))
            if stream is None or stream.is_refused:
                self._count_lost_fields()
        else:
            self._decoder.skip(block)
            self._count_lost_fields()
            table.on_stray_headers(stream_id)

    def _count_lost_fields(self) -> None:
        """Count the fields of a block that starts no call; a cached block counts as one."""
        self._guard.spend("lost_fields", self._table.now, max(1, self._decoder.field_count))
