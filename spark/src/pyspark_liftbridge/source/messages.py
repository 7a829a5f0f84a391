"""Reading a range by `Subscribe`, message by message, from servers of the original.

That call starts at the oldest message if the requested one was removed, ignores a start that is not
committed yet, and stops at an offset only if a message has it. So this module requests only
committed messages and detects the end itself. After each piece, it checks that the log still starts
before the piece.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from liftbridge_client import (
    FailedPreconditionError,
    Message,
    OutOfRangeError,
    Start,
    Stop,
    SyncClient,
)
from pyspark_liftbridge.plan.options import SourceOptions
from pyspark_liftbridge.plan.places import Known
from pyspark_liftbridge.plan.ranges import Range
from pyspark_liftbridge.source import cluster
from pyspark_liftbridge.source.schema import ROWS_MIN

_POLL_SECONDS: Final = 0.1
_OF_SERVER: Final = frozenset(("subject", "reply"))
"""Headers that the server adds."""


class _Column(NamedTuple):
    kind: pa.DataType
    value: Callable[[Message], object]


_COLUMNS: Final[Mapping[str, _Column]] = {
    "offset": _Column(pa.int64(), lambda one: one.offset),
    "timestamp": _Column(pa.timestamp("ns", "UTC"), lambda one: one.timestamp),
    "key": _Column(pa.binary(), lambda one: one.key or None),
    "value": _Column(pa.binary(), lambda one: one.value),
    "subject": _Column(pa.string(), lambda one: one.subject),
    "reply_subject": _Column(pa.string(), lambda one: one.reply),
    "leader_epoch": _Column(pa.int64(), lambda _: None),
    "headers": _Column(
        pa.map_(pa.string(), pa.binary()),
        lambda one: [item for item in one.headers.items() if item[0] not in _OF_SERVER],
    ),
}


def by_message(
    client: SyncClient,
    wanted: Range,
    position: int,
    columns: Sequence[str],
    options: SourceOptions,
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Read records of a range from a position on; yield them with the offset to continue at.

    Raises:
        OutOfRangeError: The position, or an offset before a message, is not in the log.
        FailedPreconditionError: The stream has another id, or the partition is paused.
        LiftbridgeError: No broker could serve the rest within the timeout.
    """
    known = _committed(client, wanted, options)
    end = min(wanted.end, known.latest)
    plain = client
    if client.has_data:
        plain = cluster.client_of(options.connection, options.fetch.timeout_ns, is_plain=True)
    reading = plain.streams.get(wanted.stream).subscribe(
        partition=wanted.partition,
        start=Start.at(position),
        stop=Stop.latest(),
        resume=options.fetch.resumes,
        read_replica=options.fetch.read_replica,
    )
    for messages in _pieces(reading, end, options.fetch.bytes_max) if position < end else ():
        # The piece is of this stream and complete if the log still starts before it.
        gap = next(
            (at for at, one in enumerate(messages, position) if one.offset != at),
            position + len(messages),
        )
        earliest = _earliest(client, wanted, options)
        is_cut = earliest > gap and len(messages) > gap - position
        whole = messages[: gap - position] if is_cut else messages
        if whole:
            position = whole[-1].offset + 1
            yield _records(whole, columns), position
        if is_cut:
            raise OutOfRangeError(f"offset {gap} is out of range")
    if position < wanted.end and position < _earliest(client, wanted, options):
        raise OutOfRangeError(f"offset {position} is out of range")


def _earliest(client: SyncClient, wanted: Range, options: SourceOptions) -> int:
    """Fetch the log start offset of a range; its stream must still be the same."""
    known = cluster.known_of(client, wanted, options)
    if wanted.stream_id not in (0, known.stream_id):
        raise FailedPreconditionError(f"stream {wanted.stream} has id {known.stream_id} now")
    return known.earliest


def _committed(client: SyncClient, wanted: Range, options: SourceOptions) -> Known:
    """Fetch bounds, waiting for the whole range: a new leader of the original may know less."""
    deadline = time.monotonic_ns() + options.fetch.timeout_ns
    while True:
        known = cluster.known_of(client, wanted, options)
        is_late = time.monotonic_ns() >= deadline
        if client.has_data or known.latest >= wanted.end or is_late:
            return known
        time.sleep(_POLL_SECONDS)


def _pieces(reading: Iterable[Message], end: int, bytes_max: int) -> Iterator[list[Message]]:
    """Group messages below an offset, within the bounds of a piece."""
    waiting: list[Message] = []
    size = 0
    for message in reading:
        if message.offset >= end:
            break
        waiting.append(message)
        size += len(message.value) + len(message.key)
        if len(waiting) >= ROWS_MIN or size >= bytes_max:
            yield waiting
            waiting, size = [], 0
        if message.offset == end - 1:
            break
    if waiting:
        yield waiting


def _records(messages: Sequence[Message], columns: Sequence[str]) -> pa.RecordBatch:
    chosen = {name: _COLUMNS[name] for name in columns}
    return pa.record_batch(
        {
            name: pa.array([column.value(message) for message in messages], column.kind)
            for name, column in chosen.items()
        }
    )
