"""Index blocks: entries of a sparse index and the summary of a segment, as bytes.

An index file is a sequence of blocks, only ever appended to. Each block, big-endian::

     0  2 magic 0x4C49 "LI"      2  1 version 1      3  1 kind (1 entries, 2 summary)
     4  4 length: bytes that follow byte 12
     8  4 CRC-32C of the covered part
    12  8 partition id          20  8 base offset of the segment

A block of entries continues with the state of the walk right before the last entry's batch, from
which a rebuild resumes, and the entries::

    28  8 records before that batch
    36  8 largest timestamp before that batch (that batch's own for the first)
    44  .. entries of 16 bytes: offset relative to the segment's base (4), position in the log file
           (4), largest timestamp up to and including the batch that starts there (8)

A summary describes a log file that nothing was appended to afterwards; it counts only as the last
block of its file, and only while the log has the stated length and ends with the stated batch::

    28  8 length of the log file  36  8 end offset        44  8 record count
    52  8 first timestamp         60  8 largest timestamp 68  8 position of the last batch
    76  4 CRC of the last batch
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.logformat.checksum import crc32c
from liftbridge_broker.model.ids import Offset, PartitionId

ENTRY: Final = Struct(">IIq")
ENTRIES_PER_BLOCK_MAX: Final = 256
RELATIVE_MAX: Final = (1 << 32) - 1
"""Bound of positions and relative offsets in entries; a segment rolls before it passes either."""

_PREFIX: Final = Struct(">HBBII")
_COMMON: Final = Struct(">QQ")
_RESUME: Final = Struct(">qq")
_SUMMARY: Final = Struct(">qqqqqqI")
_MAGIC: Final = 0x4C49
_VERSION: Final = 1
_KIND_ENTRIES: Final = 1
_KIND_SUMMARY: Final = 2
_COVERED_START: Final = 12
SUMMARY_SIZE: Final = _PREFIX.size + _COMMON.size + _SUMMARY.size
_LENGTH_MAX: Final = _COMMON.size + _RESUME.size + ENTRIES_PER_BLOCK_MAX * ENTRY.size


class EntryBlock(NamedTuple):
    """A block of entries, never empty.

    Attributes:
        records_before: Records of the segment before the last entry's batch, negative when that
            is unknown and the walk cannot resume there.
        timestamp_before: Largest timestamp of the segment before the last entry's batch.
        entries: Entries as stored, 16 bytes each; a segment may have 65,536 of them, so they are
            decoded one by one on access.
    """

    records_before: int
    timestamp_before: int
    entries: bytes


class Summary(NamedTuple):
    """State of a whole segment.

    Attributes:
        log_length: Bytes of the log file.
        end_offset: First offset after the segment.
        record_count: Frames in it.
        first_timestamp: Timestamp of its first batch.
        largest_timestamp: Largest timestamp in it.
        last_position: Start of its last batch.
        last_crc: Checksum field of that batch.
    """

    log_length: int
    end_offset: Offset
    record_count: int
    first_timestamp: int
    largest_timestamp: int
    last_position: int
    last_crc: int


def encode_entries(
    *,
    partition_id: PartitionId,
    base_offset: Offset,
    records_before: int,
    timestamp_before: int,
    entries: bytes,
) -> bytes:
    """A block of entries, 1 to `ENTRIES_PER_BLOCK_MAX`; layout in the module's docstring."""
    assert 0 < len(entries) <= ENTRIES_PER_BLOCK_MAX * ENTRY.size
    assert len(entries) % ENTRY.size == 0
    covered = b"".join(
        (
            _COMMON.pack(partition_id, base_offset),
            _RESUME.pack(records_before, timestamp_before),
            entries,
        )
    )
    return _seal_block(_KIND_ENTRIES, covered)


def encode_summary(*, partition_id: PartitionId, base_offset: Offset, summary: Summary) -> bytes:
    """A summary block, `SUMMARY_SIZE` bytes; layout in the module's docstring."""
    covered = _COMMON.pack(partition_id, base_offset) + _SUMMARY.pack(*summary)
    return _seal_block(_KIND_SUMMARY, covered)


def decode_blocks(
    data: bytes, *, partition_id: PartitionId, base_offset: Offset
) -> Iterator[EntryBlock | Summary]:
    """Blocks of an index file, in order.

    Args:
        data: The whole file.
        partition_id: Partition it must be of.
        base_offset: Base offset of the segment it must be of.

    Raises:
        CorruptionError: At the first block that is cut off, damaged, of another segment, or whose
            entries do not rise; the blocks yielded before are good.
    """
    position = 0
    before = (-1, -1)
    while position < len(data):
        block, end = _decode_block(data, position, partition_id, base_offset)
        if isinstance(block, EntryBlock):
            # Entries within one block were written together and share its checksum.
            first = ENTRY.unpack_from(block.entries)[:2]
            if first[0] <= before[0] or first[1] <= before[1]:
                raise CorruptionError("index entries do not rise", position=position)
            before = ENTRY.unpack_from(block.entries, len(block.entries) - ENTRY.size)[:2]
        yield block
        position = end


def decode_summary(
    data: bytes, *, partition_id: PartitionId, base_offset: Offset
) -> Summary | None:
    """The summary that fills `data`, `None` when these bytes are not one of this segment."""
    if len(data) != SUMMARY_SIZE:
        return None
    try:
        block, _ = _decode_block(data, 0, partition_id, base_offset)
    except CorruptionError:
        return None
    return block if isinstance(block, Summary) else None


def _seal_block(kind: int, covered: bytes) -> bytes:
    """Put the block header before its covered part."""
    return _PREFIX.pack(_MAGIC, _VERSION, kind, len(covered), crc32c(covered)) + covered


def _decode_block(
    data: bytes, position: int, partition_id: PartitionId, base_offset: Offset
) -> tuple[EntryBlock | Summary, int]:
    """One block and the position after it."""
    if len(data) - position < _PREFIX.size + _COMMON.size:
        raise CorruptionError("index block is cut off", position=position)
    magic, version, kind, length, crc = _PREFIX.unpack_from(data, position)
    start = position + _COVERED_START
    end = start + length
    if magic != _MAGIC or version != _VERSION or not _COMMON.size <= length <= _LENGTH_MAX:
        raise CorruptionError("no index block begins here", position=position)
    covered = data[start:end]
    if len(covered) != length or crc32c(covered) != crc:
        raise CorruptionError("index block is cut off or damaged", position=position)
    if _COMMON.unpack_from(covered) != (partition_id, base_offset):
        raise CorruptionError("index block is of another segment", position=position)
    if kind == _KIND_ENTRIES:
        return _decode_entries(covered, position), end
    if kind == _KIND_SUMMARY and length == _COMMON.size + _SUMMARY.size:
        return Summary(*_SUMMARY.unpack_from(covered, _COMMON.size)), end
    raise CorruptionError("index block is of no known kind", position=position)


def _decode_entries(covered: bytes, position: int) -> EntryBlock:
    """Entries of a block with a correct checksum."""
    start = _COMMON.size + _RESUME.size
    size = len(covered) - start
    if size <= 0 or size % ENTRY.size:
        raise CorruptionError("index block holds no whole entries", position=position)
    records_before, timestamp_before = _RESUME.unpack_from(covered, _COMMON.size)
    return EntryBlock(records_before, timestamp_before, covered[start:])
