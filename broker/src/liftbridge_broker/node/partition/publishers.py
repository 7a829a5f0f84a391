"""The log of a partition, as its publisher history reads it to rebuild publisher state."""

from collections.abc import Callable, Iterator
from typing import Final

from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.logformat.batch import BatchHeader, walk
from liftbridge_broker.model.ids import LeaderEpoch, Offset, PublisherId
from liftbridge_broker.model.units import MIB
from liftbridge_broker.replication.publisher_history import PublisherHistory
from liftbridge_broker.replication.publishers import PublisherTable
from liftbridge_broker.storage.log.partition_log import PartitionLog

SCAN_BYTES: Final = 4 * MIB


class LogOfPublishers:
    """The log of one partition as a `PublisherLog`."""

    __slots__ = ("_log",)

    def __init__(self, log: PartitionLog) -> None:
        """Read this log."""
        self._log = log

    @property
    def log_start_offset(self) -> Offset:
        """First offset whose header can be read."""
        return self._log.log_start_offset

    @property
    def log_end_offset(self) -> Offset:
        """Offset the next record will get."""
        return self._log.log_end_offset

    @property
    def high_watermark(self) -> Offset:
        """First offset not known to be committed."""
        return self._log.high_watermark

    @property
    def settled_offset(self) -> Offset:
        """Offset below which no crash truncates the log; compaction has the same bound."""
        log = self._log
        return max(log.log_start_offset, min(log.high_watermark, log.recovery_point))

    def epoch_before(self, offset: Offset) -> LeaderEpoch:
        """Leader epoch of the record before an offset, 0 when it is not known."""
        return (self._log.epochs.epoch_at(Offset(offset - 1)) if offset else None) or LeaderEpoch(0)

    def stamped(self, offset: Offset) -> Iterator[BatchHeader]:
        """Headers with a publisher from an offset on, at least from the log start.

        Raises:
            FilesError: The disk refused to read.
            CorruptionError: A batch is damaged.
        """
        log = self._log
        offset = max(offset, log.log_start_offset)
        while offset < log.log_end_offset:
            data = log.read_batches(offset, SCAN_BYTES, log.log_end_offset)
            for _, header in walk(data, 0, len(data)):
                if header.publisher_id:
                    yield header
                offset = Offset(header.last_offset + 1)


def is_foreign(state: ClusterState, stream: str, publisher_id: PublisherId) -> bool:
    """Return whether a publisher is registered for another stream than this one."""
    if publisher_id not in state.publisher_epochs:
        return False
    stream_state = state.stream(stream)
    own = stream_state.publishers.values() if stream_state is not None else ()
    return all(publisher.publisher_id != publisher_id for publisher in own)


def history_of(make_table: Callable[[], PublisherTable], log: PartitionLog) -> PublisherHistory:
    """Return an empty publisher history for a log."""
    return PublisherHistory(make_table, LogOfPublishers(log))
