"""`spark.read.format("liftbridge")`: what a query gets, and what it is told instead."""

import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from liftbridge_client import SyncClient
from liftbridge_testkit.processes import Broker

COLUMNS = (
    "stream string, partition int, offset bigint, timestamp timestamp, timestamp_ns bigint, "
    "key binary, value binary, subject string, reply_subject string, leader_epoch bigint"
)


def read(spark: SparkSession, broker: Broker, **options: str) -> DataFrame:
    return spark.read.format("liftbridge").options(servers=broker.address, **options).load()


def fill(lb: SyncClient, name: str, *counts: int) -> None:
    """A stream with so many messages in its partitions; each says where it lies."""
    stream = lb.streams.create(name, partitions=len(counts))
    for partition, count in enumerate(counts):
        for number in range(count):
            stream.publish(f"{partition}/{number}".encode(), partition=partition)


def test_a_batch_is_all_that_is_committed(
    spark: SparkSession, broker: Broker, lb: SyncClient
) -> None:
    fill(lb, "whole", 300, 0, 5)
    frame = read(spark, broker, subscribe="whole")
    assert frame.schema.simpleString() == spark.createDataFrame([], COLUMNS).schema.simpleString()
    rows = frame.collect()
    assert sorted((row.partition, row.offset, row.value) for row in rows) == sorted(
        (partition, number, f"{partition}/{number}".encode())
        for partition, count in enumerate((300, 0, 5))
        for number in range(count)
    )
    first = rows[0]
    assert (first.stream, first.key, first.reply_subject) == ("whole", None, "")
    stored = datetime.fromtimestamp(first.timestamp_ns / 1e9, UTC)
    assert abs((first.timestamp.astimezone(UTC) - stored).total_seconds()) < 1e-3


def test_places_bound_a_batch(spark: SparkSession, broker: Broker, lb: SyncClient) -> None:
    fill(lb, "bounded", 10, 10)
    some = read(
        spark,
        broker,
        subscribe="bounded",
        startingOffsets='{"bounded": {"0": 3, "1": -2}}',
        endingOffsets='{"bounded": {"0": 5, "1": 1}}',
    )
    assert sorted((row.partition, row.offset) for row in some.collect()) == [(0, 3), (0, 4), (1, 0)]
    whole = read(spark, broker, subscribe="bounded", columns="offset,timestamp_ns,partition")
    assert whole.columns == ["partition", "offset", "timestamp_ns"]
    middle = next(row for row in whole.collect() if (row.partition, row.offset) == (1, 5))
    late = read(
        spark,
        broker,
        assign='{"bounded": [1]}',
        startingTimestamp=str(middle.timestamp_ns // 1_000_000 + 1),
    )
    assert all(row.timestamp_ns > middle.timestamp_ns for row in late.collect())
    assert late.count() < 5


def test_times_bound_a_batch_for_all_partitions_or_for_each(
    spark: SparkSession, broker: Broker, lb: SyncClient
) -> None:
    begin = 1_764_000_000_000  # ms
    batch = pa.record_batch(
        {
            "offset": pa.array(range(10), pa.int64()),
            "timestamp": pa.array([(begin + 1_000 * at) * 10**6 for at in range(10)], pa.int64()),
            "value": pa.array([b"%d" % at for at in range(10)], pa.binary()),
        }
    )
    stream = lb.streams.create("timed", partitions=2)
    for partition in (0, 1):
        stream.restore(partition, [batch])

    def places(**options: str) -> list[tuple[int, int]]:
        rows = read(spark, broker, subscribe="timed", **options).collect()
        return sorted((row.partition, row.offset) for row in rows)

    def times(first: int, second: int) -> str:
        return json.dumps({"timed": {"0": begin + 1_000 * first, "1": begin + 1_000 * second}})

    whole = places(startingTimestamp=str(begin + 3_000), endingTimestamp=str(begin + 5_000))
    assert whole == [(0, 3), (0, 4), (1, 3), (1, 4)]
    each = places(startingOffsetsByTimestamp=times(2, 8), endingOffsetsByTimestamp=times(4, 9))
    assert each == [(0, 2), (0, 3), (1, 8)]


def test_tasks_share_a_large_partition(spark: SparkSession, broker: Broker, lb: SyncClient) -> None:
    fill(lb, "large", 100)
    options = {"subscribe": "large", "minRecordsPerTask": "0"}
    for more, tasks in (
        ({"minPartitions": "4"}, 4),
        ({"maxRecordsPerPartition": "30"}, 4),
        ({}, 1),
    ):
        frame = read(spark, broker, **options, **more)
        assert frame.rdd.getNumPartitions() == tasks
        assert sorted(row.offset for row in frame.collect()) == list(range(100))


def test_headers_and_names_as_of_kafka(spark: SparkSession, broker: Broker, lb: SyncClient) -> None:
    lb.streams.create("kafka").publish(b"one", key=b"k", headers={"b": b"2", "a": b"1"})
    (row,) = read(spark, broker, subscribe="kafka", includeHeaders="true").collect()
    assert [(one.key, one.value) for one in row.headers] == [("a", b"1"), ("b", b"2")]
    frame = read(spark, broker, subscribe="kafka", schema="kafka")
    assert frame.columns == [
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType",
    ]  # fmt: skip
    (row,) = frame.collect()
    assert (row.key, row.value, row.topic, row.timestampType) == (b"k", b"one", "kafka", 0)


def test_nothing_is_no_rows(spark: SparkSession, broker: Broker, lb: SyncClient) -> None:
    lb.streams.create("empty", partitions=2)
    assert read(spark, broker, subscribe="empty").collect() == []
    assert read(spark, broker, subscribePattern="nobody.*").collect() == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"subscribe": "nowhere"}, "stream nowhere does not exist"),
        ({"subscribe": "whole", "startOffsets": "x"}, "startingOffsets"),
        ({"subscribe": "whole", "startingOffsets": "latest"}, "a batch cannot start at latest"),
        ({"subscribe": "refused", "Archive": "ftp://x"}, "the scheme 'ftp' is not one of"),
        ({}, "exactly one of subscribe, subscribePattern and assign"),
        ({"subscribe": "refused", "columns": "values"}, "no such columns: values"),
        (
            {"subscribe": "refused", "startingOffsets": '{"refused": {"0": 2}}',
             "endingOffsets": '{"refused": {"0": 1}}'},
            "from 2 to 1",
        ),
        (
            {"subscribe": "refused", "endingOffsets": '{"refused": {"0": 99}}'},
            "offsets 3 to 98 of refused/0 are gone",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(
    spark: SparkSession, broker: Broker, lb: SyncClient, options: dict[str, str], told: str
) -> None:
    if not any(info.name == "refused" for info in lb.streams.list()):
        fill(lb, "refused", 3)
    with pytest.raises(PySparkException, match=told):
        read(spark, broker, **options).collect()


def test_no_broker_is_an_error_in_time(spark: SparkSession) -> None:
    frame = spark.read.format("liftbridge").options(
        **{"servers": "127.0.0.1:1", "subscribe": "any", "fetch.timeout": "2s"}
    )
    with pytest.raises(PySparkException, match=r"127\.0\.0\.1:1"):
        frame.load().collect()
