"""Position of a log reader, and the block around it.

A reader keeps its position as a segment and a file position, with the block it last read. Each
change of the segments (truncation, retention, compaction) raises `generation` of the log, and the
reader then looks up its next offset again.
"""

from struct import Struct
from typing import Final

from liftbridge_broker.errors import CorruptionError, FilesError, LiftbridgeError
from liftbridge_broker.logformat.batch import BATCH_BYTES_MAX, COVERED_START, HEADER_SIZE
from liftbridge_broker.model.ids import Offset
from liftbridge_broker.storage.log.segment import Segment
from liftbridge_broker.storage.log.types import READ_BLOCK_BYTES, ReadNeed
from liftbridge_broker.storage.log.view import LogView

QUICK: Final = Struct(">III4xQ8xqqI")
"""Header fields that inner loops need: magic with version, length, checksum, partition id, base
offset, last offset, record count."""

READ_BYTES_MIN: Final = 16 * 1024

# Reasons why a loop over whole batches ended.
RELOAD: Final = 0  # the block or the segment ends
PART: Final = 1  # only some records of the next batch may be delivered
FULL: Final = 2  # the next batch no longer fits
BAD: Final = 3  # the next batch is damaged; raised once the intact batches before it are delivered


def block_bytes(max_bytes: int) -> int:
    """Return the read size for a reader that wants at most `max_bytes`."""
    return min(max(max_bytes, READ_BYTES_MIN), READ_BLOCK_BYTES)


class Place:
    """Position of a reader, and the block around it; shared by all readers.

    Attributes:
        next_offset: First offset not yet delivered.
    """

    __slots__ = (
        "_batch_size",
        "_block",
        "_block_start",
        "_error",
        "_expected",
        "_generation",
        "_log",
        "_need",
        "_pinned",
        "_position",
        "_segment",
        "next_offset",
    )

    def __init__(self, log: LogView, offset: Offset) -> None:
        self._log = log
        self.next_offset = offset
        self._segment: Segment | None = None
        self._generation = log.generation
        self._position = 0
        self._expected = 0
        self._batch_size = 0
        self._block = b""
        self._block_start = 0
        self._need: ReadNeed | None = None
        self._pinned: Segment | None = None
        self._error: LiftbridgeError | None = None

    def feed(self, data: bytes) -> None:
        """Supply the bytes that `need` asked for; dropped if the log changed there since."""
        need, segment = self._need, self._pinned
        assert need is not None
        assert segment is not None
        self._need = self._pinned = None
        segment.unpin()
        if segment is not self._segment or self._generation != self._log.generation:
            return
        self._block = data
        self._block_start = need.position
        if len(data) < need.length:
            self._error = self._damage(segment, "file is shorter than its log")

    def release(self) -> None:
        """Release the block until the next read, so that idle readers hold no memory.

        The rest of the block is read again, usually from the page cache.
        """
        self._block = b""

    def close(self) -> None:
        """Close the reader; the result of a read in flight is dropped."""
        if self._pinned is not None:
            self._pinned.unpin()
        self._need = self._pinned = None
        self._forget()

    def rewind(self, offset: int) -> None:
        """Continue at an earlier offset with the next read; the owner has none in flight."""
        if self._pinned is not None:
            self._pinned.unpin()  # needed after what was returned: the owner does not know of it
        self._need = self._pinned = None
        self.next_offset = Offset(offset)
        self._forget()

    def _forget(self) -> None:
        """Drop the position, so that `next_offset` is looked up again."""
        self._segment = None
        self._block = b""
        self._error = None
        self._generation = self._log.generation

    def _begin(self, end: Offset) -> Offset:
        """Skip offsets removed by retention; return the bound of a read within the log.

        Raises:
            CorruptionError: The last read found damage after the records it delivered.
            FilesError: The last read failed after the records it delivered.
        """
        log = self._log
        if self._error is not None and self._generation == log.generation:
            raise self._error
        if self.next_offset < log.log_start_offset:
            self.next_offset = log.log_start_offset
            self._forget()
        return min(end, log.log_end_offset)

    def _arrive(self, length: int, *, is_first: bool) -> Segment | None:
        """Load the next batch into the block.

        Args:
            length: Minimum number of bytes to read if a read is necessary.
            is_first: Whether this read has delivered nothing yet; otherwise an error is raised by
                the next read.

        Returns:
            The segment, `None` if the batch is not in memory (then `_need` is set).

        Raises:
            CorruptionError: The log is damaged at the position.
            FilesError: The file cannot be read.
        """
        try:
            segment = self._stand()
            if not self._hold_batch(segment, length):
                return None
        except (CorruptionError, FilesError) as error:
            if is_first:
                raise
            self._error = error
            return None
        return segment

    def _stand(self) -> Segment:
        """Return the segment to read at `_position`; `next_offset` must be within the log.

        Raises:
            CorruptionError: The segment is damaged where the position is looked up.
        """
        log = self._log
        if self._generation != log.generation:
            self._forget()
        segment = self._segment
        if segment is not None and self._position < segment.size:
            return segment
        segment = log.segment_at(self.next_offset)
        assert segment is not None
        self._block = b""
        if self.next_offset == segment.base_offset:
            self._position, self._expected = 0, segment.base_offset
        else:
            entry = segment.entry_for(self.next_offset)
            self._position, self._expected = entry.position, entry.offset
        self._segment = segment
        return segment

    def _load(self, segment: Segment, length: int) -> bool:
        """Load at least the batch header at `_position`; return whether it is in memory.

        Args:
            segment: Segment of the position.
            length: Bytes wanted; less is read at the end of the file.
        """
        position = self._position
        length = min(max(length, HEADER_SIZE), segment.size - position)
        handle = segment.handle
        if handle is None:
            handle = segment.open()
        data = segment.files.try_read(handle, position, length)
        if data is None:
            self._need = ReadNeed(handle, position, length)
            self._pinned = segment
            segment.pins += 1
            return False
        self._block = data
        self._block_start = position
        return True

    def _batch_bytes(self, segment: Segment) -> int:
        """Return the size of the batch at `_position`, 0 while its header is not in the block."""
        at = self._position - self._block_start
        if not 0 <= at <= len(self._block) - HEADER_SIZE:
            return 0
        length: int = QUICK.unpack_from(self._block, at)[1]
        size = COVERED_START + length
        if not HEADER_SIZE <= size <= BATCH_BYTES_MAX or self._position + size > segment.size:
            raise self._damage(segment, "batch length is out of bounds")
        return size

    def _hold_batch(self, segment: Segment, length: int) -> bool:
        """Load the whole batch at `_position`; return whether it is in memory.

        Args:
            segment: Segment of the position.
            length: Minimum number of bytes to read if a read is necessary.

        Raises:
            CorruptionError: The header is damaged, or the file is shorter than its log.
        """
        while True:
            size = self._batch_bytes(segment)
            block_end = self._block_start + len(self._block)
            if size and self._position + size <= block_end:
                return True
            self._batch_size = size or self._batch_size
            # Batches are usually similar in size to the previous batch, but rarely equal.
            wanted = max(self._batch_size + self._batch_size // 64, length)
            was_read_here = self._block_start == self._position and len(self._block) >= min(
                wanted, segment.size - self._position
            )
            if was_read_here:
                raise self._damage(segment, "file is shorter than its log")
            if not self._load(segment, wanted):
                return False
            if len(self._block) < min(wanted, segment.size - self._position):
                raise self._damage(segment, "file is shorter than its log")

    def _damage(self, segment: Segment, message: str) -> CorruptionError:
        return CorruptionError(message, path=segment.path, position=self._position)

    def _move_on(self, size: int, last_offset: int) -> None:
        """Advance to the batch after the one at `_position`."""
        self._position += size
        self._expected = last_offset + 1
        self.next_offset = Offset(last_offset + 1)

    def _release_finished(self) -> None:
        """Release a block that was read to its end."""
        if self._position >= self._block_start + len(self._block):
            self._block = b""
