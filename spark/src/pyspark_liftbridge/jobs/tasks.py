"""Tasks of a job in Spark: a data source that has a row for each, with what the task told.

So a job runs wherever a data source does: in one process, on a cluster, by Spark Connect.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_liftbridge.jobs.archive import Job, Runner, Work, do
from pyspark_liftbridge.plan.ranges import Range


@dataclass
class Task(InputPartition):
    """One task.

    Attributes:
        number: Its place among all.
        work: What it does.
    """

    number: int
    work: Work


class TaskReader(DataSourceReader):
    """Does each task, as a partition of its own."""

    def __init__(self, works: Sequence[Work]) -> None:
        """Begin with all tasks."""
        self._works = works

    def partitions(self) -> list[InputPartition]:
        """A partition for each task."""
        return [Task(*one) for one in enumerate(self._works)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, str]]:
        """Do the task; one row with what it told."""
        assert isinstance(partition, Task)
        yield partition.number, do(partition.work)


class TaskSource(DataSource):
    """Tasks as a data source; the options are those that `runner` sets."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "liftbridge-tasks"

    def schema(self) -> str:
        """A number and a text for each task."""
        return "number int not null, told string not null"

    def reader(self, schema: StructType) -> DataSourceReader:
        """All tasks."""
        del schema
        found = json.loads(self.options["works"])
        job, table = Job(*found["job"]), found["table"]
        return TaskReader([Work(job, table, Range(*one)) for one in found["ranges"]])


def runner(spark: SparkSession) -> Runner:
    """Does tasks in a session."""
    spark.dataSource.register(TaskSource)

    def run(works: Sequence[Work]) -> list[str]:
        job, table = works[0].job, works[0].table
        text = json.dumps(
            {"job": list(job), "table": table, "ranges": [list(one.wanted) for one in works]}
        )
        rows = spark.read.format(TaskSource.name()).option("works", text).load().collect()
        return [row.told for row in sorted(rows, key=lambda row: row.number)]

    return run
