"""Pending acks of records that are not yet committed, or not yet on disk."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import Offset
from liftbridge_broker.node.context import NodeContext
from liftbridge_broker.node.partition.runs import POLICY_ALL, PendingAck, Stored

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


class ReplicaAcks:
    """Pending acks of one replica: for the commit, and for this replica's own disk."""

    __slots__ = ("_of_all", "_own")

    def __init__(self, context: NodeContext) -> None:
        """Start empty; `context` counts the bytes."""
        self._of_all = PendingAcks(context)
        self._own = PendingAcks(context)

    def __len__(self) -> int:
        """Number of waiting runs."""
        return len(self._of_all) + len(self._own)

    def add(self, end: Offset, stored: Stored, acks: Acks, size_bytes: int) -> None:
        """Hold acks until everything below `end` is committed."""
        self._of_all.add(end, stored, acks, size_bytes)

    def hold_own(self, end: Offset, stored: Stored, acks: Acks, *, is_stored: bool) -> Acks:
        """Send acks that need only this replica, once stored; return those that need all."""
        own = [ack for ack in acks if ack.policy != POLICY_ALL]
        if not own:
            return acks
        if is_stored:
            for ack in own:
                ack.sink.acked(stored)
        else:
            self._own.add(end, stored, own, 0)
        return [ack for ack in acks if ack.policy == POLICY_ALL]

    def release(self, end: Offset, wall_ns: int) -> None:
        """Release the acks of committed runs up to `end`."""
        self._of_all.release(end, wall_ns)

    def release_own(self, end: Offset, wall_ns: int) -> None:
        """Release the acks of this replica's runs up to `end`, which are on disk."""
        self._own.release(end, wall_ns)

    def fail_all(self, error: LiftbridgeError) -> None:
        """Fail the acks that wait for the commit."""
        self._of_all.fail(error)

    def fail(self, error: LiftbridgeError) -> None:
        """Fail all pending acks."""
        self._of_all.fail(error)
        self._own.fail(error)
