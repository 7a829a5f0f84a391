"""The sink: `df.write.format("liftbridge")` and `df.writeStream.format("liftbridge")`.

A task publishes the rows of one Spark partition. With exactly-once it numbers them by their
position (`Origin`), so a repeated task sends only the rows that are not stored yet, and an older
attempt that still runs is fenced.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from liftbridge_client import AlreadyExistsError, NotFoundError, Numbering, SyncClient, SyncStream
from liftbridge_client.core.partitioners import Partitioner, by_key, round_robin
from pyspark_liftbridge.plan.options import OptionError, SinkOptions
from pyspark_liftbridge.source import cluster

STREAMS_MAX: Final = 1_000
"""Maximum number of streams that one task may write to."""

RETRY_NS: Final = 120_000_000_000
"""Time for which a task looks for a broker that accepts its rows."""

_BATCH_SHIFT: Final = 32
"""Bits of a sequence below the number of its micro-batch: rows of a task for one partition."""

_HEADERS: Final = pa.map_(pa.string(), pa.binary())


class Origin(NamedTuple):
    """Position of a task's rows in a query, the same when the task is repeated.

    Attributes:
        run: Id of the query, or of the job of a batch.
        batch: Number of the micro-batch; 0 for a batch.
        partition: Spark's partition.
    """

    run: str
    batch: int
    partition: int

    @property
    def numbering(self) -> Numbering:
        """Return the publisher's name, and the sequence of the first row for each partition."""
        return Numbering(f"spark/{self.run}/{self.partition}", self.batch << _BATCH_SHIFT)


@dataclass
class Written(WriterCommitMessage):
    """Result of a task.

    Attributes:
        acked_count: Rows that it published.
        known_count: Rows that an earlier attempt had published.
    """

    acked_count: int
    known_count: int


def prepare(client: SyncClient, name: str, options: SinkOptions) -> SyncStream:
    """Get the stream to write to; create it if it does not exist and an option requests that.

    Raises:
        OptionError: The stream does not exist.
        LiftbridgeError: The brokers do not answer, or do not create it.
    """
    stream = client.streams.get(name)
    with suppress(NotFoundError):
        stream.info()
        return stream
    if options.partitions is None:
        raise OptionError(
            f"stream {name} does not exist: create it, or set option 'createStream.partitions'"
        )
    with suppress(AlreadyExistsError):  # another task created it first
        client.streams.create(
            name,
            partitions=options.partitions,
            replication=options.replication_factor or 1,
        )
    return stream


def write(options: SinkOptions, origin: Origin, batches: Iterator[pa.RecordBatch]) -> Written:
    """Publish the rows of a task, and wait until all are acknowledged.

    Raises:
        OptionError: A stream does not exist, or there are too many.
        LiftbridgeError: A row is not, or may not be, stored; other rows may be stored.
    """
    client = cluster.client_of(options.connection, RETRY_NS)
    numbering = origin.numbering if options.is_exactly_once else None
    with ExitStack() as stack:
        publishers: dict[str, Any] = {}
        for batch in batches:
            for name, rows in _by_stream(batch, options.stream):
                if name not in publishers:
                    if len(publishers) == STREAMS_MAX:
                        raise OptionError(
                            f"a task writes to more than {STREAMS_MAX} streams: repartition the "
                            "frame by its column 'stream'"
                        )
                    publishers[name] = stack.enter_context(
                        prepare(client, name, options).column_publisher(
                            ack_policy="all" if options.ack_policy == "all" else "leader",
                            partitioner=_partitioner(options),
                            numbering=numbering,
                        )
                    )
                publishers[name].put(rows)
        done = [publisher.finish() for publisher in publishers.values()]
    return Written(sum(one.acked_count for one in done), sum(one.known_count for one in done))


def _partitioner(options: SinkOptions) -> Partitioner:
    return round_robin() if options.partitioner == "roundrobin" else by_key


def _by_stream(batch: pa.RecordBatch, only: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Group rows by stream, as columns of the client.

    Raises:
        OptionError: A row has no stream or no value, or a header has no key.
    """
    if batch.num_rows == 0:
        return
    names = batch.schema.names
    columns = {name: _column(name, batch.column(name)) for name in names if name != "stream"}
    rows = pa.record_batch(columns)
    if only:
        yield only, rows
        return
    streams = batch.column("stream")
    if streams.null_count:
        raise OptionError(f"column 'stream' has {streams.null_count} nulls")
    for name in pc.unique(streams).to_pylist():
        yield name, rows.filter(pc.equal(streams, name))


def _column(name: str, given: pa.Array) -> pa.Array:
    if name == "headers":
        return _headers(given)
    if name != "key" and given.null_count:
        raise OptionError(f"column {name!r} has {given.null_count} nulls")
    return given.cast(pa.int64() if name == "partition" else pa.binary())


def _headers(given: pa.ListArray) -> pa.MapArray:
    entries = given.flatten()
    keys = entries.field("key")
    if entries.null_count or keys.null_count:
        raise OptionError("column 'headers' has an entry without a key")
    counts = pc.list_value_length(given).fill_null(0)
    ends = pc.cumulative_sum(counts).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    values = pc.fill_null(entries.field("value"), b"").cast(pa.binary())
    return pa.MapArray.from_arrays(offsets, keys.cast(pa.string()), values).cast(_HEADERS)


class BatchWriter(DataSourceArrowWriter):
    """Publishes a frame once; a repeated task continues where the earlier attempt stopped."""

    def __init__(self, options: SinkOptions) -> None:
        """Keep checked options; created on the driver and sent to each task."""
        self._options = options
        self._run = uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publish the rows of a task, as `write` does."""
        return write(self._options, Origin(self._run, 0, _context().partitionId()), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """No-op commit: every row is already acknowledged."""

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """No-op abort: published records stay in the log."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Publishes the rows of each micro-batch."""

    def __init__(self, options: SinkOptions) -> None:
        """Keep checked options; created on the driver and sent to each task."""
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publish the rows of a task, as `write` does."""
        context = _context()
        # Spark passes the number of the batch to tasks only by these properties.
        run = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        assert run is not None
        assert batch is not None
        return write(self._options, Origin(run, int(batch), context.partitionId()), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """No-op commit: every row is already acknowledged."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """No-op abort: published records stay in the log."""


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None
    return context
