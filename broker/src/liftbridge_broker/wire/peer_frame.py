"""Frames that carry messages between brokers, without and with a signature.

Layout without a signature (version 1), big-endian:

```
 0  4 CRC-32C of everything behind it
 4  1 version of the frame, 1
 5  1 kind: 0 a message, 1 a chunk of one
 6  2 reserved, 0
 8  4 length of the header
12    header: `Peer` or `PeerChunk` of `internal/v1/peer.proto`
      tail: bytes that the body names
```

With one (version 2):

```
 0  4 id of the key
 4  1 version of the frame, 2
 5  1 kind, as above
 6  1 channel: 0 metadata, 1 data
 7  1 length of the sender's name
 8  4 length of the header
12  8 sequence: rises with every frame of the sender's process
20 16 start of the sender's process
36 16 start of the target's process, zeros in a greeting
52    name of the sender, header, tail
   16 signature: HMAC-SHA-256 over everything before it, cut to 128 bits (RFC 2104)
```

The key of a signature follows from the cluster's key, from the names of both brokers and from both
starts (`SigningKey`), so a frame means nothing to another broker, another start or another cluster
with another secret; the cluster's id is part of the header.
"""

import hmac
from hashlib import sha256
from struct import Struct
from typing import Final, NamedTuple

import google_crc32c

from liftbridge_broker.errors import WireError
from liftbridge_broker.model.ids import BrokerId
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.wire.peer_fields import name
from liftbridge_broker.wire.peer_keys import Key

MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Longest message, chunked or not."""

HEADER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Longest header; a fetch of 100,000 partitions needs 5 MB."""

FRAME_OVERHEAD_MAX: Final = 512
"""Most that a frame adds to header and tail."""

START_SIZE: Final = 16
NO_START: Final = bytes(START_SIZE)
"""Start of a target that is not known: the frame is a greeting."""

MESSAGE: Final = 0
CHUNK: Final = 1

_OPEN_HEAD: Final = Struct(">IBBHI")
_CRC: Final = Struct(">I")
_OPEN_VERSION: Final = 1
_SIGNED_HEAD: Final = Struct(f">4sBBBBIQ{START_SIZE}s{START_SIZE}s")
_SIGNED_VERSION: Final = 2
_VERSION_PLACE: Final = 4
_SIGNATURE_SIZE: Final = 16
_CHANNELS: Final = tuple(Channel)


class Piece(NamedTuple):
    """What one frame carries.

    Attributes:
        kind: `MESSAGE` or `CHUNK`.
        head: Header, serialised.
        tail: Bytes behind it.
    """

    kind: int
    head: bytes
    tail: bytes


def start_of(incarnation_id: str) -> bytes:
    """Short form of the name of a start."""
    return sha256(incarnation_id.encode()).digest()[:START_SIZE]


class SigningKey:
    """Key of all frames from one start of a broker to one start of another.

    Args:
        key: Key of the cluster.
        sender: Broker that signs.
        sender_start: Its start.
        target: Broker, or everyone, that verifies.
        target_start: Its start, `NO_START` for a greeting.
    """

    __slots__ = ("_mac", "key_id")

    def __init__(
        self, key: Key, sender: str, sender_start: bytes, target: str, target_start: bytes
    ) -> None:
        parts = (sender.encode(), sender_start, target.encode(), target_start)
        context = b"".join(len(part).to_bytes(2, "big") + part for part in parts)
        pair = hmac.digest(key.secret, b"liftbridge frame" + context, "sha256")
        self.key_id = key.key_id
        self._mac = hmac.new(pair, digestmod="sha256")

    def sign(self, *parts: bytes | memoryview) -> bytes:
        """Signature of some bytes."""
        mac = self._mac.copy()
        for part in parts:
            mac.update(part)
        return mac.digest()[:_SIGNATURE_SIZE]


class SignedFrame(NamedTuple):
    """A frame of version 2, not verified yet.

    Attributes:
        key_id: Id of the key that signed it, as it says.
        channel: Channel it was signed for.
        sequence: See the module.
        sender: Broker that sent it, as it says.
        sender_start: Its start.
        target_start: Start it is meant for.
        piece: What it carries.
        data: All of it.
    """

    key_id: bytes
    channel: Channel
    sequence: int
    sender: BrokerId
    sender_start: bytes
    target_start: bytes
    piece: Piece
    data: bytes

    def is_signed_by(self, key: SigningKey) -> bool:
        """Whether the signature holds."""
        signature = key.sign(memoryview(self.data)[:-_SIGNATURE_SIZE])
        return hmac.compare_digest(signature, self.data[-_SIGNATURE_SIZE:])


def is_signed(data: bytes) -> bool:
    """Whether a frame says that it has a signature."""
    return data[_VERSION_PLACE : _VERSION_PLACE + 1] == bytes((_SIGNED_VERSION,))


def open_frame(piece: Piece) -> bytes:
    """Frame without a signature."""
    front = _OPEN_HEAD.pack(0, _OPEN_VERSION, piece.kind, 0, len(piece.head))[_CRC.size :]
    front += piece.head
    crc: int = google_crc32c.extend(google_crc32c.value(front), piece.tail)
    return b"".join((_CRC.pack(crc), front, piece.tail))


def read_open(data: bytes) -> Piece:
    """Take a frame without a signature apart.

    Raises:
        WireError: It is damaged, too long or of another version.
    """
    if not _OPEN_HEAD.size <= len(data) <= MESSAGE_BYTES_MAX:
        raise WireError(f"peer message: {len(data)} bytes")
    crc, version, kind, reserved, length = _OPEN_HEAD.unpack_from(data)
    if crc != google_crc32c.value(data[_CRC.size :]):
        raise WireError("peer message: the checksum does not hold")
    if version != _OPEN_VERSION or reserved:
        raise WireError(f"peer message: a frame of version {version}")
    return _piece(data, kind, _OPEN_HEAD.size, length, len(data))


def signed_frame(
    key: SigningKey,
    piece: Piece,
    *,
    channel: Channel,
    sequence: int,
    sender: BrokerId,
    sender_start: bytes,
    target_start: bytes,
) -> bytes:
    """Frame with a signature."""
    name_bytes = sender.encode()
    front = _SIGNED_HEAD.pack(
        key.key_id,
        _SIGNED_VERSION,
        piece.kind,
        _CHANNELS.index(channel),
        len(name_bytes),
        len(piece.head),
        sequence,
        sender_start,
        target_start,
    )
    parts = (front, name_bytes, piece.head, piece.tail)
    return b"".join((*parts, key.sign(*parts)))


def read_signed(data: bytes) -> SignedFrame:
    """Take a frame with a signature apart; the signature is the caller's to verify.

    Raises:
        WireError: It is too short, too long or of another version.
    """
    end = len(data) - _SIGNATURE_SIZE
    if not _SIGNED_HEAD.size <= end <= MESSAGE_BYTES_MAX:
        raise WireError(f"peer message: {len(data)} bytes")
    key_id, version, kind, channel, name_size, length, sequence, start, target_start = (
        _SIGNED_HEAD.unpack_from(data)
    )
    if version != _SIGNED_VERSION or channel >= len(_CHANNELS):
        raise WireError(f"peer message: a frame of version {version} for channel {channel}")
    name_end = _SIGNED_HEAD.size + name_size
    try:
        sender = data[_SIGNED_HEAD.size : name_end].decode()
    except UnicodeDecodeError as error:
        raise WireError("peer message: a sender that is no text") from error
    piece = _piece(data, kind, name_end, length, end)
    return SignedFrame(
        key_id,
        _CHANNELS[channel],
        sequence,
        BrokerId(name(sender, "sender")),
        start,
        target_start,
        piece,
        data,
    )


def _piece(data: bytes, kind: int, begin: int, length: int, end: int) -> Piece:
    head_end = begin + length
    if head_end > end or length > HEADER_BYTES_MAX:
        raise WireError(f"peer message: a header of {length} bytes")
    if kind not in (MESSAGE, CHUNK):
        raise WireError(f"peer message: a frame of kind {kind}")
    return Piece(kind, data[begin:head_end], data[head_end:end])
