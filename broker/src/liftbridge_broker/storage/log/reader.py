"""Reads record frames in order, for subscribers.

A batch is verified as a whole before any part of it is delivered; verified ranges are remembered
per segment until the file changes there.
"""

from struct import Struct
from typing import Final

from liftbridge_broker.logformat.batch import COVERED_START, HEADER_SIZE, LENGTH_MIN, PROLOGUE
from liftbridge_broker.logformat.checksum import crc32c
from liftbridge_broker.logformat.frames import frame_end, frame_offset
from liftbridge_broker.logformat.records import FRAME_PREFIX_SIZE
from liftbridge_broker.model.ids import Offset
from liftbridge_broker.storage.log.place import BAD, FULL, PART, QUICK, RELOAD, Place, block_bytes
from liftbridge_broker.storage.log.segment import Segment
from liftbridge_broker.storage.log.types import ReadResult
from liftbridge_broker.storage.log.view import LogView

_FRAME_LENGTH: Final = Struct(">xI").unpack_from


class LogReader(Place):
    """Reads record frames in order, for one subscription."""

    __slots__ = ("_frame", "_frame_number")

    def __init__(self, log: LogView, offset: Offset) -> None:
        super().__init__(log, offset)
        self._frame = 0
        self._frame_number = 0

    def _forget(self) -> None:
        super()._forget()
        self._frame = 0

    def read(self, max_bytes: int, end: Offset) -> ReadResult:
        """Read the frames of records [next_offset, end), as many as fit.

        Args:
            max_bytes: Bound of the sum of the slices; one record is returned even if larger.
                A batch that does not fit after others is left for the next call.
            end: First offset not to return, for instance the high watermark.

        Returns:
            Slices in order. Empty without `need`: no records below `end` now. With `need`, the
            bytes are not in memory: read them, `feed` them, and call again.

        Raises:
            CorruptionError: The next batch is damaged; good batches before it were returned.
            FilesError: The file cannot be read.
        """
        if self._need is not None:
            return ReadResult([], 0, self._need)
        end = self._begin(end)
        slices: list[bytes | memoryview] = []
        count = 0
        budget = max_bytes
        length = block_bytes(max_bytes)
        while self.next_offset < end:
            segment = self._arrive(length, is_first=not slices)
            if segment is None:
                break
            if not self._frame:
                budget, records, stop = self._take_whole(segment, slices, budget, end)
                count += records
                if stop == RELOAD and (not slices or budget >= self._batch_size):
                    continue
                if stop != PART or self.next_offset >= end:
                    break
            records, is_full = self._take_part(slices, budget, end)
            count += records
            if is_full:
                break
            budget = max_bytes - sum(map(len, slices))
        self._release_finished()
        return ReadResult(slices, count, None if slices else self._need)

    def _take_whole(
        self, segment: Segment, slices: list[bytes | memoryview], budget: int, end: Offset
    ) -> tuple[int, int, int]:
        """Take whole batches of the block as long as possible.

        Measured by tests/bench/bench_log.py: below 1 us for a batch of one record.

        Returns:
            The remaining budget, the number of records, and the reason for the end (`RELOAD`...).
        """
        block = self._block
        view = memoryview(block)
        append = slices.append
        unpack = QUICK.unpack_from
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
        stop = RELOAD
        seen = last_at = at
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
                stop = BAD
                break
            seen = behind
            if base < next_offset or last >= end:
                if last >= next_offset:
                    stop = PART
                    break
            elif records:
                if length - LENGTH_MIN > budget:
                    stop = FULL if slices else PART
                    break
                append(view[at + HEADER_SIZE : behind])
                budget -= length - LENGTH_MIN
                count += records
            last_at, at = at, behind
            expected = last + 1
        self._batch_size = (at - last_at) or self._batch_size
        segment.verified.add(block_start + start, block_start + seen)
        self._position = block_start + at
        self._expected = expected
        if expected > next_offset:
            self.next_offset = Offset(expected)
        if stop == BAD and not slices:
            raise self._damage(segment, "batch is damaged")
        return budget, count, stop

    def _take_part(
        self, slices: list[bytes | memoryview], budget: int, end: Offset
    ) -> tuple[int, bool]:
        """Take records of the verified batch at the position.

        It walks no more frames than needed, and none twice, because it remembers the position
        within the batch.

        Returns:
            The number of records taken, and whether this read has ended.
        """
        block = self._block
        at = self._position - self._block_start
        _, length, _, _, base, last, records = QUICK.unpack_from(block, at)
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
        at: Start of the next frame.
        end: End of the frames.
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
        """Offset of the frame at `at`; frames are decoded only if compaction left gaps."""
        if self._is_dense:
            return self._base + self.number
        return frame_offset(self._block, self.at)

    def skip_to(self, offset: int) -> None:
        """Skip to the first frame at or after an offset."""
        if self._is_dense:
            self._go(offset - self._base - self.number, self.end)
            return
        while self.at < self.end and self.offset() < offset:
            self.at = frame_end(self._block, self.at, self.end)
            self.number += 1

    def take(self, budget: int, end: int, *, forced: bool) -> None:
        """Continue while frames fit the budget and are below `end`.

        With `forced`, take at least one.
        """
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
        """Advance over at most `frames` frames that end at or before `limit`.

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
