"""What tasks read of a real broker, and what they say when it is not there; without Spark."""

from datetime import timedelta
from typing import Any

import pytest

from liftbridge_client import StreamSettings, SyncClient
from liftbridge_testkit.processes import Broker
from pyspark_liftbridge.plan.offsets import PartitionId
from pyspark_liftbridge.plan.options import OptionError, SourceOptions, read_source
from pyspark_liftbridge.plan.places import offsets_at
from pyspark_liftbridge.plan.ranges import Range
from pyspark_liftbridge.source import cluster
from pyspark_liftbridge.source.reading import DataLossError, records_of
from pyspark_liftbridge.source.schema import layout_of


def options_of(broker: Broker, **given: str) -> SourceOptions:
    return read_source({"servers": broker.address, **given}, is_stream=False)


def rows_of(lb: SyncClient, wanted: Range, options: SourceOptions) -> list[dict[str, Any]]:
    batches = records_of(lb, [wanted], layout_of(options.shape), options)
    return [row for batch in batches for row in batch.to_pylist()]


def test_rows_of_a_range_have_every_column(broker: Broker, lb: SyncClient) -> None:
    stream = lb.streams.create("columns", subject="columns.*")
    stream.publish(b"zero")
    lb.publish_to_subject("columns.b", b"one", key=b"k", headers={"h": b"1", "a": b"2"})
    options = options_of(broker, subscribe="columns", includeHeaders="true")
    (bounds,) = stream.bounds()
    rows = rows_of(lb, Range("columns", bounds.stream_id, 0, 0, 2), options)
    assert [(row["offset"], row["key"], row["value"]) for row in rows] == [
        (0, None, b"zero"),
        (1, b"k", b"one"),
    ]
    assert {row["stream"] for row in rows} == {"columns"}
    assert (rows[1]["subject"], rows[1]["partition"]) == ("columns.b", 0)
    assert rows[1]["headers"] == [{"key": "a", "value": b"2"}, {"key": "h", "value": b"1"}]
    assert rows[1]["timestamp_ns"] >= rows[0]["timestamp_ns"]


def test_streams_are_found_by_name_pattern_and_partition(broker: Broker, lb: SyncClient) -> None:
    for name in ("found-a", "found-b", "found-bc"):
        lb.streams.create(name, partitions=2)
    by_name = options_of(broker, subscribe="found-b,found-a").subscription
    assert cluster.partitions_of(lb, by_name) == {"found-a": (0, 1), "found-b": (0, 1)}
    by_pattern = options_of(broker, subscribePattern="found-b.*").subscription
    assert cluster.partitions_of(lb, by_pattern) == {"found-b": (0, 1), "found-bc": (0, 1)}
    some = options_of(broker, assign='{"found-a": [1]}').subscription
    assert cluster.partitions_of(lb, some) == {"found-a": (1,)}
    with pytest.raises(OptionError, match="stream found-x does not exist"):
        cluster.partitions_of(lb, options_of(broker, subscribe="found-x").subscription)
    with pytest.raises(OptionError, match="stream found-a has no partition 2; it has 0 to 1"):
        cluster.partitions_of(lb, options_of(broker, assign='{"found-a": [2]}').subscription)


def test_places_are_offsets_and_times(broker: Broker, lb: SyncClient) -> None:
    stream = lb.streams.create("places")
    for value in (b"a", b"b", b"c"):
        stream.publish(value)
    options = options_of(broker, subscribe="places")
    bounds = cluster.bounds_of(lb, {"places": (0,)}, options)
    one = PartitionId("places", 0)
    assert (bounds[one].earliest, bounds[one].latest) == (0, 3)
    rows = rows_of(lb, Range("places", bounds[one].stream_id, 0, 0, 3), options)
    assert cluster.offsets_by_time(lb, {one: 0}) == {one: 0}
    assert cluster.offsets_by_time(lb, {one: rows[1]["timestamp_ns"]})[one] in (0, 1)
    late = cluster.offsets_by_time(lb, {one: rows[2]["timestamp_ns"] + 10**12})
    assert late[one] >= 3
    assert offsets_at(options.end, bounds, {}).of(one) == 3


def removed_below(lb: SyncClient, name: str) -> int:
    """A stream whose first records retention removed; where it begins."""
    settings = StreamSettings(
        retention_max_messages=10, segment_max_bytes=1_000, cleaner_interval=timedelta(seconds=1)
    )
    stream = lb.streams.create(name, settings=settings)
    while not (start := stream.bounds()[0].log_start):
        stream.publish(bytes(200))
    stream.alter(StreamSettings(cleaner_interval=timedelta(hours=1)))
    return start


def test_records_that_retention_removed_are_an_error_or_left_out(
    broker: Broker, lb: SyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    start = removed_below(lb, "removed")
    (bounds,) = lb.streams.get("removed").bounds()
    wanted = Range("removed", bounds.stream_id, 0, 0, bounds.high_watermark)
    with pytest.raises(DataLossError, match=f"offsets 0 to {start - 1} of removed/0 are gone"):
        rows_of(lb, wanted, options_of(broker, subscribe="removed"))
    some = rows_of(lb, wanted, options_of(broker, subscribe="removed", failOnDataLoss="false"))
    assert [row["offset"] for row in some] == list(range(some[0]["offset"], wanted.end))
    assert some[0]["offset"] >= start
    (logged,) = caplog.messages
    assert logged.startswith(f"offsets 0 to {start - 1} of removed/0 are gone")


def test_what_lies_beyond_the_log_is_an_error(broker: Broker, lb: SyncClient) -> None:
    stream = lb.streams.create("short")
    stream.publish(b"one")
    (bounds,) = stream.bounds()
    for start in (0, 5):
        wanted = Range("short", bounds.stream_id, 0, start, 10)
        with pytest.raises(DataLossError, match=f"offsets {start or 1} to 9 of short/0 are gone"):
            rows_of(lb, wanted, options_of(broker, subscribe="short"))


def test_a_stream_that_is_another_one_now_or_gone_is_an_error(
    broker: Broker, lb: SyncClient
) -> None:
    stream = lb.streams.create("anew")
    stream.publish(b"one")
    former = stream.bounds()[0].stream_id
    stream.delete()
    options = options_of(broker, subscribe="anew")
    wanted = Range("anew", former, 0, 0, 1)
    with pytest.raises(DataLossError, match=f"stream of id {former} was deleted"):
        rows_of(lb, wanted, options)
    lb.streams.create("anew").publish(b"two")
    with pytest.raises(DataLossError, match=f"stream of id {former} is another one now, of id"):
        rows_of(lb, wanted, options)
    lenient = options_of(broker, subscribe="anew", failOnDataLoss="false")
    assert rows_of(lb, wanted, lenient) == []
