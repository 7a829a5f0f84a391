"""What happens when: tasks and batches that are repeated, and streams that come, go or are odd."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

from liftbridge_client import SyncClient
from liftbridge_testkit.processes import Broker

MIB = 1 << 20
SECONDS_MAX = 110


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    config = {"clustering.replication.max.bytes": 12 * MIB}
    with Broker(Path(tmp_path_factory.mktemp("failures")), config=config) as running:
        yield running


class Sink:
    """Rows of each run of a batch, by the number of the batch."""

    def __init__(self) -> None:
        self.runs: dict[int, list[list[tuple[str, int, int]]]] = {}

    def __call__(self, frame: DataFrame, number: int) -> None:
        rows = sorted((row.stream, row.partition, row.offset) for row in frame.collect())
        self.runs.setdefault(number, []).append(rows)

    @property
    def rows(self) -> list[tuple[str, int, int]]:
        return sorted(row for runs in self.runs.values() for row in runs[-1])


def run(spark: SparkSession, broker: Broker, checkpoint: Path, sink: Sink, **options: str) -> None:
    """Run a query until it has read what is there now."""
    given = {"servers": broker.address, "startingOffsets": "earliest", **options}
    frame = spark.readStream.format("liftbridge").options(**given).load()
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination(SECONDS_MAX)


def publish(lb: SyncClient, name: str, count: int, partition: int = 0) -> None:
    with lb.streams.get(name).publisher() as publisher:
        publisher.publish_batch([b"%d" % at for at in range(count)], partition=partition)


def test_a_batch_without_its_commit_is_read_again_as_it_was(
    spark: SparkSession, broker: Broker, lb: SyncClient, tmp_path: Path
) -> None:
    """Spark crashed before it wrote that a batch is done, and records came in between."""
    lb.streams.create("again", partitions=2)
    publish(lb, "again", 20)
    sink = Sink()
    run(spark, broker, tmp_path, sink, subscribe="again")
    (entry,) = (tmp_path / "commits").glob("[0-9]*")
    entry.unlink()
    for crc in (tmp_path / "commits").glob(".*.crc"):
        crc.unlink()
    publish(lb, "again", 7, partition=1)
    run(spark, broker, tmp_path, sink, subscribe="again")
    first, second = sink.runs[0]
    assert first == second == [("again", 0, at) for at in range(20)]
    assert sink.runs[1] == [[("again", 1, at) for at in range(7)]]


def test_a_task_that_lost_its_worker_reads_each_record_once(
    spark: SparkSession, broker: Broker, lb: SyncClient, tmp_path: Path
) -> None:
    lb.streams.create("retried")
    publish(lb, "retried", 40_000)
    mark = tmp_path / "killed"

    def kill_once(offset: int) -> int:
        if offset == 15_000 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return offset

    frame = (
        spark.read.format("liftbridge")
        .options(servers=broker.address, subscribe="retried", **{"fetch.maxBytes": "64k"})
        .load()
        .select(udf(kill_once, "bigint", useArrow=False)("offset").alias("offset"))
    )
    assert [row.offset for row in frame.collect()] == list(range(40_000))
    assert mark.exists()


def test_a_stream_without_records_is_no_batch_and_a_new_one_begins_at_earliest(
    spark: SparkSession, broker: Broker, lb: SyncClient, tmp_path: Path
) -> None:
    lb.streams.create("met-a", partitions=2)
    sink, options = Sink(), {"subscribePattern": "met-.*", "startingOffsets": "latest"}
    run(spark, broker, tmp_path, sink, **options)
    assert sink.rows == []
    lb.streams.create("met-b", partitions=2)
    publish(lb, "met-b", 3, partition=1)
    publish(lb, "met-a", 2)
    run(spark, broker, tmp_path, sink, **options)
    assert sink.rows == [("met-a", 0, 0), ("met-a", 0, 1)] + [("met-b", 1, at) for at in range(3)]


def test_a_deleted_stream_fails_the_query_or_is_left_out(
    spark: SparkSession, broker: Broker, lb: SyncClient, tmp_path: Path
) -> None:
    for name in ("left-a", "left-b"):
        lb.streams.create(name)
        publish(lb, name, 2)
    sink, options = Sink(), {"subscribePattern": "left-.*"}
    run(spark, broker, tmp_path, sink, **options)
    stream_id = lb.streams.get("left-b").bounds()[0].stream_id
    lb.streams.get("left-b").delete()
    publish(lb, "left-a", 1)
    with pytest.raises(StreamingQueryException, match=f"left-b.*{stream_id}"):
        run(spark, broker, tmp_path, sink, **options)
    run(spark, broker, tmp_path, sink, **options, failOnDataLoss="false")
    assert sink.rows == [("left-a", 0, at) for at in range(3)] + [
        ("left-b", 0, 0),
        ("left-b", 0, 1),
    ]


def test_a_value_of_ten_mebibytes_is_read(
    spark: SparkSession, broker: Broker, lb: SyncClient
) -> None:
    stream = lb.streams.create("large")
    value = os.urandom(10 * MIB)
    for one in (b"before", value, b"behind"):
        stream.publish(one)
    options = {"servers": broker.address, "subscribe": "large", "schema": "kafka"}
    frame = spark.read.format("liftbridge").options(**options).load()
    rows = frame.selectExpr("offset", "length(value) as size", "md5(value) as md5").collect()
    assert [(row.offset, row.size) for row in rows] == [(0, 6), (1, 10 * MIB), (2, 6)]
    expected = spark.createDataFrame([(value,)], "value binary").selectExpr("md5(value) as md5")
    assert rows[1].md5 == expected.first().md5


PROGRAM = """
import json, os, sys
from pyspark.sql import SparkSession
from pyspark_liftbridge.jobs.archive import Job, archive_once
from pyspark_liftbridge.jobs.tasks import runner

servers, root = sys.argv[1:]
spark = (
    SparkSession.builder.master("local-cluster[2,1,700]")
    .config("spark.ui.enabled", "false")
    .config("spark.executor.memory", "700m")
    .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
    .getOrCreate()
)
given = {"servers": servers, "subscribe": "apart", "minPartitions": "4", "minRecordsPerTask": "0"}
frame = spark.read.format("liftbridge").options(**given).load()
# Workers of an executor are children of one process.
tasks = frame.rdd.mapPartitions(lambda rows: [(os.getppid(), [row.offset for row in rows])])
found = tasks.collect()
job = Job("apart", root, {"servers": servers}, {}, fails_on_loss=True)
done = archive_once(job, runner(spark, "archive"))
print(json.dumps({"tasks": found, "archived": done.records}))
spark.stop()
"""


@pytest.mark.timeout(300)  # five JVMs start; a busy machine takes minutes
def test_executors_in_processes_of_their_own_read_and_archive(
    broker: Broker, lb: SyncClient, tmp_path: Path
) -> None:
    lb.streams.create("apart")
    publish(lb, "apart", 4_000)
    words = (sys.executable, "-c", PROGRAM, broker.address, str(tmp_path / "archive"))
    environ = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=280,
        cwd=tmp_path, env=environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert len({executor for executor, _ in told["tasks"]}) == 2
    offsets = sorted(one for _, offsets in told["tasks"] for one in offsets)
    assert offsets == list(range(4_000))
    assert told["archived"] == 4_000
    assert DeltaTable(tmp_path / "archive/apart").to_pyarrow_table().num_rows == 4_000
