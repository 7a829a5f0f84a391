"""Reads stored batches in order, for replicas and bulk readers.

Each batch is verified once, as in `reader.py`; scrubbing verifies it each time.
"""

from liftbridge_broker.logformat.batch import COVERED_START, HEADER_SIZE, LENGTH_MIN, PROLOGUE
from liftbridge_broker.logformat.checksum import crc32c
from liftbridge_broker.logformat.cut import cut
from liftbridge_broker.model.ids import Offset
from liftbridge_broker.storage.log.place import BAD, FULL, PART, QUICK, RELOAD, Place, block_bytes
from liftbridge_broker.storage.log.segment import Segment
from liftbridge_broker.storage.log.types import ReadResult


class BatchReader(Place):
    """Reads stored batches in order, for replicas and bulk readers."""

    __slots__ = ()

    def read(self, max_bytes: int, end: Offset) -> ReadResult:
        """Read the batches of records [next_offset, end), as many as fit.

        A batch that `next_offset` or `end` falls into is re-cut with a new header and checksum.
        Below the log start, reading starts there.

        Args:
            max_bytes: Bound of the sum of the slices; one batch is returned even when it is larger.
            end: First offset not to return.

        Returns:
            Like `LogReader.read`; the slices joined are whole adjoining batches.

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
            budget, records, stop = self._take_run(segment, slices, budget, end)
            count += records
            if stop == PART and self.next_offset < end:
                piece = self._recut(end)
                if slices and len(piece) > budget:
                    break
                slices.append(piece)
                budget -= len(piece)
                count += QUICK.unpack_from(piece)[6]
                self.next_offset = Offset(QUICK.unpack_from(piece)[5] + 1)
            elif stop != RELOAD or (slices and self._batch_size > budget):
                break  # the next batch is probably as large, and would be read in vain
        self._release_finished()
        return ReadResult(slices, count, None if slices else self._need)

    def _take_run(
        self, segment: Segment, slices: list[bytes | memoryview], budget: int, end: Offset
    ) -> tuple[int, int, int]:
        """Take adjoining whole batches of the block as one slice, like `LogReader._take_whole`."""
        block = self._block
        block_start = self._block_start
        at = self._position - block_start
        limit = len(block)
        verified = self._trusted_until(segment) - block_start
        start = run = seen = at
        count = 0
        stop = RELOAD
        while at <= limit - HEADER_SIZE:
            magic, length, crc, partition, base, last, records = QUICK.unpack_from(block, at)
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
                stop = BAD
                break
            seen = behind
            if last < self.next_offset:
                run = behind  # before the requested offset
            elif base < self.next_offset or last >= end:
                stop = PART
                break
            elif behind - run > budget and (slices or at > run):
                stop = FULL
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
        if stop == BAD and not slices:
            raise self._damage(segment, "batch is damaged")
        return budget - (at - run), count, stop

    def _trusted_until(self, segment: Segment) -> int:
        """Return the position up to which batches need no verification."""
        return segment.verified.covered_until(self._position)

    def _recut(self, end: Offset) -> bytes:
        """Re-cut the requested records of the verified batch at the position into a new batch."""
        at = self._position - self._block_start
        _, length, _, _, base, last, _ = QUICK.unpack_from(self._block, at)
        batch = self._block[at : at + COVERED_START + length]
        return cut(batch, max(Offset(base), self.next_offset), min(Offset(last + 1), end))


class ScrubReader(BatchReader):
    """Verifies every batch, even if it was intact when last read."""

    __slots__ = ()

    def _trusted_until(self, segment: Segment) -> int:
        del segment
        return self._position
