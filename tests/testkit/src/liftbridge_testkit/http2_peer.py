"""The client's side of HTTP/2 for tests: makes frames, right and wrong, and reads the answers.

It keeps no rules. A test decides the bytes on the wire and looks at each received frame.
"""

import asyncio
from typing import Final, NamedTuple

from hpack import Decoder, Encoder

from liftbridge_broker.http2 import frames
from liftbridge_broker.http2.connection import Connection
from liftbridge_broker.http2.events import Event
from liftbridge_broker.http2.limits import Limits

GRPC_FIELDS: Final = (("content-type", "application/grpc"), ("te", "trailers"))
PATH: Final = "/test.Echo/Bidi"
GOAWAY_FIXED_BYTES: Final = 8


class Frame(NamedTuple):
    """One frame as received; `fields` is the decoded list of a HEADERS frame."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes
    fields: dict[str, str]

    @property
    def error_code(self) -> int:
        """Code of an RST_STREAM or GOAWAY frame."""
        start = 0 if self.kind == frames.RST_STREAM else 4
        return int.from_bytes(self.payload[start : start + 4], "big")

    @property
    def debug_text(self) -> str:
        """Debug text of a GOAWAY frame."""
        return self.payload[GOAWAY_FIXED_BYTES:].decode()


class Http2Peer:
    """Makes the bytes a client sends and reads those a server sends."""

    def __init__(self) -> None:
        self._encoder = Encoder()
        self._decoder = Decoder()
        self._pending = b""

    @staticmethod
    def hello(settings: dict[int, int] | None = None) -> bytes:
        """Return preface and first SETTINGS."""
        return frames.PREFACE + frames.settings_frame(settings or {})

    def block(self, fields: list[tuple[str, str]]) -> bytes:
        """Return a header block."""
        return self._encoder.encode(fields)

    def request(
        self,
        stream_id: int,
        path: str = PATH,
        *,
        verb: str = "POST",
        more: tuple[tuple[str, str], ...] = GRPC_FIELDS,
        ends: bool = False,
    ) -> bytes:
        """HEADERS that open a call, with the gRPC content type unless `more` says otherwise."""
        fields = [(":method", verb), (":scheme", "http"), (":path", path), (":authority", "test")]
        flags = frames.FLAG_END_HEADERS | (frames.FLAG_END_STREAM if ends else 0)
        return frames.frame(frames.HEADERS, flags, stream_id, self.block([*fields, *more]))

    @staticmethod
    def data(stream_id: int, payload: bytes, *, ends: bool = False) -> bytes:
        """Return one DATA frame."""
        return frames.frame(frames.DATA, int(ends), stream_id, payload)

    @staticmethod
    def message(stream_id: int, message: bytes, *, ends: bool = False) -> bytes:
        """Return one DATA frame that holds one gRPC message."""
        return frames.frame(frames.DATA, int(ends), stream_id, prefixed(message))

    def read(self, data: bytes) -> list[Frame]:
        """Return the frames that became complete with `data`."""
        self._pending += data
        found = []
        while len(self._pending) >= frames.HEADER_BYTES:
            word, flags, stream_id = frames.FRAME_HEADER.unpack_from(self._pending)
            end = frames.HEADER_BYTES + (word >> 8)
            if len(self._pending) < end:
                break
            payload = self._pending[frames.HEADER_BYTES : end]
            self._pending = self._pending[end:]
            fields: dict[str, str] = {}
            if word & 0xFF == frames.HEADERS:
                fields = {str(name): str(value) for name, value in self._decoder.decode(payload)}
            found.append(Frame(word & 0xFF, flags, stream_id, payload, fields))
        return found


class Duel:
    """A core connection and a peer that talk without a socket, at times the test chooses."""

    def __init__(self, limits: Limits | None = None, *, settings: dict[int, int] | None = None):
        self.now = 1_000_000_000
        self.peer = Http2Peer()
        self.core = Connection(limits or Limits(), self.now)
        self.receive(Http2Peer.hello(settings))
        self.greeting = self.sent()

    def receive(self, *pieces: bytes) -> list[Event]:
        """Give bytes to the core."""
        events = self.core.receive(b"".join(pieces), self.now)
        while self.core.reader.has_unread:
            events += self.core.receive(b"", self.now)
        return events

    def open(self, stream_id: int = 1, path: str = PATH, *, ends: bool = False) -> list[Event]:
        """Open a call."""
        return self.receive(self.peer.request(stream_id, path, ends=ends))

    def wait(self, nanoseconds: int) -> list[Event]:
        """Let time pass and report it to the core at each deadline in between."""
        until = self.now + nanoseconds
        events: list[Event] = []
        while self.core.next_deadline() <= until and not self.core.has_ended:
            self.now = max(self.now, self.core.next_deadline())
            events += self.core.on_time(self.now)
        self.now = until
        return events

    def sent(self) -> list[Frame]:
        """Frames the core has sent since last asked."""
        found = []
        while pieces := self.core.take_output(self.now):
            found += self.peer.read(b"".join(pieces))
        return found


def prefixed(message: bytes) -> bytes:
    """Return a gRPC message behind its prefix."""
    return len(message).to_bytes(5, "big") + message


def of_kind(found: list[Frame], kind: int) -> list[Frame]:
    """Return the frames of one type."""
    return [frame for frame in found if frame.kind == kind]


class RecordingTransport(asyncio.Transport):
    """A transport that notes what the connection asks of it.

    Attributes:
        extra: Facts about it, by name.
    """

    def __init__(self) -> None:
        self.extra: dict[str, object] = {}
        super().__init__(self.extra)
        self.is_read = True
        self.is_aborted = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert low is None or high is None or low <= high

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert data

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.is_read = False

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True

    def close(self) -> None:
        self.is_read = False
