"""Reads all that is stored from time to time, so that rot is found while others hold the bytes.

A start scans only what is above the last proven sync, and a read only what somebody asks for. Bytes
that nobody reads may rot at one replica after the other; whoever leads last has nothing to repair
them from. What is found here takes the way of any damage that a read meets (C12): the replica is
declared unclean and copied anew.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from liftbridge_broker.errors import CorruptionError, FilesError, LiftbridgeError
from liftbridge_broker.model.ids import PartitionId
from liftbridge_broker.model.streams import MILLISECOND_NS
from liftbridge_broker.node.partition import Partition
from liftbridge_broker.storage.batch_reader import ScrubReader
from liftbridge_broker.storage.types import READ_BLOCK_BYTES, ReadNeed

STEP_BYTES: Final = READ_BLOCK_BYTES
"""Read at once: verified in a tenth of a millisecond, so that the loop does not stall."""

PAUSE_NS_MIN: Final = 10 * MILLISECOND_NS
"""Between two steps, however short the interval: at most 26 MB/s are read."""

PAUSE_NS_MAX: Final = 3_600_000 * MILLISECOND_NS
"""Between two steps, however little is stored: what was written since is looked at soon."""


class ScrubHost(Protocol):
    """What scrubbing needs of its node."""

    @property
    def partitions(self) -> Mapping[PartitionId, Partition]:
        """Partitions of which a replica is held here."""
        ...

    def submit_read(self, need: ReadNeed, done: Callable[[bytes | LiftbridgeError], None]) -> None:
        """Read off the loop; `done` is called with the bytes or the error."""
        ...


class Scrubber:
    """One pass after the other over all logs, a piece at a time.

    Invariant: at most one read waits for the disk.

    Attributes:
        scrubbed_bytes: Bytes verified.
        pass_count: Passes begun.
    """

    def __init__(self, host: ScrubHost, interval_ns: int, *, first: int) -> None:
        """Read nothing yet.

        Args:
            host: The node.
            interval_ns: How long a pass takes at most, unless that is faster than the disk is to be
                read.
            first: Any number; the first pass begins at the partition it points at, so that one who
                is restarted often does not look at the same ones only.
        """
        self.scrubbed_bytes = 0
        self.pass_count = 0
        self._host = host
        self._interval_ns = interval_ns
        self._first = first
        self._waiting: deque[PartitionId] = deque()
        self._partition: Partition | None = None
        self._reader: ScrubReader | None = None
        self._is_reading = False
        self._pause_ns = PAUSE_NS_MIN

    def step(self) -> int:
        """Verify the next piece; nanoseconds until the next step."""
        if not self._is_reading and (self._stands() or self._open_next()):
            self._verify()
        return self._pause_ns

    def _stands(self) -> bool:
        """Whether the log that is read is still there, and has more that is committed."""
        partition, reader = self._partition, self._reader
        if partition is None or reader is None:
            return False
        # Whoever replaces a log opens its partition anew.
        if (
            self._host.partitions.get(partition.partition_id) is partition
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
        """Go on to the next partition with something in it; false where another pass begins."""
        while self._waiting:
            partition = self._host.partitions.get(self._waiting.popleft())
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
        partitions = self._host.partitions
        self._waiting.extend(partitions)
        self._waiting.rotate(-self._first)  # by its remainder, whatever the number is
        self._first = 0
        steps = sum(1 + each.log.size_bytes // STEP_BYTES for each in partitions.values())
        pause_ns = self._interval_ns // max(steps, 1)
        self._pause_ns = min(max(pause_ns, PAUSE_NS_MIN), PAUSE_NS_MAX)

    def _verify(self) -> None:
        """Read a piece; what is in memory at once, else `_read_done` goes on with it."""
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
            self._host.submit_read(result.need, self._read_done)

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
    """Whether the files are open to be read."""
    return not partition.offline_reason and not partition.is_paused
