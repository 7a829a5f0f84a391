"""Base-128 varints as protobuf defines them, in their shortest form only.

Stored frames are canonical, so a varint with needless bytes is corruption, never accepted.
"""

from typing import Final

from liftbridge_broker.errors import CorruptionError

UINT64_MASK: Final = (1 << 64) - 1
VARINT_BYTES_MAX: Final = 10

_SINGLE: Final = [bytes((value,)) for value in range(0x80)]


def encode_varint(value: int) -> bytes:
    """Shortest varint of an unsigned 64-bit integer; signed ones are given modulo 2**64."""
    assert 0 <= value <= UINT64_MASK
    if value < 0x80:
        return _SINGLE[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_int64(value: int) -> bytes:
    """Varint of a signed 64-bit integer (protobuf `int64`: two's complement, 10 bytes if < 0)."""
    return encode_varint(value & UINT64_MASK)


def decode_varint(buffer: bytes | memoryview, position: int, end: int) -> tuple[int, int]:
    """Read one varint.

    Args:
        buffer: Bytes to read from.
        position: Start of the varint.
        end: First byte after the surrounding message.

    Returns:
        The value, 0 to 2**64 - 1, and the position after it.

    Raises:
        CorruptionError: It does not end before `end`, is over 64 bits, or has needless bytes.
    """
    result = 0
    shift = 0
    start = position
    while position < end:
        byte = buffer[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and position - start > 1:
                raise CorruptionError("varint is longer than needed", position=start)
            if result > UINT64_MASK:
                raise CorruptionError("varint is longer than 64 bits", position=start)
            return result, position
        shift += 7
        if shift >= 7 * VARINT_BYTES_MAX:
            raise CorruptionError("varint is longer than 10 bytes", position=start)
    raise CorruptionError("varint ends outside its message", position=start)


def to_int64(value: int) -> int:
    """Signed 64-bit integer whose two's complement is `value`."""
    return value - (1 << 64) if value >> 63 else value
