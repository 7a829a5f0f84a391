"""The sparse index of a segment: in memory while in use, in blocks on disk.

At most one entry per 4 KiB of log has the position of a batch. Each look-up checks that the batch
there has the offset of the entry. An index that is missing, damaged or does not match is rebuilt
from the log, so nothing on disk depends on it.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.logformat.index_blocks import (
    ENTRIES_PER_BLOCK_MAX,
    ENTRY,
    EntryBlock,
    Summary,
    decode_blocks,
    encode_entries,
)
from liftbridge_broker.model.ids import Offset, PartitionId
from liftbridge_broker.storage.log.types import NO_TIMESTAMP

INDEX_INTERVAL_BYTES: Final = 4096
UNKNOWN_COUNT: Final = -1


class IndexEntry(NamedTuple):
    """Entry of an index: the position of a batch.

    Attributes:
        offset: Base offset of the batch.
        position: Its start in the log file.
        timestamp: Largest timestamp of the segment up to and including this batch.
    """

    offset: Offset
    position: int
    timestamp: int


class Resume(NamedTuple):
    """State of a walk over the segment right before the batch of an entry.

    Attributes:
        entry: The entry.
        entry_count: Entries before it.
        records: Records before it.
        largest_timestamp: Largest timestamp before it, `NO_TIMESTAMP` for none.
    """

    entry: IndexEntry
    entry_count: int
    records: int
    largest_timestamp: int


class SparseIndex:
    """Index entries of one segment, ascending in offset and position.

    Attributes:
        base_offset: Base offset of the segment.
        last_position: Position of the newest entry, -`INDEX_INTERVAL_BYTES` without entries.
    """

    __slots__ = ("_data", "_resume", "_written", "base_offset", "last_position")

    def __init__(self, base_offset: Offset) -> None:
        self.base_offset = base_offset
        self.last_position = -INDEX_INTERVAL_BYTES
        self._data = bytearray()
        self._written = 0
        self._resume = (UNKNOWN_COUNT, NO_TIMESTAMP)

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._data) // ENTRY.size

    def entry(self, number: int) -> IndexEntry:
        """Return an entry by its number, from 0."""
        relative, position, timestamp = ENTRY.unpack_from(self._data, number * ENTRY.size)
        return IndexEntry(Offset(self.base_offset + relative), position, timestamp)

    def add(
        self,
        offset: Offset,
        position: int,
        timestamp: int,
        *,
        records_before: int,
        timestamp_before: int,
    ) -> None:
        """Add an entry after all others.

        Args:
            offset: Base offset of the batch.
            position: Its start; the caller keeps `INDEX_INTERVAL_BYTES` to `last_position`.
            timestamp: Largest timestamp of the segment up to and including the batch.
            records_before: Records of the segment before the batch.
            timestamp_before: Largest timestamp before the batch, `NO_TIMESTAMP` for none.
        """
        assert position > self.last_position
        self._data += ENTRY.pack(offset - self.base_offset, position, timestamp)
        self.last_position = position
        self._resume = (records_before, timestamp_before)

    def floor_offset(self, offset: Offset) -> int:
        """Return the number of the last entry at or below an offset, -1 for none."""
        relative = offset - self.base_offset
        return self._first(lambda entry: entry[0] > relative) - 1

    def floor_position(self, position: int) -> int:
        """Return the number of the last entry at or before a position, -1 for none."""
        return self._first(lambda entry: entry[1] > position) - 1

    def before_timestamp(self, timestamp: int) -> int:
        """Return the number of the entry at which to start a search for `timestamp`; at least 0."""
        reaching = self._first(lambda entry: entry[2] >= timestamp)
        return max(0, reaching - 1)

    def cut(self, position: int) -> None:
        """Remove the entries at and after a position; the file must then be rewritten."""
        keep = self._first(lambda entry: entry[1] >= position)
        del self._data[keep * ENTRY.size :]
        self.last_position = self.entry(keep - 1).position if keep else -INDEX_INTERVAL_BYTES
        self._written = 0
        self._resume = (UNKNOWN_COUNT, NO_TIMESTAMP)

    @property
    def is_in_file(self) -> bool:
        """Return whether the index file holds the older entries; else a write empties it first."""
        return self._written > 0

    def forget_file(self) -> None:
        """Record that the index file was emptied: all entries must be written again."""
        self._written = 0

    @property
    def has_full_block(self) -> bool:
        """Return whether enough entries are unwritten for a block of the file."""
        return len(self) - self._written >= ENTRIES_PER_BLOCK_MAX

    def take_blocks(self, partition_id: PartitionId) -> bytes:
        """Return the blocks of all unwritten entries, which count as written from now on."""
        blocks: list[bytes] = []
        count = len(self)
        while self._written < count:
            end = min(count, self._written + ENTRIES_PER_BLOCK_MAX)
            records, timestamp = self._resume if end == count else (UNKNOWN_COUNT, NO_TIMESTAMP)
            blocks.append(
                encode_entries(
                    partition_id=partition_id,
                    base_offset=self.base_offset,
                    records_before=records,
                    timestamp_before=timestamp,
                    entries=bytes(self._data[self._written * ENTRY.size : end * ENTRY.size]),
                )
            )
            self._written = end
        return b"".join(blocks)

    def load_block(self, block: EntryBlock) -> None:
        """Add a block of the file; it counts as written."""
        self._data += block.entries
        self._written = len(self)
        self._resume = (block.records_before, block.timestamp_before)
        self.last_position = self.entry(self._written - 1).position

    def _first(self, is_behind: Callable[[tuple[int, int, int]], bool]) -> int:
        """Return the number of the first entry for which a monotonic predicate holds."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if is_behind(ENTRY.unpack_from(self._data, middle * ENTRY.size)):
                high = middle
            else:
                low = middle + 1
        return low


class LoadedIndex(NamedTuple):
    """Content of an index file.

    Attributes:
        entries: Entries of its intact blocks.
        summary: The last summary, `None` without a summary.
        resumes: Places from which a walk can resume, oldest first.
        is_whole: Whether all blocks were intact.
    """

    entries: SparseIndex
    summary: Summary | None
    resumes: tuple[Resume, ...]
    is_whole: bool


def load_index(data: bytes, *, partition_id: PartitionId, base_offset: Offset) -> LoadedIndex:
    """Load the entries of an index file, up to its first damaged block."""
    index = SparseIndex(base_offset)
    summary: Summary | None = None
    resumes: list[Resume] = []
    try:
        for block in decode_blocks(data, partition_id=partition_id, base_offset=base_offset):
            if isinstance(block, Summary):
                summary = block
                continue
            index.load_block(block)
            if block.records_before >= 0:
                number = len(index) - 1
                resumes.append(
                    Resume(
                        index.entry(number), number, block.records_before, block.timestamp_before
                    )
                )
    except CorruptionError:
        return LoadedIndex(index, None, tuple(resumes), is_whole=False)
    if len(index) and index.entry(0)[:2] != (base_offset, 0):
        # An earlier block was lost, so look-ups would find nothing before the first entry.
        return LoadedIndex(SparseIndex(base_offset), None, (), is_whole=False)
    return LoadedIndex(index, summary, tuple(resumes), is_whole=True)


def keep_below(loaded: LoadedIndex, resume: Resume) -> SparseIndex:
    """Return the entries before a resume place, as an index whose file must be rewritten."""
    index = loaded.entries
    index.cut(resume.entry.position)
    return index
