"""Look-ups by time in a log: the offset for a timestamp, and the timestamps at both ends.

Blocking reads of an index and of the log after one entry; for subscriptions that start at a time
and for metadata, never per record.
"""

from collections.abc import Iterator

from liftbridge_broker.logformat.batch import BatchHeader
from liftbridge_broker.logformat.encryption import times_of
from liftbridge_broker.model.ids import Offset
from liftbridge_broker.storage.log.index import IndexEntry
from liftbridge_broker.storage.log.scan import read_batch, scan_batches
from liftbridge_broker.storage.log.segment import Segment
from liftbridge_broker.storage.log.view import LogView


def offset_for_timestamp(log: LogView, timestamp: int) -> Offset:
    """Return the first offset with a timestamp >= `timestamp`, or the log end offset.

    Reads an index and about 4 KiB or one batch of the log.

    Raises:
        CorruptionError: The bytes read are damaged.
        FilesError: A file cannot be read.
    """
    start = log.log_start_offset
    for segment in log.live_segments():
        if segment.end_offset <= start or segment.largest_timestamp < timestamp:
            continue
        if not segment.record_count:
            continue
        for position, header in _batches(segment, segment.entry_for_timestamp(timestamp)):
            if header.end_offset <= start or header.largest_timestamp < timestamp:
                continue
            for offset, at in _records(segment, position):
                if offset >= start and at >= timestamp:
                    return offset
    return log.log_end_offset


def last_offset_at_or_before(log: LogView, timestamp: int) -> Offset | None:
    """Return the last offset before the first record that is later than `timestamp`.

    A leader writes timestamps that never decrease, so this is the last record with a timestamp <=
    `timestamp`. `None` if the log is empty or its first record is later. Errors as for
    `offset_for_timestamp`.
    """
    record = last_record_before(log, offset_for_timestamp(log, timestamp + 1))
    return None if record is None else record[0]


def first_timestamp(log: LogView) -> int | None:
    """Return the timestamp of the first readable record, `None` without records."""
    return timestamp_from(log, log.log_start_offset)


def timestamp_from(log: LogView, start: Offset) -> int | None:
    """Return the timestamp of the first record at or after an offset, `None` without one.

    Reads an index and about 4 KiB or one batch of the log. Errors as for `offset_for_timestamp`.

    Args:
        log: The log.
        start: The offset, at least the log start.
    """
    for segment in log.live_segments():
        if segment.end_offset <= start or not segment.record_count:
            continue
        entry = segment.entry_for(max(start, segment.base_offset))
        for position, header in _batches(segment, entry):
            if header.end_offset <= start or not header.count:
                continue
            for offset, timestamp in _records(segment, position):
                if offset >= start:
                    return timestamp
    return None


def last_timestamp(log: LogView) -> int | None:
    """Return the timestamp of the last record, `None` without records."""
    record = last_record_before(log, log.log_end_offset)
    return None if record is None else record[1]


def last_record_before(log: LogView, end: Offset) -> tuple[Offset, int] | None:
    """Return offset and timestamp of the last record in [log start, end), `None` for none."""
    start = log.log_start_offset
    for segment in reversed(log.live_segments()):
        if segment.base_offset >= end or not segment.record_count:
            continue
        if segment.end_offset <= start:
            return None
        number = segment.index.floor_offset(Offset(min(end, segment.end_offset) - 1))
        # Compaction may have left only fillers after an entry, so go back entry by entry.
        for entry_number in range(number, -1, -1):
            entry = segment.index.entry(entry_number)
            found = _last_of(segment, entry, start, end)
            if found is not None:
                return found
            if entry.offset <= start:
                return None
    return None


def _last_of(
    segment: Segment, entry: IndexEntry, start: Offset, end: Offset
) -> tuple[Offset, int] | None:
    """Return the last record in [start, end) at or after an entry, within its segment."""
    last: list[int] = []
    for position, header in _batches(segment, segment.entry_for(entry.offset)):
        if header.base_offset >= end:
            break
        if header.count and header.end_offset > start:
            last.append(position)
    for position in reversed(last):
        inside = [found for found in _records(segment, position) if start <= found[0] < end]
        if inside:
            return inside[-1]
    return None


def _batches(segment: Segment, entry: IndexEntry) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the headers from an entry to the end of its segment."""
    return scan_batches(
        segment.log_file, start=entry.position, base_offset=entry.offset, verified=False
    )


def _records(segment: Segment, position: int) -> Iterator[tuple[Offset, int]]:
    """Yield offset and timestamp of each record of a batch, which is verified first."""
    header, batch = read_batch(segment.log_file, position)
    for offset, timestamp in times_of(batch, header):
        yield Offset(offset), timestamp
