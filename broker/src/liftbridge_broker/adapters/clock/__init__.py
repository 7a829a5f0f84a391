"""The machine's clocks behind `ports.clock.Clock`."""

import time

from liftbridge_broker.model.ids import Instant


class SystemClock:
    """`CLOCK_MONOTONIC` and `CLOCK_REALTIME`."""

    def now(self) -> Instant:
        """Monotonic nanoseconds."""
        return Instant(time.monotonic_ns())

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch."""
        return time.time_ns()
