"""Schedule of idle checks: one entry per partition, the earliest first."""

import heapq
from typing import Final

from liftbridge_broker.model.ids import Instant, PartitionId

STALE_COUNT_MAX: Final = 1_024
"""Stale heap entries allowed before a sweep."""


class IdleWatch:
    """Deadlines by partition.

    Invariant: `_heap` holds every entry of `_due`, and at most `STALE_COUNT_MAX` others.
    """

    def __init__(self) -> None:
        self._due: dict[PartitionId, Instant] = {}
        self._heap: list[tuple[Instant, PartitionId]] = []

    def __len__(self) -> int:
        """Number of entries, replaced ones included."""
        return len(self._heap)

    def watch(self, partition_id: PartitionId, due: Instant) -> None:
        """Schedule a check of a partition at `due`, unless an earlier one is scheduled."""
        known = self._due.get(partition_id)
        if known is not None and known <= due:
            return
        self._due[partition_id] = due
        heapq.heappush(self._heap, (due, partition_id))
        if len(self._heap) > len(self._due) + STALE_COUNT_MAX:
            self._heap = [(at, watched) for watched, at in self._due.items()]
            heapq.heapify(self._heap)

    def forget(self, partition_id: PartitionId) -> None:
        """Drop a partition that is no longer served."""
        self._due.pop(partition_id, None)

    def take_due(self, now: Instant) -> list[PartitionId]:
        """Remove and return the partitions that are due."""
        taken: list[PartitionId] = []
        while self._heap and self._heap[0][0] <= now:
            due, partition_id = heapq.heappop(self._heap)
            if self._due.get(partition_id) == due:
                del self._due[partition_id]
                taken.append(partition_id)
        return taken

    def next_deadline(self) -> Instant | None:
        """Time when an entry is due or stale, `None` for never."""
        return self._heap[0][0] if self._heap else None
