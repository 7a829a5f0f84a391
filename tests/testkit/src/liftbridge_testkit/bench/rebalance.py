"""Measures what a rebalance of a consumer group stops: the gaps between deliveries.

Twelve members read 48 partitions, each with `RATE` messages a second by the clock. A thirteenth
member joins and leaves again. Partitions that keep their reader are to notice nothing.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self

from liftbridge_testkit.bench.streams import Bound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

PARTITIONS: Final = 48
MEMBERS: Final = 12
RATE: Final = 20
"""Messages a second in each partition: without any stop a gap is 50 ms."""

PHASE_SECONDS: Final = 8.0
SETTLE_SECONDS_MAX: Final = 60.0

BOUNDS: Final = (
    Bound("kept_gap_ms", "longest gap of partitions that stay, ms", 200, None),
    Bound("steady_gap_ms", "longest gap without a rebalance, ms", 200, None),
)


class Delivery(NamedTuple):
    """A delivery of messages of one partition to one member, at a monotonic time in seconds."""

    seconds: float
    partition: int
    member: str


class Group(Protocol):
    """A running consumer group of some system, with a publisher by the clock; leaving ends it."""

    name: str

    def __enter__(self) -> Self: ...
    def __exit__(self, *exc_info: object) -> None: ...

    def join(self, member: str, deliver: Callable[[int], None]) -> None:
        """Let a member join; `deliver` is called with the partition of each delivery."""
        ...

    def leave(self, member: str) -> None:
        """Let a member leave."""
        ...


@dataclass(frozen=True)
class RebalanceResult:
    """Longest gaps between two deliveries of one partition, milliseconds.

    Attributes:
        system: Name of the system.
        steady_gap_ms: While nobody joined or left.
        kept_gap_ms: While a member joined and left, in partitions that kept their member.
        moved_gap_ms: The same in partitions that moved; the median of them.
        moved_count: Partitions that moved, of both changes.
    """

    system: str
    steady_gap_ms: float
    kept_gap_ms: float
    moved_gap_ms: float
    moved_count: int


class Deliveries:
    """What all members get; they may report from threads of their own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: list[Delivery] = []

    def of(self, member: str) -> Callable[[int], None]:
        """Return the function that reports for a member."""

        def deliver(partition: int) -> None:
            with self._lock:
                self._found.append(Delivery(monotonic(), partition, member))

        return deliver

    def between(self, start: float, end: float) -> Sequence[Delivery]:
        """Return the deliveries of a time."""
        with self._lock:
            return [one for one in self._found if start <= one.seconds < end]


def measure_rebalance(group: Group) -> RebalanceResult:
    """Measure the gaps of a group that a member joins and leaves.

    Raises:
        TimeoutError: Its partitions did not become evenly read.
    """
    deliveries = Deliveries()
    members = [f"member-{number:02}" for number in range(MEMBERS)]
    last = f"member-{MEMBERS:02}"
    with group:
        for member in members:
            group.join(member, deliveries.of(member))
        _settle(deliveries, members)
        steady = _phase(deliveries, members, lambda: None)
        joined = _phase(deliveries, [*members, last], lambda: group.join(last, deliveries.of(last)))
        left = _phase(deliveries, members, lambda: group.leave(last))
    moved = [gap for phase in (joined, left) for gap in gaps(phase, has_moved=True)]
    return RebalanceResult(
        group.name,
        max(gaps(steady, has_moved=False)),
        max(gap for phase in (joined, left) for gap in gaps(phase, has_moved=False)),
        median(moved),
        len(moved),
    )


def _phase(
    deliveries: Deliveries, members: Sequence[str], change: Callable[[], None]
) -> Sequence[Delivery]:
    """Make a change; return the deliveries until its members had read for a while."""
    start = monotonic()
    sleep(1)  # so that it shows who read a partition before
    change()
    _settle(deliveries, members)
    sleep(PHASE_SECONDS)
    return deliveries.between(start, monotonic())


def _settle(deliveries: Deliveries, members: Iterable[str]) -> None:
    """Wait until each partition has been read for a second, by nobody but these members."""
    wanted, end = set(members), monotonic() + SETTLE_SECONDS_MAX
    while monotonic() < end:
        sleep(1)
        now = monotonic()
        recent = deliveries.between(now - 1, now)
        if {one.member for one in recent} == wanted and len(
            {(one.partition, one.member) for one in recent}
        ) == len({one.partition for one in recent}) == PARTITIONS:
            return
    raise TimeoutError(f"the partitions were not divided within {SETTLE_SECONDS_MAX:g} s")


def gaps(phase: Sequence[Delivery], *, has_moved: bool) -> Sequence[float]:
    """Return the longest gap of each partition that kept its member, or of each that did not."""
    by_partition: dict[int, list[Delivery]] = defaultdict(list)
    for delivery in phase:
        by_partition[delivery.partition].append(delivery)
    return [
        max(after.seconds - before.seconds for before, after in pairwise(found)) * 1e3
        for found in by_partition.values()
        if (len({one.member for one in found}) > 1) is has_moved
    ]
