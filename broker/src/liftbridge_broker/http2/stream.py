"""State of one HTTP/2 stream, receiving and sending half."""

from collections import deque
from typing import Final

Buffer = bytes | memoryview

STREAM_BYTES: Final = 2_048
"""Fixed cost of an open stream, including its call, before anything was sent on it."""


class Stream:
    """One open stream; plain attributes, because the hot loops work on them directly.

    Attributes:
        id: Number of the stream.
        size: Cost while it is open: `STREAM_BYTES` and the texts of its head.
        is_grpc: Whether its DATA carries gRPC messages; otherwise DATA is counted and dropped.
        is_direct: Whether the next DATA frame may be read by the hot loop: gRPC, not ended, not
            refused and no message started.
        is_remote_closed: Whether the client sent END_STREAM.
        is_refused: Whether a message was refused; later input is dropped.
        is_awaited: Whether the owner waits for END_STREAM: the whole request has one deadline.
        is_reading: Whether credit is returned for received bytes.
        unread: Bytes received since the last WINDOW_UPDATE for this stream.
        partial: Beginning of a message whose end has not arrived, prefix included.
        kept_bytes: Size of complete messages that the owner retains until END_STREAM.
        content_left: Remaining bytes of a declared `content-length`, None without one.
        encoding: Value of `grpc-encoding`.
        opened_ns: Time at which the client opened it.
        deadline_ns: Time at which `grpc-timeout` ends; 0 for never.
        message_deadline_ns: Time by which the started message, or an awaited request, must be
            complete; 0 for none.
        wake_ns: Time at which its deadlines are next checked (`StreamDeadlines`); 0 for never.
        window: Bytes the client still accepts on this stream; negative after it shrank its setting.
        queue: Framed bytes that wait to be sent.
        queued: Size of `queue`.
        is_ready: Whether the stream is in the sender's list of streams to serve.
        has_headers: Whether the response headers were sent.
        final: Block of the trailers to send after the queue; empty for an empty DATA frame that
            ends a plain answer; None while the owner has not finished.
        is_throttled: Whether the queue rose over the high mark and has not fallen below the low.
    """

    __slots__ = (
        "content_left",
        "deadline_ns",
        "encoding",
        "final",
        "has_headers",
        "id",
        "is_awaited",
        "is_direct",
        "is_grpc",
        "is_reading",
        "is_ready",
        "is_refused",
        "is_remote_closed",
        "is_throttled",
        "kept_bytes",
        "message_deadline_ns",
        "opened_ns",
        "partial",
        "queue",
        "queued",
        "size",
        "unread",
        "wake_ns",
        "window",
    )

    def __init__(self, stream_id: int, *, is_grpc: bool, window: int) -> None:
        self.id = stream_id
        self.size = 0
        self.is_grpc = is_grpc
        self.is_direct = is_grpc
        self.is_remote_closed = False
        self.is_refused = False
        self.is_awaited = False
        self.is_reading = True
        self.unread = 0
        self.partial = bytearray()
        self.kept_bytes = 0
        self.content_left: int | None = None
        self.encoding = "identity"
        self.opened_ns = 0
        self.deadline_ns = 0
        self.message_deadline_ns = 0
        self.wake_ns = 0
        self.window = window
        self.queue: deque[Buffer] = deque()
        self.queued = 0
        self.is_ready = False
        self.has_headers = False
        self.final: bytes | None = None
        self.is_throttled = False

    def next_deadline_ns(self) -> int:
        """Return the earliest of the stream's deadlines, 0 for none."""
        call, message = self.deadline_ns, self.message_deadline_ns
        return min(call, message) if call and message else call or message
