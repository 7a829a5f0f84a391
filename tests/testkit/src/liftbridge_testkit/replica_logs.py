"""An in-memory log for tests of the replication cores: records, epochs and synced length.

It has the real epoch cache and returns real batches, as the log of a broker does.
"""

from collections.abc import Sequence
from typing import NamedTuple

from liftbridge_broker.logformat.batch import HEADER_SIZE, BatchHeader
from liftbridge_broker.model.ids import (
    OFFSET_MAX,
    BrokerId,
    LeaderEpoch,
    MetadataIndex,
    Offset,
    PartitionId,
)
from liftbridge_broker.model.partitions import NOT_COPIED, PartitionState
from liftbridge_broker.storage.log.epochs import LeaderEpochCache
from liftbridge_testkit.batches import PARTITION, Batches, frames_of


class Record(NamedTuple):
    """A record; its index in the list gives its offset."""

    epoch: int
    value: bytes


class ReplicaLog:
    """Log of one replica.

    Attributes:
        records: Records from offset `base` on.
        base: Offset of the first one.
        log_start_offset: First offset that readers may read.
        high_watermark: End of the records known to be committed.
        recovery_point: End of the records on disk.
        compacted_offset: End of the compacted part.
        holes_from: First offset from which compaction has removed records.
        dropped_offset: Offset below which tombstones may have been dropped.
        copied: End that a copy of a compacted log must reach.
        epochs: Leader epochs.
        cut_count: Records that truncations removed so far.
    """

    def __init__(self, partition: PartitionId = PARTITION) -> None:
        self.records: list[Record] = []
        self.base = 0
        self.log_start_offset = Offset(0)
        self.high_watermark = Offset(0)
        self.recovery_point = Offset(0)
        self.compacted_offset = self.dropped_offset = Offset(0)
        self.copied = NOT_COPIED
        self.holes_from = OFFSET_MAX
        self.epochs = LeaderEpochCache()
        self.cut_count = 0
        self._batches = Batches(partition)

    @classmethod
    def of(cls, *runs: tuple[int, int], high_watermark: int = 0) -> "ReplicaLog":
        """Return a log of runs (leader epoch, number of records).

        0 records for an epoch without any.

        Values contain offset and epoch, so two logs hold equal records where both agree.
        """
        log = cls()
        for epoch, count in runs:
            log.begin(epoch)
            for _ in range(count):
                log.append(epoch, b"%d@%d" % (log.log_end_offset, epoch))
        log.high_watermark = Offset(high_watermark)
        return log

    @property
    def log_end_offset(self) -> Offset:
        return Offset(self.base + len(self.records))

    @property
    def compacted_from(self) -> Offset:
        """Return the start of the compacted part; no record goes below it."""
        return Offset(min(self.holes_from, self.log_end_offset))

    def at(self, offset: int) -> Record:
        """Return the record at an offset."""
        return self.records[offset - self.base]

    def slice(self, start: int, end: int) -> list[Record]:
        """Return the records from `start` to `end` that exist."""
        return self.records[max(0, start - self.base) : max(0, end - self.base)]

    def begin(self, epoch: int) -> None:
        """A leader epoch begins here."""
        self.epochs.assign(LeaderEpoch(epoch), self.log_end_offset)

    def append(self, epoch: int, value: bytes) -> None:
        """Append one record."""
        if self.epochs.latest != epoch:
            self.begin(epoch)
        self.records.append(Record(epoch, value))

    def append_batches(self, data: bytes, headers: Sequence[BatchHeader]) -> None:
        """Append batches that a follower's core accepted."""
        position = 0
        for header in headers:
            assert header.base_offset == self.log_end_offset
            frames = data[position + HEADER_SIZE : position + header.size]
            for frame in frames_of([frames]):
                self.append(header.leader_epoch, bytes(frame.value or b""))
            position += header.size

    def read(self, offset: int, records_max: int = 1_000) -> bytes:
        """Return the batches of the records from an offset on, one for each run of an epoch."""
        data = b""
        end = min(self.log_end_offset, offset + records_max)
        while offset < end:
            epoch = self.at(offset).epoch
            values: list[bytes] = []
            while offset + len(values) < end and self.at(offset + len(values)).epoch == epoch:
                values.append(self.at(offset + len(values)).value)
            data += self._batches.make(offset, values, epoch=epoch)
            offset += len(values)
        return data

    def truncate(self, end: int) -> None:
        """See `PartitionLog.truncate`."""
        assert end >= self.log_start_offset
        self.epochs.truncate(Offset(end))
        if end >= self.log_end_offset:
            return
        self.cut_count += self.log_end_offset - end
        del self.records[end - self.base :]
        self.recovery_point = Offset(min(self.recovery_point, end))
        self.high_watermark = Offset(min(self.high_watermark, end))

    def restart_at(self, offset: int) -> None:
        """See `PartitionLog.restart_at`."""
        self.records.clear()
        self.base = offset
        self.epochs.clear()
        self.log_start_offset = self.high_watermark = self.recovery_point = Offset(offset)

    def set_log_start(self, offset: int) -> None:
        """Delete all records below the offset."""
        if offset > self.log_start_offset:
            del self.records[: offset - self.base]
            self.base = offset
            self.log_start_offset = Offset(offset)
            self.epochs.clamp(Offset(offset))

    def sync(self) -> None:
        """Mark all records as synced."""
        self.recovery_point = self.log_end_offset

    def lose(self, end: int) -> None:
        """Lose the records from `end` on; `end` is never below the synced part."""
        assert end >= self.recovery_point
        del self.records[max(end, self.base) - self.base :]
        self.epochs.drop_beyond(self.log_end_offset)
        self.high_watermark = Offset(min(self.high_watermark, self.log_end_offset))
        self.recovery_point = self.log_end_offset


def partition_of(
    isr: str = "abc",
    *,
    leader: str | None = "a",
    replicas: str = "abc",
    leader_epoch: int = 1,
    partition_epoch: int = 0,
    replica_epochs: Sequence[int] | None = None,
    elr: str = "",
    unclean_epoch: int = 0,
    is_recovering: bool = False,
) -> PartitionState:
    """Return the state of a partition whose brokers have one-letter names; sessions are 1."""
    sessions = replica_epochs or [1] * len(replicas)
    return PartitionState(
        partition_id=PARTITION,
        replicas=tuple(BrokerId(replica) for replica in replicas),
        isr=tuple(BrokerId(replica) for replica in replicas if replica in isr),
        elr=tuple(BrokerId(replica) for replica in replicas if replica in elr),
        leader=None if leader is None else BrokerId(leader),
        leader_epoch=LeaderEpoch(leader_epoch),
        partition_epoch=MetadataIndex(partition_epoch or leader_epoch),
        replica_epochs=tuple(MetadataIndex(session) for session in sessions),
        unclean_epoch=LeaderEpoch(unclean_epoch),
        is_recovering=is_recovering,
    )
