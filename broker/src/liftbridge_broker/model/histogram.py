"""Latencies as plain integers: counted where they happen, converted to samples at scrape time."""

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

LATENCY_BOUNDS_NS: Final = tuple(
    microseconds * 1_000
    for microseconds in (
        250,
        500,
        1_000,
        2_500,
        5_000,
        10_000,
        25_000,
        50_000,
        100_000,
        500_000,
        2_500_000,
        10_000_000,
    )
)
"""Twelve buckets from 0.25 ms to 10 s."""


@dataclass(slots=True)
class Histogram:
    """Counts of values by bucket; one bisection and three additions a call.

    Attributes:
        bounds: Upper ends of the buckets, inclusive, rising; values above the last have one more.
        counts: Values in each bucket, not cumulative; one longer than `bounds`.
        total: Sum of all values.
    """

    bounds: tuple[int, ...] = LATENCY_BOUNDS_NS
    counts: list[int] = field(default_factory=list)
    total: int = 0

    def __post_init__(self) -> None:
        """Create an empty bucket for every bound and one for larger values."""
        if not self.counts:
            self.counts = [0] * (len(self.bounds) + 1)
        assert len(self.counts) == len(self.bounds) + 1

    def observe(self, value: int, count: int = 1) -> None:
        """Count `count` equal values, such as the acks of one batch."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count
