"""Moments ahead of the clock: it was set back since, or another clock is ahead of this one.

To wait until they are past would take as long as the clocks are apart. What a process remembers is
read anew, or has as long left as it had; what others wrote counts from when it was first seen.
"""

from collections.abc import Mapping
from dataclasses import replace

from liftbridge_operator.planning.decision import Memory
from liftbridge_operator.planning.observation import Observation


class Moments:
    """Moments that others wrote, as they count now.

    Attributes:
        ahead: Those that were ahead of the clock, and when each was first seen so.
    """

    def __init__(self, now_ms: int, before: Mapping[int, int]) -> None:
        """Begin a pass.

        Args:
            now_ms: Time of day.
            before: `ahead` of the pass before.
        """
        self._now = now_ms
        self._before = before
        self.ahead: dict[int, int] = {}

    def counted(self, moment_ms: int) -> int:
        """The moment, or when it was first seen if it is ahead."""
        if moment_ms <= self._now:
            return moment_ms
        first_ms = min(self._before.get(moment_ms, self._now), self._now)
        self.ahead[moment_ms] = first_ms
        return first_ms

    def age_ms(self, moment_ms: int) -> int:
        """For how long it has been past, as it counts."""
        return self._now - self.counted(moment_ms)


def as_counted(seen: Observation, memory: Memory) -> tuple[Observation, Memory]:
    """What was seen and what is remembered, with nothing that is ahead of the clock."""
    now = seen.now_ms
    moments = Moments(now, dict(memory.ahead))
    pods = tuple(
        replace(
            one,
            created_ms=moments.counted(one.created_ms),
            changed_ms=moments.counted(one.changed_ms),
            stuck_since_ms=moments.counted(one.stuck_since_ms),
        )
        for one in seen.pods
    )
    recorded = seen.recorded
    if recorded.disruption is not None and recorded.disruption.since_ms > now:
        # Nobody knows how much of the consent is left.
        recorded = replace(recorded, disruption=replace(recorded.disruption, expires_ms=0))
    memory = replace(_set_back(memory, now), now_ms=now, ahead=tuple(moments.ahead.items()))
    return replace(seen, pods=pods, recorded=recorded), memory


def _set_back(memory: Memory, now: int) -> Memory:
    """The memory by a clock that is behind the one that it was written by."""
    back_ms = memory.now_ms - now
    if back_ms <= 0:
        return memory
    refused = tuple(replace(one, until_ms=one.until_ms - back_ms) for one in memory.refused)
    return replace(memory, gate=None, token=None, empty=("", 0), refused=refused)
