"""Holders of a partition's records: a broker with a replica, a stream by its leader, an archive."""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import pyarrow as pa

from liftbridge_client import OutOfRangeError, SyncClient
from pyspark_liftbridge.archive.delta_log import log
from pyspark_liftbridge.archive.reading import by_partition
from pyspark_liftbridge.archive.records import Wanted, records
from pyspark_liftbridge.archive.stores.store import Below, opened
from pyspark_liftbridge.jobs.comparing import Copy, copy_of
from pyspark_liftbridge.plan.options import SourceOptions, read_source
from pyspark_liftbridge.source import cluster
from pyspark_liftbridge.source.schema import Place, layout_of

REPLICA: Final = "broker"
STREAM: Final = "stream"
ARCHIVE: Final = "archive"

COLUMNS: Final = "offset,timestamp_ns,key,value,subject,reply_subject,headers,leader_epoch"
"""Columns to compare."""

RETRY_NS: Final = 30_000_000_000
"""Time to wait for a holder that does not answer."""

TRIMS_MAX: Final = 10
"""Maximum number of times that retention may remove records during a read."""


class Access(NamedTuple):
    """Access to brokers and the archive.

    Attributes:
        source: Options of the data source for the connection to brokers.
        root: Address of the archive, empty for none.
        store: Options of an object store.
    """

    source: Mapping[str, str]
    root: str
    store: Mapping[str, str]

    def options(self, stream: str) -> SourceOptions:
        """Build the options for reading a stream to compare."""
        given = {"subscribe": stream, "includeHeaders": "true", "columns": COLUMNS}
        return read_source({**self.source, **given}, is_stream=False)

    def client(self, stream: str) -> SyncClient:
        """Return the client of this process.

        Raises:
            LiftbridgeError: No broker answers.
        """
        return cluster.client_of(self.options(stream).connection, RETRY_NS)


class Holder(NamedTuple):
    """A holder of records of one partition.

    Attributes:
        kind: `REPLICA`, `STREAM` or `ARCHIVE`.
        name: Id of the broker, or the folder of the table; empty for a stream.
        stream: Name of the stream.
        stream_id: Its id.
        start: First offset that it must have.
        end: First offset that it need not have.
        may_lack: Whether compaction may have removed some of its records.
    """

    kind: str
    name: str
    stream: str
    stream_id: int
    start: int
    end: int
    may_lack: bool

    @property
    def label(self) -> str:
        """Name of the holder in differences."""
        return f"stream {self.stream}" if self.kind == STREAM else f"{self.kind} {self.name}"


def copy_at(access: Access, holder: Holder, partition: int, start: int, end: int) -> Copy:
    """Read a holder's records of a range, cut to the offsets that it must have.

    If retention removes records during the read, the copy begins later.

    Raises:
        LiftbridgeError: The broker does not serve the records.
        ArchiveError: The archive cannot be read.
    """
    start, end = max(start, holder.start), min(end, holder.end)
    for _ in range(TRIMS_MAX):
        if start >= end:
            break
        try:
            return copy_of(
                holder.label,
                start,
                end,
                batches_of(access, holder, partition, start, end),
                has_epochs=holder.kind == REPLICA,
            )
        except OutOfRangeError:
            stream = access.client(holder.stream).streams.get(holder.stream)
            (bounds,) = stream.bounds(partition, broker=holder.name)
            if bounds.log_start <= start:
                raise
            start = bounds.log_start
    return copy_of(holder.label, end, end, (), has_epochs=holder.kind == REPLICA)


def batches_of(
    access: Access, holder: Holder, partition: int, start: int, end: int
) -> Iterator[pa.RecordBatch]:
    """Read records of a range, in the order of offsets, with at least the compared columns.

    Raises:
        LiftbridgeError: The broker does not serve the records.
        ArchiveError: The archive cannot be read.
    """
    if holder.kind == ARCHIVE:
        table = Below(opened(access.root, access.store), holder.name)
        yield from records(table, by_partition(log.load(table)), Wanted(partition, start, end))
        return
    options = access.options(holder.stream)
    layout, place = layout_of(options.shape), Place(holder.stream, partition)
    pieces = (
        access.client(holder.stream)
        .streams.get(holder.stream)
        .fetch_columns(
            partition,
            start,
            end,
            columns=layout.needs,
            call_bytes=options.fetch.bytes_max,
            stream_id=holder.stream_id,
            broker=holder.name,
        )
    )
    for piece in pieces:
        yield layout.rows(piece.records, place)


def is_compacted(client: SyncClient, stream: str) -> bool:
    """Return whether compaction removes records of a stream.

    Raises:
        LiftbridgeError: No broker answers.
    """
    streams = (one for one in client.streams.describe(stream) if one.name == stream)
    return any(one.settings.compact_enabled for one in streams)
