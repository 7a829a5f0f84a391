"""The envelope of all Liftbridge messages on NATS (Liftbridge documentation, "Envelope").

Layout, big-endian::

    0  4  magic B9 0E 43 B4
    4  1  version, only 0
    5  1  header length = offset of the payload: 8, or 12 with a CRC
    6  1  flags; bit 0: a CRC is present
    7  1  message type
    8  4  CRC-32C of everything from the header length on, only with flag bit 0

Any publisher can send anything to a stream's subject, so reading never raises: anything but a sound
envelope is a plain message. The original's reader slices by the received header length and crashes
on `B9 0E 43 B4 00 FF 00 00`; this reader refuses a header length outside 8 to the size of the data.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from operator import itemgetter
from typing import Final

import google_crc32c
from google.protobuf.message import DecodeError

from liftbridge_proto import api_pb2

MAGIC: Final = b"\xb9\x0eC\xb4"
HEADER_SIZE: Final = 8
CRC_HEADER_SIZE: Final = 12
_FLAG_CRC: Final = 1
_VERSION: Final = 0

_FIRST_BYTE: Final = itemgetter(0)


class EnvelopeType(IntEnum):
    """Message types that clients exchange with a broker; the others are internal to a cluster."""

    PUBLISH = 0
    ACK = 1


PUBLISH_HEADER: Final = MAGIC + bytes((_VERSION, HEADER_SIZE, 0, EnvelopeType.PUBLISH))
ACK_HEADER: Final = MAGIC + bytes((_VERSION, HEADER_SIZE, 0, EnvelopeType.ACK))


def encode(kind: EnvelopeType, payload: bytes) -> bytes:
    """Encode an envelope without CRC, as the original and its clients do."""
    return MAGIC + bytes((_VERSION, HEADER_SIZE, 0, kind)) + payload


def encode_with_crc(kind: EnvelopeType, payload: bytes) -> bytes:
    """Encode an envelope with a CRC-32C of the payload."""
    crc: int = google_crc32c.value(payload)
    header = MAGIC + bytes((_VERSION, CRC_HEADER_SIZE, _FLAG_CRC, kind))
    return header + crc.to_bytes(4, "big") + payload


def encode_publish(message: api_pb2.Message) -> bytes:
    """Encode an envelope around one message; `wire.publish` encodes runs of messages."""
    return PUBLISH_HEADER + message.SerializeToString()


def decode(data: bytes, kind: EnvelopeType) -> bytes | None:
    """Decode the payload of an envelope of one type; `None` if `data` is not such an envelope."""
    if len(data) < HEADER_SIZE or not data.startswith(MAGIC):
        return None
    header_size, flags = data[5], data[6]
    if data[4] != _VERSION or data[7] != kind or not HEADER_SIZE <= header_size <= len(data):
        return None
    payload = data[header_size:]
    if flags & _FLAG_CRC:
        if header_size != CRC_HEADER_SIZE:
            return None
        if google_crc32c.value(payload) != int.from_bytes(data[HEADER_SIZE:header_size], "big"):
            return None
    return payload


def has_envelope(payloads: Sequence[bytes]) -> bool:
    """Return whether any payload is an envelope.

    Hot: comparing the largest payload excludes nearly all text, in 13 ns a message, and the first
    bytes of any other data in 40, instead of 100 (benchmark `bench_nats.py::intake`).
    """
    if max(payloads) < MAGIC:
        return False
    try:
        firsts = bytes(map(_FIRST_BYTE, payloads))
    except IndexError:  # a payload is empty
        return any(payload.startswith(MAGIC) for payload in payloads)
    return any(payloads[at].startswith(MAGIC) for at in _places(firsts, MAGIC[0]))


def _places(data: bytes, byte: int) -> Iterator[int]:
    """Yield the positions of a byte, in order."""
    at = data.find(byte)
    while at >= 0:
        yield at
        at = data.find(byte, at + 1)


def decode_publish(
    data: bytes, kind: type[api_pb2.Message] = api_pb2.Message
) -> api_pb2.Message | None:
    """Decode a message published in an envelope, or `None` for a plain NATS message.

    Hot: once per message (benchmark `bench_nats.py::envelope`).

    Args:
        data: Payload received over NATS.
        kind: Message class to decode to; see `wire.listed`.
    """
    # Nearly every enveloped message has exactly this header, so one comparison decides.
    if data.startswith(PUBLISH_HEADER):
        payload: bytes | None = data[HEADER_SIZE:]
    elif data.startswith(MAGIC):
        payload = decode(data, EnvelopeType.PUBLISH)
    else:
        return None
    if payload is None:
        return None
    try:
        return kind.FromString(payload)
    except DecodeError:
        return None


def decode_ack(data: bytes) -> api_pb2.Ack | None:
    """Decode the ack that a broker sent to an inbox; `None` if `data` is not an ack."""
    payload = decode(data, EnvelopeType.ACK)
    if payload is None:
        return None
    try:
        return api_pb2.Ack.FromString(payload)
    except DecodeError:
        return None
