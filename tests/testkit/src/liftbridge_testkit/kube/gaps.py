"""Measures gaps in which partitions accepted no writes, from the times of acks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from liftbridge_testkit.failover import percentile

if TYPE_CHECKING:
    from collections.abc import Sequence


class Span(NamedTuple):
    """A marked interval, such as the restart of one broker.

    Attributes:
        name: Name of the interval.
        begin: Begin in seconds since 1970.
        end: End in seconds since 1970.
    """

    name: str
    begin: float
    end: float


class GapFigures(NamedTuple):
    """Longest gaps in seconds, over partitions and intervals.

    Attributes:
        measured: Number of pairs of partition and interval.
        p50: Median gap.
        p99: 99th percentile of the gaps.
        longest: Longest gap.
    """

    measured: int
    p50: float
    p99: float
    longest: float


def longest_gap(acks: Sequence[float], begin: float, end: float) -> float:
    """Return the longest time between two acknowledgements that overlaps an interval.

    The whole gap counts, including time outside of the interval, because clients waited for that
    time. A partition that was never acknowledged before, or never again, has a gap that begins, or
    ends, with the interval.

    Args:
        acks: Times of acknowledgements in order, in seconds.
        begin: Begin of the interval.
        end: End of the interval, not before its begin.
    """
    assert begin <= end
    first = max(bisect_left(acks, begin) - 1, 0)
    last = bisect_right(acks, end) + 1
    times = list(acks[first:last])
    if not times or times[0] > begin:
        times.insert(0, begin)
    if times[-1] < end:
        times.append(end)
    return max((later - one for one, later in pairwise(times)), default=0.0)


def figures(gaps: Sequence[float]) -> GapFigures:
    """Return figures over gaps; zeros when there are none."""
    if not gaps:
        return GapFigures(0, 0.0, 0.0, 0.0)
    return GapFigures(
        len(gaps), round(median(gaps), 4), round(percentile(gaps, 0.99), 4), max(gaps)
    )
