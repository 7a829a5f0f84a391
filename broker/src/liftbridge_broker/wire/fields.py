"""Protobuf fields as bytes, for encoders that put constants around varying parts.

A field is omitted when it has its default value, as proto3 writers do. Layouts: protobuf encoding
guide; all fields here have numbers below 16, so that a tag is one byte.
"""

from collections.abc import Mapping
from typing import Final

_VARINT: Final = 0
_BYTES: Final = 2
_UINT64_MASK: Final = 2**64 - 1


def varint(value: int) -> bytes:
    """Encode `value` as a base-128 varint.

    Negative values as 64-bit two's complement (10 bytes).
    """
    value &= _UINT64_MASK
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint_field(number: int, value: int) -> bytes:
    """Encode an integer, bool or enum field; empty for 0."""
    assert 0 < number < 16
    return bytes((number << 3 | _VARINT,)) + varint(value) if value else b""


def bytes_head(number: int, length: int) -> bytes:
    """Encode tag and length of a bytes, string or message field; empty for length 0."""
    assert 0 < number < 16
    return bytes((number << 3 | _BYTES,)) + varint(length) if length else b""


def bytes_field(number: int, value: bytes) -> bytes:
    """Encode a bytes or string field; empty for an empty value."""
    return bytes_head(number, len(value)) + value


def headers_field(number: int, headers: Mapping[str, bytes]) -> bytes:
    """Encode a `map<string, bytes>` field, sorted by key so that equal maps give equal bytes.

    An entry contains key and value even if they are empty, as with every known writer.
    """
    out: list[bytes] = []
    for name in sorted(headers):
        key, value = name.encode(), headers[name]
        key_head, value_head = b"\x0a" + varint(len(key)), b"\x12" + varint(len(value))
        length = len(key_head) + len(key) + len(value_head) + len(value)
        out += (bytes_head(number, length), key_head, key, value_head, value)
    return b"".join(out)
