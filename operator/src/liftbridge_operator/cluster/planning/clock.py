"""Handle times ahead of the clock: it was set back, or another clock is ahead.

A wait for such a time would take as long as the clocks differ. Remembered readings are dropped, and
remembered delays keep their remaining time. A time written by another process counts from when it
was first seen.
"""

from collections.abc import Mapping
from dataclasses import replace

from liftbridge_operator.cluster.planning.decision import Memory
from liftbridge_operator.cluster.planning.observation import Observation


class Moments:
    """Times that other processes wrote, corrected for clocks that are ahead.

    Attributes:
        ahead: Times ahead of the clock, and when each was first seen.
    """

    def __init__(self, now_ms: int, before: Mapping[int, int]) -> None:
        """Start a pass.

        Args:
            now_ms: Time of day.
            before: `ahead` of the pass before.
        """
        self._now = now_ms
        self._before = before
        self.ahead: dict[int, int] = {}

    def counted(self, moment_ms: int) -> int:
        """Return the time, or when it was first seen if it is ahead."""
        if moment_ms <= self._now:
            return moment_ms
        first_ms = min(self._before.get(moment_ms, self._now), self._now)
        self.ahead[moment_ms] = first_ms
        return first_ms

    def age_ms(self, moment_ms: int) -> int:
        """Return the age of the corrected time."""
        return self._now - self.counted(moment_ms)


def as_counted(seen: Observation, memory: Memory) -> tuple[Observation, Memory]:
    """Correct all times of the observation and the memory that are ahead of the clock."""
    now = seen.now_ms
    moments = Moments(now, dict(memory.ahead))
    pods = tuple(
        replace(
            pod,
            created_ms=moments.counted(pod.created_ms),
            changed_ms=moments.counted(pod.changed_ms),
            stuck_since_ms=moments.counted(pod.stuck_since_ms),
        )
        for pod in seen.pods
    )
    recorded = seen.recorded
    if recorded.disruption is not None and recorded.disruption.since_ms > now:
        # It is unknown how long the consent is still valid.
        recorded = replace(recorded, disruption=replace(recorded.disruption, expires_ms=0))
    memory = replace(_set_back(memory, now), now_ms=now, ahead=tuple(moments.ahead.items()))
    return replace(seen, pods=pods, recorded=recorded), memory


def _set_back(memory: Memory, now: int) -> Memory:
    """Correct the memory after the clock was set back."""
    back_ms = memory.now_ms - now
    if back_ms <= 0:
        return memory
    refused = tuple(replace(one, until_ms=one.until_ms - back_ms) for one in memory.refused)
    return replace(memory, gate=None, token=None, empty=("", 0), refused=refused)
