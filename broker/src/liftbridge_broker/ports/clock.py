"""Clock, for layers that may read it; the deterministic layers get time as an argument."""

from typing import Protocol

from liftbridge_broker.model.ids import Instant


class Clock(Protocol):
    """Two clocks: a monotonic one, and one for dates."""

    def now(self) -> Instant:
        """Monotonic nanoseconds."""
        ...

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch; may jump."""
        ...
