"""Divide a range between archive and log, if a query has both.

The cut is the archive's end, not the log's start: what is archived lies there for good, while the
log may lose it to retention between the plan and the read. Retention that is bound to the
archive's cursor never passes that end, so above it the log has everything; and old records cost
brokers nothing. Which place a row comes from changes nothing about the tasks: these follow from
offsets and options alone, so a batch that Spark repeats gives the same rows in the same tasks, even
when the archive has grown meanwhile. Only a compaction by key between two attempts, of the stream
or of the archive, makes the second one lack rows: a sink that numbers rows by their place, as that
for exactly once, needs streams and archives that are not compacted so.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from pyspark_liftbridge.plan.histories import Read
from pyspark_liftbridge.plan.offsets import PartitionId
from pyspark_liftbridge.plan.places import Bounds, Known
from pyspark_liftbridge.plan.ranges import Range


class Held(NamedTuple):
    """What an archive holds of a partition.

    Attributes:
        begin: First offset that was archived.
        end: First offset not archived yet.
        gaps: Offsets between, lost before they were archived: start and end, in order.
        read: Where the log was read last, `None` if that was not noted.
    """

    begin: int
    end: int
    gaps: tuple[tuple[int, int], ...] = ()
    read: Read | None = None


class Origin(Enum):
    """Where offsets come from."""

    ARCHIVE = "archive"
    LOG = "log"
    NOWHERE = "nowhere"
    """They were lost before they were archived."""


class Step(NamedTuple):
    """Offsets that come from one place.

    Attributes:
        origin: The place.
        start: First offset.
        end: First offset not among them; more than `start`.
    """

    origin: Origin
    start: int
    end: int


def next_step(start: int, end: int, held: Held | None) -> Step:
    """Where the first offsets of a range come from, and how many of them.

    Args:
        start: First offset of the range.
        end: First offset not in it; more than `start`.
        held: What the archive holds, `None` if there is nothing.
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
    """Bounds of log and archive together: the earliest offset is the archive's where that is less.

    Sizes grow with the offsets, so that the mean size of a record stays that of the log.
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
    """Whether the archive is to be looked at again before a range is read.

    A query that has passed the archive's end reads the log, and asks the archive nothing more
    while the log has what it wants.

    Args:
        wanted: What is to be read.
        held: What is known of the archive, `None` if there is nothing.
        log_start: Where the log begins as far as it is known.
    """
    end = 0 if held is None else held.end
    return wanted.end > end and (log_start is None or wanted.start < max(log_start, end))


def earlier(
    found: Mapping[PartitionId, int], archived: Iterable[tuple[PartitionId, int]]
) -> dict[PartitionId, int]:
    """Offsets found in the log, or in the archive where they are less there."""
    least = dict(found)
    for one, offset in archived:
        least[one] = min(offset, least.get(one, offset))
    return least
