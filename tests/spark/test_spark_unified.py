"""Option `archive`: one frame of what lies in the archive and what lies in the log."""

import time
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from liftbridge_client import StreamSettings, SyncClient
from liftbridge_testkit.processes import Broker
from pyspark_liftbridge.jobs.archive import Job, archive_once, do
from pyspark_liftbridge.plan.options import read_source
from pyspark_liftbridge.source.batch import BatchReader
from pyspark_liftbridge.source.data_source import LiftbridgeSource

SECONDS_MAX = 30.0
SETTINGS = StreamSettings(segment_max_bytes=2_000, cleaner_interval=timedelta(seconds=1))


def publish(lb: SyncClient, name: str, first: int, end: int) -> None:
    for number in range(first, end):
        lb.streams.get(name).publish(b"%d" % number + bytes(100))


def archive(broker: Broker, name: str, root: Path) -> None:
    job = Job(name, str(root), {"servers": broker.address}, {}, fails_on_loss=True)
    archive_once(job, lambda works: [do(one) for one in works])


def remove_old(lb: SyncClient, name: str) -> None:
    """Let retention remove what it can."""
    stream = lb.streams.get(name)
    stream.alter(StreamSettings(retention_max_messages=10))
    deadline = time.monotonic() + SECONDS_MAX
    while stream.bounds(0)[0].log_start < stream.bounds(0)[0].high_watermark - 25:
        assert time.monotonic() < deadline, "nothing is removed"
    stream.alter(StreamSettings(retention_max_messages=0))


def numbers(frame: DataFrame) -> list[tuple[int, int]]:
    return sorted((row.offset, int(row.value.rstrip(b"\0"))) for row in frame.collect())


def expected(start: int, end: int) -> list[tuple[int, int]]:
    return [(number, number) for number in range(start, end)]


def test_a_batch_and_a_stream_read_archive_and_log_as_one(
    spark: SparkSession, broker: Broker, lb: SyncClient, tmp_path: Path
) -> None:
    lb.streams.create("unified", settings=SETTINGS)
    publish(lb, "unified", 0, 100)
    archive(broker, "unified", tmp_path)
    remove_old(lb, "unified")
    publish(lb, "unified", 100, 130)
    given = {"servers": broker.address, "subscribe": "unified", "archive": str(tmp_path)}
    batch = spark.read.format("liftbridge").options(**given).load()
    assert numbers(batch) == expected(0, 130)
    some = spark.read.format("liftbridge").options(
        **given, startingOffsets='{"unified": {"0": 95}}', minPartitions="4", schema="kafka"
    )
    assert numbers(some.load()) == expected(95, 130)

    seen: dict[int, list[tuple[int, int]]] = {}

    def keep(frame: DataFrame, number: int) -> None:
        seen[number] = numbers(frame)

    def run() -> list[tuple[int, int]]:
        frame = spark.readStream.format("liftbridge").options(
            **given, startingOffsets="earliest", maxOffsetsPerTrigger="40"
        )
        writer = frame.load().writeStream.foreachBatch(keep)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert query.trigger(availableNow=True).start().awaitTermination(120)
        return [row for _, rows in sorted(seen.items()) for row in rows]

    assert run() == expected(0, 130)
    publish(lb, "unified", 130, 200)
    archive(broker, "unified", tmp_path)
    remove_old(lb, "unified")
    assert run() == expected(0, 200)


def test_a_batch_of_both_reads_the_history_that_was_compared(
    broker: Broker, lb: SyncClient, tmp_path: Path
) -> None:
    lb.streams.create("compared")
    publish(lb, "compared", 0, 10)
    archive(broker, "compared", tmp_path)
    publish(lb, "compared", 10, 20)
    (bounds,) = lb.streams.get("compared").bounds()

    def histories(**given: str) -> set[int | None]:
        options = {"servers": broker.address, "subscribe": "compared", **given}
        tasks = BatchReader(read_source(options, is_stream=False)).partitions()
        return {one.unclean_epoch for task in tasks for one in task.ranges}

    assert bounds.unclean_epoch is not None
    assert histories(archive=str(tmp_path), minPartitions="4") == {bounds.unclean_epoch}
    assert histories(minPartitions="4") == {bounds.unclean_epoch}
    assert histories(readPreference="replica") == {None}


def test_an_archive_is_found_from_where_the_query_is_planned(
    broker: Broker, lb: SyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lb.streams.create("nearby")
    publish(lb, "nearby", 0, 10)
    archive(broker, "nearby", tmp_path / "root")
    monkeypatch.chdir(tmp_path)
    given = {"servers": broker.address, "subscribe": "nearby", "archive": "root"}
    source = LiftbridgeSource(given)
    reader = source.reader(StructType())
    (task,) = reader.partitions()
    monkeypatch.chdir("/")
    assert sum(batch.num_rows for batch in reader.read(task)) == 10
