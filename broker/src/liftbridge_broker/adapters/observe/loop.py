"""Lag and load of the event loop: Python's first sign of overload."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from liftbridge_broker.adapters.observe.metrics import Sample
from liftbridge_broker.model.histogram import Histogram
from liftbridge_broker.model.units import SECOND_NS

INTERVAL_NS: Final = 10_000_000
"""Interval of the timers, short enough to detect every turn of 20 ms; a timer costs about 10 us."""

BUSY_WINDOW_NS: Final = 1_000_000_000
_MILLION: Final = 1_000_000


class LoopMonitor:
    """A hundred timers a second measure the lag; the thread's processor time measures the load.

    A timer is late because a turn of the loop took long, or because the machine ran other
    processes. The processor time since the previous timer distinguishes the two: no turn took
    longer.

    Attributes:
        lag: Delay of the timers, nanoseconds.
        last_lag_ns: Latest lag.
        turns: Part of each lag in which the broker itself was running.
        longest_turn_ns: Longest such part since the start.
        busy_millionths: Share of the latest full second for which the thread used the processor.
    """

    def __init__(
        self,
        *,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        thread_time_ns: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        """Prepare; `start` starts the measurement.

        Args:
            monotonic_ns: Clock of the loop's timers.
            thread_time_ns: Processor time of the calling thread.
        """
        self.lag = Histogram()
        self.last_lag_ns = 0
        self.turns = Histogram()
        self.longest_turn_ns = 0
        self.busy_millionths = 0
        self._now_ns = monotonic_ns
        self._used_ns = thread_time_ns
        self._handle: asyncio.TimerHandle | None = None
        self._due_ns = 0
        self._used_before_ns = 0
        self._window: tuple[int, int] = (0, 0)

    def start(self) -> None:
        """Measure the running loop until `stop`."""
        now_ns = self._now_ns()
        self._used_before_ns = self._used_ns()
        self._window = (now_ns, self._used_before_ns)
        self._arm(now_ns)

    def stop(self) -> None:
        """Stop measuring; may be called twice."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def tick(self) -> None:
        """Take one measurement; the timer calls it."""
        now_ns = self._now_ns()
        self.last_lag_ns = max(0, now_ns - self._due_ns)
        self.lag.observe(self.last_lag_ns)
        used_now_ns = self._used_ns()
        turn_ns = min(self.last_lag_ns, used_now_ns - self._used_before_ns)
        self._used_before_ns = used_now_ns
        self.turns.observe(turn_ns)
        self.longest_turn_ns = max(self.longest_turn_ns, turn_ns)
        start_ns, used_ns = self._window
        if now_ns - start_ns >= BUSY_WINDOW_NS:
            busy_ns = used_now_ns - used_ns
            self.busy_millionths = min(_MILLION, busy_ns * _MILLION // (now_ns - start_ns))
            self._window = (now_ns, used_ns + busy_ns)
        self._arm(now_ns)

    def samples(self) -> dict[str, Sample]:
        """Return the measurements as metrics."""
        return {
            "loop_lag_seconds": self.lag,
            "loop_turn_seconds": self.turns,
            "loop_turn_seconds_max": self.longest_turn_ns,
            "loop_busy_ratio": self.busy_millionths,
        }

    def _arm(self, now_ns: int) -> None:
        self._due_ns = now_ns + INTERVAL_NS
        loop = asyncio.get_running_loop()
        self._handle = loop.call_later(INTERVAL_NS / SECOND_NS, self.tick)
