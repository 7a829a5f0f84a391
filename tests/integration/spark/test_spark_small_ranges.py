"""A task over many small ranges: each record once, by a call for each range."""

import urllib.request
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from threading import enumerate as threads_of

import pytest

from liftbridge_client import StreamSettings, SyncClient
from liftbridge_testkit.processes import Broker
from pyspark_liftbridge.plan.options import SourceOptions, read_source
from pyspark_liftbridge.plan.ranges import Range, tasks_of
from pyspark_liftbridge.source import cluster
from pyspark_liftbridge.source.ahead import AT_ONCE_MAX
from pyspark_liftbridge.source.reading import DataLossError, records_of
from pyspark_liftbridge.source.schema import layout_of

Wait = Callable[[Callable[[], bool]], None]
STREAMS, PARTITIONS = 10, 100
FETCH_BYTES = 64 << 10


def options_of(broker: Broker, name: str, **given: str) -> SourceOptions:
    return read_source({"servers": broker.address, "subscribe": name, **given}, is_stream=True)


def rows_of(
    client: SyncClient, ranges: Sequence[Range], options: SourceOptions
) -> Iterator[tuple[int, int, bytes]]:
    """Partition, offset and value of each row."""
    for batch in records_of(client, ranges, layout_of(options.shape), options):
        for row in batch.to_pylist():
            yield row["partition"], row["offset"], row["value"]


def test_a_thousand_partitions_are_one_task_a_call_each_and_one_connection(
    broker: Broker, lb: SyncClient, name: str
) -> None:
    names = [f"{name}.{number}" for number in range(STREAMS)]
    ranges = []
    for one in names:
        stream = lb.streams.create(one, partitions=PARTITIONS)
        with stream.publisher() as publisher:
            for number in range(PARTITIONS):
                publisher.publish(b"%d" % number, partition=number)
        ranges += [Range(one, it.stream_id, it.partition, 0, 1) for it in stream.bounds()]
    options = options_of(broker, ",".join(names), **{"fetch.retries": "8"})
    assert len(tasks_of(ranges, options.split, {})) == 1
    before = [connections(broker), fetches(broker)]
    client = cluster.client_of(options.connection, options.fetch.timeout_ns + 1)
    calls = client.stats.calls
    found, threads = [], 0
    for row in rows_of(client, ranges, options):
        found.append(row)
        threads = max(threads, sum("liftbridge-ahead" in one.name for one in threads_of()))
    assert found == [(number, 0, b"%d" % number) for number in range(PARTITIONS)] * STREAMS
    assert threads == AT_ONCE_MAX
    assert client.stats.calls == calls
    assert [connections(broker), fetches(broker)] == [before[0] + 1, before[1] + len(ranges)]


def connections(broker: Broker) -> float:
    return scraped(broker, "liftbridge_connections_total")


def fetches(broker: Broker) -> float:
    return scraped(broker, "Data/FetchBatches")


def scraped(broker: Broker, text: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.metrics_port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if text in line and line[0] != "#")


def test_small_ranges_of_large_records_are_read_to_their_end(
    broker: Broker, lb: SyncClient, name: str
) -> None:
    """Each has more than its share of `fetch.maxBytes`, and more than that, too."""
    stream = lb.streams.create(name, partitions=3)
    count, value = 10, bytes(FETCH_BYTES // 8)
    for _ in range(count):
        for number in range(3):
            stream.publish(value, partition=number)
    options = options_of(broker, name, **{"fetch.maxBytes": str(FETCH_BYTES)})
    ranges = [Range(name, one.stream_id, one.partition, 1, count) for one in stream.bounds()]
    found = list(rows_of(lb, ranges, options))
    assert found == [(number, at, value) for number in range(3) for at in range(1, count)]


def test_a_small_range_with_a_loss_is_told_of_or_passed_over_among_others(
    broker: Broker, lb: SyncClient, name: str, wait_for: Wait
) -> None:
    settings = StreamSettings(
        segment_max_bytes=1, retention_max_messages=2, cleaner_interval=timedelta(seconds=1)
    )
    stream = lb.streams.create(name, partitions=3, settings=settings)
    for number, count in ((0, 2), (1, 6), (2, 2)):
        for _ in range(count):
            stream.publish(b"x", partition=number)
    wait_for(lambda: stream.bounds()[1].log_start > 0)
    first = stream.bounds()[1].log_start
    ranges = [
        Range(name, one.stream_id, one.partition, 0, one.high_watermark) for one in stream.bounds()
    ]
    with pytest.raises(DataLossError, match=f"offsets 0 to .* of {name}/1 are gone"):
        list(rows_of(lb, ranges, options_of(broker, name)))
    found = list(rows_of(lb, ranges, options_of(broker, name, failOnDataLoss="false")))
    kept = [(1, at) for at in range(6) if at >= found[2][1]]
    assert [row[:2] for row in found] == [(0, 0), (0, 1), *kept, (2, 0), (2, 1)]
    assert found[2][1] >= first
