"""Options of the source at work: filters that are pushed, starts that are kept, one by one."""

import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from threading import Event
from time import monotonic

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable

from liftbridge_client import SyncClient
from liftbridge_testkit.processes import Broker
from pyspark_liftbridge import DefaultSource
from pyspark_liftbridge.plan.options import OptionError
from pyspark_liftbridge.plan.pruning import Pruning
from pyspark_liftbridge.plan.table import OPTIONS, READS, Option, Use
from pyspark_liftbridge.source.batch import BatchReader
from pyspark_liftbridge.source.filters import pushed
from pyspark_liftbridge.source.stream import StreamReader

SWITCH = "spark.sql.python.filterPushdown.enabled"
SECONDS_MAX = 30.0
ALL = ReadAllAvailable()
TIME = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
TIME_NS = 1_767_323_045_678_901_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    config = {"cursors.stream.partitions": 1}
    with Broker(Path(tmp_path_factory.mktemp("reading")), config=config) as running:
        yield running


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(SWITCH, "true")
    yield
    spark.conf.unset(SWITCH)


def wait_for(holds: Callable[[], bool]) -> None:
    deadline, step = monotonic() + SECONDS_MAX, Event()
    while not holds():
        assert monotonic() < deadline, "not in time"
        step.wait(0.05)


def read(spark: SparkSession, broker: Broker, **options: str) -> DataFrame:
    return spark.read.format("liftbridge").options(servers=broker.address, **options).load()


def reader_of(broker: Broker, **options: str) -> StreamReader:
    found = DefaultSource({"servers": broker.address, **options}).streamReader(None)
    assert isinstance(found, StreamReader)
    return found


# -- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "option", [one for one in OPTIONS if one.uses & READS], ids=lambda one: one.name
)
def test_every_option_is_refused_before_anybody_is_asked(option: Option) -> None:
    given = {"servers": "127.0.0.1:1", "subscribe": "s", option.name: "["}
    if option.name in ("assign", "subscribePattern"):
        del given["subscribe"]
    if option.rule.startswith(("a path", "a name", "a URL", "brokers", "names", "the address")):
        given[option.name] = " "
    make = DefaultSource(given)
    with pytest.raises(OptionError) as caught:
        make.reader(None) if Use.BATCH in option.uses else make.streamReader(None)
    assert str(caught.value).startswith(f"option '{option.name}': ")
    assert str(caught.value).endswith(f"must be {option.rule}")


# -- filters ----------------------------------------------------------------------------------


def test_only_a_reader_that_shall_push_filters_has_them() -> None:
    given = {"servers": "127.0.0.1:1", "subscribe": "s"}
    plain = type(DefaultSource(given).reader(None))
    assert plain is BatchReader
    assert plain.pushFilters is DataSourceReader.pushFilters
    told = type(DefaultSource({**given, "pushdown": "true"}).reader(None))
    assert told.pushFilters is not DataSourceReader.pushFilters


@pytest.mark.parametrize(
    ("one", "pruning", "is_left"),
    [
        (EqualTo(("stream",), "s"), Pruning(streams=frozenset("s")), False),
        (In(("stream",), ("s", "t")), Pruning(streams=frozenset("st")), False),
        (EqualTo(("partition",), 0), Pruning(partitions=frozenset({0})), False),
        (In(("partition",), (0, 2)), Pruning(partitions=frozenset({0, 2})), False),
        (EqualTo(("offset",), 0), Pruning(offset_min=0, offset_end=1), False),
        (In(("offset",), (9, 3)), Pruning(offset_min=3, offset_end=10), True),
        (GreaterThan(("offset",), 3), Pruning(offset_min=4), False),
        (GreaterThanOrEqual(("offset",), 3), Pruning(offset_min=3), False),
        (LessThan(("offset",), 3), Pruning(offset_end=3), False),
        (LessThanOrEqual(("offset",), 3), Pruning(offset_end=4), False),
        (GreaterThanOrEqual(("timestamp",), TIME), Pruning(time_ns_min=TIME_NS), True),
        (LessThanOrEqual(("timestamp",), TIME), Pruning(time_ns_end=TIME_NS + 1_000), True),
        (GreaterThan(("timestamp_ns",), TIME_NS), Pruning(time_ns_min=TIME_NS), True),
        (LessThan(("timestamp_ns",), TIME_NS + 1), Pruning(time_ns_end=TIME_NS + 1_000), True),
        (GreaterThan(("partition",), 0), Pruning(), True),
        (In(("stream",), ("s", None)), Pruning(), True),
        (In(("offset",), ()), Pruning(), True),
        (EqualTo(("partition",), None), Pruning(), True),
        (IsNotNull(("offset",)), Pruning(), True),
        (Not(EqualTo(("offset",), 3)), Pruning(), True),
        (EqualTo(("headers", "key"), "x"), Pruning(), True),
        (EqualTo(("key",), b"x"), Pruning(), True),
        (StringStartsWith(("stream",), "s"), Pruning(), True),
        (EqualTo(("topic",), "s"), Pruning(), True),
    ],
)  # fmt: skip
def test_a_filter_narrows_ranges_and_is_left_where_that_is_not_exact(
    one: Filter, pruning: Pruning, *, is_left: bool
) -> None:
    assert pushed([one], is_kafka_schema=False) == (pruning, [one] if is_left else [])


def test_filters_narrow_together_and_a_topic_is_a_stream() -> None:
    found, left = pushed(
        [EqualTo(("topic",), "s"), GreaterThan(("offset",), 3), LessThan(("offset",), 9)],
        is_kafka_schema=True,
    )
    assert (found, left) == (Pruning(streams=frozenset("s"), offset_min=4, offset_end=9), [])


@pytest.mark.usefixtures("pushdown")
def test_filters_leave_fewer_tasks_and_the_same_rows(
    spark: SparkSession, broker: Broker, lb: SyncClient
) -> None:
    for name in ("pushed-a", "pushed-b"):
        stream = lb.streams.create(name, partitions=2)
        for number in range(10):
            stream.publish(b"%d" % number, partition=number % 2)
    given = {"subscribe": "pushed-a,pushed-b", "minRecordsPerTask": "0"}
    whole = read(spark, broker, **given)
    told = read(spark, broker, **given, pushdown="true")
    rows = whole.collect()
    middle = sorted(row.timestamp for row in rows)[len(rows) // 2]
    at = middle.astimezone(UTC).strftime("timestamp'%Y-%m-%d %H:%M:%S.%f'")
    cases: list[tuple[str, Callable[[Row], bool], int | None]] = [
        (
            "stream in ('pushed-a', 'x') and partition = 0 and offset >= 3",
            lambda row: row.stream == "pushed-a" and row.partition == 0 and row.offset >= 3,
            1,
        ),
        (f"timestamp >= {at}", lambda row: row.timestamp >= middle, None),
        (
            f"timestamp < {at} and offset in (0, 2, 4)",
            lambda row: row.timestamp < middle and row.offset in (0, 2, 4),
            None,
        ),
    ]
    for condition, is_wanted, tasks in cases:
        frame = told.where(condition)
        assert sorted(frame.collect()) == sorted(row for row in rows if is_wanted(row)), condition
        assert tasks is None or frame.rdd.getNumPartitions() == tasks, condition


def test_a_reader_that_pushes_filters_fails_while_the_switch_is_off(
    spark: SparkSession, broker: Broker, lb: SyncClient
) -> None:
    lb.streams.create("switch").publish(b"one")
    frame = read(spark, broker, subscribe="switch", pushdown="true")
    with pytest.raises(PySparkException, match="DATA_SOURCE_PUSHDOWN_DISABLED"):
        frame.where("partition = 0").collect()
    assert read(spark, broker, subscribe="switch").where("partition = 0").count() == 1


def test_single_messages_are_rows_as_well(
    spark: SparkSession, broker: Broker, lb: SyncClient
) -> None:
    stream = lb.streams.create("single", partitions=2)
    for number in range(30):
        stream.publish(b"%d" % number, key=b"k" * (number % 2), headers={"h": b"1"})
    given = {"subscribe": "single", "includeHeaders": "true"}
    single = read(spark, broker, **given, **{"fetch.encoding": "subscribe"}).collect()
    raw = read(spark, broker, **given, **{"fetch.encoding": "raw"}).collect()
    assert [row.leader_epoch for row in single] == [None] * 30
    assert sorted(row[:-1] for row in single) == sorted(row[:-1] for row in raw)


def test_a_paused_partition_is_named_or_resumed(
    spark: SparkSession, broker: Broker, lb: SyncClient
) -> None:
    stream = lb.streams.create("paused")
    stream.publish(b"one")
    stream.pause()
    with pytest.raises(PySparkException, match="partition paused/0 is paused; set resume=true"):
        read(spark, broker, subscribe="paused").collect()
    assert read(spark, broker, subscribe="paused", resume="true").count() == 1


def test_a_task_that_runs_twice_at_a_time_gives_the_same_rows(
    broker: Broker, lb: SyncClient
) -> None:
    stream = lb.streams.create("twice")
    with stream.publisher() as publisher:
        publisher.publish_batch([b"%d" % number for number in range(20_000)])
    given = {"servers": broker.address, "subscribe": "twice", "fetch.maxBytes": "64k"}
    reader = DefaultSource(given).reader(None)
    (task,) = reader.partitions()
    stream.publish(b"later")
    in_turns = list(zip(reader.read(task), reader.read(task), strict=True))
    assert len(in_turns) > 1
    assert all(one.equals(other) for one, other in in_turns)
    assert sum(one.num_rows for one, _ in in_turns) == 20_000


# -- where a query begins, and how far it goes -----------------------------------------------


def test_latest_is_asked_for_once_and_warned_of(
    broker: Broker, lb: SyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    stream = lb.streams.create("warned")
    stream.publish(b"one")
    reader = reader_of(broker, subscribe="warned")
    with caplog.at_level(logging.WARNING):
        first = reader.initialOffset()
        stream.publish(b"two")
        assert reader.initialOffset() == first
    assert first["streams"]["warned"]["p"] == {"0": 1}
    assert [record.getMessage()[-12:] for record in caplog.records] == ["set cursorId"]
    again = reader_of(broker, subscribe="warned").initialOffset()
    assert again["streams"]["warned"]["p"] == {"0": 2}


def test_latest_is_kept_for_the_next_reader_and_progress_is_shown(
    broker: Broker, lb: SyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    stream = lb.streams.create("kept", partitions=2)
    given = {"subscribe": "kept", "cursorId": "kept-query"}
    first = reader_of(broker, **given).initialOffset()
    stream.publish(b"one", partition=1)
    reader = reader_of(broker, **given)
    assert reader.initialOffset() == first
    end = reader.latestOffset(first, ALL)
    assert end["streams"]["kept"]["p"] == {"0": 0, "1": 1}
    assert reader.reportLatestOffset() == end
    reader.commit(end)
    assert [stream.fetch_cursor("kept-query", partition=one) for one in (0, 1)] == [None, 0]
    assert not caplog.records
    reader.stop()


def test_a_query_that_ends_reads_what_was_there_and_asks_anew(
    broker: Broker, lb: SyncClient
) -> None:
    stream = lb.streams.create("ending")
    stream.publish(b"one")
    reader = reader_of(broker, subscribe="ending", startingOffsets="earliest")
    first = reader.initialOffset()
    stream.publish(b"two")
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(first, ALL)
    assert end["streams"]["ending"]["p"] == {"0": 2}
    stream.publish(b"three")
    assert reader.latestOffset(end, ALL) == end


def test_a_running_query_sees_news_and_never_goes_back(broker: Broker, lb: SyncClient) -> None:
    stream = lb.streams.create("running")
    stream.publish(b"one")
    reader = reader_of(broker, subscribe="running", startingOffsets="earliest")
    first = reader.initialOffset()
    end = reader.latestOffset(first, ALL)
    stream.publish(b"two")
    wait_for(lambda: reader.latestOffset(end, ALL) != end)
    end = reader.latestOffset(end, ALL)
    assert end["streams"]["running"]["p"] == {"0": 2}
    assert reader.latestOffset(end, ALL) == end
    reader.stop()


def test_a_query_that_failed_in_its_first_batch_lacks_nothing(
    spark: SparkSession, broker: Broker, lb: SyncClient, tmp_path: Path
) -> None:
    stream = lb.streams.create("pinned")
    stream.publish(b"before")
    pin = f"pinned-query/start/{stream.bounds()[0].stream_id}"
    rows: list[int] = []

    def fail(_frame: DataFrame, _number: int) -> None:
        raise RuntimeError("on purpose")

    def keep(frame: DataFrame, _number: int) -> None:
        rows.extend(row.offset for row in frame.collect())

    def start(sink: Callable[[DataFrame, int], None], **trigger: bool):
        frame = (
            spark.readStream.format("liftbridge")
            .options(servers=broker.address, subscribe="pinned", cursorId="pinned-query")
            .load()
        )
        writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path))
        return (writer.trigger(**trigger) if trigger else writer).start()

    query = start(fail)
    wait_for(lambda: stream.fetch_cursor(pin) is not None)
    stream.publish(b"one")
    with pytest.raises(StreamingQueryException, match="on purpose"):
        query.awaitTermination(60)
    stream.publish(b"two")
    start(keep, availableNow=True).awaitTermination(60)
    assert sorted(rows) == [1, 2]
    assert stream.fetch_cursor(pin) == 1


def test_a_limit_in_bytes_goes_by_what_comes_next(broker: Broker, lb: SyncClient) -> None:
    stream = lb.streams.create("weighed")
    with stream.publisher() as publisher:
        publisher.publish_batch([b"x"] * 20_000)
        publisher.publish_batch([bytes(10_000)] * 100)
    options = {"servers": broker.address, "subscribe": "weighed", "maxBytesPerTrigger": "100k"}
    reader = DefaultSource({**options, "startingOffsets": "earliest"}).streamReader(None)
    limit, ends = reader.getDefaultReadLimit(), []
    at = {"streams": {"weighed": {"id": stream.bounds()[0].stream_id, "p": {"0": 20_000}}}, "v": 1}
    for _ in range(3):
        at = reader.latestOffset(at, limit)
        ends.append(at["streams"]["weighed"]["p"]["0"])
    reader.stop()
    # By the mean of the whole log, 60 bytes or so, all would have come at once.
    assert [end - start for start, end in pairwise([20_000, *ends])] == [10, 10, 10]
