"""Stored batches as servers of this project send them, and the records in them.

A batch is a header of 88 bytes (big-endian: magic "LB", version 1, reserved; length of what
follows byte 12; CRC-32C of that; attributes, reserved; partition id, leader epoch, base and last
offset, count, publisher epoch, first and largest timestamp, publisher id, first sequence), then
`count` frames: a zero byte, the length as four bytes, a serialised `proto.Message`.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

import google_crc32c

from liftbridge_client.errors import ServerError
from liftbridge_client.model import Message
from liftbridge_proto import api_pb2

HEADER: Final = Struct(">HBBIIHHQQqqIIqqQq")
HEADER_SIZE: Final = HEADER.size
MAGIC: Final = 0x4C42
VERSION: Final = 1
COVERED_FROM: Final = 12
FRAME_PREFIX_SIZE: Final = 5


class Batch(NamedTuple):
    """One batch within a buffer.

    Attributes:
        start: Position of its first frame.
        end: Position after its last frame.
        partition_id: Partition it was stored in; the stream's id is in the upper 40 bits.
        leader_epoch: Epoch of the leader that stored it.
        base_offset: First offset of its range.
        last_offset: Last offset of its range.
        record_count: Frames in it; fewer than the range after compaction.
    """

    start: int
    end: int
    partition_id: int
    leader_epoch: int
    base_offset: int
    last_offset: int
    record_count: int


def walk(data: bytes) -> Iterator[Batch]:
    """Iterate over a buffer of whole batches; each checksum is verified.

    Raises:
        ServerError: The bytes are not batches: damaged in transit, or of another version.
    """
    view = memoryview(data)
    position = 0
    while position < len(data):
        if len(data) - position < HEADER_SIZE:
            raise ServerError("a batch is truncated")
        fields = HEADER.unpack_from(data, position)
        end = position + COVERED_FROM + fields[3]
        if fields[0] != MAGIC or fields[1] != VERSION or end > len(data):
            raise ServerError("a batch has a header of an unknown format")
        if google_crc32c.value(bytes(view[position + COVERED_FROM : end])) != fields[4]:
            raise ServerError(f"the batch at offset {fields[9]} fails its checksum")
        yield Batch(position + HEADER_SIZE, end, *fields[7:12])
        position = end


def frames(data: bytes, batch: Batch) -> Iterator[bytes]:
    """Iterate over the serialised messages of a batch."""
    position = batch.start
    for _ in range(batch.record_count):
        end = position + FRAME_PREFIX_SIZE + int.from_bytes(data[position + 1 : position + 5])
        yield data[position + FRAME_PREFIX_SIZE : end]
        position = end


def to_message(message: api_pb2.Message) -> Message:
    """Convert an API message to the public `Message`."""
    return Message(
        message.offset,
        message.key,
        message.value,
        message.timestamp,
        message.stream,
        message.partition,
        message.subject,
        message.replySubject,
        dict(message.headers),
    )


class Decoded(NamedTuple):
    """Contents of a buffer of batches.

    Attributes:
        messages: Messages from the requested offset on.
        epochs: Leader epochs of the batches, each with the offset of its first batch.
    """

    messages: list[Message]
    epochs: list[tuple[int, int]]


def decode_messages(data: bytes, start: int) -> list[Message]:
    """Decode the messages of a buffer of batches, from an offset on."""
    return decode(data, start).messages


def decode(data: bytes, start: int) -> Decoded:
    """Decode messages as `decode_messages`, with the leader epochs of the batches."""
    parse = api_pb2.Message.FromString
    messages: list[Message] = []
    epochs: list[tuple[int, int]] = []
    for batch in walk(data):
        if not epochs or batch.leader_epoch != epochs[-1][0]:
            epochs.append((batch.leader_epoch, batch.base_offset))
        messages += [to_message(parse(frame)) for frame in frames(data, batch)]
    if messages and messages[0].offset < start:
        messages = [message for message in messages if message.offset >= start]
    return Decoded(messages, epochs)
