"""Replicas that wait to be opened: a turn opens a bounded number of them.

A stream may have thousands of partitions, and each takes some hundred microseconds to open. In
between, the metadata group, fetches and clients have their turns.
"""

from collections.abc import Callable
from typing import Final

from liftbridge_broker.model.ids import Instant, PartitionId

OPENINGS_PER_TURN: Final = 32


class Openings:
    """Replicas in the order in which they wait.

    What a replica is by then the metadata tell when it is opened, so nothing is forgotten here: one
    that was deleted meanwhile is passed over.

    Args:
        per_turn: Replicas that one turn opens.
    """

    def __init__(self, per_turn: int) -> None:
        self._per_turn = per_turn
        self._waiting: dict[PartitionId, None] = {}
        self._turn = Instant(-1)
        self._opened_count = 0
        self._when_open: list[Callable[[], None]] = []

    @property
    def is_waiting(self) -> bool:
        """Whether `take` has something to give."""
        return bool(self._waiting)

    def admits(self, partition_id: PartitionId, now: Instant) -> bool:
        """Whether a replica may be opened in the turn at `now`; otherwise it waits."""
        if self._turn != now:
            self._turn, self._opened_count = now, 0
        if self._waiting or self._opened_count == self._per_turn:
            self._waiting[partition_id] = None
            return False
        self._opened_count += 1
        return True

    def take(self) -> list[PartitionId]:
        """Replicas to open in a turn of their own; they wait no longer."""
        taken = list(self._waiting)[: self._per_turn]
        for partition_id in taken:
            del self._waiting[partition_id]
        return taken

    def when_open(self, done: Callable[[], None]) -> None:
        """Call `done` when no replica waits, perhaps at once."""
        self._when_open.append(done)
        self.settle()

    def settle(self) -> None:
        """Tell those who wait until all is open, if it is."""
        if not self._waiting:
            told, self._when_open = self._when_open, []
            for done in told:
                done()

    def end(self) -> None:
        """Open none of those that wait: the broker stops."""
        self._waiting.clear()
        self.settle()
