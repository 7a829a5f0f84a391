"""Check that appends are linearizable: a write sent after an ack has a higher offset.

With unique values and known offsets, one comparison at each ack is enough: a log is linearizable
iff acked offsets are unique and follow real time, and readers see prefixes.
"""

from liftbridge_broker.model.ids import PartitionId
from liftbridge_testkit.sim.broken import BrokenInvariantError
from liftbridge_testkit.sim.history import Checker, Write


class RealTimeOrder(Checker):
    """Keeps the highest committed ack of each partition, and its value when each write was sent."""

    def __init__(self) -> None:
        self._highest: dict[PartitionId, int] = {}
        self._floors: dict[PartitionId, dict[tuple[int, int], int]] = {}

    def on_invoke(self, write: Write) -> None:
        """Note the highest ack so far."""
        floors = self._floors.setdefault(write.partition, {})
        floors[write.identity] = self._highest.get(write.partition, -1)

    def on_refused(self, write: Write) -> None:
        """Forget the write."""
        self._floors[write.partition].pop(write.identity, None)

    def on_ack(self, write: Write) -> None:
        """Compare with the highest ack at the time of sending."""
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
        """Forget acks from `end` on, and the bounds that depend on them."""
        self._highest[partition] = min(self._highest.get(partition, -1), end - 1)
        floors = self._floors.get(partition, {})
        for identity, floor in floors.items():
            floors[identity] = min(floor, end - 1)
