"""gRPC's additions to HTTP/2 (grpc/doc/PROTOCOL-HTTP2.md): header values and response blocks.

Response blocks are HPACK without the dynamic table and without Huffman codes, so that the frequent
ones are constants (RFC 7541 6.2.2: 0x00, name, value, each after its length).
"""

import re
from bisect import bisect_right
from itertools import accumulate
from typing import Final

_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_TIMEOUT_UNIT_NS: Final = {
    b"H": 3_600_000_000_000,
    b"M": 60_000_000_000,
    b"S": 1_000_000_000,
    b"m": 1_000_000,
    b"u": 1_000,
    b"n": 1,
}
_MESSAGE_BYTES_MAX: Final = 4096
_PLAIN: Final = frozenset(range(0x20, 0x7F)) - {0x25}
_ESCAPES: Final = tuple(
    bytes((octet,)) if octet in _PLAIN else b"%%%02X" % octet for octet in range(256)
)
_STATUS_INDEXED: Final = {200: b"\x88", 400: b"\x8c", 404: b"\x8d", 500: b"\x8e"}


def parse_timeout(value: bytes) -> int | None:
    """Parse a `grpc-timeout` value to nanoseconds; None if it is malformed."""
    match = _TIMEOUT.fullmatch(value)
    return int(match[1]) * _TIMEOUT_UNIT_NS[match[2]] if match else None


def percent_encode(text: str) -> bytes:
    """`grpc-message` value: UTF-8 with everything but printable ASCII, and `%`, as `%XX`.

    Cut to 4 KiB at a whole character, because clients bound the header list.
    """
    octets = text[:_MESSAGE_BYTES_MAX].encode("utf-8", "replace")
    pieces = [_ESCAPES[octet] for octet in octets]
    sizes = list(accumulate(map(len, pieces)))
    end = bisect_right(sizes, _MESSAGE_BYTES_MAX)
    while end < len(octets) and octets[end] & 0xC0 == 0x80:
        end -= 1
    return b"".join(pieces[:end])


def _integer(value: int) -> bytes:
    """Encode an HPACK integer with a 7-bit prefix whose highest bit is 0 (RFC 7541 5.1)."""
    if value < 127:
        return bytes((value,))
    encoded = bytearray((127,))
    value -= 127
    while value >= 128:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def literal(name: bytes, value: bytes) -> bytes:
    """Encode one header field, literal without indexing, with a new name."""
    return b"".join((b"\x00", _integer(len(name)), name, _integer(len(value)), value))


def status_field(status: int) -> bytes:
    """Encode the pseudo-header field `:status`."""
    return _STATUS_INDEXED.get(status) or literal(b":status", b"%d" % status)


RESPONSE_BLOCK: Final = status_field(200) + literal(b"content-type", b"application/grpc")
"""Headers before the first message."""

ERROR_CODE_FIELD: Final = b"liftbridge-error"
"""Trailer with the code of a refusal; a status alone may also stem from a broken call."""

_OK_BLOCK: Final = literal(b"grpc-status", b"0")
_ACCEPT_IDENTITY: Final = literal(b"grpc-accept-encoding", b"identity")
_UNIMPLEMENTED: Final = 12


def trailers_block(status: int, text: str, error_code: str = "") -> bytes:
    """Encode the trailers after messages. UNIMPLEMENTED adds the list of supported encodings.

    Args:
        status: gRPC status.
        text: Becomes `grpc-message`; none when it is empty.
        error_code: Becomes `ERROR_CODE_FIELD`, for programs; none when it is empty.
    """
    if status == 0 and not text:
        return _OK_BLOCK
    block = literal(b"grpc-status", b"%d" % status)
    if text:
        block += literal(b"grpc-message", percent_encode(text))
    if error_code:
        block += literal(ERROR_CODE_FIELD, error_code.encode())
    return block + _ACCEPT_IDENTITY if status == _UNIMPLEMENTED else block


def plain_block(status: int, body_bytes: int) -> bytes:
    """Encode the headers of a non-gRPC answer: a short text."""
    return b"".join(
        (
            status_field(status),
            literal(b"content-type", b"text/plain; charset=utf-8"),
            literal(b"content-length", b"%d" % body_bytes),
        )
    )
