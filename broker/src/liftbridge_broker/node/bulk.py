"""A bounded read of whole stored batches, for bulk readers (`FetchBatches`)."""

from collections.abc import Callable
from typing import NamedTuple

from liftbridge_broker.errors import InvalidRequestError, LiftbridgeError
from liftbridge_broker.model.ids import Offset
from liftbridge_broker.node.partition import Partition
from liftbridge_broker.node.subscription import ReadHost


class Chunk(NamedTuple):
    """Whole batches; empty `data` means that the range is done.

    Its records are exactly those of `[first, next_offset)` that compaction left.
    """

    data: bytes
    first: Offset
    next_offset: Offset
    count: int  # type: ignore[assignment]  # hides `tuple.count`, which nobody needs here


class BulkRead:
    """Reads `[start, end)` of committed records, at least one batch, up to `bytes_max` bytes.

    Args:
        partition: What is read.
        host: Where reads that must wait are submitted.
        wake: Called when `pull` may give more after it gave `None`.
        start: First offset wanted; raised to the log start.
        end: First offset not wanted; 0 means the high watermark at this moment.
        bytes_max: Bytes after which the read is done; 0 means no limit.

    Raises:
        InvalidRequestError: A bound is negative or `end` lies before `start`.
    """

    def __init__(
        self,
        partition: Partition,
        host: ReadHost,
        wake: Callable[[], None],
        *,
        start: Offset,
        end: Offset,
        bytes_max: int,
    ) -> None:
        if start < 0 or end < 0 or bytes_max < 0:
            raise InvalidRequestError("start_offset, end_offset and max_bytes must not be negative")
        if end and end < start:
            raise InvalidRequestError(f"end_offset {end} is before start_offset {start}")
        log = partition.log
        committed = log.high_watermark
        self.partition = partition
        self._host = host
        self._wake = wake
        self._next = Offset(max(start, log.log_start_offset))
        self._end = Offset(min(end, committed)) if end else committed
        self._bytes_left = bytes_max or None
        self._failed: LiftbridgeError | None = None
        self._reader = log.batch_reader(self._next)
        self._is_reading = False

    def pull(self, bytes_max: int) -> Chunk | None:
        """The next whole batches; `None` while a read is under way.

        Raises:
            LiftbridgeError: The read failed or met damaged bytes.
        """
        if self._failed is not None:
            raise self._failed
        if self._is_reading:
            return None
        first = self._next
        if first >= self._end or self._bytes_left == 0:
            return Chunk(b"", first, first, 0)
        wanted = bytes_max if self._bytes_left is None else min(bytes_max, self._bytes_left)
        result = self._reader.read(wanted, self._end)
        if result.need is not None:
            self._is_reading = True
            self._host.submit_read(result.need, self._read_done)
            return None
        data = b"".join(result.slices)
        next_offset = self._reader.next_offset
        self._next = next_offset
        if self._bytes_left is not None:
            self._bytes_left = max(0, self._bytes_left - len(data))
        return Chunk(data, first, next_offset, result.count)

    def _read_done(self, outcome: bytes | LiftbridgeError) -> None:
        self._is_reading = False
        if isinstance(outcome, LiftbridgeError):
            self._failed = outcome
        else:
            self._reader.feed(outcome)
        self._wake()

    def close(self) -> None:
        """Let the files go."""
        self._reader.close()
