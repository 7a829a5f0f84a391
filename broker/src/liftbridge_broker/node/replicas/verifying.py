"""Verification of logs whose disk returned a read error.

A read error may be transient: the device was reset, or the storage is behind a network. The replica
was declared unclean, and another one leads. Its log may still hold records that the new
leader lacks, so the replica discards the log only if reading it fails again or finds damage.
"""

from typing import Final

from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import Instant
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.context import NodeContext
from liftbridge_broker.node.replicas.following import Following
from liftbridge_broker.storage.log.batch_reader import ScrubReader
from liftbridge_broker.storage.log.partition_log import PartitionLog
from liftbridge_broker.storage.log.types import READ_BLOCK_BYTES

PAUSE_NS: Final = 1_000 * MILLISECOND_NS
"""Time between the read error and the first read of the verification."""


class _Verification:
    """State of one verification, which may begin at `due`."""

    def __init__(self, log: PartitionLog, due: Instant) -> None:
        self.due = due
        self.is_reading = False
        self.error: LiftbridgeError | None = None
        self.end = log.log_end_offset
        self.reader = ScrubReader(log, log.log_start_offset)

    def on_read(self, outcome: bytes | LiftbridgeError) -> None:
        """Handle the result of a read outside the event loop."""
        self.is_reading = False
        if isinstance(outcome, LiftbridgeError):
            self.error = outcome
        else:
            self.reader.feed(outcome)


class LogVerifications:
    """Queue of logs to verify: one log at a time, one block a turn."""

    def __init__(self, context: NodeContext) -> None:
        """Begin with an empty queue."""
        self._context = context
        self._queue: dict[Following, _Verification] = {}

    def add(self, following: Following, now: Instant) -> None:
        """Queue the log of a partition, unless it is queued already."""
        if following not in self._queue:
            due = Instant(now + PAUSE_NS)
            self._queue[following] = _Verification(following.partition.log, due)

    def next_deadline(self) -> Instant | None:
        """Time of the next `on_timer` call, `None` for never."""
        first = next(iter(self._queue.values()), None)
        return None if first is None or first.is_reading else first.due

    def on_timer(self, now: Instant) -> None:
        """Verify the next block if its time has come."""
        due = self.next_deadline()
        if due is None or due > now:
            return
        following, verification = next(iter(self._queue.items()))
        error: LiftbridgeError | None = None
        is_current = following.is_current  # else the verification is dropped
        if is_current:
            try:
                if not self._step(verification):
                    return
            except LiftbridgeError as met:
                error = met
        self._queue.pop(following).reader.close()
        if is_current:
            following.on_verified(error)

    def _step(self, one: _Verification) -> bool:
        """Verify one block; return whether it was the last one."""
        if one.error is not None:
            raise one.error
        result = one.reader.read(READ_BLOCK_BYTES, one.end)
        if result.need is None:
            return one.reader.next_offset >= one.end
        one.is_reading = True
        self._context.submit_read(result.need, one.on_read)
        return False
