"""Tasks of a job in Spark: a data source that has a row for each, with what the task told.

So a job runs wherever a data source does: in one process, on a cluster, by Spark Connect.
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
"""What does one work of a job, by the name of the job."""


@dataclass
class Task(InputPartition):
    """One task.

    Attributes:
        number: Its place among all.
        work: What it does.
    """

    number: int
    work: str


class TaskReader(DataSourceReader):
    """Does each work, as a partition of its own."""

    def __init__(self, job: str, works: Sequence[str]) -> None:
        """Begin with all works."""
        self._job = job
        self._works = works

    def partitions(self) -> list[InputPartition]:
        """A partition for each work."""
        return [Task(*one) for one in enumerate(self._works)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, str, str]]:
        """Do the work; one row with what it told, or with its refusal."""
        assert isinstance(partition, Task)
        try:
            yield partition.number, JOBS[self._job](partition.work), ""
        except REFUSALS as error:
            yield partition.number, "", text_of(error)


class TaskSource(DataSource):
    """Works as a data source; the options are those that `runner` sets."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "liftbridge-tasks"

    def schema(self) -> str:
        """A number for each work, with what it told, or why it was not done."""
        return "number int not null, told string not null, refusal string not null"

    def reader(self, schema: StructType) -> DataSourceReader:
        """All works."""
        del schema
        return TaskReader(self.options["job"], json.loads(self.options["works"]))


def runner(spark: SparkSession, job: str) -> Runner:
    """Does the works of a job in a session; it raises the first refusal of a task."""
    spark.dataSource.register(TaskSource)

    def run(works: Sequence[str]) -> list[str]:
        tasks = spark.read.format(TaskSource.name()).option("job", job)
        rows = tasks.option("works", json.dumps(works)).load().collect()
        rows.sort(key=lambda row: row.number)
        refusals = [row.refusal for row in rows if row.refusal]
        if refusals:
            raise error_of(refusals[0])
        return [row.told for row in rows]

    return run
