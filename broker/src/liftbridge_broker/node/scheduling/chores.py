"""Queue for work too long for one turn of the event loop, done in weighted steps.

A step has a weight, about the microseconds that it takes. Steps beyond the weight of a turn wait
for later turns, so the metadata group, fetches and clients run in between. Queued jobs run a slice
each, round-robin. No event marks the start of a turn, so the budget also grows with time.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from liftbridge_broker.model.ids import Instant

TURN_WEIGHT_MAX: Final = 5_000
"""Weight of the steps of a turn; the last step may exceed it."""

SLICE_WEIGHT: Final = 2_000
"""Weight of one job's steps before the next job runs; the last step may exceed it."""

REFILL_NS: Final = 4_000
"""Time in which the budget grows by one."""

Steps = Iterator[int]
"""Job that does one step per iteration and yields the weight of the step."""


class Chores:
    """Queue of jobs.

    Args:
        clock: Time of this turn.
        wake: Schedules `go_on` for a later turn.
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
        """Return whether jobs wait for `go_on`."""
        return bool(self._line)

    def begin(self, steps: Steps) -> None:
        """Run a job as far as the turn allows, after other jobs; finish it in later turns."""
        self._line.append(steps)
        if self._is_at_work or len(self._line) > 1:
            return
        now = self._clock()
        self._left += max(0, now - self._left_at) // REFILL_NS
        self._work(now)

    def go_on(self) -> None:
        """Run some of the waiting jobs, in a separate turn."""
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
