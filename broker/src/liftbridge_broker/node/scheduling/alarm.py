"""The node's single timer and its next deadline."""

from typing import Final

from liftbridge_broker.model.ids import Instant
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.ports.timer import Timer

LOOK_NS: Final = 4 * MILLISECOND_NS
"""Time from an append or a fetch to the look-up of the next deadline; neither sets an earlier one.

The look-up asks every part of the node, which cost more than the append of a small record.
"""


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

    def look(self, now: Instant) -> None:
        """Fire the timer after `LOOK_NS` at the latest, to look up the next deadline."""
        self.set(Instant(now + LOOK_NS))

    def wake(self, now: Instant) -> None:
        """Fire the timer at once, before any deadline."""
        if self._armed is not None and self._armed > now:
            self._deadline = self._armed
        self.set(now)

    def ring(self, now: Instant) -> bool:
        """Handle the timer; return whether it was a wake-up and no deadline has come."""
        deadline, self._armed, self._deadline = self._deadline, None, None
        if deadline is None or deadline <= now:
            return False
        self.set(deadline)
        self.look(now)
        return True

    def rearm(self, deadline: Instant | None, now: Instant) -> bool:
        """Arm the timer for a deadline; return false, without arming it, when that has come."""
        if deadline is not None and deadline <= now:
            return False
        self.set(deadline)
        return True
