"""Inspects and verifies a data directory without a broker.

Writes nothing. `inspect` reads headers and indexes only; `Verification` reads everything. No broker
may run on the directory at the same time; `adapters.disk.offline` ensures that.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.logformat.batch import BatchHeader
from liftbridge_broker.logformat.encryption import times_of
from liftbridge_broker.model.ids import Offset, PartitionId, number_of, stream_of
from liftbridge_broker.ports.files import Files
from liftbridge_broker.storage.directory import (
    CLEAN,
    IDENTITY,
    JOURNAL,
    CleanMarker,
    DataDirectory,
    Identity,
)
from liftbridge_broker.storage.journal import LoadedJournal, parse_journal
from liftbridge_broker.storage.log.rewrite import is_summary_of
from liftbridge_broker.storage.log.scan import LogFile, reaches_beyond, scan_batches
from liftbridge_broker.storage.log.segment import (
    CLEANED_SUFFIX,
    CUT_SUFFIX,
    LOG_SUFFIX,
    TRUNCATED_SUFFIX,
    Segment,
    base_of,
    index_name,
    log_name,
    read_summary,
)
from liftbridge_broker.storage.log.state import LogState
from liftbridge_broker.storage.smallfile import read_version


class SegmentReport(NamedTuple):
    """One segment; `end`, `records` and timestamps cover the part before any damage.

    Attributes:
        path: Its log file.
        base: First offset of its range.
        end: First offset after its range.
        bytes: Length of the file.
        records: Records in it.
        first_timestamp: Timestamp of its first batch, Unix nanoseconds; 0 without records.
        largest_timestamp: Largest timestamp of a record, Unix nanoseconds; 0 without records.
        has_index: Whether a matching index exists.
        damage: Damage in its headers, empty for none.
    """

    path: str
    base: Offset
    end: Offset
    bytes: int
    records: int
    first_timestamp: int
    largest_timestamp: int
    has_index: bool
    damage: str


class LogReport(NamedTuple):
    """The log of one partition.

    Attributes:
        stream_id: Id of its stream.
        stream: Name of its stream as shown in the directory.
        partition: Number within the stream.
        path: Its folder.
        is_journaled: Whether the journal has it.
        state: State in the journal, or the empty state.
        segments: Its segments, oldest first.
        copies: Copies of bytes that recovery truncated.
    """

    stream_id: int
    stream: str
    partition: int
    path: str
    is_journaled: bool
    state: LogState
    segments: tuple[SegmentReport, ...]
    copies: tuple[str, ...]


class DirectoryReport(NamedTuple):
    """A data directory.

    Attributes:
        identity: Its identity; both fields are empty if it is unreadable.
        clean: Marker of a clean stop, if one exists that matches the journal.
        journal_bytes: Length of the journal.
        journal_damaged_count: Damaged places in it.
        journal_torn_bytes: Bytes of an unfinished write at its end.
        logs: Logs by stream id and partition.
        trash: Deleted logs that wait for the purge.
        unknown: Paths that belong to no known part.
    """

    identity: Identity
    clean: CleanMarker | None
    journal_bytes: int
    journal_damaged_count: int
    journal_torn_bytes: int
    logs: tuple[LogReport, ...]
    trash: tuple[str, ...]
    unknown: tuple[str, ...]


class Severity(StrEnum):
    """Severity of a finding."""

    ERROR = "error"
    """Data is damaged or missing."""

    NOTE = "note"
    """Irregularity that the next start repairs."""


class Finding(NamedTuple):
    """An irregularity.

    Attributes:
        severity: Its severity.
        path: Its file.
        position: Byte in the file; 0 if it concerns the whole file.
        message: Description.
    """

    severity: Severity
    path: str
    position: int
    message: str


def inspect(files: Files, known: Sequence[str] = ()) -> DirectoryReport:
    """Describe a data directory; reads headers and indexes.

    Args:
        files: The directory.
        known: Names in its root that belong to other parts than the store.

    Raises:
        FilesError: The disk refused to read.
    """
    directory = DataDirectory.look(files, known)
    data, loaded = _journal(files)
    logs = [
        _inspect_log(files, partition, path, loaded)
        for partition, path in sorted(directory.logs().items())
    ]
    marker = directory.read_clean_marker()
    return DirectoryReport(
        directory.identity,
        marker if marker is not None and marker.journal == loaded.stamp else None,
        len(data),
        loaded.damaged_count,
        loaded.torn_bytes,
        tuple(logs),
        tuple(trashed.path for trashed in directory.trash()),
        directory.unknown,
    )


def proven_index(files: Files) -> int:
    """Return the greatest metadata index proven by other files: ids of streams, or epochs.

    Raises:
        FilesError: The disk refused to read.
    """
    directory = DataDirectory.look(files)
    marker = directory.read_clean_marker()
    streams = (int(stream_of(partition)) for partition in directory.logs())
    return max(marker.broker_epoch if marker is not None else 0, *streams, 0)


class Verification:
    """A complete read of a data directory.

    Attributes:
        logs: Logs read so far.
        segments: Segments read so far.
        records: Records read so far, all of them with a correct checksum.
        bytes: Bytes of log files read so far.
        errors: Findings so far that are errors.
    """

    def __init__(self, files: Files, known: Sequence[str] = ()) -> None:
        """Start; see `inspect` for the arguments."""
        self._files = files
        self._known = known
        self.logs = 0
        self.segments = 0
        self.records = 0
        self.bytes = 0
        self.errors = 0

    def findings(self) -> Iterator[Finding]:
        """Read everything and yield each finding as soon as it is found.

        Raises:
            FilesError: The disk refused to read.
        """
        for finding in self._findings():
            self.errors += finding.severity is Severity.ERROR
            yield finding

    def _findings(self) -> Iterator[Finding]:
        directory = DataDirectory.look(self._files, self._known)
        _, loaded = _journal(self._files)
        yield from self._check_small_files(directory, loaded)
        for partition, path in sorted(directory.logs().items()):
            self.logs += 1
            yield from self._check_log(partition, path, loaded)
        for path in directory.unknown:
            yield Finding(Severity.NOTE, path, 0, "belongs to no stream and is left alone")

    def _check_small_files(
        self, directory: DataDirectory, loaded: LoadedJournal
    ) -> Iterator[Finding]:
        if read_version(self._files, IDENTITY, IDENTITY) is None:
            text = "missing or damaged"
            if not directory.is_identity_new:
                text += "; the previous version is used"
            yield Finding(Severity.ERROR, IDENTITY, 0, text)
        if loaded.damaged_count:
            text = f"{loaded.damaged_count} damaged places: state of some logs may be lost"
            yield Finding(Severity.ERROR, JOURNAL, 0, text)
        if loaded.torn_bytes:
            yield Finding(
                Severity.NOTE, JOURNAL, 0, f"{loaded.torn_bytes} bytes of an unfinished write"
            )
        marker = directory.read_clean_marker()
        if marker is None and self._files.exists(CLEAN):
            yield Finding(Severity.NOTE, CLEAN, 0, "damaged: the stop does not count as clean")
        elif marker is not None and marker.journal != loaded.stamp:
            yield Finding(Severity.NOTE, CLEAN, 0, "of another journal: it is ignored")

    def _check_log(
        self, partition: PartitionId, path: str, loaded: LoadedJournal
    ) -> Iterator[Finding]:
        state = loaded.states.get(partition)
        bases = _bases(self._files, path)
        end = Offset(min(bases[0], state.log_start)) if bases and state else Offset(0)
        if bases and state is None:
            end = bases[0]
        point = state.recovery_point if state else Offset(0)
        is_damaged = False
        for number, base in enumerate(bases):
            behind = bases[number + 1] if number + 1 < len(bases) else None
            name = f"{path}/{log_name(base)}"
            if base < end and not reaches_beyond(
                self._files, name, partition, base, behind=behind, limit=end
            ):
                yield Finding(Severity.NOTE, name, 0, "merged into the previous segment")
                continue
            if base != end:
                is_damaged = True
                text = f"begins at offset {base}, not at {end}: records are missing"
                yield Finding(_severity(end, point, behind), name, 0, text)
            damage, end = self._check_segment(partition, path, base)
            if damage is not None:
                is_damaged = True
                yield damage._replace(severity=_severity(end, point, behind))
            yield from self._check_index(partition, path, base, end)
        if state is not None and not is_damaged and max(end, state.log_start) < point:
            text = f"ends at offset {end}, but everything below {point} was on disk"
            yield Finding(Severity.ERROR, path, 0, text)
        for name in self._files.list(path):
            if name.endswith((CLEANED_SUFFIX, TRUNCATED_SUFFIX)):
                text = "left by interrupted work; the next start cleans it up"
                yield Finding(Severity.NOTE, f"{path}/{name}", 0, text)

    def _check_segment(
        self, partition: PartitionId, path: str, base: Offset
    ) -> tuple[Finding | None, Offset]:
        """Read a segment in full; return the first damage, and the offset before it."""
        name = f"{path}/{log_name(base)}"
        self.segments += 1
        end = base
        handle = self._files.open(name)
        try:
            size = self._files.size(handle)
            self.bytes += size
            file = LogFile(self._files, handle, name, partition, size)
            for position, header in scan_batches(file, start=0, base_offset=base, verified=True):
                _check_frames(file, position, header)
                self.records += header.count
                end = header.end_offset
        except CorruptionError as error:
            what = error.text.removesuffix(f" ({error.path} at byte {error.position})")
            text = f"{what}; good up to offset {end}"
            return Finding(Severity.ERROR, name, error.position, text), end
        finally:
            self._files.close(handle)
        return None, end

    def _check_index(
        self, partition: PartitionId, path: str, base: Offset, end: Offset
    ) -> Iterator[Finding]:
        name = f"{path}/{index_name(base)}"
        summary = read_summary(self._files, name, partition, base)
        if summary is not None and summary.end_offset > end:
            yield Finding(Severity.NOTE, name, 0, "covers more than the log holds; it is rebuilt")


def _severity(end: Offset, recovery_point: Offset, behind: Offset | None) -> Severity:
    """Return the severity of damage at an offset.

    Above the recovery point it may be a torn tail.
    """
    is_tail = end >= recovery_point and behind is None
    return Severity.NOTE if is_tail else Severity.ERROR


def _check_frames(file: LogFile, position: int, header: BatchHeader) -> None:
    """Check that the frames of a batch match its header.

    Raises:
        CorruptionError: The frames do not match.
    """
    batch = file.read(position, header.size)
    count = 0
    for offset, _ in times_of(batch, header):
        count += 1
        if not header.base_offset <= offset <= header.last_offset:
            text = f"record of offset {offset} in the batch of {header.base_offset}"
            raise CorruptionError(text, path=file.path, position=position)
    if count != header.count:
        text = f"{count} records in a batch of {header.count}"
        raise CorruptionError(text, path=file.path, position=position)


def _journal(files: Files) -> tuple[bytes, LoadedJournal]:
    data = b""
    if files.exists(JOURNAL):
        handle = files.open(JOURNAL)
        data = files.read(handle, 0, files.size(handle))
        files.close(handle)
    return data, parse_journal(data)


def _bases(files: Files, path: str) -> list[Offset]:
    bases = [base_of(name, LOG_SUFFIX) for name in files.list(path)]
    return sorted(base for base in bases if base is not None)


def _inspect_log(
    files: Files, partition: PartitionId, path: str, loaded: LoadedJournal
) -> LogReport:
    folder = path.split("/")[1]
    nothing = LogState(Offset(0), Offset(0), Offset(0), ())
    return LogReport(
        stream_of(partition),
        folder.partition("-")[2],
        number_of(partition),
        path,
        partition in loaded.states,
        loaded.states.get(partition, nothing),
        tuple(_inspect_segment(files, partition, path, base) for base in _bases(files, path)),
        tuple(f"{path}/{name}" for name in files.list(path) if name.endswith(CUT_SUFFIX)),
    )


def _inspect_segment(
    files: Files, partition: PartitionId, path: str, base: Offset
) -> SegmentReport:
    """Describe a segment by its index, or by its headers if the index does not match."""
    segment = Segment(files, path, partition, base)
    handle = files.open(segment.path)
    damage = ""
    size, has_index = 0, False
    try:
        size = files.size(handle)
        file = LogFile(files, handle, segment.path, partition, size)
        summary = read_summary(files, segment.index_path, partition, base)
        has_index = summary is not None and is_summary_of(file, summary)
        if summary is not None and has_index:
            segment.adopt_summary(summary)
        else:
            for _, header in scan_batches(file, start=0, base_offset=base, verified=False):
                segment.note_batch(header)
    except CorruptionError as error:
        damage = error.text
    finally:
        files.close(handle)
    has_records = segment.record_count > 0
    return SegmentReport(
        segment.path,
        base,
        segment.end_offset,
        size,
        segment.record_count,
        segment.first_timestamp if has_records else 0,
        segment.largest_timestamp if has_records else 0,
        has_index,
        damage,
    )
