"""Check consistent reads (I10): a record once delivered at an offset never changes or disappears.

Also: a reader gets offsets in rising order without gaps, and acks and deliveries agree.
"""

from liftbridge_broker.model.ids import PartitionId
from liftbridge_testkit.sim.broken import BrokenInvariantError
from liftbridge_testkit.sim.history import Checker, FinalLog, History, Record, Write


class ConsistentReads(Checker):
    """Keeps the value delivered or committed at each offset."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._values: dict[PartitionId, dict[int, bytes]] = {}
        self._keys: dict[PartitionId, dict[int, bytes]] = {}
        self._positions: dict[tuple[PartitionId, str], int] = {}
        self._gaps: list[tuple[PartitionId, str, int, int]] = []

    def on_ack(self, write: Write) -> None:
        """Fix the value of a committed ack, as a delivery does."""
        if write.is_committed:
            self._fix(write.partition, "ack", Record(write.offset, write.key, write.name))

    def on_seen(self, partition: PartitionId, reader: str, record: Record, log_start: int) -> None:
        """Fix the value of a delivery; without a reader's name the position does not count."""
        if not reader:
            self._fix(partition, "a reader", record)
            return
        key = (partition, reader)
        before = self._positions.get(key, -1)
        if record.offset <= before:
            raise BrokenInvariantError(
                "I10", f"{reader} got offset {record.offset} of {partition} after {before}"
            )
        self._positions[key] = record.offset
        if before >= 0 and record.offset > max(before + 1, log_start):
            self._gaps.append((partition, reader, before + 1, record.offset))
        self._fix(partition, reader, record)

    def _fix(self, partition: PartitionId, who: str, record: Record) -> None:
        values = self._values.setdefault(partition, {})
        known = values.setdefault(record.offset, record.name)
        self._keys.setdefault(partition, {})[record.offset] = record.key
        if known != record.name:
            raise BrokenInvariantError(
                "I10",
                f"{who} found {record.name[:24]!r} at offset {record.offset} of {partition}, "
                f"where {known[:24]!r} was",
            )

    def on_loss(self, partition: PartitionId, end: int) -> None:
        """Allow other values from `end` on, and readers that see offsets again."""
        values = self._values.get(partition, {})
        for offset in [offset for offset in values if offset >= end]:
            del values[offset]
        for key in [
            key for key, at in self._positions.items() if key[0] == partition and at >= end
        ]:
            del self._positions[key]

    def at_end(self, log: FinalLog) -> None:
        """Check that every record once seen is still there, and that no skipped offset has one."""
        self._check_gaps(log)
        stored = {record.offset: record.name for record in log.records}
        newest = {record.key: record.offset for record in log.records if record.key}
        keys = self._keys.get(log.partition, {})
        for offset, value in self._values.get(log.partition, {}).items():
            found = stored.get(offset)
            if found == value or (found is None and offset < log.start):
                continue
            key = keys[offset]
            if found is None and log.is_compacted:
                if newest.get(key, -1) > offset:
                    continue
                if self._history.may_be_deleted(log.partition, key, offset):
                    continue
            raise BrokenInvariantError(
                "I10",
                f"offset {offset} of {log.partition} was {value[:24]!r} when it was read, and is "
                f"{'gone' if found is None else repr(found[:24])} (log {log.start} to {log.end})",
            )

    def _check_gaps(self, log: FinalLog) -> None:
        """Check that only retention and compaction caused gaps in reads.

        The start of the log at the time of the read counts, not the start at the end of the run. A
        leader that is cut off may remove records that other replicas keep, when they never learn of
        it.
        """
        for partition, reader, start, end in self._gaps:
            if partition == log.partition and not log.is_compacted:
                raise BrokenInvariantError(
                    "readers", f"{reader} skipped offsets {start} to {end - 1} of {partition}"
                )
