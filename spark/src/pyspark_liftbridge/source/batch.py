"""A batch: `spark.read.format("liftbridge")`."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_liftbridge.plan.options import SourceOptions
from pyspark_liftbridge.plan.places import offsets_at, times_of
from pyspark_liftbridge.plan.ranges import Range, ranges_between, tasks_of
from pyspark_liftbridge.source import cluster
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
    yield from resized(records_of(client, task.ranges, layout_of(options.shape), options))


class BatchReader(DataSourceReader):
    """Reads what is committed between two places."""

    def __init__(self, options: SourceOptions) -> None:
        """Begin with checked options; nothing is asked yet."""
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Tasks of the batch.

        Raises:
            OptionError: A stream does not exist, or offsets or times do not fit.
            LiftbridgeError: No broker tells.
        """
        options = self._options
        client = cluster.client_of(options.connection, options.fetch.timeout_ns)
        bounds = cluster.bounds_of(
            client, cluster.partitions_of(client, options.subscription), options
        )
        begins = offsets_at(
            options.start,
            bounds,
            cluster.offsets_by_time(client, times_of(options.start, bounds)),
            is_latest_without_match=options.is_latest_without_match,
        )
        ends = offsets_at(
            options.end, bounds, cluster.offsets_by_time(client, times_of(options.end, bounds))
        )
        tasks = tasks_of(ranges_between(begins, ends), options.split, {})
        # Spark makes a task of its own kind where there is none.
        return [Task(ranges) for ranges in tasks or [[]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of a task, as `read`."""
        assert isinstance(partition, Task)
        return read(self._options, partition)
