"""Batches: a header with a checksum, followed by record frames (ADR 0003).

Layout, all integers big-endian; the covered part is everything from byte 12 on::

     0  2 magic 0x4C42 "LB"      2  1 version 1       3  1 reserved 0
     4  4 length: bytes that follow byte 12
     8  4 CRC-32C of the covered part
    12  2 attributes             14  2 reserved 0
    16  8 partition id, unsigned 24  8 leader epoch, unsigned
    32  8 base offset            40  8 last offset, inclusive
    48  4 record count, unsigned 52  4 publisher epoch, unsigned
    56  8 first timestamp        64  8 largest timestamp, both nanoseconds of the wall clock
    72  8 publisher id, unsigned 80  8 first sequence
    88  .. frames

The ranges [base offset, last offset] of consecutive batches adjoin, on disk and on the wire.
Compaction removes frames but keeps ranges, and a batch without frames is a *filler*. The bytes
before the covered part need no checksum: the two reserved and the magic bytes are compared, a
wrong length moves the end of the checksummed part, and a wrong checksum shows itself.
"""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.logformat.checksum import crc32c
from liftbridge_broker.model.ids import (
    OFFSET_MAX,
    LeaderEpoch,
    Offset,
    PartitionId,
    PublisherId,
)

MAGIC: Final = 0x4C42
VERSION: Final = 1
PROLOGUE: Final = 0x4C420100
"""Magic, version and the reserved byte, as one big-endian integer."""

HEADER: Final = Struct(">HBBIIHHQQqqIIqqQq")
HEADER_SIZE: Final = HEADER.size
COVERED_START: Final = 12
LENGTH_MIN: Final = HEADER_SIZE - COVERED_START
BATCH_BYTES_MAX: Final = 1 << 27
"""Bound for trusting a length field: 128 MiB, twice the largest message NATS can carry."""

ATTRIBUTE_COMPACTED: Final = 1
ATTRIBUTE_ENCRYPTED: Final = 2
ATTRIBUTE_FILLER: Final = 4
ATTRIBUTE_IDEMPOTENT: Final = 8
ATTRIBUTES_KNOWN: Final = 15

_PREFIX: Final = Struct(">III")
_COVERED: Final = Struct(">HHQQqqIIqqQq")

assert HEADER_SIZE == 88
assert _PREFIX.size == COVERED_START
assert _COVERED.size == LENGTH_MIN


class BatchHeader(NamedTuple):
    """Header of a batch; layout and units in the module's docstring.

    Attributes:
        length: Bytes that follow byte 12.
        crc: CRC-32C of those bytes.
        attributes: Sum of `ATTRIBUTE_*`.
        partition_id: Partition the batch was written for; reveals a misdirected write.
        leader_epoch: Epoch of the leader that wrote it.
        base_offset: First offset of the range.
        last_offset: Last offset of the range, inclusive; the record itself may be compacted away.
        count: Frames in the batch, 0 for a filler.
        publisher_epoch: Epoch of the idempotent publisher, 0 for none.
        first_timestamp: Timestamp of the first record.
        largest_timestamp: Largest timestamp of a record.
        publisher_id: Idempotent publisher, 0 for none.
        first_sequence: Sequence of the record at `base_offset`; later ones count up with the
            offset.
    """

    length: int
    crc: int
    attributes: int
    partition_id: PartitionId
    leader_epoch: LeaderEpoch
    base_offset: Offset
    last_offset: Offset
    count: int  # type: ignore[assignment]  # hides `tuple.count`, which is not needed here
    publisher_epoch: int
    first_timestamp: int
    largest_timestamp: int
    publisher_id: PublisherId
    first_sequence: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch, the header included."""
        return COVERED_START + self.length

    @property
    def end_offset(self) -> Offset:
        """First offset after the range."""
        return Offset(self.last_offset + 1)

    @property
    def is_filler(self) -> bool:
        """Return whether the batch keeps a range and holds no record."""
        return bool(self.attributes & ATTRIBUTE_FILLER)


def seal(
    *,
    frames: Sequence[bytes] | bytes,
    partition_id: PartitionId,
    leader_epoch: LeaderEpoch,
    base_offset: Offset,
    last_offset: Offset,
    count: int,
    first_timestamp: int,
    largest_timestamp: int,
    attributes: int = 0,
    publisher_id: PublisherId = PublisherId(0),  # noqa: B008 - a NewType call is the identity
    publisher_epoch: int = 0,
    first_sequence: int = 0,
) -> bytes:
    """Put the header before frames.

    Args:
        frames: Frames, or pieces of frames in order, as `RecordEncoder.encode` returns them.
        partition_id: Partition the batch is for.
        leader_epoch: Epoch of the leader that writes it.
        base_offset: First offset of the range.
        last_offset: Last offset of the range, inclusive.
        count: Number of frames; 0 only with `ATTRIBUTE_FILLER` and no frames.
        first_timestamp: Timestamp of the first record.
        largest_timestamp: Largest timestamp of a record.
        attributes: Sum of `ATTRIBUTE_*`.
        publisher_id: Idempotent publisher, 0 for none.
        publisher_epoch: Its epoch.
        first_sequence: Sequence of the record at `base_offset`.

    Returns:
        The batch, at most `BATCH_BYTES_MAX` bytes. Measured by tests/bench/bench_log.py.
    """
    assert 0 <= base_offset <= last_offset < OFFSET_MAX
    assert count <= last_offset - base_offset + 1
    assert (count == 0) == bool(attributes & ATTRIBUTE_FILLER)
    header = _COVERED.pack(
        attributes,
        0,
        partition_id,
        leader_epoch,
        base_offset,
        last_offset,
        count,
        publisher_epoch,
        first_timestamp,
        largest_timestamp,
        publisher_id,
        first_sequence,
    )
    # Only two copies of the frames: fresh memory of this size costs as much as filling it.
    covered = header + frames if isinstance(frames, bytes) else b"".join((header, *frames))
    length = len(covered)
    assert (count == 0) == (length == LENGTH_MIN)
    assert length <= BATCH_BYTES_MAX - COVERED_START
    return _PREFIX.pack(PROLOGUE, length, crc32c(covered)) + covered


def filler(
    *,
    partition_id: PartitionId,
    leader_epoch: LeaderEpoch,
    base_offset: Offset,
    last_offset: Offset,
    timestamp: int,
    attributes: int = 0,
) -> bytes:
    """A batch that keeps the range [base_offset, last_offset] and holds no record.

    Args:
        partition_id: Partition the batch is for.
        leader_epoch: The one epoch of all offsets in the range.
        base_offset: First offset of the range.
        last_offset: Last offset of the range, inclusive.
        timestamp: Both timestamps of the header; look-ups skip fillers.
        attributes: Further attributes, such as `ATTRIBUTE_COMPACTED`.
    """
    return seal(
        frames=b"",
        partition_id=partition_id,
        leader_epoch=leader_epoch,
        base_offset=base_offset,
        last_offset=last_offset,
        count=0,
        first_timestamp=timestamp,
        largest_timestamp=timestamp,
        attributes=attributes | ATTRIBUTE_FILLER,
    )


def read_header(buffer: bytes | memoryview, position: int) -> BatchHeader:
    """Read a header and check everything that does not need the frames.

    Args:
        buffer: Bytes that hold at least the header at `position`.
        position: Start of the batch.

    Raises:
        CorruptionError: Fewer than 88 bytes are left, or a field has an impossible value;
            `position` of the error is that of the batch in `buffer`.
    """
    if position < 0 or len(buffer) - position < HEADER_SIZE:
        raise CorruptionError("batch header is cut off", position=position)
    (
        magic,
        version,
        reserved,
        length,
        crc,
        attributes,
        reserved_too,
        partition_id,
        leader_epoch,
        base_offset,
        last_offset,
        count,
        publisher_epoch,
        first_timestamp,
        largest_timestamp,
        publisher_id,
        first_sequence,
    ) = HEADER.unpack_from(buffer, position)
    if magic != MAGIC or version != VERSION or reserved or reserved_too:
        raise CorruptionError("no batch begins here", position=position)
    if not LENGTH_MIN <= length <= BATCH_BYTES_MAX - COVERED_START:
        raise CorruptionError(f"batch length {length} is out of bounds", position=position)
    header = BatchHeader(
        length,
        crc,
        attributes,
        partition_id,
        leader_epoch,
        base_offset,
        last_offset,
        count,
        publisher_epoch,
        first_timestamp,
        largest_timestamp,
        publisher_id,
        first_sequence,
    )
    if not _is_consistent(header):
        raise CorruptionError("fields of the batch header contradict each other", position=position)
    return header


def _is_consistent(header: BatchHeader) -> bool:
    """Return whether the fields of a header agree with each other."""
    if not 0 <= header.base_offset <= header.last_offset < OFFSET_MAX:
        return False
    if header.count > header.last_offset - header.base_offset + 1:
        return False
    if header.attributes & ~ATTRIBUTES_KNOWN:
        return False
    is_empty = header.count == 0
    return header.is_filler == is_empty and (header.length == LENGTH_MIN) == is_empty


def verify(buffer: bytes | memoryview, position: int, header: BatchHeader) -> None:
    """Check that a batch is whole and its checksum correct.

    Args:
        buffer: Bytes that hold the batch.
        position: Start of the batch.
        header: Result of `read_header` for it.

    Raises:
        CorruptionError: The batch is cut off, or its bytes have changed.
    """
    end = position + header.size
    if end > len(buffer):
        raise CorruptionError("batch is cut off", position=position)
    covered = bytes(buffer[position + COVERED_START : end])
    if crc32c(covered) != header.crc:
        raise CorruptionError("checksum of the batch is wrong", position=position)


def walk(buffer: bytes | memoryview, start: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Headers of the batches in `buffer[start:end]`, with their positions.

    Checks that batches are whole, adjoin each other, belong to one partition and that epochs do
    not fall. The caller checks checksums: `verify`, or `walk_verified`.

    Raises:
        CorruptionError: The bytes are anything else; raised when the walk reaches them.
    """
    position = start
    before: BatchHeader | None = None
    while position < end:
        header = read_header(buffer, position)
        if position + header.size > end:
            raise CorruptionError("batch is cut off", position=position)
        if before is not None:
            check_follows(before, header, position)
        yield position, header
        before = header
        position += header.size


def walk_verified(
    buffer: bytes | memoryview, start: int, end: int
) -> Iterator[tuple[int, BatchHeader]]:
    """Do as `walk`, and check the checksum of each batch before yielding it.

    Raises:
        CorruptionError: See `walk` and `verify`.
    """
    for position, header in walk(buffer, start, end):
        verify(buffer, position, header)
        yield position, header


def check_follows(before: BatchHeader, header: BatchHeader, position: int) -> None:
    """Check that `header` may directly follow `before`.

    Raises:
        CorruptionError: The ranges do not adjoin, the partition differs or the epoch falls.
    """
    if header.base_offset != before.last_offset + 1:
        raise CorruptionError(
            f"batch begins at offset {header.base_offset}, not at {before.last_offset + 1}",
            position=position,
        )
    if header.partition_id != before.partition_id:
        raise CorruptionError(
            f"batch of partition {header.partition_id} in partition {before.partition_id}",
            position=position,
        )
    if header.leader_epoch < before.leader_epoch:
        raise CorruptionError(
            f"leader epoch falls from {before.leader_epoch} to {header.leader_epoch}",
            position=position,
        )
