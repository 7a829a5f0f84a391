"""Columns for Spark, built from columns of the client."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_liftbridge.plan.options import OptionError, Shape
from pyspark_liftbridge.units import MICROSECOND_NS

ROWS_MIN: Final = 2_000
"""Minimum number of rows of an Arrow batch, except a task's last.

With fewer rows, overhead dominates.
"""

ROWS_MAX: Final = 20_000

_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_TIME: Final = pa.timestamp("us", "UTC")


class Place(NamedTuple):
    """Stream and partition of the records of a batch."""

    stream: str
    partition: int


Make = Callable[[pa.RecordBatch, Place], pa.Array]


class Column(NamedTuple):
    """One column.

    Attributes:
        name: Name of the column.
        ddl: Type as Spark DDL.
        kind: Type in Arrow.
        needs: Columns of the client that it is built from.
        make: Builds the column.
        meaning: Description in the reference.
        is_nullable: Whether it may be null.
    """

    name: str
    ddl: str
    kind: pa.DataType
    needs: tuple[str, ...]
    make: Make
    meaning: str
    is_nullable: bool = False


def _taken(name: str) -> Make:
    return lambda records, _place: records.column(name)


def _repeated(kind: pa.DataType, value: Callable[[Place], object]) -> Make:
    return lambda records, place: pa.repeat(pa.scalar(value(place), kind), records.num_rows)


def _nanoseconds(records: pa.RecordBatch, _place: Place) -> pa.Array:
    return records.column("timestamp").cast(pa.int64())


def _microseconds(records: pa.RecordBatch, place: Place) -> pa.Array:
    """Round times down to microseconds, also those before 1970."""
    times = _nanoseconds(records, place).to_numpy() // MICROSECOND_NS
    return pa.array(times.view("datetime64[us]"), _TIME)


def _headers(records: pa.RecordBatch, _place: Place) -> pa.Array:
    """Build the headers of each record, sorted by key."""
    headers = records.column("headers")
    offsets = headers.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    keys, items = headers.keys.slice(first, last - first), headers.items.slice(first, last - first)
    counts = np.diff(offsets.to_numpy())
    if len(counts) and counts.max() > 1:
        rows = pa.array(np.repeat(np.arange(len(counts)), counts))
        order = pc.sort_indices(
            pa.table({"row": rows, "key": keys}),
            sort_keys=[("row", "ascending"), ("key", "ascending")],
        )
        keys, items = keys.take(order), items.take(order)
    entries = pa.StructArray.from_arrays([keys, items], fields=list(_HEADER))
    return pa.ListArray.from_arrays(pc.subtract(offsets, first).cast(pa.int32()), entries)


_HEADERS: Final = Column(
    "headers",
    "array<struct<key:string,value:binary>>",
    pa.list_(pa.field("element", _HEADER)),
    ("headers",),
    _headers,
    "Headers of the publisher, sorted by key; only with `includeHeaders`.",
)

COLUMNS: Final = (
    Column(
        "stream",
        "string",
        pa.string(),
        (),
        _repeated(pa.string(), lambda at: at.stream),
        "Name of the stream.",
    ),
    Column(
        "partition",
        "int",
        pa.int32(),
        (),
        _repeated(pa.int32(), lambda at: at.partition),
        "Number of the partition.",
    ),
    Column(
        "offset",
        "bigint",
        pa.int64(),
        ("offset",),
        _taken("offset"),
        "Position in the partition.",
    ),
    Column(
        "timestamp",
        "timestamp",
        _TIME,
        ("timestamp",),
        _microseconds,
        "Time at which the leader stored the record; microseconds, rounded down.",
    ),
    Column(
        "timestamp_ns",
        "bigint",
        pa.int64(),
        ("timestamp",),
        _nanoseconds,
        "The same time in Unix nanoseconds.",
    ),
    Column(
        "key",
        "binary",
        pa.binary(),
        ("key",),
        _taken("key"),
        "Key; null if there is none or it is empty.",
        is_nullable=True,
    ),
    Column("value", "binary", pa.binary(), ("value",), _taken("value"), "Value; may be empty."),
    Column(
        "subject",
        "string",
        pa.string(),
        ("subject",),
        _taken("subject"),
        "NATS subject to which the record was published.",
    ),
    Column(
        "reply_subject",
        "string",
        pa.string(),
        ("reply_subject",),
        _taken("reply_subject"),
        "NATS reply subject; empty if there is none.",
    ),
    _HEADERS,
    Column(
        "leader_epoch",
        "bigint",
        pa.int64(),
        ("leader_epoch",),
        _taken("leader_epoch"),
        "Epoch of the leader that stored the record; null with `fetch.encoding=subscribe`.",
        is_nullable=True,
    ),
)
"""All columns of the schema `liftbridge`."""

_BY_NAME: Final = {column.name: column for column in COLUMNS}

KAFKA_COLUMNS: Final = (
    _BY_NAME["key"],
    _BY_NAME["value"],
    _BY_NAME["stream"]._replace(name="topic"),
    _BY_NAME["partition"],
    _BY_NAME["offset"],
    _BY_NAME["timestamp"],
    Column(
        "timestampType",
        "int",
        pa.int32(),
        (),
        _repeated(pa.int32(), lambda _: 0),
        "Always 0: the time is the time of creation.",
    ),
    _HEADERS,
)
"""Columns of Spark's Kafka source."""


class Layout(NamedTuple):
    """Columns of a query.

    Attributes:
        columns: Columns in the order of the schema.
    """

    columns: Sequence[Column]

    @property
    def ddl(self) -> str:
        """The schema as Spark DDL."""
        return ", ".join(
            f"{column.name} {column.ddl}{'' if column.is_nullable else ' not null'}"
            for column in self.columns
        )

    @property
    def needs(self) -> tuple[str, ...]:
        """Columns of the client; at least the offset, by which rows are counted."""
        return tuple(
            dict.fromkeys(("offset", *(name for column in self.columns for name in column.needs)))
        )

    @property
    def schema(self) -> pa.Schema:
        """The schema in Arrow."""
        return pa.schema(
            [
                pa.field(column.name, column.kind, nullable=column.is_nullable)
                for column in self.columns
            ]
        )

    def rows(self, records: pa.RecordBatch, place: Place) -> pa.RecordBatch:
        """Convert records of one partition to rows."""
        made = [column.make(records, place) for column in self.columns]
        return pa.record_batch(made, schema=self.schema)


def layout_of(shape: Shape) -> Layout:
    """Return the columns of a query.

    Raises:
        OptionError: A column does not exist, or needs another option.
    """
    all_columns = KAFKA_COLUMNS if shape.is_kafka_schema else COLUMNS
    offered = [column for column in all_columns if shape.has_headers or column is not _HEADERS]
    if shape.columns is None:
        return Layout(offered)
    names = {one.name for one in offered}
    unknown = [name for name in shape.columns if name not in names]
    if unknown == [_HEADERS.name]:
        raise OptionError("option 'columns': headers needs includeHeaders")
    if unknown:
        raise OptionError(
            f"option 'columns': no such columns: {', '.join(unknown)}; "
            f"must be any of {', '.join(sorted(names))}"
        )
    return Layout([one for one in offered if one.name in shape.columns])


def resized(batches: Iterable[pa.RecordBatch], bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Regroup rows into batches of `ROWS_MIN` to `ROWS_MAX` rows.

    The last batch may be smaller, and so may batches of large rows: at most `bytes_max` bytes are
    buffered.
    """
    waiting: list[pa.RecordBatch] = []
    count = size = 0
    for batch in batches:
        waiting.append(batch)
        count += batch.num_rows
        size += batch.nbytes
        if count >= ROWS_MIN or (count and size >= bytes_max):
            whole = _joined(waiting)
            # Release the parts before yielding the whole: the consumer may be slow.
            waiting, count, size = [], 0, 0
            yield from _cut(whole)
    if count:
        yield from _cut(_joined(waiting))


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _cut(whole: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    pieces = -(-whole.num_rows // ROWS_MAX)
    for piece in range(pieces):
        start = whole.num_rows * piece // pieces
        yield whole.slice(start, whole.num_rows * (piece + 1) // pieces - start)
