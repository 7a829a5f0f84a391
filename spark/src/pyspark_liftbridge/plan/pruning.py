"""Prune the ranges of a batch by its filters, without removing records that a filter would keep."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from pyspark_liftbridge.plan.offsets import PartitionId
from pyspark_liftbridge.plan.ranges import Range

_Item = TypeVar("_Item")


class Pruning(NamedTuple):
    """Conditions that rows must all meet; `None` for no condition.

    Attributes:
        streams: Names of streams.
        partitions: Numbers of partitions.
        offset_min: Minimum offset.
        offset_end: First offset above the allowed offsets.
        time_ns_min: Minimum time, Unix nanoseconds; a multiple of 1,000, as brokers look times up.
        time_ns_end: First time above the allowed times, also a multiple of 1,000.
    """

    streams: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    offset_min: int | None = None
    offset_end: int | None = None
    time_ns_min: int | None = None
    time_ns_end: int | None = None

    def also(self, other: "Pruning") -> "Pruning":
        """Intersect two prunings."""
        return Pruning(
            _common(self.streams, other.streams),
            _common(self.partitions, other.partitions),
            max(_given(self.offset_min, other.offset_min), default=None),
            min(_given(self.offset_end, other.offset_end), default=None),
            max(_given(self.time_ns_min, other.time_ns_min), default=None),
            min(_given(self.time_ns_end, other.time_ns_end), default=None),
        )

    @property
    def times_ns(self) -> tuple[int | None, int | None]:
        """Return both times, to be looked up."""
        return self.time_ns_min, self.time_ns_end

    def by_place(self, ranges: Sequence[Range]) -> list[Range]:
        """Cut ranges by streams, partitions and offsets, exactly."""
        return [
            kept
            for one in ranges
            if self.streams is None or one.stream in self.streams
            if self.partitions is None or one.partition in self.partitions
            for kept in _cut(one, self.offset_min, self.offset_end)
        ]

    def by_time(
        self,
        ranges: Sequence[Range],
        first: Mapping[PartitionId, int],
        last: Mapping[PartitionId, int],
    ) -> list[Range]:
        """Cut ranges by times; may keep more records than match.

        Args:
            ranges: Ranges to read.
            first: Offset of the first record at or after the minimum time, by partition.
            last: Offset of the first record above the allowed times, by partition.
        """
        return [
            kept
            for one in ranges
            for place in [PartitionId(one.stream, one.partition)]
            for kept in _cut(one, first.get(place), last.get(place))
        ]


def _common(
    one: frozenset[_Item] | None, other: frozenset[_Item] | None
) -> frozenset[_Item] | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _given(*numbers: int | None) -> list[int]:
    return [number for number in numbers if number is not None]


def _cut(one: Range, start: int | None, end: int | None) -> list[Range]:
    """Cut a range to two offsets; empty if nothing is left."""
    first = one.start if start is None else max(one.start, start)
    last = one.end if end is None else min(one.end, end)
    return [one._replace(start=first, end=last)] if first < last else []
