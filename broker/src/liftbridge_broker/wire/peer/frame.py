"""Frames that carry messages between brokers, unsigned and signed.

Layout of an unsigned frame (version 1), big-endian:

```
 0  4 CRC-32C of everything after it
 4  1 version of the frame, 1
 5  1 kind: 0 a message, 1 a chunk of one
 6  2 reserved, 0
 8  4 length of the header
12    header: `Peer` or `PeerChunk` of `internal/v1/peer.proto`
      tail: bytes that the body names
```

Layout of a signed frame (version 2):

```
 0  4 id of the key
 4  1 version of the frame, 2
 5  1 length of the sender's name
 6 16 start of the sender's process
22 16 start of the target's process, zeros in a greeting
38    name of the sender
    1 kind, as above
    1 channel: 0 metadata, 1 data
    2 reserved, 0
    4 length of the header
    8 sequence: rises with every frame of the sender's process
      header, tail
   16 signature over everything before it: of up to `SHORT_BYTES_MAX` bytes keyed BLAKE2b (RFC
      7693), of more AES-256-GMAC, its nonce the sequence after four zero bytes (NIST SP 800-38D)
```

Both keys of a signature follow from the cluster's key, from the names of both brokers and from both
starts (`SigningKey`), so a frame is worthless for another broker, another start or another cluster
with another secret; the cluster's id is part of the header. No nonce is used twice with one key, as
the key identifies the sender's start and no two frames of a start share a sequence.
"""

import hmac
from hashlib import blake2b, sha256
from struct import Struct
from typing import Final, NamedTuple

import google_crc32c
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from liftbridge_broker.errors import WireError
from liftbridge_broker.model.ids import BrokerId
from liftbridge_broker.model.units import MIB
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.wire.peer.fields import name
from liftbridge_broker.wire.peer.keys import Key

MESSAGE_BYTES_MAX: Final = 64 * MIB
"""Maximum length of a message, chunked or not."""

HEADER_BYTES_MAX: Final = 16 * MIB
"""Maximum length of a header; a fetch of 100,000 partitions needs 5 MB."""

FRAME_OVERHEAD_MAX: Final = 512
"""Maximum number of bytes that a frame adds to header and tail."""

SHORT_BYTES_MAX: Final = 4_096
"""Maximum number of bytes signed by BLAKE2b, which costs less than AES-GMAC for short frames."""

SIGNATURE_SIZE: Final = 16
START_SIZE: Final = 16
NO_START: Final = bytes(START_SIZE)
"""Start of an unknown target: the frame is a greeting."""

MESSAGE: Final = 0
CHUNK: Final = 1

_OPEN_HEAD: Final = Struct(">IBBHI")
_CRC: Final = Struct(">I")
_OPEN_VERSION: Final = 1
_FRONT: Final = Struct(f">4sBB{START_SIZE}s{START_SIZE}s")
_SIGNED_HEAD: Final = Struct(">BBHIQ")
_SIGNED_VERSION: Final = 2
_VERSION_PLACE: Final = 4
_NAME_SIZE_PLACE: Final = 5
_NONCE: Final = Struct(">4xQ")
_CHANNELS: Final = tuple(Channel)


class Piece(NamedTuple):
    """Content of one frame.

    Attributes:
        kind: `MESSAGE` or `CHUNK`.
        head: Header, serialised.
        tail: Bytes after the header.
    """

    kind: int
    head: bytes
    tail: bytes


def start_of(incarnation_id: str) -> bytes:
    """Return the short form of a start's id."""
    return sha256(incarnation_id.encode()).digest()[:START_SIZE]


class SigningKey:
    """Key of all frames from one start of a broker to one start of another.

    Args:
        key: Key of the cluster.
        sender: Broker that signs.
        sender_start: Start of the sender.
        target: Broker that verifies, or all brokers.
        target_start: Start of the target, `NO_START` for a greeting.

    Attributes:
        front: Common beginning of these frames.
    """

    __slots__ = ("_cipher", "_short", "front")

    def __init__(
        self, key: Key, sender: str, sender_start: bytes, target: str, target_start: bytes
    ) -> None:
        name_bytes = sender.encode()
        parts = (name_bytes, sender_start, target.encode(), target_start)
        context = b"".join(len(part).to_bytes(2, "big") + part for part in parts)
        self._cipher = AESGCM(hmac.digest(key.secret, b"liftbridge frame" + context, "sha256"))
        short = hmac.digest(key.secret, b"liftbridge short frame" + context, "sha256")
        self._short = blake2b(key=short, digest_size=SIGNATURE_SIZE)
        front = _FRONT.pack(
            key.key_id, _SIGNED_VERSION, len(name_bytes), sender_start, target_start
        )
        self.front = front + name_bytes

    def sign(self, sequence: int, data: bytes) -> bytes:
        """Return the signature of a frame with this sequence."""
        if len(data) <= SHORT_BYTES_MAX:
            return self._digest(data)
        return self._cipher.encrypt(_NONCE.pack(sequence), b"", data)

    def has_signed(self, sequence: int, frame: bytes) -> bool:
        """Return whether a frame with this sequence ends with the correct signature."""
        signature = frame[-SIGNATURE_SIZE:]
        data = memoryview(frame)[:-SIGNATURE_SIZE]
        if len(data) <= SHORT_BYTES_MAX:
            return hmac.compare_digest(self._digest(data), signature)
        try:
            self._cipher.decrypt(_NONCE.pack(sequence), signature, data)
        except InvalidTag:
            return False
        return True

    def _digest(self, data: bytes | memoryview) -> bytes:
        state = self._short.copy()
        state.update(data)
        return state.digest()


class Origin(NamedTuple):
    """Front of a frame: its sender and its target.

    Attributes:
        key_id: Id of the key that signed it.
        sender: Broker that sent it.
        sender_start: Start of the sender.
        target_start: Start of the target.
    """

    key_id: bytes
    sender: BrokerId
    sender_start: bytes
    target_start: bytes


class SignedFrame(NamedTuple):
    """A frame of version 2, not verified yet.

    Attributes:
        front: Bytes up to the sender's name; `read_front` decodes it.
        channel: Channel it was signed for.
        sequence: See the module.
        piece: Its content.
        data: The whole frame.
    """

    front: bytes
    channel: Channel
    sequence: int
    piece: Piece
    data: bytes


def is_signed(data: bytes) -> bool:
    """Return whether a frame claims to be signed."""
    return data[_VERSION_PLACE : _VERSION_PLACE + 1] == bytes((_SIGNED_VERSION,))


def open_frame(piece: Piece) -> bytes:
    """Encode an unsigned frame."""
    front = _OPEN_HEAD.pack(0, _OPEN_VERSION, piece.kind, 0, len(piece.head))[_CRC.size :]
    front += piece.head
    crc: int = google_crc32c.extend(google_crc32c.value(front), piece.tail)
    return b"".join((_CRC.pack(crc), front, piece.tail))


def read_open(data: bytes) -> Piece:
    """Decode an unsigned frame.

    Raises:
        WireError: The frame is damaged, too long or of another version.
    """
    if not _OPEN_HEAD.size <= len(data) <= MESSAGE_BYTES_MAX:
        raise WireError(f"peer message: {len(data)} bytes")
    crc, version, kind, reserved, length = _OPEN_HEAD.unpack_from(data)
    if crc != google_crc32c.value(data[_CRC.size :]):
        raise WireError("peer message: the checksum does not hold")
    if version != _OPEN_VERSION or reserved:
        raise WireError(f"peer message: a frame of version {version}")
    return _piece(data, kind, _OPEN_HEAD.size, length, len(data))


def signed_frame(key: SigningKey, piece: Piece, *, channel: Channel, sequence: int) -> bytes:
    """Encode a signed frame."""
    head = _SIGNED_HEAD.pack(piece.kind, _CHANNELS.index(channel), 0, len(piece.head), sequence)
    data = b"".join((key.front, head, piece.head, piece.tail))
    return data + key.sign(sequence, data)


def read_signed(data: bytes) -> SignedFrame:
    """Decode a signed frame; the caller must verify the signature.

    Raises:
        WireError: The frame is too short, too long or of another version.
    """
    if not _FRONT.size <= len(data) <= MESSAGE_BYTES_MAX:
        raise WireError(f"peer message: {len(data)} bytes")
    front_end = _FRONT.size + data[_NAME_SIZE_PLACE]
    begin, end = front_end + _SIGNED_HEAD.size, len(data) - SIGNATURE_SIZE
    if begin > end:
        raise WireError(f"peer message: {len(data)} bytes")
    kind, channel, reserved, length, sequence = _SIGNED_HEAD.unpack_from(data, front_end)
    if channel >= len(_CHANNELS) or reserved:
        raise WireError(f"peer message: a frame for channel {channel}")
    piece = _piece(data, kind, begin, length, end)
    return SignedFrame(data[:front_end], _CHANNELS[channel], sequence, piece, data)


def read_front(front: bytes) -> Origin:
    """Decode the front of a frame.

    Raises:
        WireError: The frame is of another version, or the name of the sender is invalid.
    """
    key_id, version, _, start, target_start = _FRONT.unpack_from(front)
    if version != _SIGNED_VERSION:
        raise WireError(f"peer message: a frame of version {version}")
    try:
        sender = front[_FRONT.size :].decode()
    except UnicodeDecodeError as error:
        raise WireError("peer message: a sender that is not UTF-8") from error
    return Origin(key_id, BrokerId(name(sender, "sender")), start, target_start)


def _piece(data: bytes, kind: int, begin: int, length: int, end: int) -> Piece:
    head_end = begin + length
    if head_end > end or length > HEADER_BYTES_MAX:
        raise WireError(f"peer message: a header of {length} bytes")
    if kind not in (MESSAGE, CHUNK):
        raise WireError(f"peer message: a frame of kind {kind}")
    return Piece(kind, data[begin:head_end], data[head_end:end])
