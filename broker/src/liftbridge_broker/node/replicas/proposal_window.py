"""Bound of the in-sync sets that a broker proposes at once."""

from collections.abc import Callable
from typing import Final

from liftbridge_broker.model.ids import PartitionId

PROPOSALS_MAX: Final = 64
"""Proposals that await an answer. After a broker was lost or came back, thousands of in-sync sets
have to change. Proposed together, they would keep the metadata leader busy for longer than the
brokers wait for it, and be repeated meanwhile. (Kafka's brokers have one AlterPartition request in
flight, with all partitions that need a change by then.)"""


class ProposalWindow:
    """Led partitions whose proposed in-sync set awaits its answer."""

    def __init__(self, on_room: Callable[[], None]) -> None:
        """Begin empty; call `on_room` when half of a full window is free again."""
        self._on_room = on_room
        self._awaited: set[PartitionId] = set()
        self._is_held_back = False

    def __contains__(self, partition_id: PartitionId) -> bool:
        """Return whether a partition awaits an answer."""
        return partition_id in self._awaited

    def admits(self, partition_id: PartitionId) -> bool:
        """Return whether a partition may propose now; `on_room` follows if not."""
        is_free = len(self._awaited) < PROPOSALS_MAX or partition_id in self._awaited
        self._is_held_back |= not is_free
        return is_free

    def begin(self, partition_id: PartitionId) -> None:
        """Note a proposal."""
        self._awaited.add(partition_id)

    def end(self, partition_id: PartitionId) -> None:
        """Note an answer, or that its time is over."""
        self._awaited.discard(partition_id)
        if self._is_held_back and len(self._awaited) <= PROPOSALS_MAX // 2:
            self._is_held_back = False
            self._on_room()
