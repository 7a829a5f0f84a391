"""A batch: `spark.read.format("liftbridge")`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from liftbridge_client import SyncClient
from pyspark_liftbridge.plan.offsets import PartitionId
from pyspark_liftbridge.plan.options import SourceOptions
from pyspark_liftbridge.plan.places import offsets_at, times_of
from pyspark_liftbridge.plan.pruning import Pruning
from pyspark_liftbridge.plan.ranges import Range, in_history, ranges_between, tasks_of
from pyspark_liftbridge.plan.values import OFFSET_MAX
from pyspark_liftbridge.source import cluster
from pyspark_liftbridge.source.filters import pushed
from pyspark_liftbridge.source.reading import records_of
from pyspark_liftbridge.source.schema import layout_of, resized

if TYPE_CHECKING:
    from pyspark_liftbridge.archive.reading import Part
    from pyspark_liftbridge.source.archived import Archive


@dataclass
class Task(InputPartition):
    """Ranges that one task reads.

    Attributes:
        ranges: Ranges in reading order.
        parts: Archived parts of the ranges.
    """

    ranges: list[Range]
    parts: "dict[Range, Part]" = field(default_factory=dict)


def read(options: SourceOptions, task: Task) -> Iterator[pa.RecordBatch]:
    """Read the rows of a task.

    Raises:
        DataLossError: Records are missing, or their stream was deleted or created again.
        LiftbridgeError: No broker could serve the records within the timeout, or the response is
            damaged.
    """
    client = cluster.client_of(options.connection, options.fetch.timeout_ns)
    records = records_of(client, task.ranges, layout_of(options.shape), options, task.parts)
    yield from resized(records, options.fetch.bytes_max)


def archive_of(options: SourceOptions) -> "Archive | None":
    """Open the archive of a query, `None` for none.

    Raises:
        UnsupportedStoreError: The address or options are invalid.
    """
    if options.archive is None:
        return None
    from pyspark_liftbridge.source.archived import Archive  # noqa: PLC0415 - heavy

    return Archive(options.archive)


def tasks_with_parts(
    tasks: Sequence[list[Range]],
    archive: "Archive | None",
    log_starts: Mapping[PartitionId, int],
) -> Iterator[Task]:
    """Build tasks with the archived parts of their ranges.

    Raises:
        ArchiveError: The archive cannot be read.
    """
    for ranges in tasks:
        yield Task(ranges, {} if archive is None else archive.parts(ranges, log_starts))


class BatchReader(DataSourceReader):
    """Reads the committed records between two offsets."""

    def __init__(self, options: SourceOptions) -> None:
        """Keep checked options; no request is sent yet."""
        self._options = options
        self._pruning = Pruning()

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks of the batch.

        Raises:
            OptionError: A stream does not exist, or offsets or times do not fit.
            PausedError: A partition is paused and must not be resumed.
            LiftbridgeError: No broker answers.
            MissingError: A log may have other records at archived offsets.
            ArchiveError: The archive cannot be read.
        """
        options = self._options
        archive = archive_of(options)
        ranges, log_starts = cluster.ask(options, lambda client: self._ranges(client, archive))
        # Without a partition, Spark creates a task of another type.
        tasks = tasks_of(ranges, options.split, {}) or [[]]
        return list(tasks_with_parts(tasks, archive, log_starts))

    def _ranges(
        self, client: SyncClient, archive: "Archive | None"
    ) -> tuple[list[Range], dict[PartitionId, int]]:
        """Determine the ranges to read, and the log start offsets."""
        options, pruning = self._options, self._pruning
        bounds = cluster.bounds_at_start(client, options)
        log_starts = {one: known.earliest for one, known in bounds.items()}
        if archive is not None:
            bounds = archive.bounds(bounds)

        def by_time(times: Mapping[PartitionId, int]) -> Mapping[PartitionId, int]:
            offsets = cluster.offsets_by_time(client, times)
            return offsets if archive is None else archive.with_times(offsets, times, bounds)

        begins = offsets_at(
            options.start,
            bounds,
            by_time(times_of(options.start, bounds)),
            is_latest_without_match=options.is_latest_without_match,
        )
        ends = offsets_at(options.end, bounds, by_time(times_of(options.end, bounds)))
        wanted = in_history(pruning.by_place(ranges_between(begins, ends)), bounds)
        parts = {PartitionId(one.stream, one.partition) for one in wanted}
        # Only brokers of this project ensure that timestamps do not decrease.
        first, last = (
            by_time(dict.fromkeys(parts, time_ns))
            if client.has_data and time_ns is not None and 0 < time_ns <= OFFSET_MAX
            else {}
            for time_ns in pruning.times_ns
        )
        return pruning.by_time(wanted, first, last), log_starts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of a task, as `read` does."""
        assert isinstance(partition, Task)
        return read(self._options, partition)


class PushdownReader(BatchReader):
    """A reader with filter pushdown; Spark fails every query with it while the setting is off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Narrow the ranges by filters; return the filters that Spark must still apply."""
        self._pruning, left = pushed(filters, is_kafka_schema=self._options.shape.is_kafka_schema)
        return left
