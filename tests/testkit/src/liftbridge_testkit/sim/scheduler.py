"""Events in the order of simulated time; idle time costs nothing.

Events of one instant happen in the order in which they were planned, so a run depends on its seed
alone.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Scheduler:
    """A heap of (time, sequence, act, arguments).

    Attributes:
        now: True time of the world, nanoseconds from its beginning.
        event_count: Number of events so far.
    """

    __slots__ = ("_heap", "_sequence", "event_count", "now")

    def __init__(self) -> None:
        self.now = 0
        self.event_count = 0
        self._sequence = 0
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []

    def at(self, when: int, act: Callable[..., None], *arguments: object) -> None:
        """Plan an event; one in the past runs at once, after those planned for now."""
        self._sequence += 1
        heappush(self._heap, (max(when, self.now), self._sequence, act, arguments))

    def after(self, delay_ns: int, act: Callable[..., None], *arguments: object) -> None:
        """Plan an event `delay_ns` from now."""
        self._sequence += 1
        heappush(self._heap, (self.now + delay_ns, self._sequence, act, arguments))

    @property
    def next_at(self) -> int | None:
        """Return the time of the next event; `None` when none is planned."""
        return self._heap[0][0] if self._heap else None

    def step(self) -> None:
        """Run the next event; there must be one."""
        when, _, act, arguments = heappop(self._heap)
        assert when >= self.now
        self.now = when
        self.event_count += 1
        act(*arguments)
