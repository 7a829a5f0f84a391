"""Compaction by key: below a bound, it keeps only the last record of each key.

Follows the original's rules except for its defects: it compacts only sealed segments, keeps records
without a key, and always keeps the last record of the log. It also keeps ranges of offsets: batches
that lost all their records become header-only *fillers*. Adjoining fillers of a leader epoch are
merged, never across epochs. The last batch of an idempotent publisher keeps its own header, so that
a replica that copies the log knows the publisher's last sequence (Kafka does the same). Segments
that have become small are merged.

The bound is the offset that is both committed and synced. A power cut may still undo a newer
record, which must not cause an older record to be dropped.

It only reads and writes files, in bounded steps, so that it can run in a helper process
(`adapters.disk.compactor`) or, in simulations and tests, between the events of a node. Results are
files `<log>.cleaned` that the owner swaps in, oldest first; files left by an earlier crash are
removed at the next start.
"""

import json
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from itertools import count
from typing import Final, NamedTuple

from liftbridge_broker.errors import CorruptionError, FilesError
from liftbridge_broker.logformat.batch import (
    ATTRIBUTE_COMPACTED,
    ATTRIBUTE_FILLER,
    HEADER_SIZE,
    BatchHeader,
    filler,
    read_header,
    seal,
)
from liftbridge_broker.logformat.cipher import BatchCipher
from liftbridge_broker.logformat.encryption import SALT_SIZE
from liftbridge_broker.logformat.frames import (
    decode_frame,
    frame_key,
    frame_timestamp,
    iter_frames,
)
from liftbridge_broker.model.ids import Offset, PartitionId, PublisherId
from liftbridge_broker.model.units import MIB
from liftbridge_broker.ports.files import FileEvent, FileHandle, Files, Token
from liftbridge_broker.storage.log.rewrite import write_index_file
from liftbridge_broker.storage.log.scan import LogFile, scan_batches
from liftbridge_broker.storage.log.segment import CLEANED_SUFFIX, index_name, log_name

STEP_BYTES: Final = MIB
"""Bytes of log read in one step, unless one batch is larger."""
KEY_COUNT_MAX: Final = 1_000_000
"""Maximum number of keys held in a pass, about 130 bytes each.

A log with more keys needs several passes.
"""
PUBLISHER_COUNT_MAX: Final = 20_000
"""Maximum number of publishers whose last header stays, at most 88 bytes each.

Beyond it, the longest silent publisher is dropped. The metadata know at most half as many
publishers of a stream. While a publisher is known, as many others may have registered and published
after it, so it is dropped only after more than that.
"""
NOTHING: Final = Offset(0)
"""Lower bound: no offset is below it."""
_SHORT_KEY_BYTES: Final = 24
_DIGEST_BYTES: Final = 16
_WRITE_BYTES: Final = MIB
_RELATIVE_MAX: Final = (1 << 32) - 1
_BYTES: Final = ("key", "salt")
"""Fields of a job that JSON holds as hexadecimal text."""


class SegmentRef(NamedTuple):
    """A segment at the time when the job was created; `size` is the valid length of its file."""

    base: Offset
    end: Offset
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionJob:
    """A compaction to do.

    Attributes:
        directory: Folder of the log.
        partition_id: Its partition.
        segments: All its segments, oldest first, adjoining.
        sealed_count: Number of leading segments that may be rewritten.
        until: Offset from which records are neither dropped nor make other records obsolete.
        map_start: Position at which to start collecting keys.
        segment_bytes_max: Size up to which small segments are merged, 0 for never.
        key_count_max: Maximum number of keys to hold.
        publisher_count_max: Maximum number of publishers whose last header stays.
        tombstones_before_ns: Tombstones with an older timestamp may be dropped; 0 keeps them all.
        tombstones_until: Offset up to which every replica was compacted cleanly.
        key: Key of the partition; empty for a log that is not encrypted.
        salt: Random bytes of this job, which decide the salts of what it encrypts.
    """

    directory: str
    partition_id: PartitionId
    segments: tuple[SegmentRef, ...]
    sealed_count: int
    until: Offset
    map_start: Offset
    segment_bytes_max: int
    key_count_max: int = KEY_COUNT_MAX
    publisher_count_max: int = PUBLISHER_COUNT_MAX
    tombstones_before_ns: int = 0
    tombstones_until: Offset = NOTHING
    key: bytes = field(default=b"", repr=False)
    salt: bytes = b""

    def cipher(self) -> BatchCipher | None:
        """Return the cipher of the log, `None` if it is not encrypted."""
        if not self.key:
            return None
        numbers = count()

        def new_salt() -> bytes:
            number = next(numbers).to_bytes(8, "big")
            return blake2b(number, key=self.salt, digest_size=SALT_SIZE).digest()

        cipher = BatchCipher(self.partition_id, new_salt)
        cipher.unlock(self.key)
        return cipher


class _Batch(NamedTuple):
    """A verified batch.

    Attributes:
        stored: Its bytes.
        plain: The same batch, decrypted if it is encrypted.
        header: Header of `plain`.
    """

    stored: bytes
    plain: bytes
    header: BatchHeader

    @property
    def size(self) -> int:
        """Bytes of it in the log."""
        return len(self.stored)


class Replacement(NamedTuple):
    """A file `<log of the first>.cleaned` that replaces segments."""

    segments: tuple[SegmentRef, ...]


class CompactionResult(NamedTuple):
    """Outcome of a job.

    Attributes:
        replacements: Files to swap in, in this order.
        removed_count: Records dropped.
        before_bytes: Bytes of the segments that were rewritten.
        after_bytes: Bytes of their replacements.
        map_end: Offset up to which keys were collected; `until` if all fitted.
    """

    replacements: tuple[Replacement, ...]
    removed_count: int
    before_bytes: int
    after_bytes: int
    map_end: Offset


SubmitCompaction = Callable[[Token, CompactionJob], None]
"""Starts a job outside of the node, one after the other; a `FileEvent` with `encode_result` of its
outcome, or an error, follows."""

Steps = Generator[None, None, CompactionResult]


def compact(files: Files, job: CompactionJob) -> Steps:
    """Compact a log in steps; the generator returns the result.

    Raises:
        CorruptionError: A batch is damaged; nothing takes effect.
        FilesError: The file system failed or is full; nothing takes effect.
    """
    made: list[str] = []
    try:
        return (yield from _compact(files, job, made))
    except (CorruptionError, FilesError):
        for path in made:
            files.remove(path)
        raise


@dataclass(slots=True)
class _Sieve:
    """Decides which records stay.

    Attributes:
        job: The job.
        map_end: First offset whose key was not collected.
        cipher: Cipher of the log, `None` if it is not encrypted.
        latest: Last offset of every key collected.
        publishers: Base offset of each publisher's last batch, the longest silent first.
        silent_until: Offset up to which batches belong to publishers dropped as the longest silent,
            unless `publishers` has them.
    """

    job: CompactionJob
    map_end: Offset
    cipher: BatchCipher | None
    latest: dict[bytes, int] = field(default_factory=dict)
    publishers: dict[PublisherId, Offset] = field(default_factory=dict)
    silent_until: int = -1

    def collect(self, batch: bytes, header: BatchHeader) -> bool:
        """Record the publisher and the keys of a batch; return false if no more keys fit."""
        self._note_publisher(header)
        latest = self.latest
        for position, _, offset in iter_frames(batch, HEADER_SIZE, len(batch)):
            if offset >= self.job.until:
                break
            key = frame_key(batch, position)
            if not key:
                continue
            name = _name(key)
            if name not in latest and len(latest) >= self.job.key_count_max:
                self.map_end = offset
                return False
            latest[name] = offset
        return True

    def _note_publisher(self, header: BatchHeader) -> None:
        publishers = self.publishers
        if header.publisher_id == 0:
            return
        publishers.pop(header.publisher_id, None)
        publishers[header.publisher_id] = header.base_offset
        if len(publishers) > self.job.publisher_count_max:
            self.silent_until = publishers.pop(next(iter(publishers)))

    def has_last_state(self, header: BatchHeader) -> bool:
        """Return whether the header of an emptied batch has the last state of a publisher."""
        if header.publisher_id == 0 or header.base_offset <= self.silent_until:
            return False
        # A publisher that this pass did not record may have no later batch.
        last = self.publishers.get(header.publisher_id, header.base_offset)
        return last <= header.base_offset

    def kept(self, batch: bytes) -> list[tuple[int, int]]:
        """Return the start and end of the records of a batch to keep."""
        return [
            (position, end)
            for position, end, offset in iter_frames(batch, HEADER_SIZE, len(batch))
            if self._stays(batch, position, end, offset)
        ]

    def _stays(self, batch: bytes, position: int, end: int, offset: Offset) -> bool:
        job = self.job
        # The last committed record stays even as a tombstone, so that a log never ends in a gap.
        if offset >= self.map_end or offset >= job.until - 1:
            return True
        key = frame_key(batch, position)
        if not key:
            return True
        if self.latest.get(_name(key), -1) > offset:
            return False
        if not job.tombstones_before_ns or offset >= job.tombstones_until:
            return True
        is_old = frame_timestamp(batch, position) < job.tombstones_before_ns
        return not (is_old and not decode_frame(batch, position, end).value)


@dataclass(slots=True)
class _Pace:
    """Decides when a step is long enough."""

    bytes_read: int = 0

    def is_over(self, size: int) -> bool:
        """Count bytes; return whether to yield."""
        self.bytes_read += size
        if self.bytes_read < STEP_BYTES:
            return False
        self.bytes_read = 0
        return True


def _compact(files: Files, job: CompactionJob, made: list[str]) -> Steps:
    sieve = _Sieve(job, job.until, job.cipher())
    pace = _Pace()
    yield from _collect_keys(files, job, sieve, pace)
    kept: list[int] = []
    removed: list[int] = []
    for segment in job.segments[: job.sealed_count]:
        size, count = yield from _weigh(files, segment, sieve, pace)
        kept.append(size)
        removed.append(count)
    replacements = []
    before_bytes = after_bytes = removed_count = 0
    for first, end in _groups(job, kept, removed):
        group = job.segments[first:end]
        after_bytes += yield from _rewrite(files, job, group, sieve, pace, made)
        before_bytes += sum(segment.size for segment in group)
        removed_count += sum(removed[first:end])
        replacements.append(Replacement(group))
    return CompactionResult(
        tuple(replacements), removed_count, before_bytes, after_bytes, sieve.map_end
    )


def _collect_keys(
    files: Files, job: CompactionJob, sieve: _Sieve, pace: _Pace
) -> Generator[None, None, None]:
    for segment in job.segments:
        if segment.end <= job.map_start:
            continue
        for batch in _batches(files, sieve, segment):
            header = batch.header
            if header.base_offset >= job.until:
                return
            if header.end_offset > job.map_start and not sieve.collect(batch.plain, header):
                return
            if pace.is_over(batch.size):
                yield


def _weigh(
    files: Files, segment: SegmentRef, sieve: _Sieve, pace: _Pace
) -> Generator[None, None, tuple[int, int]]:
    """Estimate the bytes of a segment to keep, and count the records to drop."""
    kept_bytes = removed = 0
    for batch in _batches(files, sieve, segment):
        kept = sieve.kept(batch.plain)
        kept_bytes += HEADER_SIZE + sum(end - position for position, end in kept)
        removed += batch.header.count - len(kept)
        if pace.is_over(batch.size):
            yield
    return kept_bytes, removed


def _groups(
    job: CompactionJob, kept: Sequence[int], removed: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Yield groups of segments to write as a file each.

    Segments that lose records, and adjoining small segments.
    """
    first = 0
    while first < len(kept):
        end = first + 1
        total = kept[first]
        while end < len(kept) and total + kept[end] <= job.segment_bytes_max:
            if job.segments[end].end - job.segments[first].base > _RELATIVE_MAX:
                break
            total += kept[end]
            end += 1
        if end - first > 1 or removed[first]:
            yield first, end
        first = end


def _rewrite(
    files: Files,
    job: CompactionJob,
    group: Sequence[SegmentRef],
    sieve: _Sieve,
    pace: _Pace,
    made: list[str],
) -> Generator[None, None, int]:
    """Write the kept records of a group into a file with its index; return the file size."""
    base = group[0].base
    path = cleaned_path(job.directory, base)
    index_path = f"{job.directory}/{index_name(base)}{CLEANED_SUFFIX}"
    for left_over in (path, index_path):
        made.append(left_over)
        files.remove(left_over)
    handle = files.open(path, create=True)
    try:
        output = _Output(files, handle, job.partition_id)
        for segment in group:
            for batch in _batches(files, sieve, segment):
                _sift(batch, sieve, output)
                if pace.is_over(batch.size):
                    yield
        output.finish()
        files.sync(handle)
        size = files.size(handle)
    finally:
        files.close(handle)
    write_index_file(files, path, index_path, job.partition_id, base)
    return size


def _sift(batch: _Batch, sieve: _Sieve, output: "_Output") -> None:
    """Write the kept records of a batch to the output."""
    header = batch.header
    kept = sieve.kept(batch.plain)
    if not kept:
        if sieve.has_last_state(header):  # guard Log.publishers
            output.put(_resealed(batch.plain, header, kept))
        else:
            output.put_empty(header)
        return
    if len(kept) == header.count:
        output.put(batch.stored)
        return
    made = _resealed(batch.plain, header, kept)
    output.put(made if sieve.cipher is None else sieve.cipher.close_batch(made))


def _resealed(batch: bytes, header: BatchHeader, kept: Sequence[tuple[int, int]]) -> bytes:
    """Rebuild a batch with its range, its publisher and the kept records, perhaps none."""
    timestamps = [frame_timestamp(batch, position) for position, _ in kept]
    attributes = header.attributes | ATTRIBUTE_COMPACTED
    return seal(
        frames=[batch[position:end] for position, end in kept],
        partition_id=header.partition_id,
        leader_epoch=header.leader_epoch,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        count=len(kept),
        first_timestamp=timestamps[0] if kept else header.first_timestamp,
        largest_timestamp=max(timestamps, default=header.largest_timestamp),
        attributes=attributes if kept else attributes | ATTRIBUTE_FILLER,
        publisher_id=header.publisher_id,
        publisher_epoch=header.publisher_epoch,
        first_sequence=header.first_sequence,
    )


class _Output:
    """An output file of batches; adjoining empty ones of an epoch are merged."""

    def __init__(self, files: Files, handle: FileHandle, partition_id: PartitionId) -> None:
        self._files = files
        self._handle = handle
        self._partition_id = partition_id
        self._pieces: list[bytes] = []
        self._bytes = 0
        self._empty: BatchHeader | None = None

    def put(self, batch: bytes) -> None:
        """Add a batch with records."""
        self._settle()
        self._add(batch)

    def put_empty(self, header: BatchHeader) -> None:
        """Add the range of a batch without records."""
        before = self._empty
        if before is not None and before.leader_epoch == header.leader_epoch:
            timestamp = max(before.largest_timestamp, header.largest_timestamp)
            self._empty = before._replace(
                last_offset=header.last_offset, largest_timestamp=timestamp
            )
            return
        self._settle()
        self._empty = header

    def finish(self) -> None:
        """Write the pending batches."""
        self._settle()
        self._write()

    def _settle(self) -> None:
        """Write the pending range of empty batches, before any other batch."""
        empty = self._empty
        if empty is None:
            return
        self._empty = None
        self._add(
            filler(
                partition_id=self._partition_id,
                leader_epoch=empty.leader_epoch,
                base_offset=empty.base_offset,
                last_offset=empty.last_offset,
                timestamp=empty.largest_timestamp,
                attributes=ATTRIBUTE_COMPACTED,
            )
        )

    def _add(self, batch: bytes) -> None:
        self._pieces.append(batch)
        self._bytes += len(batch)
        if self._bytes >= _WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        if self._pieces:
            self._files.append(self._handle, b"".join(self._pieces))
            self._pieces.clear()
            self._bytes = 0


def cleaned_path(directory: str, base: Offset) -> str:
    """Return the path of the file that replaces a segment and the segments merged into it."""
    return f"{directory}/{log_name(base)}{CLEANED_SUFFIX}"


def encode_job(job: CompactionJob) -> bytes:
    """Encode a job as one line of JSON, for the helper process."""
    values = asdict(job)
    for name in _BYTES:
        values[name] = values[name].hex()
    return json.dumps(values).encode()


def decode_job(data: bytes) -> CompactionJob:
    """Decode a job from its line of JSON."""
    values = json.loads(data)
    for name in _BYTES:
        values[name] = bytes.fromhex(values[name])
    values["segments"] = tuple(SegmentRef(*segment) for segment in values["segments"])
    return CompactionJob(**values)


def encode_result(result: CompactionResult | CorruptionError) -> bytes:
    """Encode a result, or the damage found, as one line of JSON."""
    if isinstance(result, CorruptionError):
        damage = {"text": result.text, "path": result.path, "position": result.position}
        return json.dumps(damage).encode()
    return json.dumps(result).encode()


def decode_result(event: FileEvent) -> CompactionResult:
    """Decode the result of a runner.

    Raises:
        CorruptionError: A batch is damaged.
        FilesError: The job failed.
    """
    if event.error is not None:
        raise event.error
    outcome = json.loads(event.data)
    if isinstance(outcome, dict):
        raise CorruptionError.restored(**outcome)
    replacements, *numbers = outcome
    groups = tuple(
        Replacement(tuple(SegmentRef(*segment) for segment in group)) for (group,) in replacements
    )
    return CompactionResult(groups, *numbers)


def _batches(files: Files, sieve: _Sieve, segment: SegmentRef) -> Iterator[_Batch]:
    """Yield the batches of a segment, verified and decrypted."""
    job, cipher = sieve.job, sieve.cipher
    path = f"{job.directory}/{log_name(segment.base)}"
    handle = files.open(path)
    try:
        file = LogFile(files, handle, path, job.partition_id, segment.size)
        walk = scan_batches(file, start=0, base_offset=segment.base, verified=True)
        for position, header in walk:
            stored = file.read(position, header.size)
            if cipher is None:
                yield _Batch(stored, stored, header)
                continue
            try:
                plain = cipher.open_batch(stored)
            except CorruptionError as error:
                raise file.damage(str(error), position) from error
            yield _Batch(stored, plain, read_header(plain, 0))
    finally:
        files.close(handle)


def _name(key: bytes) -> bytes:
    """Return a key's name in memory: the key itself, or a collision-resistant digest."""
    if len(key) < _SHORT_KEY_BYTES:
        return key
    # Longer than any short key, so that a digest never equals a key.
    return (
        b"\0" * (_SHORT_KEY_BYTES - _DIGEST_BYTES)
        + blake2b(key, digest_size=_DIGEST_BYTES).digest()
    )
