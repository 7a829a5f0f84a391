"""How far a running query may read, and where it began: what is kept, and by whom."""

import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from time import monotonic

import pytest

from liftbridge_client import RetriableError, StreamSettings, SyncClient, connect_sync
from liftbridge_testkit.cluster import ClusterKit
from liftbridge_testkit.processes import Broker, NatsServer
from pyspark_liftbridge.plan.offsets import History, Offsets, PartitionId, StreamOffsets
from pyspark_liftbridge.plan.options import OptionError, SourceOptions, read_source
from pyspark_liftbridge.plan.ranges import Range
from pyspark_liftbridge.source import cluster, cursors
from pyspark_liftbridge.source import watch as watch_module
from pyspark_liftbridge.source.reading import DataLossError, records_of
from pyspark_liftbridge.source.schema import layout_of
from pyspark_liftbridge.source.watch import Watch

Wait = Callable[[Callable[[], bool]], None]
Watching = Callable[[SourceOptions], Watch]
WINDOW_SECONDS = 2.0
SECONDS_MAX = 20.0
CALLS_MAX = 2 * WINDOW_SECONDS


@pytest.fixture
def watching() -> Iterator[Watching]:
    watches: list[Watch] = []

    def watch(options: SourceOptions) -> Watch:
        found = cluster.ask(options, lambda client: cluster.bounds_at_start(client, options))
        watches.append(Watch(options, found))
        return watches[-1]

    yield watch
    for one in watches:
        one.stop()


def options_of(servers: str, **given: str) -> SourceOptions:
    return read_source({"servers": servers, **given}, is_stream=True)


@pytest.mark.parametrize("is_original", [False, True])
def test_a_record_after_a_pause_is_seen_at_once_and_quiet_streams_cost_little(
    broker: Broker, lb: SyncClient, name: str, watching: Watching, wait_for: Wait, *, is_original
) -> None:
    streams = [lb.streams.create(f"{name}.{number}", partitions=2) for number in range(3)]
    retries = {"fetch.retries": "5" if is_original else "6"}
    options = options_of(broker.address, subscribePattern=f"{name}.*", **retries)
    client = cluster.planner_of(options)
    client.has_data = not is_original
    watch = watching(options)
    if not is_original:
        before, began = client.stats.calls, monotonic()
        wait_for(lambda: monotonic() - began > WINDOW_SECONDS)
        # The first round, with one open call for each stream, falls into the window.
        assert client.stats.calls - before <= CALLS_MAX + 2 * len(streams)
    streams[2].publish(b"one", partition=1)
    began = monotonic()
    wait_for(lambda: watch.bounds()[PartitionId(f"{name}.2", 1)].latest == 1)
    assert monotonic() - began < 5.0
    lb.streams.create(f"{name}.new")
    streams[0].publish(b"two", partition=0)
    wait_for(lambda: PartitionId(f"{name}.new", 0) in watch.bounds())


def test_hundreds_of_quiet_streams_cost_two_calls_in_a_wait(
    broker: Broker,
    lb: SyncClient,
    name: str,
    watching: Watching,
    wait_for: Wait,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One for all streams, and one that stays open. Here a wait lasts for half a second."""
    count, rounds, seconds = 200, 4, 0.5
    monkeypatch.setattr(watch_module, "WAIT_SECONDS_MAX", seconds)
    streams = [lb.streams.create(f"{name}.{number:03}") for number in range(count)]
    options = options_of(broker.address, subscribePattern=f"{name}.*", **{"fetch.retries": "7"})
    calls = cluster.planner_of(options).stats
    watch = watching(options)
    # Bounds of each stream are asked for at the start, and once more by the watch.
    wait_for(lambda: calls.calls > 2 * count + 4)
    before, began = calls.calls, monotonic()
    wait_for(lambda: monotonic() - began > rounds * seconds)
    assert 1 < calls.calls - before <= 2 * (rounds + 1)
    monkeypatch.setattr(watch_module, "WAIT_SECONDS_MAX", watch_module.WAIT_SECONDS_MIN)
    began = monotonic()
    streams[7].publish(b"news")
    wait_for(lambda: watch.bounds()[PartitionId(f"{name}.007", 0)].latest == 1)
    streams[150].publish(b"news")
    wait_for(lambda: watch.bounds()[PartitionId(f"{name}.150", 0)].latest == 1)
    assert monotonic() - began < watch_module.WAIT_SECONDS_MIN
    former = watch.bounds()[PartitionId(f"{name}.008", 0)].stream_id
    streams[8].delete()
    lb.streams.create(f"{name}.008")
    wait_for(lambda: watch.bounds()[PartitionId(f"{name}.008", 0)].stream_id != former)


def test_brokers_that_are_away_for_a_while_are_waited_for_and_then_told(
    tmp_path: Path, watching: Watching, wait_for: Wait
) -> None:
    with NatsServer(tmp_path) as nats, Broker(tmp_path, nats_url=nats.url) as broker:
        with connect_sync(broker.address) as lb:
            lb.streams.create("away").publish(b"one")
        options = options_of(broker.address, subscribe="away", **{"fetch.timeout": "4s"})
        watch = watching(options)
        broker.kill()
        assert watch.bounds()[PartitionId("away", 0)].latest == 1

        def is_told() -> bool:
            try:
                return not watch.bounds()
            except RetriableError:
                return True

        wait_for(is_told)
        broker.start()
        with connect_sync(broker.address) as lb:
            lb.streams.get("away").publish(b"two")
        wait_for(lambda: not is_told() and watch.bounds()[PartitionId("away", 0)].latest == 2)


def test_a_stream_that_is_gone_is_left_out(
    broker: Broker, lb: SyncClient, name: str, watching: Watching, wait_for: Wait
) -> None:
    streams = [lb.streams.create(f"{name}.{number}") for number in range(2)]
    both = f"{name}.0,{name}.1"
    watch = watching(options_of(broker.address, subscribe=both))
    streams[1].delete()
    streams[0].publish(b"news")
    left = PartitionId(f"{name}.0", 0)
    wait_for(lambda: list(watch.bounds()) == [left])
    wait_for(lambda: watch.bounds()[left].latest == 1)
    assert list(watch.bounds()) == [left]


# -- cursors ----------------------------------------------------------------------------------


def test_a_start_is_kept_by_the_first_who_asks(broker: Broker, lb: SyncClient, name: str) -> None:
    lb.streams.create(name, partitions=2)
    parts = [PartitionId(name, 0), PartitionId(name, 1)]
    first = Offsets({name: StreamOffsets(7, {0: 0, 1: 5})})
    assert cursors.pinned(lb, "query", first, parts) == first
    later = Offsets({name: StreamOffsets(7, {0: 3, 1: 9})})
    assert cursors.pinned(lb, "query", later, parts) == first
    assert cursors.pinned(lb, "query", later, parts[:1]).of(parts[1]) == 9
    anew = Offsets({name: StreamOffsets(8, {0: 0, 1: 0})})
    assert cursors.pinned(lb, "query", anew, parts) == anew
    assert cursors.pinned(lb, "another", later, parts) == later


def test_progress_is_shown_where_there_is_some(
    broker: Broker, lb: SyncClient, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream = lb.streams.create(name, partitions=3)
    first = Offsets({name: StreamOffsets(7, {0: 0, 1: 5, 2: 1})})
    cursors.mirror(lb, "shown", None, first)
    stream.set_cursor("shown", 99, partition=2)
    cursors.mirror(lb, "shown", first, Offsets({name: StreamOffsets(7, {0: 0, 1: 8, 2: 1})}))
    assert [stream.fetch_cursor("shown", partition=one) for one in range(3)] == [None, 7, 99]
    assert not caplog.records


def test_progress_in_another_history_is_not_shown(
    lb: SyncClient, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream = lb.streams.create(name)
    for unclean_epoch, end in ((0, 5), (7, 8)):
        read = StreamOffsets(7, {0: end}, {0: History(unclean_epoch, 1)})
        with caplog.at_level(logging.WARNING):
            cursors.mirror(lb, "shown", None, Offsets({name: read}))
        assert stream.fetch_cursor("shown") == 4
    (record,) = caplog.records
    assert "read in history 7, and 0 is current" in record.getMessage()


def test_brokers_without_cursors_are_told_of_at_the_start_and_no_matter_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    offsets = Offsets({"s": StreamOffsets(7, {0: 1})})
    with Broker(tmp_path) as broker, connect_sync(broker.address) as client:
        with pytest.raises(OptionError, match=r"'cursorId': .* set cursors\.stream\.partitions"):
            cursors.pinned(client, "query", offsets, [PartitionId("s", 0)])
        with caplog.at_level(logging.WARNING):
            cursors.mirror(client, "query", None, offsets)
    assert [record.getMessage()[:39] for record in caplog.records] == [
        "cursor query does not show the progress"
    ]


# -- brokers that fail within a range -----------------------------------------------------------

RECORDS, SIZE = 3_000, 16_000
"""More than buffers between broker and reader hold, so that a leader dies before it gave all."""


@pytest.mark.parametrize("encoding", ["raw", "subscribe"])
def test_a_task_goes_on_at_the_next_leader_behind_what_it_gave(
    tmp_path: Path, encoding: str
) -> None:
    with ClusterKit(tmp_path, has_proxies=False) as kit:
        servers = ",".join(broker.address for broker in kit.brokers.values())
        with connect_sync(servers) as lb:
            stream = lb.streams.create("s", replication=3)
            with stream.publisher(ack_policy="all") as publisher:
                for first in range(0, RECORDS, 100):
                    numbers = range(first, first + 100)
                    publisher.publish_batch([b"%d" % at + bytes(SIZE) for at in numbers])
            wanted = Range("s", stream.bounds()[0].stream_id, 0, 0, RECORDS)
            options = options_of(
                servers, subscribe="s", **{"fetch.maxBytes": "64k", "fetch.encoding": encoding}
            )
            reading = records_of(lb, [wanted], layout_of(options.shape), options)
            leader = kit.partition("s").leader
            rows = next(reading).to_pylist()
            kit[leader].kill()
            rows += [row for batch in reading for row in batch.to_pylist()]
        others = [name for name in kit.brokers if name != leader]
        assert sum(kit.metric("delivered_messages_total", name) for name in others) > 0
    assert [row["offset"] for row in rows] == list(range(RECORDS))
    assert [int(row["value"][:-SIZE]) for row in rows] == list(range(RECORDS))


def test_a_task_without_a_broker_fails_in_time_and_its_repetition_reads_the_same(
    tmp_path: Path,
) -> None:
    with NatsServer(tmp_path) as nats, Broker(tmp_path, nats_url=nats.url) as broker:
        with connect_sync(broker.address) as lb:
            stream = lb.streams.create("s")
            with stream.publisher() as publisher:
                publisher.publish_batch([b"%d" % at + bytes(SIZE) for at in range(RECORDS)])
            wanted = Range("s", stream.bounds()[0].stream_id, 0, 0, RECORDS)
        given = {"subscribe": "s", "fetch.maxBytes": "64k", "fetch.timeout": "2s"}
        options = options_of(broker.address, **given)
        layout = layout_of(options.shape)

        def reading() -> Iterator[int]:
            client = cluster.client_of(options.connection, options.fetch.timeout_ns)
            batches = records_of(client, [wanted], layout, options)
            return (row["offset"] for batch in batches for row in batch.to_pylist())

        first = reading()
        begun = [next(first)]
        broker.kill()
        since = monotonic()
        with pytest.raises(RetriableError):
            begun.extend(first)
        assert monotonic() - since < SECONDS_MAX
        assert begun == list(range(len(begun)))
        assert len(begun) < RECORDS
        broker.start()
        assert list(reading()) == list(range(RECORDS))


def test_a_log_start_that_overtakes_a_task_is_an_error_with_what_is_missing(
    broker: Broker, lb: SyncClient, name: str, wait_for: Wait
) -> None:
    settings = StreamSettings(segment_max_bytes=20_000, cleaner_interval=timedelta(seconds=1))
    stream = lb.streams.create(name, settings=settings)
    for _ in range(60):
        stream.publish(bytes(5_000))
    wanted = Range(name, stream.bounds()[0].stream_id, 0, 0, 60)
    given = {"subscribe": name, "fetch.maxBytes": "10k", "fetch.encoding": "raw"}
    options = options_of(broker.address, **given)
    reading = records_of(lb, [wanted], layout_of(options.shape), options)
    offsets = [row["offset"] for row in next(reading).to_pylist()]
    stream.alter(StreamSettings(retention_max_messages=10))
    wait_for(lambda: stream.bounds()[0].log_start > 40)
    with pytest.raises(DataLossError) as caught:
        offsets.extend(row["offset"] for batch in reading for row in batch.to_pylist())
    assert offsets == list(range(len(offsets)))
    assert f"offsets {len(offsets)} to {stream.bounds()[0].log_start - 1} of" in str(caught.value)
