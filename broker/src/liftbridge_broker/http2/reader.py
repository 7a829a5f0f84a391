"""Cutting received bytes into frames; each goes to the handler of its type (RFC 9113 3.4, 4.1)."""

from typing import Final

from liftbridge_broker.http2 import frames
from liftbridge_broker.http2.control import ControlFrames
from liftbridge_broker.http2.deadlines import Deadlines
from liftbridge_broker.http2.frames import ConnectionFaultError, Http2Code
from liftbridge_broker.http2.header_frames import HeaderFrames
from liftbridge_broker.http2.limits import Limits
from liftbridge_broker.http2.messages import MessageReader

FRAMES_MAX: Final = 128
"""Maximum number of frames read at once, without the cheap frames of one whole message.

For frames whose payload is read field by field, each 32 bytes count as one more.
"""

_FIELDS: Final = frozenset((frames.HEADERS, frames.CONTINUATION, frames.SETTINGS))
_HTTP1_VERBS: Final = (
    b"GET ",
    b"HEAD",
    b"POST",
    b"PUT ",
    b"DELE",
    b"OPTI",
    b"PATC",
    b"CONN",
    b"TRAC",
)
_HTTP1_TEXT: Final = b"this port speaks gRPC over HTTP/2\n"
_HTTP1_REPLY: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_HTTP1_TEXT), _HTTP1_TEXT)
)


class FrameReader:
    """Reader of preface and frames, and holder of what it has not read yet.

    Bytes are held while a frame is incomplete, or when `FRAMES_MAX` were read at once.

    Attributes:
        held: Pieces of the held bytes, none without.
        held_bytes: Their size while there are any.
        has_preface: Whether the client's preface has arrived.
        has_unread: Whether whole frames may be among the held bytes: they need no new bytes.
    """

    __slots__ = (
        "_block",
        "_control",
        "_deadlines",
        "_headers",
        "_limits",
        "_messages",
        "_needed_bytes",
        "has_preface",
        "has_unread",
        "held",
        "held_bytes",
    )

    def __init__(
        self,
        limits: Limits,
        control: ControlFrames,
        headers: HeaderFrames,
        messages: MessageReader,
        deadlines: Deadlines,
    ) -> None:
        self._limits = limits
        self._control = control
        self._headers = headers
        self._block = headers.block
        self._messages = messages
        self._deadlines = deadlines
        self._needed_bytes = len(frames.PREFACE)
        self.held: list[bytes] = []
        self.held_bytes = 0
        self.has_preface = False
        self.has_unread = False

    def join(self, data: bytes) -> bytes:
        """Return the held bytes with those that follow; none while a frame is incomplete."""
        self.held.append(data)
        self.held_bytes += len(data)
        if self.held_bytes < self._needed_bytes and self.has_preface:
            return b""
        data = b"".join(self.held)
        self.held.clear()
        return data

    def hold(self, rest: bytes, now: int) -> None:
        """Keep the start of a frame until the rest arrives, within a time bound."""
        self.held.append(rest)
        self.held_bytes = len(rest)
        if self._limits.frame_ns:
            self._deadlines.bring_forward("frame", now + self._limits.frame_ns)

    def read(self, data: bytes) -> int:
        """Read preface and frames; return the position after the last whole frame.

        Raises:
            ConnectionFaultError: A frame breaks a rule of the connection.
        """
        position = 0
        if not self.has_preface:
            if not self._check_preface(data):
                return 0
            position = len(frames.PREFACE)
        end = len(data)
        read_run = self._messages.read_run
        unpack = frames.FRAME_HEADER.unpack_from
        frame_max = self._limits.frame_bytes_max
        block = self._block
        left = FRAMES_MAX
        while left > 0:
            if block.stream_id == 0:
                position = read_run(data, position)
            start = position + frames.HEADER_BYTES
            if start > end:
                self._needed_bytes = frames.HEADER_BYTES
                return position
            word, flags, stream_id = unpack(data, position)
            length = word >> 8
            if length > frame_max:
                text = f"frame of {length} bytes, allowed are {frame_max}"
                raise ConnectionFaultError(Http2Code.FRAME_SIZE_ERROR, text)
            if start + length > end:
                self._needed_bytes = frames.HEADER_BYTES + length
                return position
            position = start + length
            stream_id &= frames.STREAM_ID_MAX
            left -= 1 + (length >> 5 if word & 0xFF in _FIELDS else 0)
            self._on_frame(word & 0xFF, flags, stream_id, data, start, position)
        self._needed_bytes = 0
        self.has_unread = position < end
        return position

    def _check_preface(self, data: bytes) -> bool:
        """Return whether the whole preface has arrived (RFC 9113 3.4)."""
        preface = frames.PREFACE
        if data[: len(preface)] == preface:
            self.has_preface = True
            self._control.greet(self._limits)
            return True
        if preface.startswith(data):
            return False
        if len(data) < 4 and any(verb.startswith(data) for verb in _HTTP1_VERBS):
            return False
        reply = _HTTP1_REPLY if data[:4] in _HTTP1_VERBS else b""
        text = "HTTP/1 request" if reply else "no HTTP/2 preface"
        raise ConnectionFaultError(Http2Code.PROTOCOL_ERROR, text, reply=reply)

    def _on_frame(
        self, kind: int, flags: int, stream_id: int, data: bytes, start: int, stop: int
    ) -> None:
        """Handle one whole frame whose payload is `data[start:stop]`."""
        if not self._control.has_settings and (kind != frames.SETTINGS or flags & frames.FLAG_ACK):
            text = "the first frame is not SETTINGS"
            raise ConnectionFaultError(Http2Code.PROTOCOL_ERROR, text)
        open_block = self._block.stream_id
        if open_block and (kind != frames.CONTINUATION or stream_id != open_block):
            text = f"header block of stream {open_block} interrupted"
            raise ConnectionFaultError(Http2Code.PROTOCOL_ERROR, text)
        if kind == frames.DATA:
            self._messages.on_data(stream_id, flags, data, start, stop)
        elif kind == frames.HEADERS:
            self._headers.on_headers(stream_id, flags, data[start:stop])
        elif kind == frames.CONTINUATION:
            self._headers.on_continuation(stream_id, flags, data[start:stop])
        else:
            self._control.handle(kind, flags, stream_id, data[start:stop])
