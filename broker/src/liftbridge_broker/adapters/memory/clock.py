"""Clocks that stand still until they are moved."""

from liftbridge_broker.model.ids import Instant


class VirtualClock:
    """The port `Clock`; both clocks advance together and never go back."""

    def __init__(self, wall_ns: int) -> None:
        """Start at a date, in nanoseconds since the Unix epoch."""
        self._now = Instant(1)
        self._offset_ns = wall_ns - self._now

    def now(self) -> Instant:
        """Implement `Clock.now`."""
        return self._now

    def wall_ns(self) -> int:
        """Implement `Clock.wall_ns`."""
        return self._now + self._offset_ns

    def move_to(self, instant: Instant) -> None:
        """Advance both clocks; no-op for an instant in the past."""
        self._now = max(self._now, instant)
