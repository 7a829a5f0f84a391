"""Run the tasks of a job in Spark, as a data source with one row for each result.

So a job runs wherever a data source does: in one process, on a cluster, through Spark Connect.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_liftbridge.jobs import archive, audit, compact, replay
from pyspark_liftbridge.jobs.failures import REFUSALS, error_of, text_of
from pyspark_liftbridge.jobs.works import Runner

JOBS: Final[Mapping[str, Callable[[str], str]]] = {
    "archive": archive.do,
    "audit": audit.do,
    "compact": compact.do,
    "replay": replay.do,
}
"""Function that executes one task of a job, by the name of the job."""


@dataclass
class Task(InputPartition):
    """One task.

    Attributes:
        number: Position among all tasks.
        work: Description of the task.
    """

    number: int
    work: str


class TaskReader(DataSourceReader):
    """Runs each task as a partition."""

    def __init__(self, job: str, works: Sequence[str]) -> None:
        """Keep the job and its tasks."""
        self._job = job
        self._works = works

    def partitions(self) -> list[InputPartition]:
        """Return one partition for each task."""
        return [Task(*one) for one in enumerate(self._works)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, str, str]]:
        """Run the task; yield one row with its result or its refusal."""
        assert isinstance(partition, Task)
        try:
            yield partition.number, JOBS[self._job](partition.work), ""
        except REFUSALS as error:
            yield partition.number, "", text_of(error)


class TaskSource(DataSource):
    """Tasks as a data source, with the options that `runner` sets."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "liftbridge-tasks"

    def schema(self) -> str:
        """Return the columns: number of the task, with its result or its refusal."""
        return "number int not null, result string not null, refusal string not null"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Create a reader for all tasks."""
        del schema
        return TaskReader(self.options["job"], json.loads(self.options["works"]))


def runner(spark: SparkSession, job: str) -> Runner:
    """Return a function that runs the tasks of a job in a session, and raises the first refusal."""
    spark.dataSource.register(TaskSource)

    def run(works: Sequence[str]) -> list[str]:
        tasks = spark.read.format(TaskSource.name()).option("job", job)
        rows = tasks.option("works", json.dumps(works)).load().collect()
        rows.sort(key=lambda row: row.number)
        refusals = [row.refusal for row in rows if row.refusal]
        if refusals:
            raise error_of(refusals[0])
        return [row.result for row in rows]

    return run
