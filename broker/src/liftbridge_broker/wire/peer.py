"""Frames between brokers: header, checksum and tail, cut in chunks where they are too long.

Layout, big-endian:

```
 0  4 CRC-32C of everything behind it
 4  1 version of the frame, 1
 5  1 kind: 0 a message, 1 a chunk of one
 6  2 reserved, 0
 8  4 length of the header
12    header: `Peer` or `PeerChunk` of `internal/v1/peer.proto`
      tail: bytes that the body names
```

A message longer than one payload leaves as chunks, one right after the other on one connection; the
chunks together are its frame. A chunk that is lost or overtaken loses its message, as any other
message may be lost, and nothing waits for it.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

import google_crc32c
from google.protobuf.message import DecodeError

from liftbridge_broker.errors import WireError
from liftbridge_broker.model.ids import BrokerId
from liftbridge_broker.wire.peer_bodies import Body, fill_body, read_body
from liftbridge_broker.wire.peer_fields import name
from liftbridge_proto.internal.v1 import peer_pb2 as pb

PROTOCOL_VERSION: Final = 1

MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Longest message, chunked or not."""

HEADER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Longest header; a fetch of 100,000 partitions needs 5 MB."""

OPEN_MESSAGES_MAX: Final = 64
"""Messages whose chunks are awaited at the same time: one of each sender."""

CHUNK_OVERHEAD_MAX: Final = 1_024
"""Room that a payload needs for the head of a chunk."""

_HEAD: Final = Struct(">IBBHI")
_CRC: Final = Struct(">I")
_CRC_SIZE: Final = _CRC.size
_FRAME_VERSION: Final = 1
_MESSAGE: Final = 0
_CHUNK: Final = 1


class PeerHeader(NamedTuple):
    """Head of every message.

    Attributes:
        cluster_id: Cluster of the sender, empty before it has one.
        sender: Broker that sent it.
        incarnation_id: Start of the sender's process.
        broker_epoch: Registration of the sender, 0 before it has one.
        correlation_id: Number of a request, repeated in its reply; 0 for neither.
        body: What it says.
    """

    cluster_id: str
    sender: BrokerId
    incarnation_id: str
    broker_epoch: int
    correlation_id: int
    body: Body


def encode(header: PeerHeader, tail: bytes = b"") -> bytes:
    """Frame of a message."""
    message = pb.Peer(
        cluster_id=header.cluster_id,
        protocol_version=PROTOCOL_VERSION,
        sender=header.sender,
        incarnation_id=header.incarnation_id,
        broker_epoch=header.broker_epoch,
        correlation_id=header.correlation_id,
    )
    fill_body(message, header.body)
    return _frame(_MESSAGE, message.SerializeToString(), tail)


def decode(data: bytes) -> tuple[PeerHeader, bytes]:
    """Header and tail of a frame.

    Raises:
        WireError: It is damaged, too long, a chunk, or says what this version does not know.
    """
    kind, head, tail = _open(data)
    if kind != _MESSAGE:
        raise WireError(f"peer message: a frame of kind {kind}")
    return _header(head), tail


def pack(
    header: PeerHeader, tail: bytes, *, payload_bytes_max: int, message_id: int
) -> Sequence[bytes]:
    """Payloads of a message, in the order in which they must be sent.

    Args:
        header: Its head.
        tail: Its tail.
        payload_bytes_max: Longest payload the transport takes.
        message_id: A number the sender gave to no other message.

    Raises:
        WireError: The message is longer than `MESSAGE_BYTES_MAX`.
    """
    frame = encode(header, tail)
    if len(frame) <= payload_bytes_max:
        return (frame,)
    if len(frame) > MESSAGE_BYTES_MAX:
        raise WireError(f"peer message: {len(frame)} bytes")
    assert payload_bytes_max > 2 * CHUNK_OVERHEAD_MAX
    size = payload_bytes_max - CHUNK_OVERHEAD_MAX
    count = -(-len(frame) // size)
    chunk = pb.PeerChunk(
        sender=header.sender,
        incarnation_id=header.incarnation_id,
        message_id=message_id,
        count=count,
        total_bytes=len(frame),
    )
    payloads: list[bytes] = []
    for number in range(count):
        chunk.number = number
        piece = frame[number * size : (number + 1) * size]
        payloads.append(_frame(_CHUNK, chunk.SerializeToString(), piece))
    return payloads


class _Begun:
    """A message of which the first chunks arrived."""

    def __init__(self, chunk: pb.PeerChunk) -> None:
        self.message = (chunk.incarnation_id, chunk.message_id)
        self.count = chunk.count
        self.total_bytes = chunk.total_bytes
        self.held_bytes = 0
        self.pieces: list[bytes] = []


class Reassembler:
    """Puts chunks together again; one for each connection, because chunks come in order on it.

    Holds one message of each sender and `bytes_max` in all; the oldest ones give way.

    Attributes:
        held_bytes: Bytes of chunks that wait for the rest of their messages.
        lost_count: Messages that were begun and given up.
    """

    def __init__(self, bytes_max: int = 2 * MESSAGE_BYTES_MAX) -> None:
        """Begin with nothing; `bytes_max` bounds what waits."""
        assert bytes_max >= MESSAGE_BYTES_MAX
        self._bytes_max = bytes_max
        self._open: dict[str, _Begun] = {}
        self.held_bytes = 0
        self.lost_count = 0

    def take(self, data: bytes) -> tuple[PeerHeader, bytes] | None:
        """A payload arrived; returns the message it is or completes.

        Raises:
            WireError: See `decode`; whatever was begun goes on.
        """
        kind, head, tail = _open(data)
        if kind == _MESSAGE:
            return _header(head), tail
        if kind != _CHUNK:
            raise WireError(f"peer message: a frame of kind {kind}")
        frame = self._add(_chunk(head), tail)
        return None if frame is None else decode(frame)

    def _add(self, chunk: pb.PeerChunk, piece: bytes) -> bytes | None:
        """Put a piece to its message; the frame when it was the last one."""
        found = self._open.get(chunk.sender)
        message = (chunk.incarnation_id, chunk.message_id)
        if chunk.number == 0 and (found is None or found.message != message):
            self._give_up(chunk.sender)
            found = self._open[chunk.sender] = _Begun(chunk)
        if found is None or found.message != message:
            return None
        if chunk.number < len(found.pieces):
            return None  # arrived twice
        found.held_bytes += len(piece)
        self.held_bytes += len(piece)
        if chunk.number != len(found.pieces) or found.held_bytes > found.total_bytes:
            self._give_up(chunk.sender)
            return None
        found.pieces.append(piece)
        if len(found.pieces) < found.count:
            self._keep_bounds()
            return None
        del self._open[chunk.sender]
        self.held_bytes -= found.held_bytes
        return b"".join(found.pieces)

    def _keep_bounds(self) -> None:
        while self.held_bytes > self._bytes_max or len(self._open) > OPEN_MESSAGES_MAX:
            self._give_up(next(iter(self._open)))

    def _give_up(self, sender: str) -> None:
        found = self._open.pop(sender, None)
        if found is not None:
            self.held_bytes -= found.held_bytes
            self.lost_count += 1


def _frame(kind: int, head: bytes, tail: bytes) -> bytes:
    front = _HEAD.pack(0, _FRAME_VERSION, kind, 0, len(head))[_CRC_SIZE:] + head
    crc: int = google_crc32c.extend(google_crc32c.value(front), tail)
    return b"".join((_CRC.pack(crc), front, tail))


def _open(data: bytes) -> tuple[int, bytes, bytes]:
    """Kind, header and tail of a frame whose checksum holds."""
    if not _HEAD.size <= len(data) <= MESSAGE_BYTES_MAX:
        raise WireError(f"peer message: {len(data)} bytes")
    crc, version, kind, reserved, length = _HEAD.unpack_from(data)
    if crc != google_crc32c.value(data[_CRC_SIZE:]):
        raise WireError("peer message: the checksum does not hold")
    if version != _FRAME_VERSION or reserved:
        raise WireError(f"peer message: a frame of version {version}")
    end = _HEAD.size + length
    if end > len(data) or length > HEADER_BYTES_MAX:
        raise WireError(f"peer message: a header of {length} bytes")
    return kind, data[_HEAD.size : end], data[end:]


def _header(head: bytes) -> PeerHeader:
    try:
        message = pb.Peer.FromString(head)
    except DecodeError as error:
        raise WireError(f"peer message: {error}") from error
    if message.protocol_version != PROTOCOL_VERSION:
        raise WireError(f"peer message: protocol version {message.protocol_version}")
    return PeerHeader(
        name(message.cluster_id, "cluster", may_be_empty=True),
        BrokerId(name(message.sender, "sender")),
        name(message.incarnation_id, "incarnation"),
        message.broker_epoch,
        message.correlation_id,
        read_body(message),
    )


def _chunk(head: bytes) -> pb.PeerChunk:
    """Head of a chunk within its bounds."""
    try:
        chunk = pb.PeerChunk.FromString(head)
    except DecodeError as error:
        raise WireError(f"peer message: {error}") from error
    name(chunk.sender, "sender")
    name(chunk.incarnation_id, "incarnation")
    if not (chunk.number < chunk.count <= chunk.total_bytes <= MESSAGE_BYTES_MAX):
        raise WireError(
            f"peer message: chunk {chunk.number} of {chunk.count} of {chunk.total_bytes} bytes"
        )
    return chunk
