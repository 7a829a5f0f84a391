"""The sending half of a connection: frames to send, windows, and the order of streams.

Control frames and headers go to `out` at once. Message bytes wait in their stream's queue and are
cut into DATA frames by `pump`, once per turn of the owner's loop, so that all output of a turn on a
stream becomes one frame where it fits. Bytes are not copied before they are joined.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final

from liftbridge_broker.http2.frames import (
    DATA,
    FLAG_END_HEADERS,
    FLAG_END_STREAM,
    FRAME_BYTES_DEFAULT,
    FRAME_HEADER,
    HEADER_BYTES,
    HEADERS,
    WINDOW_DEFAULT,
)
from liftbridge_broker.http2.stream import Buffer, Stream

OUT_MARK_BYTES: Final = 512 << 10
"""Size of a write above which no further DATA is added."""

TURN_BYTES: Final = 128 << 10
"""Bytes of DATA that a stream may send before the next stream is served."""

_EMPTY_TABLE: Final = b"\x20"
"""HPACK: dynamic table size update to 0 (RFC 7541 6.3)."""


class Sender:
    """Output of one connection.

    Attributes:
        out: Pieces of the next write, in order.
        out_bytes: Size of `out`.
        window: Bytes the peer accepts on the connection.
        frame_bytes_max: Largest payload the peer accepts.
        stream_window: Window the peer grants to new streams.
        answer_frames: HEADERS and DATA frames built so far.
        data_bytes: Their payload.
        queued_bytes: Bytes waiting in the queues of all streams.
        low_mark: Queue of a stream below which it is writable again.
        ended: Streams whose last frame was sent since the owner last took them.
        writable: Throttled streams whose queue fell below the low mark since the owner took them.
    """

    __slots__ = (
        "_needs_table_update",
        "_ready",
        "answer_frames",
        "data_bytes",
        "ended",
        "frame_bytes_max",
        "low_mark",
        "out",
        "out_bytes",
        "queued_bytes",
        "stream_window",
        "window",
        "writable",
    )

    def __init__(self, low_mark: int) -> None:
        self.out: list[Buffer] = []
        self.out_bytes = 0
        self.window = WINDOW_DEFAULT
        self.frame_bytes_max = FRAME_BYTES_DEFAULT
        self.stream_window = WINDOW_DEFAULT
        self.answer_frames = 0
        self.data_bytes = 0
        self.queued_bytes = 0
        self.low_mark = low_mark
        self.ended: list[Stream] = []
        self.writable: list[Stream] = []
        # By number, in order; a deque would be searched for each stream that is reset.
        self._ready: OrderedDict[int, Stream] = OrderedDict()
        self._needs_table_update = False

    @property
    def has_work(self) -> bool:
        """Return whether `pump` could build frames now."""
        return bool(self._ready) and self.window > 0

    def control(self, frame: bytes) -> None:
        """Add a whole frame."""
        self.out.append(frame)
        self.out_bytes += len(frame)

    def headers(self, stream_id: int, block: bytes, flags: int = 0) -> None:
        """Add a HEADERS frame; the block fits in one frame of any peer."""
        if self._needs_table_update:
            self._needs_table_update = False
            block = _EMPTY_TABLE + block
        assert len(block) <= FRAME_BYTES_DEFAULT
        header = FRAME_HEADER.pack(len(block) << 8 | HEADERS, flags | FLAG_END_HEADERS, stream_id)
        self.out.append(header)
        self.out.append(block)
        self.answer_frames += 1
        self.out_bytes += HEADER_BYTES + len(block)

    def on_table_size(self) -> None:
        """Announce with the next block that no table is used, whatever size the peer allows.

        RFC 7541 4.2: a change must be acknowledged at the start of the next block.
        """
        self._needs_table_update = True

    def queue(self, stream: Stream, chunks: bytes | Sequence[Buffer]) -> None:
        """Queue message bytes for `pump`."""
        if isinstance(chunks, bytes):
            stream.queue.append(chunks)
            size = len(chunks)
        else:
            stream.queue.extend(chunks)
            size = sum(map(len, chunks))
        stream.queued += size
        self.queued_bytes += size
        self.make_ready(stream)

    def finish(self, stream: Stream, final: bytes) -> None:
        """Send trailers, or an empty DATA frame that ends the stream, after the queue."""
        stream.final = final
        if not stream.queued:
            self._end(stream)

    def make_ready(self, stream: Stream) -> None:
        """Enqueue a stream with queued bytes and an open window."""
        if not stream.is_ready and stream.queued and stream.window > 0:
            stream.is_ready = True
            self._ready[stream.id] = stream

    def forget(self, stream: Stream) -> None:
        """Drop the queue of a stream."""
        self.queued_bytes -= stream.queued
        stream.queue.clear()
        stream.queued = 0
        if stream.is_ready:
            del self._ready[stream.id]
            stream.is_ready = False

    def pump(self) -> None:
        """Cut queued bytes into DATA frames, within the windows and the size of a write."""
        ready = self._ready
        while ready and self.window > 0 and self.out_bytes < OUT_MARK_BYTES:
            _, stream = ready.popitem(last=False)
            if stream.window > 0:  # a setting may have shrunk it since it was enqueued
                self._serve(stream)
            if stream.queued and stream.window > 0:
                ready[stream.id] = stream
                continue
            stream.is_ready = False
            if not stream.queued and stream.final is not None:
                self._end(stream)

    def _serve(self, stream: Stream) -> None:
        """Move one turn's bytes of one stream to `out`."""
        quota = min(stream.queued, stream.window, self.window, TURN_BYTES)
        assert quota > 0
        out = self.out
        frame_max = self.frame_bytes_max
        left = quota
        frames = 0
        while left:
            size = min(left, frame_max)
            out.append(FRAME_HEADER.pack(size << 8 | DATA, 0, stream.id))
            if size == stream.queued:
                out.extend(stream.queue)
                stream.queue.clear()
            else:
                _move(stream.queue, out, size)
            stream.queued -= size
            left -= size
            frames += 1
        stream.window -= quota
        self.window -= quota
        self.queued_bytes -= quota
        self.answer_frames += frames
        self.data_bytes += quota
        self.out_bytes += quota + HEADER_BYTES * frames
        if stream.is_throttled and stream.queued <= self.low_mark:
            stream.is_throttled = False
            self.writable.append(stream)

    def _end(self, stream: Stream) -> None:
        """Send the last frame of a stream."""
        assert stream.final is not None
        if stream.final:
            self.headers(stream.id, stream.final, FLAG_END_STREAM)
        else:
            self.control(FRAME_HEADER.pack(DATA, FLAG_END_STREAM, stream.id))
        self.ended.append(stream)


def _move(queue: deque[Buffer], out: list[Buffer], size: int) -> None:
    """Move exactly `size` bytes from the head of `queue`, leaving the rest of a cut buffer."""
    while size:
        head = queue[0]
        if len(head) <= size:
            out.append(head)
            size -= len(head)
            queue.popleft()
        else:
            view = memoryview(head)
            out.append(view[:size])
            queue[0] = view[size:]
            return
