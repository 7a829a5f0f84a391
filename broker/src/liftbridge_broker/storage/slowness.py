"""Distinguishes a disk that is too slow for a leader from a busy disk (L8, storage policy 11).

It uses two signs, both of syncs, because syncs wait only for the device: a sync that does not end,
and syncs that have all been slow for a while. A single slow sync is not a sign: it also happens on
a busy machine, and a change of leaders costs more.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from liftbridge_broker.model.ids import Instant
from liftbridge_broker.model.units import MILLISECOND_NS

_NEVER: Final = Instant(0)


class SlownessLimits(NamedTuple):
    """Limits at which a disk counts as slow; nanoseconds.

    Attributes:
        stall_ns: A sync in progress for this long has stalled.
        slow_ns: A sync that took this long was slow.
        lasting_ns: Time within which all syncs must have been slow for the disk to count as slow.
        pause_ns_min: Time between two hand-overs; doubled each time that another hand-over is due
            before that time has passed again.
        pause_ns_max: Upper bound of that time.
    """

    stall_ns: int = 3_000 * MILLISECOND_NS
    slow_ns: int = 500 * MILLISECOND_NS
    lasting_ns: int = 10_000 * MILLISECOND_NS
    pause_ns_min: int = 30_000 * MILLISECOND_NS
    pause_ns_max: int = 480_000 * MILLISECOND_NS


@dataclass(slots=True)
class Slowness:
    """Judges the disk of a data directory by its syncs; the flush driver reports them.

    Attributes:
        limits: Limits at which the disk counts as slow.
    """

    limits: SlownessLimits = field(default_factory=SlownessLimits)
    _began: Instant | None = None
    _slow_since: Instant | None = None
    _ended: Instant = _NEVER
    _hand_over_at: Instant = _NEVER
    _pause_ns: int = 0

    def begin(self, now: Instant) -> None:
        """Record that a sync was submitted."""
        self._began = now

    def end(self, now: Instant) -> None:
        """Record that a sync succeeded."""
        began, self._began = self._began, None
        assert began is not None
        if now - began < self.limits.slow_ns:
            self._slow_since = None
        elif self._slow_since is None or now - self._ended > self.limits.lasting_ns:
            # After an idle time, earlier syncs say nothing.
            self._slow_since = began
        self._ended = now

    def is_slow(self, now: Instant) -> bool:
        """Return whether the disk is too slow for a leader."""
        limits = self.limits
        if self._began is not None and now - self._began >= limits.stall_ns:
            return True
        since = self._slow_since
        is_recent = now - self._ended <= limits.lasting_ns
        return since is not None and is_recent and self._ended - since >= limits.lasting_ns

    def take_hand_over(self, now: Instant) -> bool:
        """Return whether to hand over leaderships now; if so, start the pause."""
        if now < self._hand_over_at or not self.is_slow(now):  # guard L8.slow
            return False
        limits = self.limits
        is_again = self._pause_ns and now - self._hand_over_at < self._pause_ns
        longer = min(2 * self._pause_ns, limits.pause_ns_max)
        self._pause_ns = longer if is_again else limits.pause_ns_min
        self._hand_over_at = Instant(now + self._pause_ns)
        return True
