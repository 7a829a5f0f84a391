"""Pending acks of records that are not yet committed, or not yet on disk."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import Offset
from liftbridge_broker.node.context import NodeContext
from liftbridge_broker.node.partition.runs import PendingAck, Stored

Acks = Sequence[PendingAck]


class _Entry(NamedTuple):
    """Acks that wait until everything below `end` is committed or synced."""

    end: Offset
    stored: Stored
    pending_acks: Acks
    size_bytes: int


class PendingAcks:
    """Pending acks in the order of their ends."""

    __slots__ = ("_context", "_entries")

    def __init__(self, context: NodeContext) -> None:
        """Start empty; `context` counts the bytes."""
        self._context = context
        self._entries: deque[_Entry] = deque()

    def __len__(self) -> int:
        """Number of waiting runs."""
        return len(self._entries)

    def add(self, end: Offset, stored: Stored, pending_acks: Acks, size_bytes: int) -> None:
        """Hold acks until `release` reaches `end`."""
        self._context.unanswered_bytes += size_bytes
        self._entries.append(_Entry(end, stored, pending_acks, size_bytes))

    def release(self, end: Offset, wall_ns: int) -> None:
        """Release the acks of runs up to `end`."""
        entries = self._entries
        while entries and entries[0].end <= end:
            _, stored, pending_acks, size_bytes = entries.popleft()
            self._context.unanswered_bytes -= size_bytes
            released = stored._replace(commit_ns=wall_ns)
            for ack in pending_acks:
                ack.sink.acked(released)

    def fail(self, error: LiftbridgeError) -> None:
        """Fail all pending acks."""
        entries, self._entries = self._entries, deque()
        for entry in entries:
            self._context.unanswered_bytes -= entry.size_bytes
            for ack in entry.pending_acks:
                ack.sink.refused(error)
