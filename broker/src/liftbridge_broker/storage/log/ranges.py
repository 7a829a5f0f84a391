"""Verified parts of a file: disjoint ranges of positions."""

from bisect import bisect_right
from typing import Final

RANGES_MAX: Final = 1024


class Ranges:
    """Disjoint half-open ranges, joined where they touch.

    Beyond `RANGES_MAX` ranges it forgets all of them, which costs another verification.
    """

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def covered_until(self, position: int) -> int:
        """Return the end of the range that contains `position`, or `position` if none does."""
        before = bisect_right(self._starts, position) - 1
        if before < 0 or self._ends[before] <= position:
            return position
        return self._ends[before]

    def add(self, start: int, end: int) -> None:
        """Join [start, end) to the ranges."""
        if start >= end:
            return
        starts, ends = self._starts, self._ends
        first = bisect_right(starts, start)
        if first and ends[first - 1] >= start:
            first -= 1
            start = starts[first]
        behind = bisect_right(starts, end)
        if behind > first:
            end = max(end, ends[behind - 1])
        elif len(starts) >= RANGES_MAX:
            starts.clear()
            ends.clear()
            first = behind = 0
        starts[first:behind] = [start]
        ends[first:behind] = [end]

    def cut(self, end: int) -> None:
        """Forget everything at and after `end`."""
        keep = bisect_right(self._starts, end - 1)
        del self._starts[keep:]
        del self._ends[keep:]
        if keep and self._ends[-1] > end:
            self._ends[-1] = end
