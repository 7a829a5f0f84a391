"""One segment: a log file, its index file, and the state of both in memory.

Files are named by the base offset, 20 digits: `<base>.log`, `<base>.index`. The first append
creates them together and makes their names durable; handles are opened on demand.
"""

from collections.abc import Callable
from struct import Struct
from typing import Final

from liftbridge_broker.errors import CorruptionError, FilesError
from liftbridge_broker.logformat.batch import (
    ATTRIBUTE_FILLER,
    ATTRIBUTES_KNOWN,
    HEADER_SIZE,
    LENGTH_MIN,
    PROLOGUE,
    BatchHeader,
    read_header,
)
from liftbridge_broker.logformat.checksum import crc32c
from liftbridge_broker.logformat.index_blocks import (
    RELATIVE_MAX,
    SUMMARY_SIZE,
    Summary,
    decode_summary,
    encode_summary,
)
from liftbridge_broker.model.ids import LeaderEpoch, Offset, PartitionId
from liftbridge_broker.ports.files import FileHandle, Files
from liftbridge_broker.storage.log.index import (
    INDEX_INTERVAL_BYTES,
    IndexEntry,
    Resume,
    SparseIndex,
    load_index,
)
from liftbridge_broker.storage.log.ranges import Ranges
from liftbridge_broker.storage.log.scan import LogFile, scan_batches
from liftbridge_broker.storage.log.types import NO_TIMESTAMP, SegmentInfo

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
CLEANED_SUFFIX: Final = ".cleaned"
TRUNCATED_SUFFIX: Final = ".truncated"
CUT_SUFFIX: Final = ".cut"
DAMAGED_SUFFIX: Final = ".damaged"
BASE_DIGITS: Final = 20
PLAIN_ATTRIBUTES: Final = ATTRIBUTES_KNOWN & ~ATTRIBUTE_FILLER


def log_name(base_offset: Offset) -> str:
    """Return the name of the log file of a segment."""
    return f"{base_offset:0{BASE_DIGITS}d}{LOG_SUFFIX}"


def index_name(base_offset: Offset) -> str:
    """Return the name of the index file of a segment."""
    return f"{base_offset:0{BASE_DIGITS}d}{INDEX_SUFFIX}"


def base_of(name: str, suffix: str) -> Offset | None:
    """Return the base offset in the name of a segment's file, `None` for any other name."""
    digits = name.removesuffix(suffix)
    if len(digits) != BASE_DIGITS or name == digits or not digits.isdecimal():
        return None
    return Offset(int(digits)) if digits.isascii() else None


_PLAIN: Final = Struct(">IIIH2xQQqqI12xq")
"""Header fields needed by a scan.

Magic with version, length, checksum, attributes, partition id, leader epoch, base offset, last
offset, record count, largest timestamp.
"""


def _is_plain(attributes: int, length: int, offsets: int, count: int) -> bool:
    """Return whether a verified batch has records and needs no special handling."""
    return 0 < count <= offsets and length > LENGTH_MIN and attributes & ~PLAIN_ATTRIBUTES == 0


class Segment:
    """One segment, owned by its `PartitionLog`.

    Attributes:
        base_offset: First offset of its range.
        end_offset: First offset after its range.
        size: Valid bytes of the log file.
        record_count: Frames in it.
        first_timestamp: Timestamp of the first batch, `NO_TIMESTAMP` when empty.
        largest_timestamp: Largest timestamp, `NO_TIMESTAMP` when empty.
        last_position: Start of the last batch.
        last_crc: Checksum field of the last batch.
        first_append_ns: Wall clock of the first append, the start of its age.
        is_sealed: Whether it is closed for appends.
        is_dead: Whether it was removed from the log; readers look up their position again.
        pins: Number of reads in flight on its handle, which must stay open for them.
        is_syncing: Whether a submitted sync uses its handle.
        verified: Positions whose batches were verified since the file changed there.
        is_index_refused: Whether the index could not be written; retried when the whole index is
            written.
        is_index_written: Whether the index file ends with a summary of the current log.
        has_files: Whether the log file exists; the index file follows with its first block.
        is_name_new: Whether the name of the log file may not be durable.
    """

    __slots__ = (
        "_index",
        "base_offset",
        "directory",
        "end_offset",
        "files",
        "first_append_ns",
        "first_timestamp",
        "handle",
        "has_files",
        "is_dead",
        "is_index_refused",
        "is_index_written",
        "is_name_new",
        "is_sealed",
        "is_syncing",
        "largest_timestamp",
        "last_crc",
        "last_position",
        "partition_id",
        "pins",
        "record_count",
        "size",
        "verified",
    )

    def __init__(
        self, files: Files, directory: str, partition_id: PartitionId, base_offset: Offset
    ) -> None:
        """Create an empty segment; nothing changes on disk."""
        self.files = files
        self.directory = directory
        self.partition_id = partition_id
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.size = 0
        self.record_count = 0
        self.first_timestamp = NO_TIMESTAMP
        self.largest_timestamp = NO_TIMESTAMP
        self.last_position = 0
        self.last_crc = 0
        self.first_append_ns = 0
        self.is_sealed = False
        self.is_dead = False
        self.pins = 0
        self.is_syncing = False
        self.verified = Ranges()
        self.is_index_refused = False
        self.is_index_written = False
        self.has_files = False
        self.is_name_new = False
        self.handle: FileHandle | None = None
        self._index: SparseIndex | None = SparseIndex(base_offset)

    @property
    def path(self) -> str:
        """Path of the log file."""
        return f"{self.directory}/{log_name(self.base_offset)}"

    @property
    def index_path(self) -> str:
        """Path of the index file."""
        return f"{self.directory}/{index_name(self.base_offset)}"

    @property
    def is_compacted(self) -> bool:
        """Return whether compaction, on this broker or its source, removed records of the range."""
        return self.record_count < self.end_offset - self.base_offset

    @property
    def info(self) -> SegmentInfo:
        """Return the description of the segment for retention and inspection."""
        return SegmentInfo(
            self.base_offset,
            self.end_offset,
            self.size,
            self.record_count,
            self.first_timestamp,
            self.largest_timestamp,
            self.is_sealed,
            self.path,
        )

    def open(self) -> FileHandle:
        """Return the handle of the log file, opened on demand and created if it is new.

        The name becomes durable with the first sync of its records, which do not count before: a
        sync takes milliseconds, and thousands of partitions may get their first record at a time.

        Raises:
            FilesError: The file system refused; the segment is unchanged.
        """
        if self.handle is None:
            self.handle = self.files.open(self.path, create=not self.has_files)
            if not self.has_files:
                self.has_files = self.is_name_new = True
        return self.handle

    def close(self) -> bool:
        """Close the handle unless a submitted call uses it; return whether it was closed."""
        if self.handle is None or self.pins or self.is_syncing:
            return False
        self.files.close(self.handle)
        self.handle = None
        return True

    def bury(self) -> None:
        """Mark the segment as removed; its handle is closed as soon as it is unused."""
        self.is_dead = True
        self.close()

    def unpin(self) -> None:
        """Record the end of a read in flight."""
        assert self.pins > 0
        self.pins -= 1
        if self.is_dead:
            self.close()

    def end_sync(self) -> None:
        """Record the end of a submitted sync."""
        self.is_syncing = False
        if self.is_dead:
            self.close()

    @property
    def log_file(self) -> LogFile:
        """Return the log file, for walking."""
        return LogFile(self.files, self.open(), self.path, self.partition_id, self.size)

    def fits(self, header: BatchHeader, length: int) -> bool:
        """Return whether a batch may be appended within the range of index entries."""
        return (
            header.base_offset - self.base_offset <= RELATIVE_MAX
            and self.size + length <= RELATIVE_MAX
        )

    def load_index(self) -> None:
        """Load the index into memory; errors as for `index`."""
        if self._index is None:
            _ = self.index

    def note_batch(self, header: BatchHeader) -> None:
        """Count a batch at the end of the file.

        Once per batch on append (tests/bench/bench_log.py), so plain statements only.
        """
        index = self._index
        if index is None:
            index = self.index
        position = self.size
        timestamp_before = self.largest_timestamp
        if position == 0:
            self.first_timestamp = header.first_timestamp
        if header.largest_timestamp > timestamp_before:
            self.largest_timestamp = header.largest_timestamp
        if position - index.last_position >= INDEX_INTERVAL_BYTES:
            index.add(
                header.base_offset,
                position,
                self.largest_timestamp,
                records_before=self.record_count,
                timestamp_before=timestamp_before,
            )
        self.record_count += header.count
        self.last_position = position
        self.last_crc = header.crc
        self.size = position + 12 + header.length
        self.end_offset = Offset(header.last_offset + 1)
        self.is_index_written = False

    def note_block(self, block: bytes, epoch: LeaderEpoch | None) -> int:
        """Verify and count the plain batches at the start of a block, for scans after a crash.

        Stops before the first batch that is truncated, damaged, empty or of another epoch; the slow
        walk checks that batch. Measured by tests/bench/bench_log.py: 1 us for a small batch.

        Args:
            block: Bytes of the log file from the end of the counted part on.
            epoch: Leader epoch of the batches.

        Returns:
            Bytes counted.
        """
        index = self.index
        unpack = _PLAIN.unpack_from
        start, limit = self.size, len(block)
        at = last_at = 0
        crc = self.last_crc
        expected: int = self.end_offset
        records, largest = self.record_count, self.largest_timestamp
        headers_end = limit - HEADER_SIZE
        while at <= headers_end:
            magic, length, check, attributes, of, by, base, last, count, newest = unpack(block, at)
            behind = at + 12 + length
            if (
                behind > limit
                or base != expected
                or by != epoch
                or crc32c(block[at + 12 : behind]) != check
                or magic != PROLOGUE
                or of != self.partition_id
                or not _is_plain(attributes, length, last - base + 1, count)
            ):
                break
            before, largest = largest, max(largest, newest)
            if start + at - index.last_position >= INDEX_INTERVAL_BYTES:
                index.add(
                    Offset(base),
                    start + at,
                    largest,
                    records_before=records,
                    timestamp_before=before,
                )
            records += count
            crc = check
            last_at, at = at, behind
            expected = last + 1
        if not at:
            return 0
        if not start:
            self.first_timestamp = read_header(block, 0).first_timestamp
        self.size = start + at
        self.last_position, self.last_crc = start + last_at, crc
        self.record_count, self.largest_timestamp = records, largest
        self.end_offset = Offset(expected)
        self.is_index_written = False
        return at

    @property
    def index(self) -> SparseIndex:
        """Index, loaded from its file, or rebuilt from the log when the file does not match.

        Raises:
            CorruptionError: It had to be rebuilt and the log is damaged.
            FilesError: A file cannot be read.
        """
        if self._index is not None:
            return self._index
        loaded = load_index(
            read_file(self.files, self.index_path),
            partition_id=self.partition_id,
            base_offset=self.base_offset,
        )
        if not (loaded.is_whole and loaded.summary == self.summary):
            return self.rebuild_index()
        self._index = loaded.entries
        return self._index

    @property
    def summary(self) -> Summary:
        """Summary block of the segment in its current state."""
        return Summary(
            self.size,
            self.end_offset,
            self.record_count,
            self.first_timestamp,
            self.largest_timestamp,
            self.last_position,
            self.last_crc,
        )

    @property
    def summary_bytes(self) -> bytes:
        """Return the summary as a block."""
        return encode_summary(
            partition_id=self.partition_id, base_offset=self.base_offset, summary=self.summary
        )

    def adopt_summary(self, summary: Summary) -> None:
        """Apply a valid summary; the index is loaded when needed."""
        self.size = summary.log_length
        self.end_offset = summary.end_offset
        self.record_count = summary.record_count
        self.first_timestamp = summary.first_timestamp
        self.largest_timestamp = summary.largest_timestamp
        self.last_position = summary.last_position
        self.last_crc = summary.last_crc
        self.first_append_ns = summary.first_timestamp
        self.is_index_written = True
        self.has_files = True
        self._index = None

    def adopt_resume(self, index: SparseIndex, resume: Resume) -> None:
        """Apply the data of an index about the batches before a resume place."""
        self.size = resume.entry.position
        self.end_offset = resume.entry.offset
        self.record_count = resume.records
        self.largest_timestamp = resume.largest_timestamp
        self._index = index

    def rebuild_index(self) -> SparseIndex:
        """Rebuild the index from the headers in the log; blocking, and rarely called.

        Raises:
            CorruptionError: The log is damaged.
        """
        made = Segment(self.files, self.directory, self.partition_id, self.base_offset)
        walk = scan_batches(self.log_file, start=0, base_offset=self.base_offset, verified=False)
        for _, header in walk:
            made.note_batch(header)
        self._index = made.index
        self.is_index_written = False
        self.record_count = made.record_count
        self.first_timestamp = made.first_timestamp
        self.largest_timestamp = made.largest_timestamp
        self.last_position = made.last_position
        self.last_crc = made.last_crc
        return self._index

    def drop_index(self) -> None:
        """Forget the loaded index of an idle sealed segment; it is reloaded when needed."""
        if self.is_sealed and self.is_index_written:
            self._index = None

    def entry_for(self, offset: Offset) -> IndexEntry:
        """Return the start of a search for an offset of this segment; checked against the log.

        An index that does not match is rebuilt first, so a wrong index costs time, not answers.

        Raises:
            CorruptionError: The log is damaged there.
        """
        return self._checked(lambda index: index.floor_offset(offset))

    def entry_for_timestamp(self, timestamp: int) -> IndexEntry:
        """Return the start of a search for the first record with a timestamp; like `entry_for`."""
        return self._checked(lambda index: index.before_timestamp(timestamp))

    def _checked(self, number_in: Callable[[SparseIndex], int]) -> IndexEntry:
        """Look up an entry; retry with a rebuilt index if the log contradicts it."""
        index = self.index
        entry = self._checked_entry(index, number_in(index))
        if entry is None:
            index = self.rebuild_index()
            entry = self._checked_entry(index, number_in(index))
        if entry is not None:
            return entry
        raise CorruptionError("no batch at the position in the index", path=self.path, position=0)

    def _checked_entry(self, index: SparseIndex, number: int) -> IndexEntry | None:
        """Return an entry by number, `None` if the log has no such batch there."""
        if not 0 <= number < len(index):
            return None
        entry = index.entry(number)
        if entry.position >= self.size:
            return None
        try:
            header = read_header(self.files.read(self.open(), entry.position, HEADER_SIZE), 0)
        except CorruptionError:
            return None
        fits = header.base_offset == entry.offset and header.partition_id == self.partition_id
        return entry if fits and header.largest_timestamp <= entry.timestamp else None

    @property
    def has_index_block(self) -> bool:
        """Return whether a block of the index is full and can be written."""
        index = self._index
        return index is not None and index.has_full_block and not self.is_index_refused

    def write_index_block(self) -> bool:
        """Append unwritten index entries; return whether the file system refused.

        A refusal does not affect the log: the index is rebuilt at the next start.
        """
        handle = self._append_index(self.index, b"")
        if handle is not None:
            self.files.close(handle)
        return handle is None

    def write_index(self) -> FileHandle | None:
        """Append the rest of the index and a summary; for a roll and a clean close.

        Returns:
            The open index file for a later sync, `None` if there was nothing to write or the file
            system refused.
        """
        if self.is_index_written or not self.size:
            return None
        handle = self._append_index(self.index, self.summary_bytes)
        self.is_index_written = handle is not None
        return handle

    def reset_index_file(self) -> None:
        """Empty the index file durably, before its log is truncated.

        Otherwise a crash could bring back entries of records that were replaced since.
        """
        handle = self.files.open(self.index_path, create=True)
        try:
            self.files.truncate(handle, 0)
            self.files.sync(handle)
        finally:
            self.files.close(handle)
        self.is_index_written = False

    def _append_index(self, index: SparseIndex, behind: bytes) -> FileHandle | None:
        """Append new blocks and `behind` to the index file.

        Return its handle, `None` on failure.
        """
        is_continued = index.is_in_file
        data = index.take_blocks(self.partition_id) + behind
        try:
            handle = self.files.open(self.index_path, create=True)
        except FilesError:
            index.forget_file()
            self.is_index_refused = True
            return None
        try:
            if not is_continued and self.files.size(handle):
                self.files.truncate(handle, 0)
            self.files.append(handle, data)
        except FilesError:
            self.files.close(handle)
            index.forget_file()
            self.is_index_refused = True
            return None
        self.is_index_refused = False
        return handle


def read_file(files: Files, path: str) -> bytes:
    """Read a file; return empty bytes if it does not exist or cannot be opened or read."""
    if not files.exists(path):
        return b""
    try:
        handle = files.open(path)
    except FilesError:
        return b""
    try:
        return files.read(handle, 0, files.size(handle))
    except FilesError:
        return b""
    finally:
        files.close(handle)


def read_summary(
    files: Files, path: str, partition_id: PartitionId, base_offset: Offset
) -> Summary | None:
    """Read the summary at the end of an index file, `None` if it has none of this segment."""
    if not files.exists(path):
        return None
    try:
        handle = files.open(path)
    except FilesError:
        return None
    try:
        size = files.size(handle)
        if size < SUMMARY_SIZE:
            return None
        data = files.read(handle, size - SUMMARY_SIZE, SUMMARY_SIZE)
    except FilesError:
        return None
    finally:
        files.close(handle)
    return decode_summary(data, partition_id=partition_id, base_offset=base_offset)
