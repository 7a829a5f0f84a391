"""Work that may be too long for a turn of the event loop: it is done in steps, so much in a turn.

A step has a weight, about the microseconds that it takes. What is beyond the weight of a turn waits
for the next ones, and the metadata group, fetches and clients have their turns between them. Those
who have work do a slice of it, one after the other. Nothing tells where a turn begins, so the
budget also grows with time.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from liftbridge_broker.model.ids import Instant

TURN_WEIGHT_MAX: Final = 5_000
"""Weight of the steps of a turn, but for the last one."""

SLICE_WEIGHT: Final = 2_000
"""Weight of the steps of one before it is another one's turn, but for the last one."""

REFILL_NS: Final = 4_000
"""Time in which what is left grows by one."""

Steps = Iterator[int]
"""Does a step, and gives what it weighed."""


class Chores:
    """The line of those who have work.

    Args:
        clock: Time of this turn.
        wake: Has `go_on` called in a later turn.
    """

    def __init__(self, clock: Callable[[], Instant], wake: Callable[[], None]) -> None:
        self._clock = clock
        self._wake = wake
        self._line: deque[Steps] = deque()
        self._left = TURN_WEIGHT_MAX
        self._left_at = clock()
        self._is_at_work = False

    @property
    def is_waiting(self) -> bool:
        """Whether `go_on` has something to do."""
        return bool(self._line)

    def begin(self, steps: Steps) -> None:
        """Do now what the turn allows, unless others wait, and the rest in later turns."""
        self._line.append(steps)
        if self._is_at_work or len(self._line) > 1:
            return
        now = self._clock()
        self._left += max(0, now - self._left_at) // REFILL_NS
        self._work(now)

    def go_on(self) -> None:
        """Do some of what waits, in a turn of its own."""
        self._left = TURN_WEIGHT_MAX
        self._work(self._clock())

    def _work(self, now: Instant) -> None:
        line = self._line
        left = min(self._left, TURN_WEIGHT_MAX)
        self._is_at_work = True
        while line and left > 0:
            steps, weight = line.popleft(), 0
            for step in steps:
                weight += step
                if weight >= SLICE_WEIGHT:
                    line.append(steps)
                    break
            left -= weight
        self._is_at_work = False
        self._left, self._left_at = left, now
        if line:
            self._wake()
