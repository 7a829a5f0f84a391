"""The node's single timer and its next deadline."""

from liftbridge_broker.model.ids import Instant
from liftbridge_broker.ports.timer import Timer


class Alarm:
    """Timer wrapper that rearms only for a deadline earlier than the current one.

    Args:
        timer: The timer.
    """

    __slots__ = ("_armed", "_deadline", "_timer")

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._armed: Instant | None = None
        self._deadline: Instant | None = None

    def set(self, deadline: Instant | None) -> None:
        """Arm the timer to fire no later than a deadline; `None` is a no-op."""
        if deadline is not None and (self._armed is None or deadline < self._armed):
            self._armed = deadline
            self._timer.arm(deadline)

    def wake(self, now: Instant) -> None:
        """Fire the timer at once, before any deadline."""
        if self._armed is not None and self._armed > now:
            self._deadline = self._armed
        self.set(now)

    def ring(self, now: Instant) -> Instant | None:
        """Handle the timer; return the deadline still pending after a wake-up, else `None`."""
        deadline, self._armed, self._deadline = self._deadline, None, None
        return deadline if deadline is not None and deadline > now else None
