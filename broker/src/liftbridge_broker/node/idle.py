"""When partitions are to be looked at for idleness: one entry for each, the earliest first."""

import heapq
from typing import Final

from liftbridge_broker.model.ids import Instant, PartitionId

STALE_COUNT_MAX: Final = 1_024
"""Entries that an earlier one replaced, before they are swept out."""


class IdleWatch:
    """Deadlines by partition.

    Invariant: `_heap` holds every entry of `_due`, and at most `STALE_COUNT_MAX` others.
    """

    def __init__(self) -> None:
        self._due: dict[PartitionId, Instant] = {}
        self._heap: list[tuple[Instant, PartitionId]] = []

    def __len__(self) -> int:
        """Entries held, replaced ones included."""
        return len(self._heap)

    def watch(self, partition_id: PartitionId, due: Instant) -> None:
        """Look at a partition at `due`, or earlier when it is watched for an earlier time."""
        known = self._due.get(partition_id)
        if known is not None and known <= due:
            return
        self._due[partition_id] = due
        heapq.heappush(self._heap, (due, partition_id))
        if len(self._heap) > len(self._due) + STALE_COUNT_MAX:
            self._heap = [(at, watched) for watched, at in self._due.items()]
            heapq.heapify(self._heap)

    def forget(self, partition_id: PartitionId) -> None:
        """The partition is served no longer."""
        self._due.pop(partition_id, None)

    def take_due(self, now: Instant) -> list[PartitionId]:
        """Partitions whose time has come; they are not watched any more."""
        found: list[PartitionId] = []
        while self._heap and self._heap[0][0] <= now:
            due, partition_id = heapq.heappop(self._heap)
            if self._due.get(partition_id) == due:
                del self._due[partition_id]
                found.append(partition_id)
        return found

    def next_deadline(self) -> Instant | None:
        """When `take_due` gives something, or an entry is to be dropped; `None` for never."""
        return self._heap[0][0] if self._heap else None
