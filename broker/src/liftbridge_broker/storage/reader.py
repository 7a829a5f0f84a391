"""Readers of one log: frames for subscribers, stored batches for replicas and bulk readers.

A reader keeps its place as a segment and a position, and the block it last read. Whatever changes
segments under it (truncation, retention, compaction) raises `generation` of the log, and the reader
looks for its next offset again. A batch is verified as a whole before any part of it is given out;
what was verified is remembered per segment until the file changes there.
"""

from struct import Struct
from typing import Final

from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.logformat.batch import (
    BATCH_BYTES_MAX,
    COVERED_START,
    HEADER_SIZE,
    LENGTH_MIN,
    PROLOGUE,
)
from liftbridge_broker.logformat.checksum import crc32c
from liftbridge_broker.logformat.cut import cut
from liftbridge_broker.logformat.frames import frame_end, frame_offset
from liftbridge_broker.logformat.records import FRAME_PREFIX_SIZE
from liftbridge_broker.model.ids import Offset
from liftbridge_broker.storage.segment import Segment
from liftbridge_broker.storage.types import READ_BLOCK_BYTES, ReadNeed, ReadResult
from liftbridge_broker.storage.view import LogView

_QUICK: Final = Struct(">III4xQ8xqqI")
"""What the inner loops need of a header: magic with version, length, checksum, partition id, base
offset, last offset, record count."""

_FRAME_LENGTH: Final = Struct(">xI").unpack_from

_READ_BYTES_MIN: Final = 16 * 1024

# Why the loop over whole batches ended.
_RELOAD: Final = 0  # the block or the segment ends here
_PART: Final = 1  # of the next batch only some records may be given
_FULL: Final = 2  # the next batch does not fit any more


class _Place:
    """Where a reader stands, and the block around it; common to all readers.

    Attributes:
        next_offset: First offset not yet given out.
    """

    __slots__ = (
        "_batch_size",
        "_block",
        "_block_start",
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

    def feed(self, data: bytes) -> None:
        """Give what was asked for by `need`; dropped when the log changed there meanwhile."""
        need, segment = self._need, self._pinned
        assert need is not None
        assert segment is not None
        self._need = self._pinned = None
        segment.unpin()
        if segment is self._segment and self._generation == self._log.generation:
            self._block = data
            self._block_start = need.position

    def close(self) -> None:
        """End of use; a read in flight may still be delivered to nobody."""
        if self._pinned is not None:
            self._pinned.unpin()
        self._need = self._pinned = None
        self._forget()

    def _forget(self) -> None:
        """Lose the place; it is looked up again by `next_offset`."""
        self._segment = None
        self._block = b""
        self._generation = self._log.generation

    def _begin(self, end: Offset) -> Offset:
        """Leave what retention removed behind; the bound of a read within the log."""
        log = self._log
        if self.next_offset < log.log_start_offset:
            self.next_offset = log.log_start_offset
            self._forget()
        return min(end, log.log_end_offset)

    def _stand(self) -> Segment | None:
        """The segment to read from at `_position`; `None` at the end of the log.

        Raises:
            CorruptionError: The segment is damaged where the place is looked for.
        """
        log = self._log
        if self._generation != log.generation:
            self._forget()
        segment = self._segment
        if segment is not None and self._position < segment.size:
            return segment
        if segment is not None and not segment.is_sealed:
            return None
        segment = log.segment_at(self.next_offset)
        if segment is None or not segment.size:
            return None
        self._block = b""
        if self.next_offset == segment.base_offset:
            self._position, self._expected = 0, segment.base_offset
        else:
            entry = segment.entry_for(self.next_offset)
            self._position, self._expected = entry.position, entry.offset
        self._segment = segment
        return segment

    def _load(self, segment: Segment, length: int) -> bool:
        """Have at least the batch header at `_position` in the block; whether it is in memory.

        Args:
            segment: Segment of the place.
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
        """Size of the batch at `_position`, 0 while its header is not in the block."""
        at = self._position - self._block_start
        if not 0 <= at <= len(self._block) - HEADER_SIZE:
            return 0
        length: int = _QUICK.unpack_from(self._block, at)[1]
        size = COVERED_START + length
        if not HEADER_SIZE <= size <= BATCH_BYTES_MAX or self._position + size > segment.size:
            raise self._damage(segment, "batch length is out of bounds")
        return size

    def _hold_batch(self, segment: Segment, length: int) -> bool:
        """Have the whole batch at `_position` in the block; whether it is in memory.

        Args:
            segment: Segment of the place.
            length: Bytes to read at least when something must be read.

        Raises:
            CorruptionError: The header is damaged, or the file shorter than its log.
        """
        while True:
            size = self._batch_bytes(segment)
            block_end = self._block_start + len(self._block)
            if size and self._position + size <= block_end:
                return True
            self._batch_size = size or self._batch_size
            wanted = max(self._batch_size, length)  # batches resemble the one before
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
        """Go to the batch behind the one at `_position`."""
        self._position += size
        self._expected = last_offset + 1
        self.next_offset = Offset(last_offset + 1)

    def _release_block(self) -> None:
        """Let go of a block that was read to its end: idle readers hold no memory."""
        if self._position >= self._block_start + len(self._block):
            self._block = b""


class LogReader(_Place):
    """Reads record frames in order, as subscribers get them. Belongs to one subscription."""

    __slots__ = ("_frame", "_frame_number")

    def __init__(self, log: LogView, offset: Offset) -> None:
        super().__init__(log, offset)
        self._frame = 0
        self._frame_number = 0

    def _forget(self) -> None:
        super()._forget()
        self._frame = 0

    def read(self, max_bytes: int, end: Offset) -> ReadResult:
        """Frames of records [next_offset, end), as many as fit.

        Args:
            max_bytes: Bound of the sum of the slices; one record is given even when it is larger.
                A batch that does not fit behind others is left for the next call.
            end: First offset not to be given, for instance the high watermark.

        Returns:
            Slices in order. Empty without `need`: there is nothing below `end` now. With `need`
            the bytes are not in memory: read them, `feed` them, and call again.

        Raises:
            CorruptionError: A batch on the way is damaged; the place does not move.
            FilesError: The file cannot be read.
        """
        if self._need is not None:
            return ReadResult([], 0, self._need)
        end = self._begin(end)
        slices: list[bytes | memoryview] = []
        count = 0
        budget = max_bytes
        length = min(max(max_bytes, _READ_BYTES_MIN), READ_BLOCK_BYTES)
        while self.next_offset < end:
            segment = self._stand()
            if segment is None:
                break
            if not self._hold_batch(segment, length):
                if slices:
                    break
                return ReadResult([], 0, self._need)
            if not self._frame:
                budget, records, stop = self._take_whole(segment, slices, budget, end)
                count += records
                if stop == _RELOAD:
                    continue
                if stop == _FULL or self.next_offset >= end:
                    break
            records, is_full = self._take_part(slices, budget, end)
            count += records
            if is_full:
                break
            budget = max_bytes - sum(map(len, slices))
        self._release_block()
        return ReadResult(slices, count)

    def _take_whole(
        self, segment: Segment, slices: list[bytes | memoryview], budget: int, end: Offset
    ) -> tuple[int, int, int]:
        """Take batches of the block as long as they can be taken whole.

        Measured by tests/bench/bench_log.py: below 1 us for a batch of one record.

        Returns:
            What is left of the budget, the number of records, and why it ended (`_RELOAD`...).
        """
        block = self._block
        view = memoryview(block)
        append = slices.append
        unpack = _QUICK.unpack_from
        checksum = crc32c
        partition_id = segment.partition_id
        block_start = self._block_start
        start = at = self._position - block_start
        limit = len(block)
        headers_end = limit - HEADER_SIZE
        verified = segment.verified.covered_until(self._position) - block_start
        expected = self._expected
        next_offset = self.next_offset
        count = 0
        stop = _RELOAD
        seen = at
        while at <= headers_end:
            magic, length, crc, partition, base, last, records = unpack(block, at)
            behind = at + 12 + length
            if behind > limit:
                break
            if (
                base != expected
                or (at >= verified and checksum(block[at + 12 : behind]) != crc)
                or partition != partition_id
                or magic != PROLOGUE
                or length < LENGTH_MIN
            ):
                self._position = block_start + at
                raise self._damage(segment, "batch is damaged")
            seen = behind
            if base < next_offset or last >= end:
                if last >= next_offset:
                    stop = _PART
                    break
            elif records:
                if length - LENGTH_MIN > budget:
                    stop = _FULL if slices else _PART
                    break
                append(view[at + HEADER_SIZE : behind])
                budget -= length - LENGTH_MIN
                count += records
            at = behind
            expected = last + 1
        segment.verified.add(block_start + start, block_start + seen)
        self._position = block_start + at
        self._expected = expected
        if expected > next_offset:
            self.next_offset = Offset(expected)
        return budget, count, stop

    def _take_part(
        self, slices: list[bytes | memoryview], budget: int, end: Offset
    ) -> tuple[int, bool]:
        """Take records of the one batch at the place, which was verified.

        Frames are walked only as far as needed, and never twice: the place within the batch is
        remembered.

        Returns:
            The number of records taken, and whether this read is over.
        """
        block = self._block
        at = self._position - self._block_start
        _, length, _, _, base, last, records = _QUICK.unpack_from(block, at)
        walk = _FrameWalk(block, at + HEADER_SIZE, at + COVERED_START + length, base, last, records)
        if self._frame:
            walk.at = self._frame - self._block_start
            walk.number = self._frame_number
        elif self.next_offset > base:
            walk.skip_to(self.next_offset)
        start, number = walk.at, walk.number
        is_whole = last < end and walk.end - start <= budget
        if is_whole:
            walk.at, walk.number = walk.end, records
        else:
            walk.take(budget, end, forced=not slices)
        if walk.at > start:
            slices.append(memoryview(block)[start : walk.at])
        if walk.at == walk.end and last < end:
            self._frame = 0
            self._move_on(COVERED_START + length, last)
            return walk.number - number, False
        self._frame = self._block_start + walk.at
        self._frame_number = walk.number
        self.next_offset = Offset(min(walk.offset(), end)) if walk.at < walk.end else end
        return walk.number - number, True


class _FrameWalk:
    """Walk over the frames of one verified batch in a block.

    Attributes:
        at: Where the next frame begins.
        end: Where the frames end.
        number: Frames before `at`.
    """

    __slots__ = ("_base", "_block", "_is_dense", "at", "end", "number")

    def __init__(
        self, block: bytes, start: int, end: int, base: int, last: int, records: int
    ) -> None:
        self._block = block
        self._base = base
        self._is_dense = records == last - base + 1
        self.at = start
        self.end = end
        self.number = 0

    def offset(self) -> int:
        """Offset of the frame at `at`; frames are decoded only where compaction left gaps."""
        if self._is_dense:
            return self._base + self.number
        return frame_offset(self._block, self.at)

    def skip_to(self, offset: int) -> None:
        """Go to the first frame at an offset or behind."""
        if self._is_dense:
            self._go(offset - self._base - self.number, self.end)
            return
        while self.at < self.end and self.offset() < offset:
            self.at = frame_end(self._block, self.at, self.end)
            self.number += 1

    def take(self, budget: int, end: int, *, forced: bool) -> None:
        """Go on while frames fit the budget and lie below `end`; with `forced` at least one."""
        limit = self.at + budget
        if forced and self.at < self.end and self.offset() < end:
            self.at = frame_end(self._block, self.at, self.end)
            self.number += 1
        if self._is_dense:
            self._go(end - self._base - self.number, limit)
            return
        while self.at < self.end and self.offset() < end:
            behind = frame_end(self._block, self.at, self.end)
            if behind > limit:
                return
            self.at = behind
            self.number += 1

    def _go(self, frames: int, limit: int) -> None:
        """Go over at most `frames` frames that end at or before `limit`.

        Measured by tests/bench/bench_log.py: 0.1 us for a frame.
        """
        block, unpack = self._block, _FRAME_LENGTH
        at, number = self.at, self.number
        limit = min(limit, self.end)
        frames_end = number + frames
        while at < limit and number < frames_end:
            behind = at + FRAME_PREFIX_SIZE + unpack(block, at)[0]
            if behind > limit:
                break
            at = behind
            number += 1
        self.at, self.number = at, number


class BatchReader(_Place):
    """Reads stored batches in order, as replicas and bulk readers get them."""

    __slots__ = ()

    def read(self, max_bytes: int, end: Offset) -> ReadResult:
        """Batches of records [next_offset, end), as many as fit.

        A batch that `next_offset` or `end` falls into is re-cut with a new header and checksum.
        Below the log start reading begins there.

        Args:
            max_bytes: Bound of the sum of the slices; one batch is given even when it is larger.
            end: First offset not to be given.

        Returns:
            As `LogReader.read`; the slices joined are whole adjoining batches.

        Raises:
            CorruptionError: A batch on the way is damaged; the place does not move.
            FilesError: The file cannot be read.
        """
        if self._need is not None:
            return ReadResult([], 0, self._need)
        end = self._begin(end)
        slices: list[bytes | memoryview] = []
        count = 0
        budget = max_bytes
        length = min(max(max_bytes, _READ_BYTES_MIN), READ_BLOCK_BYTES)
        while self.next_offset < end:
            segment = self._stand()
            if segment is None:
                break
            if not self._hold_batch(segment, length):
                if slices:
                    break
                return ReadResult([], 0, self._need)
            budget, records, stop = self._take_run(segment, slices, budget, end)
            count += records
            if stop == _PART and self.next_offset < end:
                piece = self._recut(end)
                if slices and len(piece) > budget:
                    break
                slices.append(piece)
                budget -= len(piece)
                count += _QUICK.unpack_from(piece)[6]
                self.next_offset = Offset(_QUICK.unpack_from(piece)[5] + 1)
            elif stop != _RELOAD:
                break
        self._release_block()
        return ReadResult(slices, count)

    def _take_run(
        self, segment: Segment, slices: list[bytes | memoryview], budget: int, end: Offset
    ) -> tuple[int, int, int]:
        """Take adjoining whole batches of the block as one slice; as `LogReader._take_whole`."""
        block = self._block
        block_start = self._block_start
        at = self._position - block_start
        limit = len(block)
        verified = segment.verified.covered_until(self._position) - block_start
        start = run = seen = at
        count = 0
        stop = _RELOAD
        while at <= limit - HEADER_SIZE:
            magic, length, crc, partition, base, last, records = _QUICK.unpack_from(block, at)
            behind = at + COVERED_START + length
            if behind > limit:
                break
            if (
                base != self._expected
                or (at >= verified and crc32c(block[at + COVERED_START : behind]) != crc)
                or partition != segment.partition_id
                or magic != PROLOGUE
                or length < LENGTH_MIN
            ):
                self._position = block_start + at
                raise self._damage(segment, "batch is damaged")
            seen = behind
            if last < self.next_offset:
                run = behind  # in front of what was asked for
            elif base < self.next_offset or last >= end:
                stop = _PART
                break
            elif behind - run > budget and (slices or at > run):
                stop = _FULL
                break
            else:
                count += records
                self.next_offset = Offset(last + 1)
            at = behind
            self._expected = last + 1
        segment.verified.add(block_start + start, block_start + seen)
        self._position = block_start + at
        if at > run:
            slices.append(memoryview(block)[run:at])
        return budget - (at - run), count, stop

    def _recut(self, end: Offset) -> bytes:
        """What is asked for of the verified batch at the place, as a batch of its own."""
        at = self._position - self._block_start
        _, length, _, _, base, last, _ = _QUICK.unpack_from(self._block, at)
        batch = self._block[at : at + COVERED_START + length]
        return cut(batch, max(Offset(base), self.next_offset), min(Offset(last + 1), end))
