"""Changes of segment files that must be atomic across crashes: truncation and replacement.

A cut at a batch boundary truncates the file in one step. A cut inside a batch takes two steps, so
the batch to write is first stored durably in `<base>.log.truncated`::

    0  4 magic "LBTR"    4  8 position, big-endian    12 .. the re-cut batch

The batch carries its own checksum. As long as that file exists and is whole, the next start repeats
the two steps; otherwise they have not started.
"""

from struct import Struct
from typing import Final, NamedTuple

from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.logformat.batch import HEADER_SIZE, BatchHeader, read_header, verify
from liftbridge_broker.logformat.cut import cut
from liftbridge_broker.logformat.index_blocks import Summary
from liftbridge_broker.model.ids import Offset, PartitionId
from liftbridge_broker.ports.files import Files
from liftbridge_broker.storage.log.scan import LogFile, read_batch, scan_batches
from liftbridge_broker.storage.log.segment import (
    CLEANED_SUFFIX,
    TRUNCATED_SUFFIX,
    Segment,
    read_file,
    read_summary,
)
from liftbridge_broker.storage.log.types import NO_TIMESTAMP

_REDO: Final = Struct(">4sQ")
_REDO_MAGIC: Final = b"LBTR"


class _Cut(NamedTuple):
    """The remaining part of a segment after a truncation.

    Attributes:
        position: End of the log file after the cut.
        recut: Batch to append then, empty if the cut is between batches.
        end_offset: First offset after the batches before `position`.
        record_count: Frames before `position`.
        largest_timestamp: Largest timestamp before `position`.
        last_position: Start of the last batch before `position`.
        last_crc: Checksum field of the last batch before `position`.
    """

    position: int
    recut: bytes
    end_offset: Offset
    record_count: int
    largest_timestamp: int
    last_position: int
    last_crc: int


def truncate_segment(segment: Segment, end: Offset) -> None:
    """Cut a segment so that it ends at an offset within its range.

    Reads only the headers of the removed part and a little before it.

    Raises:
        FilesError: The file system failed; the next start completes the cut, if it had started.
        CorruptionError: A batch from the cut on is damaged; nothing was changed.
    """
    assert segment.base_offset < end < segment.end_offset
    plan = _plan_cut(segment, end)
    segment.reset_index_file()
    if plan.recut:
        _write_redo(segment, plan.position, plan.recut)
    shrink(segment, plan.position)
    segment.index.cut(plan.position)
    segment.end_offset = plan.end_offset
    segment.record_count = plan.record_count
    segment.largest_timestamp = plan.largest_timestamp
    segment.last_position = plan.last_position
    segment.last_crc = plan.last_crc
    if plan.recut:
        handle = segment.open()
        segment.files.append(handle, plan.recut)
        segment.files.sync(handle)
        segment.note_batch(read_header(plan.recut, 0))
        segment.files.remove(segment.path + TRUNCATED_SUFFIX)
        segment.files.sync_directory(segment.directory)


def _plan_cut(segment: Segment, end: Offset) -> _Cut:
    """Find the place of a cut and the state before it."""
    # The entry before that of the last remaining offset: its timestamp covers all batches up to its
    # own, and the walk adds the rest.
    entry = segment.entry_for(Offset(end - 1))
    index = segment.index
    number = max(0, index.floor_offset(entry.offset) - 1)
    entry = index.entry(number)
    largest = entry.timestamp if number else NO_TIMESTAMP
    position, recut = segment.size, b""
    kept_end, last_position, last_crc = segment.base_offset, 0, 0
    removed = 0
    walk = scan_batches(
        segment.log_file, start=entry.position, base_offset=entry.offset, verified=False
    )
    for at, header in walk:
        if header.end_offset <= end:
            kept_end, last_position, last_crc = header.end_offset, at, header.crc
            largest = max(largest, header.largest_timestamp)
            continue
        position = min(position, at)
        removed += header.count
        if header.base_offset < end:
            kept_end = header.base_offset
            recut = cut(read_batch(segment.log_file, at)[1], kept_end, end)
    return _Cut(
        position,
        recut,
        kept_end,
        segment.record_count - removed,
        largest,
        last_position,
        last_crc,
    )


def shrink(segment: Segment, position: int) -> None:
    """Cut the log file of a segment at a batch boundary, durably; its index file is empty.

    It must be durable before the next append. Otherwise the page of the cut may reach the disk with
    new bytes while old bytes follow it, which looks like rot.
    """
    handle = segment.open()
    segment.files.truncate(handle, position)
    segment.files.sync(handle)
    segment.verified.cut(position)
    segment.size = position
    segment.is_index_written = False


def _write_redo(segment: Segment, position: int, recut: bytes) -> None:
    """Store durably what the cut will be."""
    files = segment.files
    path = segment.path + TRUNCATED_SUFFIX
    handle = files.open(path, create=True)
    try:
        files.truncate(handle, 0)
        files.append(handle, _REDO.pack(_REDO_MAGIC, position) + recut)
        files.sync(handle)
    finally:
        files.close(handle)
    files.sync_directory(segment.directory)


def complete_truncation(files: Files, log_path: str, partition_id: PartitionId) -> bool:
    """Repeat the steps of a left-over `.truncated` file, and remove it.

    Args:
        files: Port to the data directory.
        log_path: Path of the log file it belongs to.
        partition_id: Partition the batch must be of.

    Returns:
        Whether a cut was completed; else the file was not whole and the cut had not started.

    Raises:
        FilesError: The file system failed; the next start must retry.
    """
    redo_path = log_path + TRUNCATED_SUFFIX
    redo = read_file(files, redo_path)
    found = _read_redo(redo, partition_id)
    directory = log_path.rpartition("/")[0]
    if found is not None and files.exists(log_path):
        position, header = found
        _make_durable(files, redo_path)
        handle = files.open(log_path)
        try:
            if files.size(handle) >= position:
                files.truncate(handle, position)
                files.append(handle, redo[_REDO.size : _REDO.size + header.size])
                files.sync(handle)
        finally:
            files.close(handle)
    files.remove(redo_path)
    files.sync_directory(directory)
    return found is not None


def _make_durable(files: Files, path: str) -> None:
    """Sync the file before acting on it: a sync of the previous process may have failed."""
    handle = files.open(path)
    try:
        files.rewrite(handle, 0)
        files.sync(handle)
    finally:
        files.close(handle)


def _read_redo(redo: bytes, partition_id: PartitionId) -> tuple[int, BatchHeader] | None:
    """Read the position and the batch header of a whole redo file."""
    if len(redo) < _REDO.size:
        return None
    magic, position = _REDO.unpack_from(redo)
    try:
        header = read_header(redo, _REDO.size)
        verify(redo, _REDO.size, header)
    except CorruptionError:
        return None
    is_ours = magic == _REDO_MAGIC and header.partition_id == partition_id
    return (position, header) if is_ours else None


def swap_in(old: Segment, *, end: Offset) -> Segment:
    """Rename the compacted file of a segment over its log file.

    Args:
        old: The segment whose files are replaced.
        end: First offset after the range the compacted file must cover.

    Returns:
        The sealed segment that reads the compacted file.

    Raises:
        CorruptionError: The compacted file covers another range; nothing was changed.
        FilesError: The file system failed.
    """
    files, directory = old.files, old.directory
    made = load_cleaned(files, old)
    if made.end_offset != end:
        message = f"compacted file ends at offset {made.end_offset}, not at {end}"
        raise CorruptionError(message, path=old.path + CLEANED_SUFFIX)
    # A crash may leave the old index beside the new file; then its summary does not match.
    files.rename(old.path + CLEANED_SUFFIX, old.path)
    if files.exists(old.index_path + CLEANED_SUFFIX):
        files.rename(old.index_path + CLEANED_SUFFIX, old.index_path)
    files.sync_directory(directory)
    handle = made.write_index()
    if handle is not None:
        files.close(handle)
    return made


def load_cleaned(files: Files, old: Segment) -> Segment:
    """Load the compacted files of a segment, from their index or by walking the log."""
    made = Segment(files, old.directory, old.partition_id, old.base_offset)
    made.has_files = made.is_sealed = True
    made.first_append_ns = old.first_append_ns
    path = old.path + CLEANED_SUFFIX
    handle = files.open(path)
    try:
        file = LogFile(files, handle, path, old.partition_id, files.size(handle))
        summary = read_summary(
            files, old.index_path + CLEANED_SUFFIX, old.partition_id, old.base_offset
        )
        if summary is not None and is_summary_of(file, summary):
            made.adopt_summary(summary)
            return made
        for _, header in scan_batches(file, start=0, base_offset=old.base_offset, verified=False):
            made.note_batch(header)
    finally:
        files.close(handle)
    if files.exists(old.index_path + CLEANED_SUFFIX):
        files.remove(old.index_path + CLEANED_SUFFIX)
    return made


def is_summary_of(file: LogFile, summary: Summary) -> bool:
    """Return whether a summary describes a log file: its length and its last batch.

    Raises:
        FilesError: The log cannot be read.
    """
    if summary.log_length != file.size:
        return False
    try:
        header = read_header(file.read(summary.last_position, HEADER_SIZE), 0)
    except CorruptionError:
        return False
    return (
        header.crc == summary.last_crc
        and header.partition_id == file.partition_id
        and header.end_offset == summary.end_offset
        and summary.last_position + header.size == file.size
    )


def write_index_file(
    files: Files, log_path: str, index_path: str, partition_id: PartitionId, base_offset: Offset
) -> None:
    """Write the index file of a log file, for instance of a compacted one; blocking.

    Raises:
        CorruptionError: The log file is damaged.
        FilesError: The file system failed.
    """
    handle = files.open(log_path)
    made = Segment(files, "", partition_id, base_offset)
    try:
        file = LogFile(files, handle, log_path, partition_id, files.size(handle))
        for _, header in scan_batches(file, start=0, base_offset=base_offset, verified=False):
            made.note_batch(header)
    finally:
        files.close(handle)
    data = made.index.take_blocks(partition_id) + made.summary_bytes
    index = files.open(index_path, create=True)
    try:
        files.truncate(index, 0)
        files.append(index, data)
        files.sync(index)
    finally:
        files.close(index)
