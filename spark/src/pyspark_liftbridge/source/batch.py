"""A batch: `spark.read.format("liftbridge")`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from liftbridge_client import SyncClient
from pyspark_liftbridge.plan.offsets import PartitionId
from pyspark_liftbridge.plan.options import SourceOptions
from pyspark_liftbridge.plan.places import offsets_at, times_of
from pyspark_liftbridge.plan.pruning import Pruning
from pyspark_liftbridge.plan.ranges import Range, ranges_between, tasks_of
from pyspark_liftbridge.plan.values import OFFSET_MAX
from pyspark_liftbridge.source import cluster
from pyspark_liftbridge.source.filters import pushed
from pyspark_liftbridge.source.reading import records_of
from pyspark_liftbridge.source.schema import layout_of, resized


@dataclass
class Task(InputPartition):
    """Ranges that one task reads.

    Attributes:
        ranges: In the order in which they are read.
    """

    ranges: list[Range]


def read(options: SourceOptions, task: Task) -> Iterator[pa.RecordBatch]:
    """Rows of a task.

    Raises:
        DataLossError: Records are gone, their stream is, or it was made anew.
        LiftbridgeError: Nobody could serve them within the timeout, or what came is damaged.
    """
    client = cluster.client_of(options.connection, options.fetch.timeout_ns)
    records = records_of(client, task.ranges, layout_of(options.shape), options)
    yield from resized(records, options.fetch.bytes_max)


class BatchReader(DataSourceReader):
    """Reads what is committed between two places."""

    def __init__(self, options: SourceOptions) -> None:
        """Begin with checked options; nothing is asked yet."""
        self._options = options
        self._pruning = Pruning()

    def partitions(self) -> list[InputPartition]:
        """Tasks of the batch.

        Raises:
            OptionError: A stream does not exist, or offsets or times do not fit.
            PausedError: A partition is paused, and is not to be resumed.
            LiftbridgeError: No broker tells.
        """
        ranges = cluster.ask(self._options, self._ranges)
        # Spark makes a task of its own kind where there is none.
        return [Task(one) for one in tasks_of(ranges, self._options.split, {}) or [[]]]

    def _ranges(self, client: SyncClient) -> list[Range]:
        options, pruning = self._options, self._pruning
        bounds = cluster.bounds_at_start(client, options)
        begins = offsets_at(
            options.start,
            bounds,
            cluster.offsets_by_time(client, times_of(options.start, bounds)),
            is_latest_without_match=options.is_latest_without_match,
        )
        ends = offsets_at(
            options.end, bounds, cluster.offsets_by_time(client, times_of(options.end, bounds))
        )
        wanted = pruning.by_place(ranges_between(begins, ends))
        parts = {PartitionId(one.stream, one.partition) for one in wanted}
        # Only brokers of this project see to it that times do not go back.
        first, last = (
            cluster.offsets_by_time(client, dict.fromkeys(parts, time_ns))
            if client.has_data and time_ns is not None and 0 < time_ns <= OFFSET_MAX
            else {}
            for time_ns in pruning.times_ns
        )
        return pruning.by_time(wanted, first, last)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of a task, as `read`."""
        assert isinstance(partition, Task)
        return read(self._options, partition)


class PushdownReader(BatchReader):
    """A reader that is told filters; Spark fails every query of one while its switch is off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Narrow what is read; those that are left for Spark to check."""
        self._pruning, left = pushed(filters, is_kafka_schema=self._options.shape.is_kafka_schema)
        return left
