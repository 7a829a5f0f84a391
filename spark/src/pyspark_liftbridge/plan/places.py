"""Resolve start and end of a query to offsets, from options and reported bounds."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pyspark_liftbridge.plan.offsets import Offsets, PartitionId, StreamOffsets
from pyspark_liftbridge.plan.options import OptionError, Places
from pyspark_liftbridge.plan.table import EARLIEST, LATEST
from pyspark_liftbridge.units import MILLISECOND_NS


class Known(NamedTuple):
    """Bounds of a partition, reported by a broker.

    Attributes:
        stream_id: Id of the stream, 0 if the server reports none.
        earliest: Log start offset.
        latest: First offset not committed.
        size_bytes: Bytes on disk.
        unclean_epoch: History of the partition, `None` if the server reports none.
        epochs: Leader epochs of the log, with their start offsets, in order.
    """

    stream_id: int
    earliest: int
    latest: int
    size_bytes: int
    unclean_epoch: int | None = None
    epochs: tuple[tuple[int, int], ...] = ()

    def leader_epoch_at(self, offset: int) -> int | None:
        """Return the leader epoch at an offset, `None` if the log no longer has it."""
        behind = bisect_right(self.epochs, offset, key=lambda one: one[1])
        return self.epochs[behind - 1][0] if behind else None


Bounds = Mapping[PartitionId, Known]


def times_of(places: Places, partitions: Bounds) -> dict[PartitionId, int]:
    """List the times to look up, in Unix nanoseconds, by partition.

    Raises:
        OptionError: A partition is named but not read, or read but not named.
    """
    if not places.is_time:
        return {}
    return {one: number * MILLISECOND_NS for one, number in _numbers(places, partitions).items()}


def offsets_at(
    places: Places,
    partitions: Bounds,
    by_time: Mapping[PartitionId, int],
    *,
    is_latest_without_match: bool = True,
) -> Offsets:
    """Resolve places to offsets.

    Args:
        places: Places from the options.
        partitions: All partitions of the query.
        by_time: Offset of the first record at or after the requested time; the latest offset if
            there is no such record.
        is_latest_without_match: Whether a time after all records means latest; otherwise it is an
            error.

    Raises:
        OptionError: As for `times_of`; or a time is after all records.
    """
    chosen: dict[PartitionId, int] = {}
    for one, number in _numbers(places, partitions).items():
        known = partitions[one]
        if places.is_time:
            chosen[one] = by_time[one]
            if not is_latest_without_match and by_time[one] >= known.latest:
                raise OptionError(
                    f"no record of {one.stream}/{one.number} is as late as {number} ms since "
                    "1970; set startingOffsetsByTimestampStrategy=latest to start at latest"
                )
        elif number == EARLIEST:
            chosen[one] = known.earliest
        else:
            chosen[one] = known.latest if number == LATEST else number
    return offsets_of(partitions, chosen)


def at_latest(
    places: Places, partitions: Bounds, by_time: Mapping[PartitionId, int]
) -> list[PartitionId]:
    """List partitions that begin at latest, whose offset differs between plans.

    Args:
        places: Places from the options.
        partitions: All partitions of the query.
        by_time: As for `offsets_at`.
    """
    return [
        one
        for one, number in _numbers(places, partitions).items()
        if (by_time[one] >= partitions[one].latest if places.is_time else number == LATEST)
    ]


def offsets_of(partitions: Bounds, chosen: Mapping[PartitionId, int]) -> Offsets:
    """Combine offsets of partitions with the ids of their streams."""
    streams: dict[str, StreamOffsets] = {}
    for one, known in sorted(partitions.items()):
        former = streams.get(one.stream)
        numbers = {} if former is None else dict(former.next_offsets)
        numbers[one.number] = chosen[one]
        streams[one.stream] = StreamOffsets(known.stream_id, numbers)
    return Offsets(streams)


def _numbers(places: Places, partitions: Bounds) -> dict[PartitionId, int]:
    """Return the number of each partition."""
    if places.everywhere is not None:
        return dict.fromkeys(partitions, places.everywhere)
    given = {
        PartitionId(stream, number): place
        for stream, by_number in places.by_partition.items()
        for number, place in by_number.items()
    }
    lacking, surplus = (
        _listed(partitions.keys() - given.keys()),
        _listed(given.keys() - partitions.keys()),
    )
    if lacking or surplus:
        faults = [f"{lacking} is missing"] * bool(lacking)
        faults += [f"{surplus} is not read"] * bool(surplus)
        raise OptionError(
            "offsets or times by partition must name every partition that is read and no other: "
            + "; ".join(faults)
        )
    return given


def _listed(partitions: Iterable[PartitionId]) -> str:
    """Format the names of partitions, in order."""
    return ", ".join(f"{partition.stream}/{partition.number}" for partition in sorted(partitions))
