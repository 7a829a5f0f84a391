"""Clocks that stand still until somebody turns them."""

from liftbridge_broker.model.ids import Instant


class VirtualClock:
    """The port `Clock`; both clocks go on together and never back."""

    def __init__(self, wall_ns: int) -> None:
        """Begin at a date, in nanoseconds since the Unix epoch."""
        self._now = Instant(1)
        self._offset_ns = wall_ns - self._now

    def now(self) -> Instant:
        """As in the port."""
        return self._now

    def wall_ns(self) -> int:
        """As in the port."""
        return self._now + self._offset_ns

    def move_to(self, instant: Instant) -> None:
        """Turn both clocks forward; an instant that has passed changes nothing."""
        self._now = max(self._now, instant)
