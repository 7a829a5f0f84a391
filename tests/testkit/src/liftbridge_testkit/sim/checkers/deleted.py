"""Check that a deleted key stays deleted: no older record of it reappears in a log.

Compaction drops tombstones after a while. If an older record is then the newest of the key, readers
see a value that was reported as removed.
"""

from liftbridge_broker.model.ids import PartitionId
from liftbridge_testkit.sim.broken import BrokenInvariantError
from liftbridge_testkit.sim.history import Checker, FinalLog, Write


class DeletedStaysDeleted(Checker):
    """Keeps committed tombstones by partition and offset."""

    def __init__(self) -> None:
        self._tombstones: dict[PartitionId, dict[int, Write]] = {}

    def on_ack(self, write: Write) -> None:
        """Remember a committed tombstone."""
        if write.is_committed and write.is_tombstone:
            self._tombstones.setdefault(write.partition, {})[write.offset] = write

    def on_loss(self, partition: PartitionId, end: int) -> None:
        """Forget tombstones that may be lost."""
        known = self._tombstones.get(partition, {})
        for offset in [offset for offset in known if offset >= end]:
            del known[offset]

    def on_leader(self, log: FinalLog) -> None:
        """Check for records that reappeared."""
        self._check(log)

    def at_end(self, log: FinalLog) -> None:
        """Check for records that reappeared."""
        self._check(log)

    def _check(self, log: FinalLog) -> None:
        known = self._tombstones.get(log.partition)
        if not known:
            return
        stored = {record.offset for record in log.records}
        newest = {record.key: record.offset for record in log.records}
        for offset, write in known.items():
            is_dropped = log.start <= offset < log.end and offset not in stored
            if is_dropped and newest.get(write.key, offset) < offset:
                raise BrokenInvariantError(
                    "deleted",
                    f"{write.key!r} of {log.partition} was deleted at {offset}, and its record at "
                    f"{newest[write.key]} is there without that (log {log.start} to {log.end})",
                )
