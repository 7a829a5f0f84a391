"""Throttle for replicas that reassignments add (KIP-73, by a token bucket)."""

from collections.abc import Callable

from liftbridge_broker.model.ids import Instant, PartitionId
from liftbridge_broker.model.units import SECOND_NS


class CatchUp:
    """Token bucket of bytes to send; an overdraft is repaid before the next send.

    A batch is never split, so one answer may exceed the remaining tokens; the rate holds on
    average. Unused tokens are kept for a second.
    """

    def __init__(self, rate: Callable[[], int]) -> None:
        """Start without debt.

        Args:
            rate: Returns the limit in force, bytes per second; 0 is no limit.
        """
        self._rate = rate
        self._left = 0  # bytes times nanoseconds of a second, so that nothing is rounded
        self._at = Instant(0)
        self._held: dict[PartitionId, None] = {}

    def may_send(self, partition_id: PartitionId, now: Instant) -> bool:
        """Return whether a partition may send now; if not, `take_released` returns it later."""
        if self._has_left(now):
            return True
        self._held[partition_id] = None
        return False

    def _has_left(self, now: Instant) -> bool:
        rate = self._rate()
        if not rate:
            self._left = 0
            return True
        earned = (now - self._at) * rate
        self._left, self._at = min(self._left + earned, rate * SECOND_NS), now
        return self._left > 0

    def spend(self, size_bytes: int) -> None:
        """Record the bytes that were sent."""
        self._left -= size_bytes * SECOND_NS

    def next_deadline(self) -> Instant | None:
        """Time at which a waiting partition may send, `None` while none waits."""
        if not self._held:
            return None
        rate = self._rate()
        if not rate:
            return self._at
        return Instant(self._at + max(0, -self._left) // rate + 1)

    def take_released(self, now: Instant) -> list[PartitionId]:
        """Partitions that waited and may send now."""
        if not self._held or not self._has_left(now):
            return []
        released, self._held = list(self._held), {}
        return released
