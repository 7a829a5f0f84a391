"""Decide which ranges each task reads: a pure function of offsets and options.

Spark repeats a batch from its written offsets, so the same offsets must give the same ranges; and
every offset must be in exactly one range.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from pyspark_liftbridge.plan.offsets import Offsets, PartitionId
from pyspark_liftbridge.plan.options import Limits, Split
from pyspark_liftbridge.plan.places import Bounds


class Range(NamedTuple):
    """Offsets of a partition that are read together.

    Attributes:
        stream: Name of the stream.
        stream_id: Id that the stream must have, 0 for any.
        partition: Number of the partition.
        start: First offset.
        end: First offset not read; more than `start`.
        unclean_epoch: History in which to read it, `None` for any.
    """

    stream: str
    stream_id: int
    partition: int
    start: int
    end: int
    unclean_epoch: int | None = None

    @property
    def size(self) -> int:
        """Number of offsets; a compacted log holds fewer records."""
        return self.end - self.start


class BackwardsError(ValueError):
    """A range would end before it begins: offsets were determined again and differ."""


def ranges_between(start: Offsets, end: Offsets) -> list[Range]:
    """List the ranges between two offsets; partitions with nothing to read are left out.

    Args:
        start: Start of a batch. Nothing is read from a partition that is not in it, or whose stream
            had another id: the next batch begins at its offset in `end`.
        end: End of the batch.

    Raises:
        BackwardsError: An end is before its start.
    """
    ranges: list[Range] = []
    for (name, number), last in end.partitions():
        first = _begin(start, end, PartitionId(name, number))
        if first is None:
            continue
        if last < first:
            raise BackwardsError(
                f"{name}/{number} would be read from {first} to {last}: the offsets of the "
                "checkpoint are not of this log, or startingOffsets was latest and the query "
                "stopped before its first batch; set cursorId, or start with another checkpoint"
            )
        if last > first:
            ranges.append(Range(name, end.streams[name].stream_id, number, first, last))
    return ranges


def in_history(ranges: Sequence[Range], bounds: Bounds) -> list[Range]:
    """Bind ranges to the current history of their partition."""
    pinned: list[Range] = []
    for one in ranges:
        known = bounds.get(PartitionId(one.stream, one.partition))
        pinned.append(
            one._replace(unclean_epoch=known.unclean_epoch)
            if known is not None and known.stream_id == one.stream_id  # guard Source.range
            else one
        )
    return pinned


def _begin(start: Offsets, end: Offsets, partition: PartitionId) -> int | None:
    """Return the next offset of a partition in `start`, if its stream is the same in `end`."""
    before, after = start.streams.get(partition.stream), end.streams[partition.stream]
    is_same = before is not None and before.stream_id == after.stream_id
    return start.of(partition) if is_same else None


def tasks_of(
    ranges: Sequence[Range], split: Split, leaders: Mapping[PartitionId, str]
) -> list[list[Range]]:
    """Distribute ranges to tasks.

    Large ranges are cut, the largest first, until no task has more than `records_max` and there are
    `tasks_min`; small ranges share a task with others of the same leader.

    Args:
        ranges: Ranges to read.
        split: Rules.
        leaders: Known leaders of partitions; they decide which ranges may share a task, not which
            records are read.
    """
    pieces = _cut(ranges, split)
    tasks: list[list[Range]] = []
    open_task: dict[str, list[Range]] = {}
    for piece in pieces:
        leader = leaders.get(PartitionId(piece.stream, piece.partition), "")
        if piece.size >= split.records_min or len(pieces) <= (split.tasks_min or 0):
            tasks.append([piece])
            continue
        task = open_task.get(leader)
        if task is None:
            task = open_task[leader] = []
            tasks.append(task)
        task.append(piece)
        if sum(one.size for one in task) >= split.records_min:
            del open_task[leader]
    return tasks


def _cut(ranges: Sequence[Range], split: Split) -> list[Range]:
    """Cut large ranges into even pieces."""
    most = split.records_max
    counts = [1 if most is None else -(-one.size // most) for one in ranges]
    total = sum(one.size for one in ranges)
    if split.tasks_min is not None and sum(counts) < split.tasks_min:
        # Same as Spark's Kafka source: by share, rounded, and never more pieces than offsets.
        shares = [max(1, round(split.tasks_min * one.size / total)) for one in ranges]
        counts = [
            min(one.size, max(count, share))
            for one, count, share in zip(ranges, counts, shares, strict=True)
        ]
    return [piece for one, count in zip(ranges, counts, strict=True) for piece in _even(one, count)]


def _even(whole: Range, count: int) -> list[Range]:
    edges = [whole.start + whole.size * at // count for at in range(count + 1)]
    return [whole._replace(start=first, end=end) for first, end in pairwise(edges) if end > first]


def limited(start: Offsets, latest: Offsets, limits: Limits, mean_bytes: float) -> Offsets:
    """Compute the end of a micro-batch: the backlog, cut to the limits in proportion.

    Every partition with a backlog gets at least one offset, so that none starves.

    Args:
        start: Start of the batch.
        latest: Next offsets after the committed records.
        limits: Bounds on its size.
        mean_bytes: Mean bytes of a record; 0 if unknown.
    """
    most = limits.offsets_max
    if limits.bytes_max is not None and mean_bytes > 0:
        by_bytes = max(1, int(limits.bytes_max / mean_bytes))
        most = by_bytes if most is None else min(most, by_bytes)
    backlog = backlog_of(start, latest)
    total = sum(backlog.values())
    if most is None or total <= most:
        return latest
    spare, rest = max(0, most - len(backlog)), total - len(backlog)
    taken = {
        one: 1 + (spare * (count - 1) // rest if rest else 0) for one, count in backlog.items()
    }
    return latest.with_offsets(
        {
            partition: offset - backlog[partition] + taken[partition]
            for partition, offset in latest.partitions()
            if partition in backlog
        }
    )


def backlog_of(start: Offsets, latest: Offsets) -> dict[PartitionId, int]:
    """Count the unread offsets of each partition; partitions without any are left out."""
    counts: dict[PartitionId, int] = {}
    for one, offset in latest.partitions():
        first = _begin(start, latest, one)
        if first is not None and offset > first:
            counts[one] = offset - first
    return counts
