"""Reads all stored data periodically, to find bit rot while other replicas are intact.

A start scans only the log above the recovery point, and a read only the requested records. Unread
bytes may rot at one replica after the other; the last leader then has no copy to repair from.
Damage found here is handled as damage found by any read (C12): the replica is declared unclean and
copied again.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final

from liftbridge_broker.errors import CorruptionError, FilesError, LiftbridgeError
from liftbridge_broker.model.ids import PartitionId
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.context import NodeContext
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.storage.log.batch_reader import ScrubReader
from liftbridge_broker.storage.log.types import READ_BLOCK_BYTES

STEP_BYTES: Final = READ_BLOCK_BYTES
"""Bytes per read: verified in a tenth of a millisecond, so that the loop does not stall."""

PAUSE_NS_MIN: Final = 10 * MILLISECOND_NS
"""Shortest time between two steps, whatever the interval: reads at most 26 MB/s."""

PAUSE_NS_MAX: Final = 3_600_000 * MILLISECOND_NS
"""Longest time between two steps, however little is stored: new data is read soon."""


class Scrubber:
    """Consecutive passes over all logs, one block at a time.

    Invariant: at most one read waits for the disk.

    Attributes:
        scrubbed_bytes: Bytes verified.
        pass_count: Passes begun.
    """

    def __init__(
        self,
        partitions: Mapping[PartitionId, Partition],
        context: NodeContext,
        interval_ns: int,
        *,
        first: int,
    ) -> None:
        """Start before the first pass.

        Args:
            partitions: Partitions of which a replica is held here.
            context: State and ports that the parts of the node share.
            interval_ns: Longest duration of a pass, unless the limit of the read rate prevents it.
            first: Any number; it selects the first partition of the first pass, so that a broker
                that restarts often does not always read the same partitions.
        """
        self.scrubbed_bytes = 0
        self.pass_count = 0
        self._partitions = partitions
        self._context = context
        self._interval_ns = interval_ns
        self._first = first
        self._waiting: deque[PartitionId] = deque()
        self._partition: Partition | None = None
        self._reader: ScrubReader | None = None
        self._is_reading = False
        self._pause_ns = PAUSE_NS_MIN

    def step(self) -> int:
        """Verify the next block; return the nanoseconds until the next step."""
        if not self._is_reading and (self._stands() or self._open_next()):
            self._verify()
        return self._pause_ns

    def _stands(self) -> bool:
        """Return whether the current log still exists and has more committed records."""
        partition, reader = self._partition, self._reader
        if partition is None or reader is None:
            return False
        # Replacing a log reopens its partition.
        if (
            self._partitions.get(partition.partition_id) is partition
            and _is_readable(partition)
            and reader.next_offset < partition.log.high_watermark
        ):
            return True
        self._leave()
        return False

    def _leave(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._partition = self._reader = None

    def _open_next(self) -> bool:
        """Open the next nonempty partition; begin a new pass and return false without one."""
        while self._waiting:
            partition = self._partitions.get(self._waiting.popleft())
            if partition is None or not _is_readable(partition):
                continue
            log = partition.log
            if log.log_start_offset < log.high_watermark:
                self._partition = partition
                self._reader = ScrubReader(log, log.log_start_offset)
                return True
        self._begin_pass()
        return False

    def _begin_pass(self) -> None:
        self.pass_count += 1
        partitions = self._partitions
        self._waiting.extend(partitions)
        self._waiting.rotate(-self._first)  # `rotate` takes any number, modulo the length
        self._first = 0
        steps = sum(1 + each.log.size_bytes // STEP_BYTES for each in partitions.values())
        pause_ns = self._interval_ns // max(steps, 1)
        self._pause_ns = min(max(pause_ns, PAUSE_NS_MIN), PAUSE_NS_MAX)

    def _verify(self) -> None:
        """Read a block: at once if cached, else continued by `_read_done`."""
        partition, reader = self._partition, self._reader
        assert partition is not None
        assert reader is not None
        try:
            result = reader.read(STEP_BYTES, partition.log.high_watermark)
        except (CorruptionError, FilesError) as error:
            self._leave()
            partition.on_unreadable(error)
            return
        self.scrubbed_bytes += sum(len(piece) for piece in result.slices)
        if result.need is not None:
            self._is_reading = True
            self._context.submit_read(result.need, self._read_done)

    def _read_done(self, outcome: bytes | LiftbridgeError) -> None:
        self._is_reading = False
        partition, reader = self._partition, self._reader
        assert partition is not None
        assert reader is not None
        if isinstance(outcome, LiftbridgeError):
            is_here = self._stands()
            self._leave()
            if is_here:
                partition.on_unreadable(outcome)
            return
        reader.feed(outcome)
        if self._stands():
            self._verify()


def _is_readable(partition: Partition) -> bool:
    """Return whether the files are open for reading."""
    return not partition.offline_reason and not partition.is_paused
