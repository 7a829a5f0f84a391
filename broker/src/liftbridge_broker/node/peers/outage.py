"""Outages of this broker's own connections to other brokers, in which it could hear nobody.

Silence of others proves nothing then, as after a stall of this process: timers that judge it start
anew. So that connections that break all the time do not put judgement off for ever, this is bounded
by a credit, which time refills.
"""

from typing import Final

from liftbridge_broker.model.ids import Instant
from liftbridge_broker.model.units import MILLISECOND_NS

CREDIT_NS_MAX: Final = 1_000 * MILLISECOND_NS
"""Longest outage in which silence does not count: a NATS server restarts, and the broker tries to
connect each 250 ms."""

CREDIT_NS_MIN: Final = 200 * MILLISECOND_NS
"""Cost of each outage at least: timers start anew at its end, however short it was."""

REFILL: Final = 5
"""Time that refills a unit of credit."""

LOOK_NS: Final = 100 * MILLISECOND_NS
"""Time between two restarts of the timers in an outage; far less than any of them."""


class Outage:
    """The present outage, and the credit for the next one.

    Invariant: of any time, at most `CREDIT_NS_MAX` and a fifth of it is excused.
    """

    def __init__(self, now: Instant) -> None:
        """Begin connected, with full credit."""
        self._credit_ns = CREDIT_NS_MAX
        self._began_at: Instant | None = None
        self._excused_until = now
        self._ended_at = now

    def begin(self, now: Instant) -> None:
        """Handle the loss of a connection; no-op during an outage."""
        if self._began_at is None:
            self._began_at = now
            refilled = self._credit_ns + (now - self._ended_at) // REFILL
            self._credit_ns = min(refilled, CREDIT_NS_MAX)
            self._excused_until = now
            if self._credit_ns >= CREDIT_NS_MIN:  # guard Outage.credit
                self._excused_until = Instant(now + self._credit_ns)

    def excuses(self, now: Instant) -> bool:
        """Return whether silence proves nothing now, as an outage lasts and is not too long."""
        return self._began_at is not None and now < self._excused_until

    def end(self, now: Instant) -> bool:
        """Handle the return of all connections; return whether silence starts anew."""
        if self._began_at is None:
            return False
        is_excused = self.excuses(now)
        if self._excused_until > self._began_at:
            spent_ns = max(now - self._began_at, CREDIT_NS_MIN)
            self._credit_ns = max(0, self._credit_ns - spent_ns)
        self._began_at, self._ended_at = None, now
        return is_excused

    def next_deadline(self, now: Instant) -> Instant | None:
        """Time to restart the timers again, `None` when silence counts."""
        return Instant(now + LOOK_NS) if self.excuses(now) else None
