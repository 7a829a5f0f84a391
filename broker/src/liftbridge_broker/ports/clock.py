"""Time, for the layers that may ask; the deterministic ones get it as an argument."""

from typing import Protocol

from liftbridge_broker.model.ids import Instant


class Clock(Protocol):
    """Two clocks: one that only measures, one that tells the date."""

    def now(self) -> Instant:
        """Monotonic nanoseconds."""
        ...

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch; may jump."""
        ...
