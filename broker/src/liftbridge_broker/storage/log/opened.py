"""Readers of an encrypted log: they read stored batches and decrypt them, for clients.

Replicas, scrubbing and look-ups use the stored batches as they are, and need no key.
"""

from typing import Final

from liftbridge_broker.errors import CorruptionError, FilesError
from liftbridge_broker.logformat.batch import HEADER_SIZE, BatchHeader, read_header
from liftbridge_broker.logformat.cipher import BatchCipher, opened
from liftbridge_broker.logformat.frames import frame_end, frame_offset
from liftbridge_broker.model.ids import Offset
from liftbridge_broker.storage.log.batch_reader import BatchReader
from liftbridge_broker.storage.log.scan import scan_batches
from liftbridge_broker.storage.log.types import ReadNeed, ReadResult
from liftbridge_broker.storage.log.view import LogView

_NOTHING: Final = b""


class _Opened:
    """Stored batches in order, decrypted; base of both readers."""

    __slots__ = ("_cipher", "_error", "_log", "_reader")

    def __init__(self, log: LogView, offset: Offset, cipher: BatchCipher) -> None:
        self._log = log
        self._reader = BatchReader(log, offset)
        self._cipher = cipher
        self._error: CorruptionError | None = None

    @property
    def next_offset(self) -> Offset:
        """First offset not yet delivered."""
        return self._reader.next_offset

    def feed(self, data: bytes) -> None:
        """Supply the bytes that `need` asked for."""
        self._reader.feed(data)

    def release(self) -> None:
        """Release the block until the next read, so that idle readers hold no memory."""
        self._reader.release()

    def close(self) -> None:
        """Close the reader; the result of a read in flight is dropped."""
        self._reader.close()

    def _decrypt(
        self, max_bytes: int, end: Offset
    ) -> tuple[list[tuple[bytes, int, bytes]], ReadNeed | None]:
        """Read the next batches: each as it is stored, its number of records, and its frames.

        Raises:
            KeyUnavailableError: The stream is locked; nothing was read.
            CorruptionError: The next batch is damaged, or does not decrypt; intact batches before
                it were returned.
            FilesError: The file cannot be read.
        """
        self._cipher.check()
        if self._error is not None:
            raise self._error
        result = self._reader.read(max_bytes, end)
        batches: list[tuple[bytes, int, bytes]] = []
        frames_at = self._cipher.frames_at
        for piece in result.slices:
            data, at = bytes(piece), 0
            while at < len(data):
                try:
                    behind, count, frames = frames_at(data, at)
                except CorruptionError as error:
                    header = read_header(data, at)
                    self._error = _located(self._log, header, error)
                    self._reader.rewind(header.base_offset)
                    if not batches:
                        raise self._error from error
                    return batches, None
                batches.append((data[at : at + HEADER_SIZE], count, frames))
                at = behind
        return batches, result.need


class OpenedBatchReader(_Opened):
    """Reads batches and decrypts each into an unencrypted batch, for bulk readers."""

    __slots__ = ()

    def read(self, max_bytes: int, end: Offset) -> ReadResult:
        """Read as `BatchReader.read` does; errors as for `_decrypt`."""
        batches, need = self._decrypt(max_bytes, end)
        slices: list[bytes | memoryview] = [
            opened(read_header(head, 0), frames) for head, _, frames in batches
        ]
        return ReadResult(slices, sum(count for _, count, _ in batches), need)


class OpenedReader(_Opened):
    """Reads record frames in order and decrypts them, for one subscription.

    A batch is decrypted as a whole. What does not fit stays until the next read or `release`.
    """

    __slots__ = ("_generation", "_last_size", "_rest")

    def __init__(self, log: LogView, offset: Offset, cipher: BatchCipher) -> None:
        super().__init__(log, offset, cipher)
        self._generation = log.generation
        self._last_size = 0
        self._rest = memoryview(_NOTHING)

    @property
    def next_offset(self) -> Offset:
        """First offset not yet delivered."""
        return frame_offset(self._rest, 0) if self._rest else self._reader.next_offset

    def read(self, max_bytes: int, end: Offset) -> ReadResult:
        """Read as `LogReader.read` does; errors as for `_decrypt`."""
        if self._generation != self._log.generation:
            self._generation = self._log.generation
            self.release()
        slices: list[bytes | memoryview] = []
        count = 0
        budget = max_bytes
        while True:
            size, records = self._take_rest(slices, budget)
            budget -= size
            count += records
            # The next batch is probably as large as the last one: leave it whole.
            is_full = budget <= 0 or (slices and budget < self._last_size)
            if self._rest or is_full or self._reader.next_offset >= end:
                return ReadResult(slices, count)
            try:
                batches, need = self._decrypt(budget, end)
            except (CorruptionError, FilesError):
                if slices:
                    return ReadResult(slices, count)  # the next read raises it
                raise
            if not batches:
                return ReadResult(slices, count, None if slices else need)
            self._last_size = len(batches[-1][2])
            frames = b"".join([frames for _, _, frames in batches])
            if len(frames) > budget:
                self._rest = memoryview(frames)  # the only batch
            elif frames:
                slices.append(frames)
                budget -= len(frames)
                count += sum([records for _, records, _ in batches])

    def _take_rest(self, slices: list[bytes | memoryview], budget: int) -> tuple[int, int]:
        """Take what fits of the batch that was decrypted last; return its bytes and records."""
        at, taken = _fitting(self._rest, budget, forced=not slices)
        if taken:
            slices.append(self._rest[:at])
            self._rest = self._rest[at:]
        return at, taken

    def release(self) -> None:
        """Release the block, and decrypted frames, until the next read."""
        if self._rest:
            self._reader.rewind(self.next_offset)
            self._rest = memoryview(_NOTHING)
        super().release()

    def close(self) -> None:
        """Close the reader; the result of a read in flight is dropped."""
        self._rest = memoryview(_NOTHING)
        super().close()


def _fitting(frames: memoryview, budget: int, *, forced: bool) -> tuple[int, int]:
    """Return the end and the number of the first frames within a budget.

    With `forced`, at least one.
    """
    at = count = 0
    while at < len(frames):
        end = frame_end(frames, at, len(frames))
        if end > budget and (count or not forced):
            break
        at, count = end, count + 1
    return at, count


def _located(log: LogView, header: BatchHeader, error: CorruptionError) -> CorruptionError:
    """Return the error with the place of the batch in its file."""
    segment = log.segment_at(header.base_offset)
    if segment is None:
        return error
    entry = segment.entry_for(header.base_offset)
    scan = scan_batches(
        segment.log_file, start=entry.position, base_offset=entry.offset, verified=False
    )
    position = next(at for at, found in scan if found.end_offset > header.base_offset)
    return CorruptionError(str(error), path=segment.path, position=position)
