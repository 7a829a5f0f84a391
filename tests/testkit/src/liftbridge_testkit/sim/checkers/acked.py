"""Check that no acknowledged record is lost (I13): it is stored at its offset, unchanged.

Exceptions are records that retention removed, that compaction replaced or deleted, and that the ack
policy and the fsync policy allow to be lost (`on_loss`).
"""

from liftbridge_broker.model.ids import PartitionId
from liftbridge_testkit.sim.broken import BrokenInvariantError
from liftbridge_testkit.sim.history import Checker, FinalLog, History, Write


class AckedIsStored(Checker):
    """Keeps committed acks by partition and offset."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._acked: dict[PartitionId, dict[int, Write]] = {}

    def on_ack(self, write: Write) -> None:
        """Remember a committed ack."""
        if write.is_committed:
            self._acked.setdefault(write.partition, {})[write.offset] = write

    def on_loss(self, partition: PartitionId, end: int) -> None:
        """Forget acks of records that may be lost."""
        acked = self._acked.get(partition, {})
        for offset in [offset for offset in acked if offset >= end]:
            del acked[offset]

    def at_end(self, log: FinalLog) -> None:
        """Compare with the log."""
        stored = {record.offset: record for record in log.records}
        newest = {record.key: record.offset for record in log.records if record.key}
        for offset, write in self._acked.get(log.partition, {}).items():
            record = stored.get(offset)
            if record is not None and record.name == write.name:
                continue
            if record is None and offset < log.start:
                continue
            if record is None and log.is_compacted:
                if newest.get(write.key, -1) > offset:
                    continue
                if self._history.may_be_deleted(log.partition, write.key, offset):
                    continue
            found = "nothing" if record is None else f"{record.name[:24]!r}"
            raise BrokenInvariantError(
                "I13",
                f"{write.identity} was acked at {offset} of {log.partition}, which holds {found} "
                f"(log {log.start} to {log.end})",
            )
