"""Messages as Arrow columns.

Stored batches from a broker are converted without an object for each message: all batches of a
response are decoded together, and only the requested columns are built.
"""

from collections.abc import Sequence
from itertools import chain
from struct import Struct
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from liftbridge_client.core.batches import FRAME_PREFIX_SIZE, Batch
from liftbridge_client.core.frame_fields import (
    PADDING,
    TAG_KEY,
    TAG_OFFSET,
    TAG_PARTITION,
    TAG_REPLY_SUBJECT,
    TAG_STREAM,
    TAG_SUBJECT,
    TAG_TIMESTAMP,
    TAG_VALUE,
    Chunks,
    Entries,
    FrameFields,
    Positions,
)
from liftbridge_client.errors import ServerError, UsageError
from liftbridge_client.model import COLUMNS, Message

FIELDS: Final = {
    field.name: field
    for field in (
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ns", "UTC"), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("headers", pa.map_(pa.string(), pa.binary()), nullable=False),
        pa.field("subject", pa.string(), nullable=False),
        pa.field("reply_subject", pa.string(), nullable=False),
        pa.field("partition_id", pa.int64(), nullable=False),
        pa.field("leader_epoch", pa.int64(), nullable=False),
    )
}
"""All columns: `key` is null for a message without one; `headers` are the publisher's, by name;
`partition_id` has the stream's id in its upper 40 bits."""

_IN_TAIL: Final = frozenset(("headers", "subject", "reply_subject"))
_RESERVED_COUNT: Final = 2
"""Header entries after the publisher's: they repeat subject and reply subject."""

_LENGTH: Final = Struct(">xI")
_EVEN_COUNT_MIN: Final = 8


def from_messages(messages: Sequence[Message]) -> pa.RecordBatch:
    """Build the columns offset, timestamp, key, value and headers from decoded messages."""
    names = (*COLUMNS, "headers")
    return pa.record_batch(
        [
            pa.array([m.offset for m in messages], pa.int64()),
            pa.array([m.timestamp for m in messages], pa.timestamp("ns", "UTC")),
            pa.array([m.key or None for m in messages], pa.binary()),
            pa.array([m.value for m in messages], pa.binary()),
            pa.array([list(m.headers.items()) for m in messages], FIELDS["headers"].type),
        ],
        schema=pa.schema([FIELDS[name] for name in names]),
    )


def check_columns(columns: Sequence[str]) -> None:
    """Refuse unknown column names.

    Raises:
        UsageError: A column does not exist; the text lists it and the existing ones.
    """
    unknown = [name for name in columns if name not in FIELDS]
    if unknown:
        raise UsageError(
            f"no such columns: {', '.join(unknown)}; must be any of {', '.join(FIELDS)}"
        )


def from_batches(
    data: bytes, batches: Sequence[Batch], columns: Sequence[str] = COLUMNS
) -> pa.RecordBatch:
    """Decode a buffer of whole batches to columns.

    Args:
        data: Buffer from a response.
        batches: Batches that `walk` found in it.
        columns: Names of columns, of `FIELDS`, in the wanted order.

    Raises:
        ServerError: The frames are malformed.
    """
    batches = [batch for batch in batches if batch.record_count]
    schema = pa.schema([FIELDS[name] for name in columns])
    if not batches:
        return pa.record_batch([pa.array([], field.type) for field in schema], schema=schema)
    padded = data + bytes(PADDING)
    made = _columns(padded, batches, *_messages(padded, batches), frozenset(columns))
    return pa.record_batch([made[name] for name in columns], schema=schema)


def _messages(data: bytes, batches: Sequence[Batch]) -> tuple[Positions, Positions]:
    """Find the start and end of the message in each frame.

    Raises:
        ServerError: The frames do not fill their batch.
    """
    found = [_even_starts(data, batch) or _starts(data, batch) for batch in batches]
    starts = np.fromiter(chain.from_iterable(found), np.int64, sum(map(len, found)))
    ends = np.empty_like(starts)
    ends[:-1] = starts[1:] - FRAME_PREFIX_SIZE
    lasts = np.cumsum([len(one) for one in found]) - 1
    ends[lasts] = [batch.end for batch in batches]
    return starts, ends


def _even_starts(data: bytes, batch: Batch) -> Sequence[int]:
    """Compute the starts of messages of equal length in one step; empty if lengths differ."""
    count, size = batch.record_count, batch.end - batch.start
    step, rest = divmod(size, count)
    if count < _EVEN_COUNT_MIN or rest:
        return ()
    prefixes = np.frombuffer(data, np.uint8, size, batch.start).reshape(count, step)
    prefix = bytes(1) + (step - FRAME_PREFIX_SIZE).to_bytes(4)
    if step <= FRAME_PREFIX_SIZE or prefixes[:, :FRAME_PREFIX_SIZE].tobytes() != prefix * count:
        return ()
    return range(batch.start + FRAME_PREFIX_SIZE, batch.end, step)


def _starts(data: bytes, batch: Batch) -> Sequence[int]:
    length_at = _LENGTH.unpack_from
    position, end = batch.start, batch.end
    starts: list[int] = []
    while position < end:
        start = position + FRAME_PREFIX_SIZE
        starts.append(start)
        position = start + length_at(data, position)[0]
    if position != end or len(starts) != batch.record_count:
        raise ServerError(f"the records of the batch at offset {batch.base_offset} do not fill it")
    return starts


def _columns(
    data: bytes,
    batches: Sequence[Batch],
    starts: Positions,
    ends: Positions,
    wanted: frozenset[str],
) -> dict[str, pa.Array]:
    """Build the requested columns, by name."""
    fields = FrameFields(data, starts, ends)
    source = pa.py_buffer(data)
    made: dict[str, pa.Array] = {}
    made["offset"] = pa.array(fields.numbers(TAG_OFFSET))
    keys = fields.chunks(TAG_KEY)
    values = fields.chunks(TAG_VALUE)
    timestamps = fields.numbers(TAG_TIMESTAMP)
    fields.check_behind(TAG_STREAM)
    if "timestamp" in wanted:
        made["timestamp"] = pa.array(timestamps.view("datetime64[ns]"), pa.timestamp("ns", "UTC"))
    if "key" in wanted:
        made["key"] = _pieces(source, keys, pa.binary(), keys.starts == keys.ends)
    if "value" in wanted:
        made["value"] = _pieces(source, values, pa.binary())
    if wanted & _IN_TAIL:
        fields.chunks(TAG_STREAM)
        fields.numbers(TAG_PARTITION)
        subjects = fields.chunks(TAG_SUBJECT)
        replies = fields.chunks(TAG_REPLY_SUBJECT)
        if "subject" in wanted:
            made["subject"] = _pieces(source, subjects, pa.string())
        if "reply_subject" in wanted:
            made["reply_subject"] = _pieces(source, replies, pa.string())
        if "headers" in wanted:
            made["headers"] = _headers(source, fields.headers(), len(starts))
    counts = [batch.record_count for batch in batches]
    if "partition_id" in wanted:
        ids = np.array([one.partition_id for one in batches], np.uint64).astype(np.int64)
        made["partition_id"] = pa.array(np.repeat(ids, counts))
    if "leader_epoch" in wanted:
        epochs = np.array([one.leader_epoch for one in batches], np.uint64).astype(np.int64)
        made["leader_epoch"] = pa.array(np.repeat(epochs, counts))
    return made


def _pieces(
    source: pa.Buffer,
    chunks: Chunks,
    kind: pa.DataType,
    is_null: npt.NDArray[np.bool_] | None = None,
) -> pa.Array:
    """Build a column from pieces of a buffer, copied by one `take`.

    The gap between two pieces counts as an unwanted piece, because Arrow offsets must be
    contiguous.
    """
    count = len(chunks.starts)
    edges = np.empty(2 * count, np.int32)
    edges[0::2] = chunks.starts
    edges[1::2] = chunks.ends
    buffers = [None, pa.py_buffer(edges), source]
    pieces = pa.Array.from_buffers(kind, max(0, 2 * count - 1), buffers)
    return pieces.take(pa.array(np.arange(0, 2 * count, 2), mask=is_null))


def _headers(source: pa.Buffer, ranks: Sequence[Entries], count: int) -> pa.Array:
    """Build the map column of each record's publisher headers."""
    entry_counts = np.zeros(count, np.int64)
    for entries in ranks:
        entry_counts[entries.rows] += 1
    if (entry_counts < _RESERVED_COUNT).any():
        raise ServerError("a record lacks the headers subject and reply")
    own_counts = entry_counts - _RESERVED_COUNT
    ends = np.cumsum(own_counts)
    total = int(ends[-1])
    places = np.empty((4, total), np.int64)
    for rank, (rows, keys, values) in enumerate(ranks):
        is_own = own_counts[rows] > rank
        at = (ends[rows] - own_counts[rows] + rank)[is_own]
        for place, column in zip(places, (*keys, *values), strict=True):
            place[at] = column[is_own]
    offsets = np.concatenate(([0], ends)).astype(np.int32)
    names = _pieces(source, Chunks(places[0], places[1]), pa.string())
    contents = _pieces(source, Chunks(places[2], places[3]), pa.binary())
    return pa.MapArray.from_arrays(pa.array(offsets), names, contents)
