"""Logs what a start waits for, at most every few seconds."""

from typing import Final

from liftbridge_broker.model.ids import Instant
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.ports.clock import Clock
from liftbridge_broker.ports.observe import Observer

TELL_NS: Final = 3_000 * MILLISECOND_NS


class Progress:
    """Log events of one wait, repeated while it lasts."""

    def __init__(self, clock: Clock, observer: Observer) -> None:
        """Start now."""
        self._clock = clock
        self._observer = observer
        self._began_at = clock.now()
        self._tell_at = Instant(self._began_at + TELL_NS)

    def note(self, awaited: str) -> None:
        """Log what the start waits for, unless it was logged recently."""
        now = self._clock.now()
        if now < self._tell_at:
            return
        self._tell_at = Instant(now + TELL_NS)
        fields = {
            "awaited": awaited,
            "duration_ms": (now - self._began_at) // MILLISECOND_NS,
        }
        self._observer.transition("cluster_awaited", fields)
