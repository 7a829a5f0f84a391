"""Pauses partitions that received no message for their auto-pause time (C17)."""

from collections.abc import Mapping

from liftbridge_broker.controller.commands import PauseStream
from liftbridge_broker.model.ids import Instant, PartitionId, StreamName
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.upkeep.idle import IdleWatch


class AutoPause:
    """Schedule of checks for idle partitions, and the proposals to pause them."""

    def __init__(self) -> None:
        self._idle = IdleWatch()

    def __len__(self) -> int:
        """Number of scheduled checks."""
        return len(self._idle)

    def watch(self, partition: Partition, now: Instant) -> None:
        """Check the partition again when it may have been idle for its auto-pause time."""
        idle_ns = partition.options.auto_pause_ms * MILLISECOND_NS
        if idle_ns:
            self._idle.watch(partition.partition_id, Instant(now + idle_ns))

    def forget(self, partition_id: PartitionId) -> None:
        """Drop a partition that is no longer served."""
        self._idle.forget(partition_id)

    def next_deadline(self) -> Instant | None:
        """Time of the next `take_due` call, `None` for never."""
        return self._idle.next_deadline()

    def take_due(
        self, partitions: Mapping[PartitionId, Partition], now: Instant
    ) -> list[PauseStream]:
        """Return proposals to pause idle partitions; each partition is checked again later."""
        due = (partitions[partition_id] for partition_id in self._idle.take_due(now))
        return [_pause(partition) for partition in due if self._is_over(partition, now)]

    def _is_over(self, partition: Partition, now: Instant) -> bool:
        idle_ns = partition.options.auto_pause_ms * MILLISECOND_NS
        if not idle_ns or partition.is_paused:
            return False
        # Only its leader knows whether a partition is idle.
        is_held = not partition.is_led or (
            partition.options.auto_pause_disable_if_subscribers
            and len(partition.readers.subscribers) > 0
        )
        due = Instant(partition.activity.last_active + idle_ns)
        is_over = not is_held and due <= now
        if is_held or is_over:
            # Check again also after a proposal, which may fail.
            due = Instant(now + idle_ns)
        self._idle.watch(partition.partition_id, due)
        return is_over


def _pause(partition: Partition) -> PauseStream:
    return PauseStream(
        name=StreamName(partition.stream),
        partitions=(partition.number,),
        is_automatic=True,
        is_internal=True,
    )
