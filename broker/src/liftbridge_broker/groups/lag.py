"""Lag of a consumer group in one partition, and when retention will overtake the group.

A limit of retention (age, messages or bytes) removes the next message of a group once everything
from that message on uses the whole limit. So what the group uses of each limit is followed from one
observation to the next, and extrapolated. Retention removes whole segments, therefore not earlier
than this forecast, usually somewhat later.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from liftbridge_broker.model.ids import Instant, Offset
from liftbridge_broker.model.units import SECOND_NS

OBSERVATIONS_MAX: Final = 7
"""Observations remembered of a group in a partition: rates are those since the oldest one."""

APART_NS_MIN: Final = 5 * SECOND_NS
"""Shortest time between two observations that gives a rate: positions are stored in jumps."""

WARN_NS: Final = 3_600 * SECOND_NS
"""Forecast below which an episode of danger begins; it ends above twice that."""


class Limit(StrEnum):
    """Limit of retention."""

    AGE = "age"
    MESSAGES = "messages"
    BYTES = "bytes"


class Observation(NamedTuple):
    """State of a partition and of the position of a group in it.

    Attributes:
        at: Monotonic time.
        next_offset: First offset that the group has not processed, within the log.
        log_start: First offset kept.
        high_watermark: First offset not committed.
        log_bytes: Bytes of the log.
        lag_ns: Age of the first message at or after `next_offset`; 0 without one.
        lost: Offsets that were removed before the group processed them.
        has_position: Whether a position is stored; without one, `next_offset` is the log start.
    """

    at: Instant
    next_offset: Offset
    log_start: Offset
    high_watermark: Offset
    log_bytes: int
    lag_ns: int
    lost: int = 0
    has_position: bool = True

    @property
    def lag(self) -> int:
        """Offsets that the group has not processed."""
        return self.high_watermark - self.next_offset


class Limits(NamedTuple):
    """Limits of retention that can remove messages of a group; 0 for none.

    Attributes:
        age_ns: Age of a message.
        messages: Messages of a partition.
        bytes: Bytes of a partition.
    """

    age_ns: int
    messages: int
    bytes: int


class Forecast(NamedTuple):
    """When retention will remove the next message of a group.

    Attributes:
        left_ns: Time until then.
        limit: Limit that will remove it.
        is_half_used: Whether the messages of the group use more than half of the limit.
    """

    left_ns: int
    limit: Limit
    is_half_used: bool


def place(position: int | None, log_start: Offset, high_watermark: Offset) -> tuple[Offset, int]:
    """Return the first offset that a group has not processed, and how many it has lost before.

    Args:
        position: Last offset that it has processed; `None` without a position.
        log_start: First offset kept.
        high_watermark: First offset not committed, at least the log start.
    """
    if position is None:
        return log_start, 0
    wanted = position + 1
    return Offset(min(max(wanted, log_start), high_watermark)), max(0, log_start - wanted)


def forecast(latest: Observation, earlier: Observation | None, limits: Limits) -> Forecast | None:
    """Return when retention will overtake a group, `None` if it never does as things go.

    Args:
        latest: The present.
        earlier: An observation before it; `None` for none. Then the group counts as stopped since
            its next message was stored, when it used nothing of the limits.
        limits: The limits.
    """
    if not latest.has_position or not latest.lag:
        return None
    if earlier is not None and not _is_comparable(latest, earlier):
        earlier = None
    found = []
    for limit, most, used, before in _uses(latest, earlier, limits):
        elapsed = latest.lag_ns if earlier is None else latest.at - earlier.at
        left_ns = _left(most - used, used - before, elapsed)
        if left_ns is not None:
            found.append(Forecast(left_ns, limit, is_half_used=2 * used > most))
    return min(found, key=lambda one: one.left_ns, default=None)


def _is_comparable(latest: Observation, earlier: Observation) -> bool:
    """Return whether two observations give rates: nothing went back, and time has passed."""
    return (
        earlier.has_position
        and latest.at - earlier.at >= APART_NS_MIN
        and latest.next_offset >= earlier.next_offset
        and latest.high_watermark >= earlier.high_watermark
    )


def _uses(
    latest: Observation, earlier: Observation | None, limits: Limits
) -> list[tuple[Limit, int, int, int]]:
    """Return the limits that exist, each with its size, and what is used of it now and before."""

    def pair(limit: Limit, most: int, now: int, before: int) -> tuple[Limit, int, int, int]:
        return limit, most, now, 0 if earlier is None else before

    old = earlier or latest
    uses = [
        pair(Limit.AGE, limits.age_ns, latest.lag_ns, old.lag_ns),
        pair(Limit.MESSAGES, limits.messages, latest.lag, old.lag),
        pair(Limit.BYTES, limits.bytes, _bytes(latest), _bytes(old)),
    ]
    return [use for use in uses if use[1]]


def _bytes(seen: Observation) -> int:
    """Return the bytes that the group has not processed, by their share of the offsets."""
    count = seen.high_watermark - seen.log_start
    return seen.log_bytes * seen.lag // count if count else 0


def _left(margin: int, growth: int, elapsed: int) -> int | None:
    """Return the time until a margin is used up at a rate of growth, `None` for never."""
    if margin <= 0:
        return 0
    return margin * elapsed // growth if growth > 0 and elapsed > 0 else None


@dataclass(slots=True)
class History:
    """The last observations of a group in a partition.

    Attributes:
        is_in_danger: Whether an episode of danger was announced and has not ended.
    """

    is_in_danger: bool = False
    _seen: deque[Observation] = field(default_factory=lambda: deque(maxlen=OBSERVATIONS_MAX))

    @property
    def latest(self) -> Observation | None:
        """The last observation."""
        return self._seen[-1] if self._seen else None

    def add(self, seen: Observation) -> None:
        """Add an observation; one that went back, as by a reset, begins anew."""
        latest = self.latest
        if latest is not None and (
            seen.next_offset < latest.next_offset or seen.high_watermark < latest.high_watermark
        ):
            self._seen.clear()
        self._seen.append(seen)

    def forecast(self, seen: Observation, limits: Limits) -> Forecast | None:
        """Return when retention will overtake the group, by an observation not older than all."""
        return forecast(seen, self._seen[0] if self._seen else None, limits)

    def begins_danger(self, found: Forecast | None) -> bool:
        """Take a forecast; return whether it begins an episode of danger."""
        if found is None or found.left_ns > 2 * WARN_NS:
            self.is_in_danger = False
        elif not self.is_in_danger and found.is_half_used and found.left_ns <= WARN_NS:
            self.is_in_danger = True
            return True
        return False
