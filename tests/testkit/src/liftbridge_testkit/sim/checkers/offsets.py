"""Check that two acks never name one offset (inconsistent offset of Jepsen's kafka workload)."""

from liftbridge_broker.model.ids import PartitionId
from liftbridge_testkit.sim.broken import BrokenInvariantError
from liftbridge_testkit.sim.history import Checker, Write


class OneWriteAtAnOffset(Checker):
    """Keeps the write that was acked at each offset; acks that may be lost do not count."""

    def __init__(self) -> None:
        self._at: dict[PartitionId, dict[int, Write]] = {}

    def on_ack(self, write: Write) -> None:
        """Compare with an earlier ack of the same offset."""
        if not write.is_committed:
            return
        other = self._at.setdefault(write.partition, {}).setdefault(write.offset, write)
        if other is not write:
            raise BrokenInvariantError(
                "offsets",
                f"{write.identity} and {other.identity} were acked at {write.offset} "
                f"of {write.partition}",
            )

    def on_loss(self, partition: PartitionId, end: int) -> None:
        """Allow offsets from `end` on to be assigned again."""
        at = self._at.get(partition, {})
        for offset in [offset for offset in at if offset >= end]:
            del at[offset]
