"""Values passed between a partition's log, its readers and their owners."""

from typing import Final, NamedTuple

from liftbridge_broker.model.ids import Offset
from liftbridge_broker.ports.files import FileHandle
from liftbridge_broker.storage.log.state import LogState

READ_BLOCK_BYTES: Final = 256 * 1024
"""Bytes requested in one read; a larger batch is read whole."""

NO_TIMESTAMP: Final = -(1 << 63)
"""Largest timestamp of an empty set of records."""


EMPTY_STATE: Final = LogState(Offset(0), Offset(0), Offset(0), ())
"""State of a newly created partition."""


class LogLimits(NamedTuple):
    """Limits at which the active segment is closed and a new one started.

    Attributes:
        segment_bytes_max: Size from which a segment is rolled before the next append; 0 is off, so
            that only the bound of the index (4 GiB) applies.
        segment_age_ns_max: Time since the first append after which a segment is rolled; 0 is off.
    """

    segment_bytes_max: int
    segment_age_ns_max: int


class Unsynced(NamedTuple):
    """What a sync of a log includes, in this order.

    Attributes:
        handles: Files with records that may not be durable.
        directories: The log's directory if the name of one of them may not be durable.
    """

    handles: tuple[FileHandle, ...]
    directories: tuple[str, ...]


class SegmentInfo(NamedTuple):
    """Description of a segment, for retention, compaction and inspection.

    Attributes:
        base: Base offset, part of its file names.
        end: First offset after it.
        bytes: Length of its log file.
        records: Frames in it, fewer than `end - base` after compaction.
        first_timestamp: Timestamp of its first batch, `NO_TIMESTAMP` if it is empty.
        largest_timestamp: Largest timestamp in it, `NO_TIMESTAMP` when it is empty.
        sealed: Whether it is closed for appends.
        path: Path of its log file.
    """

    base: Offset
    end: Offset
    bytes: int
    records: int
    first_timestamp: int
    largest_timestamp: int
    sealed: bool
    path: str


class RecoveryReport(NamedTuple):
    """Findings and changes of opening a log.

    Attributes:
        scanned_bytes: Bytes whose checksums were verified.
        cut_bytes: Bytes removed from the end of the log (storage policy 4).
        cut_offset: Log end offset after the truncation, `None` if nothing was truncated. The
            removed records may have counted, unless they were a torn write under policy `commit`.
        cut_copies: Files with the removed bytes.
        quarantined: Files that are missing or have damage that must not be truncated. If there are
            any, the log was opened without changing a file, and the partition must stay offline.
        rebuilt_indexes: Index files that were missing or wrong and were rebuilt from the log.
        removed: Left-over files of interrupted work that were completed or removed.
        reason: Finding for an operator; empty for none.
    """

    scanned_bytes: int = 0
    cut_bytes: int = 0
    cut_offset: Offset | None = None
    cut_copies: tuple[str, ...] = ()
    quarantined: tuple[str, ...] = ()
    rebuilt_indexes: int = 0
    removed: tuple[str, ...] = ()
    reason: str = ""


class ReadNeed(NamedTuple):
    """Bytes that a reader needs and that are not in memory.

    The owner submits the read and passes the result to `feed`; until then the file stays open.
    """

    handle: FileHandle
    position: int
    length: int


class ReadResult(NamedTuple):
    """Outcome of one read.

    Attributes:
        slices: Bytes to send in order, each one or more whole frames (or batches). Views share
            the block they were read into and never change.
        count: Records in them.
        need: Read needed first; only when `slices` is empty.
    """

    slices: list[bytes | memoryview]
    count: int  # type: ignore[assignment]  # hides `tuple.count`, which is not needed here
    need: ReadNeed | None = None
