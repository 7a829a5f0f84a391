"""`format("liftbridge")` as a sink: each row once where it is asked for, over failed tasks."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

from liftbridge_client import Message, Start, Stop, StreamSettings, SyncClient
from liftbridge_testkit.processes import Broker

Fill = Callable[[str, int], None]


def write(frame: DataFrame, broker: Broker, **options: str) -> None:
    frame.write.format("liftbridge").options(servers=broker.address, **options).mode(
        "append"
    ).save()


def stored(lb: SyncClient, name: str, partition: int = 0) -> list[Message]:
    read = lb.streams.get(name).subscribe(
        partition=partition, start=Start.earliest(), stop=Stop.latest()
    )
    return list(read)


def values(lb: SyncClient, name: str, partition: int = 0) -> list[bytes]:
    return [one.value for one in stored(lb, name, partition)]


def test_rows_come_back_with_keys_and_headers(
    spark: SparkSession, broker: Broker, lb: SyncClient
) -> None:
    frame = spark.createDataFrame(
        [
            (b"k", "one", [("h", b"1"), ("i", None)]),
            (None, "", []),
            (b"", "three", None),
        ],
        "key binary, value string, headers array<struct<key:string,value:binary>>",
    ).coalesce(1)
    write(
        frame, broker, stream="sunk", includeHeaders="true",
        **{"createStream.partitions": "1"},
    )  # fmt: skip
    found = stored(lb, "sunk")
    assert [(one.key, one.value) for one in found] == [
        (b"k", b"one"), (b"", b""), (b"", b"three"),
    ]  # fmt: skip
    told = [{k: v for k, v in one.headers.items() if k in "hi"} for one in found]
    assert told == [{"h": b"1", "i": b""}, {}, {}]


def test_rows_name_their_streams_and_partitions(
    spark: SparkSession, broker: Broker, lb: SyncClient
) -> None:
    lb.streams.create("named-0", partitions=2)
    frame = spark.range(20).selectExpr(
        "concat('named-', id % 2) as stream", "cast(id % 4 / 2 as int) as partition",
        "cast(id as string) as value",
    )  # fmt: skip
    write(frame, broker, partitioner="column", **{"createStream.partitions": "2"})
    for name in range(2):
        for partition in range(2):
            assert sorted(map(int, values(lb, f"named-{name}", partition))) == [
                one for one in range(20) if (one % 2, one % 4 // 2) == (name, partition)
            ]


def test_many_rows_go_to_the_partitions_of_their_keys(
    spark: SparkSession, broker: Broker, lb: SyncClient
) -> None:
    stream = lb.streams.create("spread", partitions=3)
    frame = spark.range(30_000).selectExpr(
        "cast(id % 100 as string) as key", "cast(id as string) as value"
    )
    write(frame, broker, stream="spread")
    found = {number: stored(lb, "spread", number) for number in range(3)}
    assert sorted(int(one.value) for each in found.values() for one in each) == list(range(30_000))
    for key in (b"0", b"57", b"99"):
        ack = stream.publish(b"", key=key)
        homes = {number for number, each in found.items() for one in each if one.key == key}
        assert homes == {ack.partition}


@pytest.mark.parametrize(
    ("columns", "options", "told"),
    [
        ("'a' as amount", {"stream": "s"}, "column 'amount' cannot be written"),
        ("1 as value", {"stream": "s"}, "'value' is of type int: it must be binary or string"),
        ("'a' as key", {"stream": "s"}, "column 'value' is missing"),
        ("'a' as value", {}, "no stream is named"),
        ("'a' as value", {"stream": "nowhere"}, "stream nowhere does not exist"),
        ("'a' as value, 0 as partition", {"stream": "s"}, "needs option 'partitioner' column"),
        ("'a' as value", {"stream": "s", "partitioner": "column"}, "needs a column 'partition'"),
        ("'a' as value", {"stream": "s", "includeHeaders": "true"}, "needs a column 'headers'"),
        ("'a' as value", {"stream": "s", "delivery": "twice"}, "'delivery': 'twice' must be"),
        ("'a' as value", {"stream": "s", "subscribe": "s"}, "'subscribe' is for a batch or a"),
        ("cast(null as string) as value", {"stream": "only"}, "column 'value' has 1 nulls"),
        ("'a' as value, 7 as partition", {"stream": "only", "partitioner": "column"},
         "partition 7: the stream has partitions 0 to 0"),
        ("'a' as value", {"stream": "grouped"}, "queue group or optimistic concurrency"),
        ("'a' as value", {"stream": "grouped", "delivery": "exactly-once"},
         "accepts no idempotent"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_refused(
    spark: SparkSession, broker: Broker, lb: SyncClient,
    columns: str, options: dict[str, str], told: str,
) -> None:  # fmt: skip
    if not any(info.name == "only" for info in lb.streams.list()):
        lb.streams.create("only")
        lb.streams.create("grouped", settings=StreamSettings(optimistic_concurrency_control=True))
    frame = spark.range(1).selectExpr(*columns.split(", "))
    with pytest.raises(PySparkException, match=told):
        write(frame, broker, **options)
    assert values(lb, "only") == []


def test_a_stream_is_not_overwritten(spark: SparkSession, broker: Broker) -> None:
    frame = spark.range(1).selectExpr("'a' as value")
    writer = frame.write.format("liftbridge").options(servers=broker.address, stream="any")
    with pytest.raises(PySparkException, match="a stream cannot be overwritten"):
        writer.mode("overwrite").save()


def test_a_task_that_is_repeated_writes_each_row_once(
    spark: SparkSession, broker: Broker, lb: SyncClient, tmp_path: Path
) -> None:
    """Two tasks lose a worker of Python when a part of their rows is stored."""
    count, after = 6_000, 2_500

    def pass_on(number: int) -> str:
        mark = tmp_path / str(number // (count // 2))
        if number % (count // 2) == after and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return f"{number:0400}"  # long, so that Spark does not keep them all back

    lb.streams.create("repeated")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 100)
    try:
        frame = spark.range(0, count, numPartitions=2).select(
            udf(pass_on, useArrow=False)("id").alias("value")
        )
        write(frame, broker, stream="repeated", delivery="exactly-once")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["0", "1"]
    found = list(map(int, values(lb, "repeated")))
    assert sorted(found) == list(range(count))
    for half in range(2):  # each task's in its order
        mine = [one for one in found if one // (count // 2) == half]
        assert mine == sorted(mine)


@pytest.fixture
def source(lb: SyncClient) -> Fill:
    """Fills a stream with numbered rows, from where it ends on."""

    def fill(name: str, count: int) -> None:
        stream = lb.streams.get(name)
        if not any(info.name == name for info in lb.streams.list()):
            stream = lb.streams.create(name)
        begin = stream.bounds(0)[0].high_watermark
        with stream.publisher() as publisher:
            publisher.publish_batch([b"%d" % one for one in range(begin, begin + count)])

    return fill


def run(
    spark: SparkSession, broker: Broker, place: Path, source: str, sink: str,
    **options: str,
) -> None:  # fmt: skip
    """Copy a stream to another until all is there."""
    frame = (
        spark.readStream.format("liftbridge")
        .options(servers=broker.address, subscribe=source, startingOffsets="earliest")
        .load()
        .selectExpr("cast(value as string) as value")
    )
    query = (
        frame.writeStream.format("liftbridge")
        .options(servers=broker.address, stream=sink, **options)
        .option("checkpointLocation", str(place))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert not query.isActive


def commits(place: Path) -> list[Path]:
    return sorted((place / "commits").glob("[0-9]*"), key=lambda one: int(one.name))


def test_a_batch_that_is_repeated_writes_each_row_once(
    spark: SparkSession, broker: Broker, lb: SyncClient, source: Fill, tmp_path: Path
) -> None:
    """Spark crashed between the sink's commit and its own: the batch comes again."""
    lb.streams.create("copied")
    options = {"delivery": "exactly-once"}
    source("original", 3_000)
    run(spark, broker, tmp_path, "original", "copied", **options)
    source("original", 2_000)
    run(spark, broker, tmp_path, "original", "copied", **options)
    assert list(map(int, values(lb, "copied"))) == list(range(5_000))
    commits(tmp_path)[-1].unlink()
    for crc in (tmp_path / "commits").glob(".*.crc"):
        crc.unlink()
    run(spark, broker, tmp_path, "original", "copied", **options)
    source("original", 10)
    run(spark, broker, tmp_path, "original", "copied", **options)
    assert list(map(int, values(lb, "copied"))) == list(range(5_010))


def test_without_it_a_repeated_batch_writes_again(
    spark: SparkSession, broker: Broker, lb: SyncClient, source: Fill, tmp_path: Path
) -> None:
    lb.streams.create("copied-twice")
    source("original-twice", 100)
    run(spark, broker, tmp_path, "original-twice", "copied-twice")
    commits(tmp_path)[-1].unlink()
    for crc in (tmp_path / "commits").glob(".*.crc"):
        crc.unlink()
    run(spark, broker, tmp_path, "original-twice", "copied-twice")
    assert sorted(map(int, values(lb, "copied-twice"))) == sorted([*range(100)] * 2)


def test_complete_mode_is_refused(
    spark: SparkSession, broker: Broker, source: Fill, lb: SyncClient, tmp_path: Path
) -> None:
    lb.streams.create("whole-of-it")
    source("counted", 5)
    frame = (
        spark.readStream.format("liftbridge")
        .options(servers=broker.address, subscribe="counted", startingOffsets="earliest")
        .load()
        .groupBy("partition")
        .count()
        .selectExpr("cast(count as string) as value")
    )
    writer = (
        frame.writeStream.format("liftbridge")
        .options(servers=broker.address, stream="whole-of-it")
        .option("checkpointLocation", str(tmp_path))
        .outputMode("complete")
        .trigger(availableNow=True)
    )
    with pytest.raises((PySparkException, StreamingQueryException), match="cannot be overwritten"):
        writer.start().awaitTermination(60)
