"""Messages between brokers: header and tail, cut into chunks if too long for one frame.

A message longer than one payload is sent as consecutive chunks on one connection. The chunks
together are its unsigned frame (`wire.peer_frame`), and each chunk is signed separately. A lost or
overtaken chunk loses its message, as any other message may be lost, and no broker waits for it.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from liftbridge_broker.errors import WireError
from liftbridge_broker.model.ids import BrokerId
from liftbridge_broker.wire.peer.bodies import Body, fill_body, read_body
from liftbridge_broker.wire.peer.fields import name
from liftbridge_broker.wire.peer.frame import (
    CHUNK,
    FRAME_OVERHEAD_MAX,
    MESSAGE,
    MESSAGE_BYTES_MAX,
    Piece,
    open_frame,
    read_open,
)
from liftbridge_proto.internal.v1 import peer_pb2 as pb

PROTOCOL_VERSION: Final = 1

OPEN_MESSAGES_MAX: Final = 64
"""Maximum number of incomplete messages: one for each sender."""

CHUNK_OVERHEAD_MAX: Final = FRAME_OVERHEAD_MAX + 1_024
"""Part of a payload reserved for the frame and the head of a chunk."""


class PeerHeader(NamedTuple):
    """Head of every message.

    Attributes:
        cluster_id: Cluster of the sender, empty before it has one.
        sender: Broker that sent it.
        incarnation_id: Start of the sender's process.
        broker_epoch: Registration of the sender, 0 before it has one.
        correlation_id: Number of a request, repeated in its reply; 0 for neither.
        body: Content of the message.
    """

    cluster_id: str
    sender: BrokerId
    incarnation_id: str
    broker_epoch: int
    correlation_id: int
    body: Body


def encode(header: PeerHeader, tail: bytes = b"") -> Piece:
    """Write a message."""
    message = pb.Peer(
        cluster_id=header.cluster_id,
        protocol_version=PROTOCOL_VERSION,
        sender=header.sender,
        incarnation_id=header.incarnation_id,
        broker_epoch=header.broker_epoch,
        correlation_id=header.correlation_id,
    )
    fill_body(message, header.body)
    return Piece(MESSAGE, message.SerializeToString(), tail)


def decode(piece: Piece) -> tuple[PeerHeader, bytes]:
    """Read header and tail of a message.

    Raises:
        WireError: The message is a chunk, breaks a bound, or is unknown to this version.
    """
    if piece.kind != MESSAGE:
        raise WireError(f"peer message: a frame of kind {piece.kind}")
    return _header(piece.head), piece.tail


def pack(
    header: PeerHeader, tail: bytes, *, payload_bytes_max: int, message_id: int
) -> Sequence[Piece]:
    """Cut a message for frames, in the order in which they must be sent.

    Args:
        header: Head of the message.
        tail: Tail of the message.
        payload_bytes_max: Longest payload the transport takes.
        message_id: A number that the sender uses for no other message.

    Raises:
        WireError: The message is longer than `MESSAGE_BYTES_MAX`.
    """
    message = encode(header, tail)
    if len(message.head) + len(tail) + FRAME_OVERHEAD_MAX <= payload_bytes_max:
        return (message,)
    frame = open_frame(message)
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
    pieces: list[Piece] = []
    for number in range(count):
        chunk.number = number
        data = frame[number * size : (number + 1) * size]
        pieces.append(Piece(CHUNK, chunk.SerializeToString(), data))
    return pieces


class _Begun:
    """A message whose first chunks have arrived."""

    def __init__(self, chunk: pb.PeerChunk) -> None:
        self.message = (chunk.incarnation_id, chunk.message_id)
        self.count = chunk.count
        self.total_bytes = chunk.total_bytes
        self.held_bytes = 0
        self.pieces: list[bytes] = []


class Reassembler:
    """Reassembles chunks of one connection, on which chunks arrive in order.

    Holds one message of each sender and `bytes_max` in all; beyond it, the oldest messages are
    dropped.

    Attributes:
        held_bytes: Bytes of chunks that wait for the rest of their messages.
        lost_count: Messages started and dropped.
    """

    def __init__(self, bytes_max: int = 2 * MESSAGE_BYTES_MAX) -> None:
        """Start empty; `bytes_max` bounds the waiting bytes."""
        assert bytes_max >= MESSAGE_BYTES_MAX
        self._bytes_max = bytes_max
        self._open: dict[str, _Begun] = {}
        self.held_bytes = 0
        self.lost_count = 0

    def take(self, piece: Piece, sender: str = "") -> tuple[PeerHeader, bytes] | None:
        """Add the content of a frame; return the message that is now complete, if any.

        Args:
            piece: Content of the frame.
            sender: Broker that signed it, empty for a frame without a signature.

        Raises:
            WireError: As for `decode`, or the message names another sender; started messages
                continue.
        """
        if piece.kind == MESSAGE:
            message: tuple[PeerHeader, bytes] | None = decode(piece)
        else:
            chunk = _chunk(piece.head)
            if sender and chunk.sender != sender:
                raise WireError(f"peer message: a chunk of {chunk.sender} signed by {sender}")
            frame = self._add(chunk, piece.tail)
            message = None if frame is None else decode(read_open(frame))
        if message is not None and sender and message[0].sender != sender:
            raise WireError(f"peer message: one of {message[0].sender} signed by {sender}")
        return message

    def _add(self, chunk: pb.PeerChunk, piece: bytes) -> bytes | None:
        """Add a piece to its message; return the frame when it was the last one."""
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


def _header(head: bytes) -> PeerHeader:
    try:
        message = pb.Peer.FromString(head)
    except DecodeError as error:
        raise WireError(f"peer message: {error}") from error
    if message.protocol_version != PROTOCOL_VERSION:
        raise WireError(f"peer message: unsupported protocol version {message.protocol_version}")
    return PeerHeader(
        name(message.cluster_id, "cluster", may_be_empty=True),
        BrokerId(name(message.sender, "sender")),
        name(message.incarnation_id, "incarnation"),
        message.broker_epoch,
        message.correlation_id,
        read_body(message),
    )


def _chunk(head: bytes) -> pb.PeerChunk:
    """Decode the head of a chunk and check its bounds."""
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
