"""A `PublishBatchRequest` as a run: its content is checked before anything is appended."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from operator import add
from typing import Final

from liftbridge_broker.api.context import Context
from liftbridge_broker.errors import InvalidRequestError, TooLargeError
from liftbridge_broker.model.ids import RESTORED_OFFSET_MAX, PublisherId
from liftbridge_broker.model.units import MIB
from liftbridge_broker.node.partition.intake import check_headers
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.partition.runs import AckSink, PendingAck, PublishRun
from liftbridge_broker.replication.publishers import PublisherStamp
from liftbridge_broker.wire.head import head_of
from liftbridge_broker.wire.listed import mapping, with_lists
from liftbridge_proto.ext.v1 import data_pb2

RECORD_COUNT_MAX: Final = 8_192
"""Maximum number of records in a request, which is stored in one turn: 20 ms of work."""

HEADER_COUNT_MAX: Final = 4_096
"""Maximum number of headers in a request; a record with a header takes as long as two without."""

_COLUMNS: Final = ("keys", "headers", "timestamps", "subjects", "reply_subjects", "offsets")
"""Lists that are empty or have one entry for each record."""

FIELDS_MAX: Final = (1 + len(_COLUMNS)) * RECORD_COUNT_MAX + HEADER_COUNT_MAX + 64
"""Maximum number of entries in all lists of a request, plus the single fields."""

COUNTED_BYTES_MIN: Final = MIB
"""Length from which the entries of a request are counted before it is parsed.

A shorter request takes no more than half a turn, whatever it contains.
"""

SUBJECT_BYTES_MAX: Final = 4_096
"""Longest subject that a restore accepts: the bound of the control line of a NATS message."""


_NUMBERS: Final = {
    field.name: field.number for field in data_pb2.PublishBatchRequest.DESCRIPTOR.fields
}
_PARSE: Final = with_lists(data_pb2.PublishBatchRequest).FromString


def parse(raw: bytes) -> tuple[data_pb2.PublishBatchRequest, bool]:
    """Parse a request; also return whether it is complete: parsing stops at too many entries.

    Raises:
        DecodeError: The bytes are not such a request.
    """
    if len(raw) < COUNTED_BYTES_MIN:
        return _PARSE(raw), True
    packed = (_NUMBERS["timestamps"], _NUMBERS["offsets"])
    head = head_of(raw, within=_NUMBERS["headers"], packed=packed, fields_max=FIELDS_MAX)
    return _PARSE(head), len(head) == len(raw)


def run_of(
    request: data_pb2.PublishBatchRequest,
    partition: Partition,
    sink: AckSink,
    context: Context,
) -> PublishRun:
    """Convert a request to a run.

    Args:
        request: The received request.
        partition: Target partition.
        sink: Receives the outcome.
        context: Holds the record size bound and the reserved subjects.

    Raises:
        InvalidRequestError: A field is invalid, or the stream decides each message separately.
        TooLargeError: A record is larger than allowed, or has too many headers.
    """
    _check_takes_runs(partition)
    _check_lengths(request)
    for entry in request.headers:
        check_headers(entry.headers)
    headers: list[Mapping[str, bytes] | None] = [
        mapping(entry.headers) if entry.headers else None for entry in request.headers
    ]
    _check_sizes(request, context.record_bytes_max)
    _check_timestamps(request.timestamps)
    stamp = None
    if request.publisher_id:
        stamp = PublisherStamp(
            PublisherId(request.publisher_id),
            request.publisher_epoch,
            request.first_sequence,
            request.may_skip,
        )
    offsets = _offsets_of(request)
    if offsets is None and (request.subjects or request.reply_subjects):
        raise InvalidRequestError(
            "subjects and reply_subjects: allowed only with offsets or target_offset, which "
            "restore records"
        )
    _check_subjects("subjects", set(request.subjects), is_required=True)
    for subject in set(request.subjects):
        if context.reserved.is_reserved(subject):
            raise InvalidRequestError(f"subjects: {subject[:80]!r} is reserved: no stream takes it")
    _check_subjects("reply_subjects", set(request.reply_subjects), is_required=False)
    return PublishRun(
        list(request.values),
        partition.subject,
        "batch",
        (PendingAck(request.ack_policy, sink),),
        list(request.keys) or None,
        headers or None,
        policy=request.ack_policy,
        publisher=stamp,
        offsets=offsets,
        timestamps=list(request.timestamps) or None,
        subjects=list(request.subjects) or None,
        replies=list(request.reply_subjects) or None,
    )


def _check_takes_runs(partition: Partition) -> None:
    """Refuse streams that accept messages only one by one.

    Raises:
        InvalidRequestError: A batch has one base offset, which such a stream cannot give it.
    """
    if partition.options.optimistic_concurrency:
        raise InvalidRequestError(
            "streams with optimistic concurrency control accept single messages only"
        )
    if partition.group:
        raise InvalidRequestError("streams of a load-balance group accept single messages only")


def _check_lengths(request: data_pb2.PublishBatchRequest) -> None:
    count = len(request.values)
    if not 0 < count <= RECORD_COUNT_MAX:
        raise InvalidRequestError(f"values: {count} records, must be 1 to {RECORD_COUNT_MAX}")
    for name in _COLUMNS:
        column = getattr(request, name)
        if column and len(column) != count:
            raise InvalidRequestError(f"{name}: {len(column)} entries for {count} values")
    header_count = sum(len(entry.headers) for entry in request.headers)
    if header_count > HEADER_COUNT_MAX:
        raise InvalidRequestError(
            f"headers: {header_count} in all records, at most {HEADER_COUNT_MAX} in a request; "
            "send fewer records in one request"
        )


def _check_sizes(request: data_pb2.PublishBatchRequest, record_bytes_max: int) -> None:
    sizes: Iterable[int] = map(len, request.values)
    if request.keys:
        sizes = map(add, sizes, map(len, request.keys))
    if request.headers:
        # As in a single message, where its whole size counts.
        sizes = map(add, sizes, (header.ByteSize() for header in request.headers))
    if max(sizes) > record_bytes_max:
        raise TooLargeError("message exceeds max replication size")


def _check_timestamps(timestamps: Sequence[int]) -> None:
    if timestamps and (sorted(timestamps) != list(timestamps) or timestamps[0] < 0):
        raise InvalidRequestError("timestamps: must neither decrease nor be negative")


def _offsets_of(request: data_pb2.PublishBatchRequest) -> Sequence[int] | None:
    """Return the offsets that a restore requests, `None` if it is not a restore."""
    count = len(request.values)
    if request.HasField("target_offset"):
        target = request.target_offset
        if request.offsets:
            raise InvalidRequestError("offsets and target_offset: only one of them may be set")
        target_max = RESTORED_OFFSET_MAX - count
        if not 0 <= target <= target_max:
            raise InvalidRequestError(f"target_offset {target}: must be 0 to {target_max}")
        return range(target, target + count)
    if not request.offsets:
        return None
    if request.publisher_id:
        raise InvalidRequestError("offsets and publisher_id: only one of them may be set")
    offsets = list(request.offsets)
    last = RESTORED_OFFSET_MAX - 1
    if offsets[0] < 0 or offsets[-1] > last or any(b <= a for a, b in pairwise(offsets)):
        raise InvalidRequestError(f"offsets: must increase and be 0 to {last}")
    return offsets


def _check_subjects(name: str, subjects: set[str], *, is_required: bool) -> None:
    """Refuse names that cannot be the subject of a NATS message."""
    for subject in subjects:
        is_missing = is_required and not subject
        has_blank = not subject.isprintable() or " " in subject
        if is_missing or has_blank or len(subject.encode()) > SUBJECT_BYTES_MAX:
            raise InvalidRequestError(
                f"{name}: {subject[:80]!r} is not a subject for messages: it must have "
                f"1 to {SUBJECT_BYTES_MAX} bytes and no blanks or control characters"
            )
