"""Appends are linearizable: a write sent after another one was acked has a higher offset.

With unique values and known offsets this one comparison at each ack decides it, because a log is
linearizable iff acked offsets are unique and follow real time, and readers see prefixes.
"""

from liftbridge_broker.model.ids import PartitionId
from liftbridge_testkit.sim.broken import BrokenInvariantError
from liftbridge_testkit.sim.history import Checker, Write


class RealTimeOrder(Checker):
    """Keeps the highest committed ack of each partition, and what it was when a write was sent."""

    def __init__(self) -> None:
        self._highest: dict[PartitionId, int] = {}
        self._floors: dict[PartitionId, dict[tuple[int, int], int]] = {}

    def on_invoke(self, write: Write) -> None:
        """Note what was acked before."""
        floors = self._floors.setdefault(write.partition, {})
        floors[write.identity] = self._highest.get(write.partition, -1)

    def on_refused(self, write: Write) -> None:
        """Expect nothing more of the write."""
        self._floors[write.partition].pop(write.identity, None)

    def on_ack(self, write: Write) -> None:
        """Compare with what was acked before it was sent."""
        floor = self._floors[write.partition].pop(write.identity)
        if not write.is_committed:
            return
        if write.offset <= floor:
            raise BrokenInvariantError(
                "realtime",
                f"{write.identity} got {write.offset} of {write.partition}, though {floor} had "
                "been acked before it was sent",
            )
        before = self._highest.get(write.partition, -1)
        self._highest[write.partition] = max(before, write.offset)

    def on_loss(self, partition: PartitionId, end: int) -> None:
        """Acks from `end` on say nothing any more, nor do floors that rest on them."""
        self._highest[partition] = min(self._highest.get(partition, -1), end - 1)
        floors = self._floors.get(partition, {})
        for identity, floor in floors.items():
            floors[identity] = min(floor, end - 1)
