"""Reads a log from newest to oldest, for reverse subscriptions.

Batches can only be walked forwards. So the reader reads, verifies and walks a stretch of the log
between two index entries, and delivers its frames from the last to the first.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.logformat.batch import HEADER_SIZE, walk_verified
from liftbridge_broker.logformat.cipher import BatchCipher
from liftbridge_broker.logformat.frames import iter_frames
from liftbridge_broker.model.ids import Offset
from liftbridge_broker.storage.log.segment import Segment
from liftbridge_broker.storage.log.types import ReadNeed, ReadResult
from liftbridge_broker.storage.log.view import LogView

BEGINNING: Final = Offset(0)
STRETCH_BYTES: Final = 64 * 1024


class _Stretch(NamedTuple):
    """A part of a log file that starts and ends with whole batches.

    Attributes:
        segment: Its segment.
        base_offset: Base offset of its first batch.
        position: Its start in the file.
        length: Its bytes.
    """

    segment: Segment
    base_offset: Offset
    position: int
    length: int


class ReverseReader:
    """Reads record frames backwards, for one subscription.

    Attributes:
        next_offset: Newest offset not yet delivered; below the log start at the end.
    """

    __slots__ = (
        "_cipher",
        "_error",
        "_frames",
        "_generation",
        "_log",
        "_need",
        "_oldest",
        "_stretch",
        "next_offset",
    )

    def __init__(
        self,
        log: LogView,
        start: Offset,
        oldest: Offset = BEGINNING,
        cipher: BatchCipher | None = None,
    ) -> None:
        """Start at an offset.

        Args:
            log: Log to read.
            start: Newest offset to deliver, for instance the last committed one.
            oldest: Oldest offset to deliver.
            cipher: Decrypts the batches; `None` for a log that is not encrypted.
        """
        self._log = log
        self._cipher = cipher
        self._oldest = oldest
        self.next_offset = start
        self._frames: list[tuple[Offset, memoryview]] = []
        self._stretch: _Stretch | None = None
        self._generation = log.generation
        self._need: ReadNeed | None = None
        self._error: CorruptionError | None = None

    @property
    def is_done(self) -> bool:
        """Return whether no older records are left."""
        return self.next_offset < self._floor

    @property
    def _floor(self) -> Offset:
        return max(self._oldest, self._log.log_start_offset)

    def read(self, max_bytes: int) -> ReadResult:
        """Read frames from `next_offset` down, as many as fit.

        Args:
            max_bytes: Bound of the sum of the slices; one record is returned even if larger.

        Returns:
            One slice per record, newest first. Empty without `need`: nothing is left. With `need`
            the bytes are not in memory: read them, `feed` them, and call again.

        Raises:
            CorruptionError: A batch in the range is damaged, or does not decrypt.
            FilesError: The file cannot be read.
            KeyUnavailableError: The stream is locked.
        """
        if self._cipher is not None:
            self._cipher.check()
        if self._need is not None:
            return ReadResult([], 0, self._need)
        error, self._error = self._error, None
        if error is not None:
            raise error
        slices: list[bytes | memoryview] = []
        budget = max_bytes
        while not self.is_done:
            if not self._frames and not self._load():
                break
            while self._frames:
                offset, frame = self._frames[-1]
                if offset < self._floor:
                    self._frames.clear()
                    self.next_offset = offset
                    break
                if slices and len(frame) > budget:
                    return ReadResult(slices, len(slices))
                self._frames.pop()
                slices.append(frame)
                budget -= len(frame)
                self.next_offset = Offset(offset - 1)
            self._leave_stretch()
        return ReadResult(slices, len(slices), None if slices else self._need)

    def feed(self, data: bytes) -> None:
        """Supply the bytes that `need` asked for; dropped if the log changed there since."""
        stretch = self._stretch
        assert self._need is not None
        assert stretch is not None
        self._need = None
        stretch.segment.unpin()
        if self._generation != self._log.generation:
            return
        try:
            self._take(stretch, data)
        except CorruptionError as error:
            self._error = error  # raised by the next read, as in the other readers

    def release(self) -> None:
        """Release the frames until the next read, so that idle readers hold no memory.

        The rest of them is read again, usually from the page cache.
        """
        self._frames.clear()

    def close(self) -> None:
        """Close the reader; the result of a read in flight is dropped."""
        if self._need is not None and self._stretch is not None:
            self._stretch.segment.unpin()
        self._need = self._stretch = None
        self._frames.clear()

    def _load(self) -> bool:
        """Load the frames of the stretch that ends at `next_offset`.

        Return whether they are in memory.
        """
        log = self._log
        self.next_offset = min(self.next_offset, Offset(log.log_end_offset - 1))
        segment = log.segment_at(self.next_offset)
        if segment is None or self.is_done:
            return False
        stretch = self._find(segment)
        self._stretch = stretch
        self._generation = log.generation
        handle = segment.open()
        data = segment.files.try_read(handle, stretch.position, stretch.length)
        if data is None:
            self._need = ReadNeed(handle, stretch.position, stretch.length)
            segment.pins += 1
            return False
        self._take(stretch, data)
        return True

    def _find(self, segment: Segment) -> _Stretch:
        """Find the stretch that ends with the batch of `next_offset` or shortly after it."""
        entry = segment.entry_for(self.next_offset)
        index = segment.index
        number = index.floor_offset(entry.offset)
        end = index.entry(number + 1).position if number + 1 < len(index) else segment.size
        first = max(0, index.floor_position(end - STRETCH_BYTES) + 1)
        if first < number:
            # Go farther back only if the index also matches the log there.
            entry = segment.entry_for(index.entry(first).offset)
        return _Stretch(segment, entry.offset, entry.position, end - entry.position)

    def _leave_stretch(self) -> None:
        """Go to the preceding stretch once all wanted frames of the current one are delivered."""
        if self._stretch is not None and not self._frames and self._need is None:
            self.next_offset = min(self.next_offset, Offset(self._stretch.base_offset - 1))

    def _take(self, stretch: _Stretch, data: bytes) -> None:
        """Verify a stretch and keep the wanted frames."""
        log_start, newest = self._log.log_start_offset, self.next_offset
        try:
            for frames, start, end in self._verified_frames(stretch, data):
                view = memoryview(frames)
                for at, behind, offset in iter_frames(frames, start, end):
                    if log_start <= offset <= newest:
                        self._frames.append((offset, view[at:behind]))
        except CorruptionError as error:
            self._frames.clear()
            place = stretch.position + error.position
            raise CorruptionError(str(error), path=stretch.segment.path, position=place) from error
        self._leave_stretch()

    def _verified_frames(self, stretch: _Stretch, data: bytes) -> Iterator[tuple[bytes, int, int]]:
        """Yield the frames of each batch of a verified stretch, as a range of some bytes.

        Raises:
            CorruptionError: The bytes are not the batches that belong there.
            KeyUnavailableError: The stream is locked.
        """
        if len(data) < stretch.length:
            raise CorruptionError("file is shorter than its log", position=len(data))
        expected = stretch.base_offset
        for position, header in walk_verified(data, 0, len(data)):
            is_ours = header.partition_id == stretch.segment.partition_id
            if header.base_offset != expected or not is_ours:
                raise CorruptionError("batch does not belong here", position=position)
            expected = header.end_offset
            end = position + header.size
            if self._cipher is None or header.is_filler:
                yield data, position + HEADER_SIZE, end
            else:
                frames = self._cipher.decrypt(data[position:end], header)
                yield frames, 0, len(frames)
