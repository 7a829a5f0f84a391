"""A data source that yields one prepared Arrow batch repeatedly: the limit of Spark's pipe."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from liftbridge_testkit.spark_bench.streams import PARTITIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType


@dataclass
class Task(InputPartition):
    """Rows that one task yields."""

    rows: int


class Pipe(DataSourceReader):
    """Yields rows of a file.

    Args:
        options: `path` of an Arrow file of one batch, `rows` in all.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self.path, self.rows = options["path"], int(options["rows"])

    def partitions(self) -> list[InputPartition]:
        """Return a task for each core."""
        return [Task(self.rows // PARTITIONS)] * PARTITIONS

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batch until all rows are out."""
        assert isinstance(partition, Task)
        return repeated(self.path, partition.rows)


class StreamPipe(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Yields rows of a file, this number in each micro-batch.

    Args:
        options: Those of `Pipe`, and `step`: rows of a micro-batch.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self.path, self.rows = options["path"], int(options["rows"])
        self.step = int(options["step"])

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the position before any record."""
        return {"rows": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the position after one more micro-batch."""
        del limit
        return {"rows": min(self.rows, int(start["rows"]) + self.step)}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """No-op: the source ends by itself."""

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return a task for each core."""
        return [Task((end["rows"] - start["rows"]) // PARTITIONS)] * PARTITIONS

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """See `Pipe`."""
        assert isinstance(partition, Task)
        return repeated(self.path, partition.rows)


class Ceiling(DataSource):
    """A data source without work of its own."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "ceiling"

    def schema(self) -> str:
        """Return the given schema."""
        return str(self.options["ddl"])

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch."""
        del schema
        return Pipe(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return a stream."""
        del schema
        return StreamPipe(self.options)


def repeated(path: str, rows: int) -> Iterator[pa.RecordBatch]:
    """Repeat the rows of a file as one batch, up to a number of rows."""
    batch = _batch(path)
    for _ in range(rows // batch.num_rows):
        yield batch
    if rest := rows % batch.num_rows:
        yield batch.slice(0, rest)


@functools.cache
def _batch(path: str) -> pa.RecordBatch:
    with pa.OSFile(path) as file:
        return pa.ipc.open_file(file).get_batch(0)
