"""`spark.readStream.format("liftbridge")`: each record once, over restarts of the query."""

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from liftbridge_client import SyncClient
from liftbridge_testkit.processes import Broker


class Sink:
    """What batches brought, by their number; a batch that is repeated takes its own place."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[int, int]]] = {}

    def __call__(self, frame: DataFrame, number: int) -> None:
        rows = [(row.partition, row.offset) for row in frame.collect()]
        former = self.batches.setdefault(number, rows)
        assert sorted(former) == sorted(rows)

    @property
    def rows(self) -> list[tuple[int, int]]:
        return sorted(row for rows in self.batches.values() for row in rows)


def run(spark: SparkSession, broker: Broker, checkpoint: Path, sink: Sink, **options: str) -> None:
    """Run a query until it has read what is there now."""
    frame = spark.readStream.format("liftbridge").options(servers=broker.address, **options).load()
    query = (
        frame.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert not query.isActive


def publish(lb: SyncClient, name: str, partition: int, count: int) -> None:
    for _ in range(count):
        lb.streams.get(name).publish(b"x", partition=partition)


def test_a_query_reads_each_record_once_over_restarts(
    spark: SparkSession, broker: Broker, lb: SyncClient, tmp_path: Path
) -> None:
    lb.streams.create("once", partitions=2)
    publish(lb, "once", 0, 20)
    publish(lb, "once", 1, 5)
    sink, options = Sink(), {"subscribe": "once", "startingOffsets": "earliest"}
    run(spark, broker, tmp_path, sink, **options)
    assert sink.rows == [(0, n) for n in range(20)] + [(1, n) for n in range(5)]
    run(spark, broker, tmp_path, sink, **options)
    before = len(sink.rows)
    publish(lb, "once", 1, 7)
    run(spark, broker, tmp_path, sink, **options)
    assert len(sink.rows) == before + 7
    assert len(set(sink.rows)) == len(sink.rows)


def test_limits_make_more_batches(
    spark: SparkSession, broker: Broker, lb: SyncClient, tmp_path: Path
) -> None:
    lb.streams.create("limits", partitions=2)
    publish(lb, "limits", 0, 30)
    publish(lb, "limits", 1, 10)
    sink = Sink()
    run(
        spark, broker, tmp_path, sink,
        subscribe="limits", startingOffsets="earliest", maxOffsetsPerTrigger="10",
    )  # fmt: skip
    counts = [len(rows) for _, rows in sorted(sink.batches.items())]
    assert max(counts) <= 10
    assert 4 <= len(counts) <= 6
    assert sink.rows == [(0, n) for n in range(30)] + [(1, n) for n in range(10)]


def test_a_stream_that_was_made_anew_fails_the_query(
    spark: SparkSession, broker: Broker, lb: SyncClient, tmp_path: Path
) -> None:
    lb.streams.create("anew")
    publish(lb, "anew", 0, 3)
    sink, options = Sink(), {"subscribe": "anew", "startingOffsets": "earliest"}
    run(spark, broker, tmp_path, sink, **options)
    former = lb.streams.get("anew").bounds()[0].stream_id
    lb.streams.get("anew").delete()
    lb.streams.create("anew")
    publish(lb, "anew", 0, 5)
    with pytest.raises(StreamingQueryException, match=f"read with id {former}"):
        run(spark, broker, tmp_path, sink, **options)
    assert len(sink.rows) == 3
    run(spark, broker, tmp_path, sink, **options, failOnDataLoss="false")
    run(spark, broker, tmp_path, sink, **options, failOnDataLoss="false")
    assert sorted(sink.rows) == [(0, 0), (0, 0), (0, 1), (0, 1), (0, 2), (0, 2), (0, 3), (0, 4)]
