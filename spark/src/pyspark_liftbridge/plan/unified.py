"""Divide a range between archive and log, for a query that has both.

The cut is the archive's end, not the log start offset: archived records stay, while the log may
lose them to retention between the plan and the read. Retention bound to the archive's cursor never
passes that end, so above it the log is complete. In addition, reading old records costs brokers
nothing. The source of a row does not affect the tasks: these depend on offsets and options alone,
so a batch that Spark repeats has the same rows in the same tasks, even if the archive has grown
meanwhile. Only a compaction by key between two attempts, of the stream or of the archive, makes the
second attempt lack rows: a sink that numbers rows by position, such as exactly-once, needs streams
and archives without compaction by key.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from pyspark_liftbridge.plan.histories import Read
from pyspark_liftbridge.plan.offsets import PartitionId
from pyspark_liftbridge.plan.places import Bounds, Known
from pyspark_liftbridge.plan.ranges import Range


class Held(NamedTuple):
    """Archived offsets of a partition.

    Attributes:
        begin: First offset that was archived.
        end: First offset not archived yet.
        gaps: Lost offsets in between, which were never archived: start and end, in order.
        read: History in which the log was last read, `None` if not recorded.
    """

    begin: int
    end: int
    gaps: tuple[tuple[int, int], ...] = ()
    read: Read | None = None


class Origin(Enum):
    """Source of records."""

    ARCHIVE = "archive"
    LOG = "log"
    NOWHERE = "nowhere"
    """No source: the offsets were lost before they were archived."""


class Step(NamedTuple):
    """Offsets to read from one source.

    Attributes:
        origin: The source.
        start: First offset.
        end: First offset after them; more than `start`.
    """

    origin: Origin
    start: int
    end: int


def next_step(start: int, end: int, held: Held | None) -> Step:
    """Decide the source of the first offsets of a range, and their number.

    Args:
        start: First offset of the range.
        end: First offset not in it; more than `start`.
        held: Archived offsets of the partition, `None` for none.
    """
    if held is None or start >= held.end:
        return Step(Origin.LOG, start, end)
    if start < held.begin:
        return Step(Origin.LOG, start, min(end, held.begin))
    end = min(end, held.end)
    for first, last in held.gaps:
        if first <= start < last:
            return Step(Origin.NOWHERE, start, min(end, last))
        if start < first:
            return Step(Origin.ARCHIVE, start, min(end, first))
    return Step(Origin.ARCHIVE, start, end)


def with_archive(bounds: Bounds, held: Mapping[PartitionId, Held]) -> Bounds:
    """Combine bounds of log and archive: the earliest offset is the lower of both.

    Sizes grow in proportion, so that the mean size of a record stays that of the log.
    """
    return {
        one: _lowered(known, held[one].begin) if one in held else known
        for one, known in bounds.items()
    }


def _lowered(known: Known, begin: int) -> Known:
    if begin >= known.earliest:
        return known
    kept, size = known.latest - known.earliest, known.size_bytes
    grown = size * (known.latest - begin) // kept if kept else size
    return known._replace(earliest=begin, size_bytes=grown)


def is_outgrown(wanted: Range, held: Held | None, log_start: int | None) -> bool:
    """Return whether to read the archive's log again before a range is read.

    A query beyond the archive's end reads only the log, as long as the log has the range.

    Args:
        wanted: Range to read.
        held: Known state of the archive, `None` for nothing.
        log_start: Last known log start offset.
    """
    end = 0 if held is None else held.end
    return wanted.end > end and (log_start is None or wanted.start < max(log_start, end))


def earlier(
    found: Mapping[PartitionId, int], archived: Iterable[tuple[PartitionId, int]]
) -> dict[PartitionId, int]:
    """Return the lower of the offsets found in log and archive."""
    least = dict(found)
    for one, offset in archived:
        least[one] = min(offset, least.get(one, offset))
    return least
