"""HTTP/2 frames as bytes (RFC 9113 4.1, 6, 7): numbers, layouts and encoders.

Every frame starts with 9 bytes, big-endian: length of the payload (3), type (1), flags (1), stream
number (4, the highest bit reserved). Decoding happens in `connection`, in place.
"""

from enum import IntEnum
from struct import Struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

FLAG_ACK: Final = 0x1
FLAG_END_STREAM: Final = 0x1
FLAG_END_HEADERS: Final = 0x4
FLAG_PADDED: Final = 0x8
FLAG_PRIORITY: Final = 0x20

SETTING_HEADER_TABLE_SIZE: Final = 1
SETTING_ENABLE_PUSH: Final = 2
SETTING_MAX_CONCURRENT_STREAMS: Final = 3
SETTING_INITIAL_WINDOW_SIZE: Final = 4
SETTING_MAX_FRAME_SIZE: Final = 5
SETTING_MAX_HEADER_LIST_SIZE: Final = 6

STREAM_ID_MAX: Final = 2**31 - 1
WINDOW_MAX: Final = 2**31 - 1
WINDOW_DEFAULT: Final = 65_535
FRAME_BYTES_DEFAULT: Final = 16_384
FRAME_BYTES_LARGEST: Final = 2**24 - 1
HEADER_BYTES: Final = 9

FRAME_HEADER = Struct(">IBI")
"""Length << 8 | type, flags, stream number: 9 bytes."""

FRAME_AND_PREFIX = Struct(">IBIBI")
"""A frame header followed by the gRPC prefix (compressed flag, message length): 14 bytes."""

PREFIX = Struct(">BI")
"""gRPC message prefix: compressed flag, message length; 5 bytes."""

WORD = Struct(">I")
SETTING = Struct(">HI")
GOAWAY_HEAD = Struct(">II")


class Http2Code(IntEnum):
    """Error codes (RFC 9113 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class ConnectionFaultError(Exception):
    """The peer broke a rule that ends the connection; never leaves the package.

    Attributes:
        code: Code of the GOAWAY to send.
        text: Its debug text.
        flood: Kind of abuse, empty when it is an ordinary fault.
        reply: Bytes to send instead of a GOAWAY, for a peer that does not speak HTTP/2.
    """

    def __init__(self, code: Http2Code, text: str, *, flood: str = "", reply: bytes = b"") -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.flood = flood
        self.reply = reply


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    """Encode a whole frame."""
    return FRAME_HEADER.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def settings_frame(settings: dict[int, int]) -> bytes:
    """Encode SETTINGS with one 6-byte entry (identifier, value) for each item, in order."""
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*item) for item in settings.items()))


SETTINGS_ACK: Final = frame(SETTINGS, FLAG_ACK, 0, b"")


def rst_stream_frame(stream_id: int, code: int) -> bytes:
    """Encode RST_STREAM: the error code in 4 bytes."""
    return frame(RST_STREAM, 0, stream_id, WORD.pack(code))


def ping_frame(payload: bytes, *, flags: int = 0) -> bytes:
    """Encode PING with its 8 opaque bytes."""
    assert len(payload) == 8
    return frame(PING, flags, 0, payload)


def goaway_frame(last_stream_id: int, code: int, text: str) -> bytes:
    """Encode GOAWAY: last stream number, error code, debug text as UTF-8."""
    return frame(GOAWAY, 0, 0, GOAWAY_HEAD.pack(last_stream_id, code) + text.encode())


def window_update_frame(stream_id: int, increment: int) -> bytes:
    """Encode WINDOW_UPDATE: the increment in 4 bytes; stream 0 is the connection."""
    assert 0 < increment <= WINDOW_MAX
    return frame(WINDOW_UPDATE, 0, stream_id, WORD.pack(increment))
