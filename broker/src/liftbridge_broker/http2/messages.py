"""Conversion of DATA frames to gRPC messages: the receiving hot loop, and its flow control.

A window is two integers per stream and two for the connection: the granted bytes, and the bytes
received since the last grant. Credit is returned in steps of half a window.
"""

from typing import Final

from liftbridge_broker.http2.events import MessagesReceived
from liftbridge_broker.http2.frames import (
    DATA,
    FLAG_END_STREAM,
    FLAG_PADDED,
    FRAME_AND_PREFIX,
    PREFIX,
    WINDOW_MAX,
    ConnectionFaultError,
    Http2Code,
    window_update_frame,
)
from liftbridge_broker.http2.guard import Guard
from liftbridge_broker.http2.limits import Limits
from liftbridge_broker.http2.sender import Sender
from liftbridge_broker.http2.stream import Stream
from liftbridge_broker.http2.table import StreamTable

_RESOURCE_EXHAUSTED: Final = 8
_UNIMPLEMENTED: Final = 12
_INTERNAL: Final = 13
_PREFIX_BYTES: Final = 5
_NO_STREAM: Final = Stream(0, is_grpc=False, window=0)
_NO_MESSAGES: Final[list[bytes]] = []


class MessageReader:
    """Reads DATA frames of all streams of one connection."""

    __slots__ = (
        "_batches",
        "_direct_bytes_max",
        "_guard",
        "_limits",
        "_sender",
        "_table",
        "_unread",
    )

    def __init__(self, limits: Limits, table: StreamTable, sender: Sender, guard: Guard) -> None:
        assert 0 < limits.stream_window_bytes <= WINDOW_MAX
        self._limits = limits
        self._table = table
        self._sender = sender
        self._guard = guard
        self._unread = 0
        self._batches: dict[int, list[bytes]] = {}
        self._direct_bytes_max = min(
            limits.message_bytes_max, limits.frame_bytes_max - _PREFIX_BYTES
        )

    def read_run(self, data: bytes, position: int) -> int:
        """Read whole DATA frames that hold exactly one message each, as clients send them.

        Stops before the first other or incomplete frame. One unpack reads the frame header together
        with the message prefix, one slice makes the message; nothing else happens per message
        (`tests/bench/bench_http2.py`).

        Returns:
            Position after the last frame read.
        """
        streams = self._table.streams
        unpack = FRAME_AND_PREFIX.unpack_from
        size_max = self._direct_bytes_max
        last = len(data) - FRAME_AND_PREFIX.size
        begin = position
        frames = 0
        run_id = -1
        stream = _NO_STREAM
        append = _NO_MESSAGES.append
        while position <= last:
            word, flags, stream_id, compressed, size = unpack(data, position)
            if word != size + 5 << 8 or flags or compressed or size > size_max:
                break
            end = position + 14 + size
            if end > last + 14:
                break
            if stream_id != run_id:
                state = streams.get(stream_id)
                if state is None or not state.is_direct:
                    break
                stream = state
                run_id = stream_id
                append = self._batch(stream).append
            append(data[position + 14 : end])
            stream.unread += size + 5
            frames += 1
            position = end
        self._unread += position - begin - 9 * frames
        return position

    def on_data(self, stream_id: int, flags: int, data: bytes, start: int, stop: int) -> None:
        """Read one DATA frame of any shape; its payload is `data[start:stop]`.

        Raises:
            ConnectionFaultError: The frame breaks a rule of the connection.
        """
        length = stop - start
        self._unread += length
        if not flags & FLAG_END_STREAM and not length:
            self._guard.spend("empty_data", self._table.now)
        if stream_id == 0:
            raise ConnectionFaultError(Http2Code.PROTOCOL_ERROR, "DATA on stream 0")
        if flags & FLAG_PADDED:
            start, stop = _unpad(data, start, stop)
        stream = self._table.streams.get(stream_id)
        if stream is None:
            self._table.on_stray_data(stream_id)
            return
        if stream.is_remote_closed:
            self._table.reset(stream, Http2Code.STREAM_CLOSED)
            return
        stream.unread += length
        if stream.content_left is not None:
            stream.content_left -= stop - start
            if stream.content_left < 0:
                self._table.reset(stream, Http2Code.PROTOCOL_ERROR)
                return
        self._take(stream, flags, data, start, stop)

    def _take(self, stream: Stream, flags: int, data: bytes, start: int, stop: int) -> None:
        """Process the unpadded payload of a DATA frame, and the end of the request with it."""
        if stream.is_grpc and not stream.is_refused:
            self._read_payload(stream, data, start, stop)
        if flags & FLAG_END_STREAM:
            self._table.end_request(stream)
        else:
            self._settle(stream)

    def settle(self) -> None:
        """Check and renew windows after all received bytes were read.

        Raises:
            ConnectionFaultError: The peer sent more than was granted.
        """
        batches = self._batches
        if batches:
            streams = self._table.streams
            for stream_id in batches:
                stream = streams.get(stream_id)
                if stream is not None:
                    self._settle(stream)
            self._batches = {}
        granted = self._limits.connection_window_bytes
        if self._unread > granted:
            text = "more DATA than the connection's window"
            raise ConnectionFaultError(Http2Code.FLOW_CONTROL_ERROR, text)
        if self._unread * 2 >= granted:
            self._sender.control(window_update_frame(0, self._unread))
            self._unread = 0

    def set_reading(self, stream: Stream, *, is_reading: bool) -> None:
        """Withhold or return credit for bytes that a stream receives."""
        stream.is_reading = is_reading
        self._grant(stream)

    def _settle(self, stream: Stream) -> None:
        """Check and renew the window of one stream."""
        if stream.unread > self._limits.stream_window_bytes:
            self._table.reset(stream, Http2Code.FLOW_CONTROL_ERROR)
        else:
            self._grant(stream)

    def _grant(self, stream: Stream) -> None:
        """Grant credit in steps of half a window, unless the owner withholds it."""
        if (
            stream.unread * 2 >= self._limits.stream_window_bytes
            and stream.is_reading
            and not stream.is_remote_closed
            and not stream.is_refused
        ):
            self._sender.control(window_update_frame(stream.id, stream.unread))
            stream.unread = 0

    def _batch(self, stream: Stream) -> list[bytes]:
        """Return the list of a stream's messages in this turn; create its event on first use."""
        batch = self._batches.get(stream.id)
        if batch is None:
            batch = self._batches[stream.id] = []
            self._table.events.append(MessagesReceived(stream.id, batch))
        return batch

    def _read_payload(self, stream: Stream, data: bytes, start: int, stop: int) -> None:
        """Split a payload into messages; the remainder starts the next one."""
        if stream.partial:
            start = self._complete(stream, data, start, stop)
            if stream.is_refused or stream.partial:
                return
        unpack = PREFIX.unpack_from
        size_max = self._limits.message_bytes_max
        parts: list[bytes] = []
        while stop - start >= _PREFIX_BYTES:
            compressed, size = unpack(data, start)
            end = start + 5 + size
            if end > stop or compressed or size > size_max:
                break
            parts.append(data[start + 5 : end])
            start = end
        if parts:
            self._batch(stream).extend(parts)
        if stop - start >= _PREFIX_BYTES:
            compressed, size = unpack(data, start)
            if compressed or size > size_max:
                self._refuse(stream, compressed, size)
                return
        if start < stop:
            self._keep(stream, data, start, stop)
        else:
            stream.is_direct = stream.content_left is None

    def _complete(self, stream: Stream, data: bytes, start: int, stop: int) -> int:
        """Add to a started message; return the position after the used bytes.

        `stream.partial` is empty afterwards if the message was completed.
        """
        partial = stream.partial
        if len(partial) < _PREFIX_BYTES:
            taken = min(_PREFIX_BYTES - len(partial), stop - start)
            self._keep(stream, data, start, start + taken)
            start += taken
            if len(partial) < _PREFIX_BYTES or stream.is_refused:
                return start
            compressed, size = PREFIX.unpack_from(partial)
            if compressed or size > self._limits.message_bytes_max:
                self._refuse(stream, compressed, size)
                return stop
        size = int.from_bytes(partial[1:_PREFIX_BYTES], "big")
        taken = min(_PREFIX_BYTES + size - len(partial), stop - start)
        self._keep(stream, data, start, start + taken)
        if not stream.is_refused and len(partial) == _PREFIX_BYTES + size:
            with memoryview(partial) as view:
                self._batch(stream).append(bytes(view[_PREFIX_BYTES:]))
            self._table.partial_bytes -= len(partial)
            stream.partial = bytearray()
            if not stream.is_awaited:
                stream.message_deadline_ns = 0
        return start + taken

    def _keep(self, stream: Stream, data: bytes, start: int, stop: int) -> None:
        """Store bytes of an incomplete message, within the bound of the connection."""
        table = self._table
        stream.is_direct = False
        if not stream.partial and not stream.is_awaited and self._limits.message_ns:
            deadline = table.now + self._limits.message_ns
            stream.message_deadline_ns = deadline
            table.deadlines.watch(stream, deadline)
        with memoryview(data) as view:
            stream.partial += view[start:stop]
        table.add_partial(stream, stop - start)

    def _refuse(self, stream: Stream, compressed: int, size: int) -> None:
        """Refuse a message because of its prefix."""
        if not compressed:
            limit = self._limits.message_bytes_max
            text = f"received message larger than max ({size} vs. {limit})"
            self._table.refuse_message(stream, _RESOURCE_EXHAUSTED, text)
        elif stream.encoding == "identity":
            text = "compressed flag set with identity or empty encoding"
            self._table.refuse_message(stream, _INTERNAL, text)
        else:
            text = f"grpc-encoding {stream.encoding} is not supported"
            self._table.refuse_message(stream, _UNIMPLEMENTED, text)


def _unpad(data: bytes, start: int, stop: int) -> tuple[int, int]:
    """Return the bounds of a padded payload without its padding (RFC 9113 6.1)."""
    if start == stop or data[start] >= stop - start:
        text = "DATA with more padding than payload"
        raise ConnectionFaultError(Http2Code.PROTOCOL_ERROR, text)
    return start + 1, stop - data[start]


assert DATA == 0, "read_run takes a word whose low byte is 0 for a DATA frame"
