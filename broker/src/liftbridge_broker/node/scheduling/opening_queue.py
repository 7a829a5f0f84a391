"""Queue of replicas to open or delete, a bounded number per turn.

A stream may have thousands of partitions, and each takes some hundred microseconds to open or to
delete. The metadata group, fetches and clients run in between.
"""

from collections.abc import Callable, Sequence
from typing import Final

from liftbridge_broker.model.ids import Instant, PartitionId

OPENINGS_PER_TURN: Final = 32
CLOSINGS_PER_TURN: Final = 128


class OpeningQueue:
    """Waiting replicas, in order.

    The metadata give a replica's role when it is opened, so no entry is removed early: replicas
    deleted meanwhile are skipped. Ids of deleted partitions are never reused.

    Args:
        per_turn: Replicas that one turn opens.
    """

    def __init__(self, per_turn: int) -> None:
        self._per_turn = per_turn
        self._waiting: dict[PartitionId, None] = {}
        self._turn = Instant(-1)
        self._opened_count = 0
        self._closing: dict[PartitionId, None] = {}
        self._closed_count = 0
        self._when_open: list[Callable[[], None]] = []

    @property
    def is_waiting(self) -> bool:
        """Return whether replicas wait for `take` or `take_deleted`."""
        return bool(self._waiting or self._closing)

    def _turn_to(self, now: Instant) -> None:
        if self._turn != now:
            self._turn, self._opened_count, self._closed_count = now, 0, 0

    def admits(self, partition_id: PartitionId, now: Instant) -> bool:
        """Return whether a replica may be opened in the turn at `now`; otherwise it waits."""
        self._turn_to(now)
        if self._waiting or self._opened_count == self._per_turn:
            self._waiting[partition_id] = None
            return False
        self._opened_count += 1
        return True

    def admit_deleted(
        self, partitions: Sequence[PartitionId], now: Instant
    ) -> Sequence[PartitionId]:
        """Return the deleted replicas that may be closed in the turn at `now`; queue the rest."""
        self._turn_to(now)
        count = 0 if self._closing else CLOSINGS_PER_TURN - self._closed_count
        admitted = partitions[:count]
        self._closed_count += len(admitted)
        self._closing.update(dict.fromkeys(partitions[count:]))
        return admitted

    def take_deleted(self) -> list[PartitionId]:
        """Remove and return the replicas to close in this turn."""
        taken = list(self._closing)[:CLOSINGS_PER_TURN]
        for partition_id in taken:
            del self._closing[partition_id]
        return taken

    def take(self) -> list[PartitionId]:
        """Remove and return the replicas to open in this turn."""
        taken = list(self._waiting)[: self._per_turn]
        for partition_id in taken:
            del self._waiting[partition_id]
        return taken

    def when_open(self, done: Callable[[], None]) -> None:
        """Call `done` when no replica waits, perhaps at once."""
        self._when_open.append(done)
        self.settle()

    def settle(self) -> None:
        """Call the `when_open` callbacks if no replica waits."""
        if not self._waiting:
            callbacks, self._when_open = self._when_open, []
            for done in callbacks:
                done()

    def end(self) -> None:
        """Drop all waiting replicas: the broker stops, and the next start handles them."""
        self._waiting.clear()
        self._closing.clear()
        self.settle()
