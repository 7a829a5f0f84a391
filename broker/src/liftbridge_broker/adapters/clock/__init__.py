"""The machine's clocks behind `ports.clock.Clock`, and a timer behind `ports.timer.Timer`."""

import asyncio
import time
from collections.abc import Callable

from liftbridge_broker.model.ids import Instant
from liftbridge_broker.model.units import SECOND_NS


class SystemClock:
    """`CLOCK_MONOTONIC` and `CLOCK_REALTIME`."""

    def now(self) -> Instant:
        """Return the monotonic time in nanoseconds."""
        return Instant(time.monotonic_ns())

    def wall_ns(self) -> int:
        """Return the nanoseconds since the Unix epoch."""
        return time.time_ns()


class LoopTimer:
    """Timer of the running event loop.

    A wake-up does not cancel the timer. Usually the same deadline is armed again, and a new timer
    costs more than a call that finds nothing due.

    Args:
        fire: Called at the deadline, and sometimes earlier.
    """

    def __init__(self, fire: Callable[[], None]) -> None:
        self._fire = fire
        self._timer: asyncio.TimerHandle | None = None
        self._deadline: Instant | None = None
        self._wake: asyncio.Handle | None = None

    def arm(self, deadline: Instant) -> None:
        """Implement `ports.timer.Timer`."""
        loop, delay_ns = asyncio.get_running_loop(), deadline - time.monotonic_ns()
        if delay_ns <= 0:
            if self._wake is None:
                self._wake = loop.call_soon(self._on_wake)
        elif self._timer is None or deadline != self._deadline:
            if self._timer is not None:
                self._timer.cancel()
            self._deadline = deadline
            self._timer = loop.call_later(delay_ns / SECOND_NS, self._on_timer)

    def cancel(self) -> None:
        """Cancel the timer for good."""
        for handle in (self._timer, self._wake):
            if handle is not None:
                handle.cancel()

    def _on_wake(self) -> None:
        self._wake = None
        self._fire()

    def _on_timer(self) -> None:
        self._timer = None
        self._fire()
