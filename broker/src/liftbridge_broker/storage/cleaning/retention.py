"""Decides which segments a stream no longer needs, without side effects.

The rules and their order are the original's: age, then messages, then bytes. They remove whole
segments and always keep the active segment. In addition, retention removes only committed and
synced records: after a power cut, unsynced records might reappear, torn. Uncommitted records do not
count either: if they were truncated, the log would have lost records that should have stayed.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

from liftbridge_broker.model.ids import Instant, Offset, PartitionId
from liftbridge_broker.model.streams import StreamOptions
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.storage.log.types import SegmentInfo


class RetentionLimits(NamedTuple):
    """Limits of retention in a partition; 0 is no limit.

    Attributes:
        age_ns_max: Age of a segment's newest record above which the segment is removed.
        records_max: Committed records kept, counted from the newest segment back.
        bytes_max: Bytes kept, counted in the same way.
    """

    age_ns_max: int
    records_max: int
    bytes_max: int


class CursorUnknown(StrEnum):
    """Reason why the position of a retention cursor is unknown; then retention removes nothing."""

    ABSENT = "absent"
    """The cursor was never set."""
    FORMER = "former_stream"
    """The cursor was set for a deleted stream of this name, or by a broker of an old version."""
    UNCLEAN = "unclean_election"
    """The cursor was set before an unclean election.

    Its offset may now belong to another record.
    """
    BEYOND = "beyond_log_end"
    """The cursor is beyond the log end: it is not an offset of this log."""
    UNANSWERED = "unanswered"
    """The broker that stores it did not answer in time."""


CursorFound = Callable[[Offset | CursorUnknown, Instant], None]
"""Called once with the first offset to keep, or why it is unknown, and the time."""

FindCursor = Callable[[PartitionId, str, CursorFound, Instant], None]
"""Looks up the named cursor of a partition, immediately or within a time bound."""


def limits_of(options: StreamOptions) -> RetentionLimits:
    """Return the limits in the settings of a stream."""
    return RetentionLimits(
        options.retention_age_ms_max * MILLISECOND_NS,
        options.retention_messages_max,
        options.retention_bytes_max,
    )


def choose_log_start(
    segments: Sequence[SegmentInfo],
    *,
    log_start: Offset,
    bound: Offset,
    committed: Offset,
    limits: RetentionLimits,
    age_ns: int | None,
) -> Offset:
    """Return the first offset to keep; equal to `log_start` if everything stays.

    Args:
        segments: All segments, oldest first; the last is the active one.
        log_start: Current log start.
        bound: First offset that is not known to be both committed and synced; it must stay.
        committed: First offset that is not known to be committed.
        limits: Limits of what is kept.
        age_ns: Unix time for the age of records; `None` while none is removed by age.
    """
    removable = 0
    for segment in segments[:-1]:
        if segment.end > bound:
            break
        removable += 1
    wanted = max(
        _expired_count(segments, limits.age_ns_max, age_ns),
        _surplus_count(
            [min(one.records, max(0, committed - one.base)) for one in segments],
            limits.records_max,
        ),
        _surplus_count([_committed_bytes(one, committed) for one in segments], limits.bytes_max),
    )
    count = min(removable, wanted)
    return Offset(max(log_start, segments[count].base)) if count else log_start


def first_within(segments: Sequence[SegmentInfo], *, committed: Offset, bytes_max: int) -> Offset:
    """Return the start of the newest segments that hold that many committed bytes; 0 is no limit.

    Args:
        segments: All segments, oldest first.
        committed: First offset that is not known to be committed.
        bytes_max: Bytes, counted from the newest segment back as retention by bytes counts.
    """
    count = _surplus_count(
        [_committed_bytes(segment, committed) for segment in segments], bytes_max
    )
    return segments[min(count, len(segments) - 1)].base


def _expired_count(segments: Sequence[SegmentInfo], age_ns_max: int, age_ns: int | None) -> int:
    """Count leading segments without a record younger than the allowed age."""
    if not age_ns_max or age_ns is None:
        return 0
    count = 0
    for segment in segments:
        if segment.largest_timestamp >= age_ns - age_ns_max:
            break
        count += 1
    return count


def _committed_bytes(segment: SegmentInfo, committed: Offset) -> int:
    """Return the bytes of a segment up to the high watermark, by its share of the offsets."""
    if segment.end <= committed:
        return segment.bytes
    if segment.base >= committed:
        return 0
    return segment.bytes * (committed - segment.base) // (segment.end - segment.base)


def _surplus_count(sizes: Sequence[int], limit: int) -> int:
    """Count leading segments beyond a limit, counted from the newest back."""
    if not limit:
        return 0
    total = 0
    for index in range(len(sizes) - 1, -1, -1):
        total += sizes[index]
        if total > limit:
            return index + 1
    return 0
