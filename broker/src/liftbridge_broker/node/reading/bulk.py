"""A read of whole stored batches, for bulk readers (`FetchBatches`): bounded, or following."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from liftbridge_broker.errors import (
    CorruptionError,
    FailedPreconditionError,
    FilesError,
    InvalidRequestError,
    LiftbridgeError,
    OutOfRangeError,
)
from liftbridge_broker.model.ids import Instant, Offset
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.reading.answers import Question, check
from liftbridge_broker.node.reading.client_reads import ClientReads, ReadSlot
from liftbridge_broker.node.reading.readonly_end import ReadonlyEnd
from liftbridge_broker.storage.log.opened import OpenedBatchReader
from liftbridge_broker.storage.log.partition_log import PartitionLog


class Chunk(NamedTuple):
    """Whole batches; empty `data` means that the range is complete.

    Its records are exactly those of `[first, next_offset)` that compaction left.
    """

    data: bytes
    next_offset: Offset
    count: int  # type: ignore[assignment]  # hides `tuple.count`, which is not needed here


@dataclass(frozen=True, slots=True)
class BulkRange:
    """Range and options of a bulk read.

    Attributes:
        start: First requested offset; raised to the log start.
        end: Exclusive end of the range; 0 means the high watermark at the time of the call.
        bytes_max: Bytes after which the read is done, at least one batch; 0 means no limit.
        follows: Whether the read continues as the high watermark advances.
        reads_replica: Whether any replica may serve it.
        is_strict: Whether the read refuses a start outside the log, and records that retention
            removed before they were read.
    """

    start: Offset
    end: Offset
    bytes_max: int
    follows: bool
    reads_replica: bool = False
    is_strict: bool = False

    def check(self) -> None:
        """Refuse an invalid request.

        Raises:
            InvalidRequestError: The request is invalid; the error names the field and the rule.
        """
        if self.start < 0 or self.end < 0 or self.bytes_max < 0:
            raise InvalidRequestError("start_offset, end_offset and max_bytes must not be negative")
        if self.end and self.end < self.start:
            raise InvalidRequestError(f"end_offset {self.end} is before start_offset {self.start}")
        if self.follows and (self.end or self.bytes_max):
            raise InvalidRequestError("follow cannot be combined with end_offset or max_bytes")

    def question(self, partition: Partition) -> Question:
        """Return the question to answer before the read: the end, unless it is known committed.

        A strict read also needs it before it may refuse a start beyond the end.
        """
        committed = partition.log.high_watermark
        is_beyond = self.is_strict and self.start > committed
        is_known = not is_beyond and (self.follows or 0 < self.end <= committed)
        return Question.RECORDS if is_known else Question.END  # guard A.bounded


class BulkRead:
    """One bulk read; pulled like a `Subscription`.

    Args:
        partition: Partition to read.
        reads: Reads for clients of this broker.
        wake: Called when `pull` may return more after it returned `None`.
        wanted: The checked request; its `question` was answered in this turn.

    Raises:
        OutOfRangeError: The read is strict, and the log does not hold its start.
        KeyUnavailableError: This broker lacks the key of the stream.
        LiftbridgeError: This broker may not answer; retriable.
    """

    def __init__(
        self, partition: Partition, reads: ClientReads, wake: Callable[[], None], wanted: BulkRange
    ) -> None:
        check(partition, wanted.question(partition), as_replica=wanted.reads_replica)
        log, cipher = partition.log, partition.writer.cipher
        if cipher is not None:
            cipher.check()
        committed = log.high_watermark
        self._is_strict = wanted.is_strict
        self._check_start(log, wanted.start)
        self.partition = partition
        self._wake = wake
        self._reads_replica = wanted.reads_replica
        self._follows = wanted.follows
        self._end = Offset(min(wanted.end, committed)) if wanted.end else committed
        self._bytes_left = wanted.bytes_max or None
        self._failed: LiftbridgeError | None = None
        start = Offset(max(wanted.start, log.log_start_offset))
        self._reader = (
            log.batch_reader(start) if cipher is None else OpenedBatchReader(log, start, cipher)
        )
        self._slot = ReadSlot(reads)
        self._is_open = True
        replica = wanted.reads_replica
        self._readonly_end = ReadonlyEnd(partition, reads, wake, as_replica=replica)
        partition.readers.attach(self)

    def _check_start(self, log: PartitionLog, start: Offset) -> None:
        if self._is_strict and not log.log_start_offset <= start <= log.high_watermark:
            raise OutOfRangeError(
                f"offset {start} is out of range: the log holds offsets from "
                f"{log.log_start_offset} on, and is committed up to {log.high_watermark}"
            )

    @property
    def reads_replica(self) -> bool:
        """Return whether the read continues when this broker no longer leads."""
        return self._reads_replica

    @property
    def next_offset(self) -> Offset:
        """First offset not delivered yet."""
        return self._reader.next_offset

    def pull(self, bytes_max: int) -> Chunk | None:
        """Return the next whole batches, `None` while none are available.

        Raises:
            LiftbridgeError: The read failed or found damaged bytes, or the partition closed.
        """
        if self._failed is not None:
            raise self._failed
        if self.partition.is_paused and self._follows:
            raise FailedPreconditionError("commit log was closed")
        if self._slot.is_busy:
            return None
        self._slot.free()
        self._check_start(self.partition.log, self.next_offset)
        if self._follows:
            self._end = self.partition.log.high_watermark
        if self.next_offset >= self._end or self._bytes_left == 0:
            return self._at_end()
        wanted = bytes_max if self._bytes_left is None else min(bytes_max, self._bytes_left)
        try:
            result = self._reader.read(wanted, self._end)
        except (CorruptionError, FilesError) as error:
            self.partition.on_unreadable(error)
            raise
        if result.need is not None:
            self._slot.read(result.need, self._read_done)
            return None
        data = b"".join(result.slices)
        if self._bytes_left is not None:
            self._bytes_left = max(0, self._bytes_left - len(data))
        self.partition.activity.delivered_count += result.count
        self.partition.activity.delivered_bytes += len(data)
        return Chunk(data, self.next_offset, result.count)

    def release(self) -> None:
        """Release what is held for the next pull, until the client accepts more."""
        if not self._slot.is_busy:
            self._slot.free()
        self._reader.release()

    def _at_end(self) -> Chunk | None:
        if not self._follows:
            return Chunk(b"", self.next_offset, 0)
        if self.partition.is_readonly and self.next_offset >= self.partition.log.log_end_offset:
            ended = self._readonly_end.look()  # guard A.readonly_bulk
            if ended is not None:
                raise ended
        self.partition.readers.wait_for_data(self._wake)
        return None

    def _read_done(self, outcome: bytes | LiftbridgeError) -> None:
        if isinstance(outcome, LiftbridgeError):
            self.partition.on_unreadable(outcome)
            self._failed = outcome
        else:
            self._reader.feed(outcome)
        self._wake()

    def on_closed(self, error: LiftbridgeError) -> None:
        """End the read, because the partition closed."""
        self._failed = self._failed or error
        self._wake()

    def close(self, now: Instant) -> None:
        """Detach and release the files; no callback follows."""
        if self._is_open:
            self._is_open = False
            self._slot.free()
            self.partition.readers.stop_waiting(self._wake)
            self.partition.detach(self, now)
            self._reader.close()
