"""When the one timer of a node comes next."""

from liftbridge_broker.model.ids import Instant
from liftbridge_broker.ports.timer import Timer


class Alarm:
    """Arms the timer only with what is earlier than what it is armed with.

    Args:
        timer: The timer.
    """

    __slots__ = ("_armed", "_deadline", "_timer")

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._armed: Instant | None = None
        self._deadline: Instant | None = None

    def set(self, deadline: Instant | None) -> None:
        """Have the timer come at a deadline at the latest; `None` for none."""
        if deadline is not None and (self._armed is None or deadline < self._armed):
            self._armed = deadline
            self._timer.arm(deadline)

    def wake(self, now: Instant) -> None:
        """Have the timer come at once, before anything is due."""
        if self._armed is not None and self._armed > now:
            self._deadline = self._armed
        self.set(now)

    def ring(self, now: Instant) -> Instant | None:
        """The timer came: the deadline that is still to come if it was only woken, else `None`."""
        deadline, self._armed, self._deadline = self._deadline, None, None
        return deadline if deadline is not None and deadline > now else None
