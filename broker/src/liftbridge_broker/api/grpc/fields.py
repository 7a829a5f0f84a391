"""Reads the few protobuf messages of gRPC's own services without generated code.

Generated modules of `grpc.health.v1` and `grpc.reflection.v1` register their names in the
process-wide pool of descriptors, where another copy of them (such as grpcio's) is an error.
"""

from typing import Final

from liftbridge_broker.errors import CorruptionError, InvalidRequestError, TooLargeError
from liftbridge_broker.logformat.varint import decode_varint

REQUEST_BYTES_MAX: Final = 1_024
"""Maximum size of a request: enough for a name and little else.

Reading takes about 0.5 us a byte.
"""

_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5


def read_fields(message: bytes) -> list[tuple[int, int | bytes]]:
    """Parse the fields of a protobuf message in order: number, and an integer or bytes.

    Raises:
        TooLargeError: There are more than `REQUEST_BYTES_MAX` bytes.
        InvalidRequestError: The bytes are not a protobuf message.
    """
    if len(message) > REQUEST_BYTES_MAX:
        raise TooLargeError(
            f"request of {len(message)} bytes, this method takes at most {REQUEST_BYTES_MAX}"
        )
    fields: list[tuple[int, int | bytes]] = []
    position, end = 0, len(message)
    try:
        while position < end:
            tag, position = decode_varint(message, position, end)
            value: int | bytes
            value, position = _read_value(message, position, tag & 7)
            fields.append((tag >> 3, value))
    except CorruptionError as error:
        raise InvalidRequestError(f"malformed request: {error}") from error
    return fields


def _read_value(message: bytes, position: int, wire_type: int) -> tuple[int | bytes, int]:
    """Return one value and the position after it."""
    if wire_type == _VARINT:
        return decode_varint(message, position, len(message))
    if wire_type == _BYTES:
        size, position = decode_varint(message, position, len(message))
    elif wire_type in (_FIXED32, _FIXED64):
        size = 4 if wire_type == _FIXED32 else 8
    else:
        raise InvalidRequestError(f"malformed request: unsupported wire type {wire_type}")
    end = position + size
    if end > len(message):
        raise InvalidRequestError("malformed request: a field extends beyond its end")
    return message[position:end], end


def text_field(fields: list[tuple[int, int | bytes]], number: int) -> str:
    """Return the value of a string field; if repeated, the last; empty if absent.

    Raises:
        InvalidRequestError: The value is not UTF-8 text.
    """
    last = b""
    for each, value in fields:
        if each == number and isinstance(value, bytes):
            last = value
    try:
        return last.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"malformed request: {error}") from error
