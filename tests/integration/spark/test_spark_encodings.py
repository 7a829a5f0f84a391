"""Stored batches and single messages give the same rows, and a server of the original is enough."""

from collections.abc import Callable
from datetime import timedelta
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from liftbridge_client import RetriableError, StreamSettings, SyncClient
from liftbridge_testkit.processes import Broker
from pyspark_liftbridge.plan.offsets import PartitionId
from pyspark_liftbridge.plan.options import OptionError, SourceOptions, read_source
from pyspark_liftbridge.plan.ranges import Range
from pyspark_liftbridge.source import cluster
from pyspark_liftbridge.source.reading import DataLossError, records_of
from pyspark_liftbridge.source.schema import layout_of

ENCODINGS = ("raw", "subscribe")
_names = count()
_timeouts = count(60_000)

BYTES_MAX = 16_384

RECORD = st.fixed_dictionaries(
    {
        "gap": st.sampled_from((1, 1, 1, 2, 7)),
        "key": st.none() | st.binary(max_size=3),
        "value": st.binary(max_size=20),
        "headers": st.dictionaries(
            st.sampled_from(("a", "b", "subject", "é")), st.binary(max_size=3), max_size=3
        ),
        "subject": st.sampled_from(("same.a", "same.b.c")),
        "reply_subject": st.sampled_from(("", "inbox")),
    }
)


def options_of(broker: Broker, **given: str) -> SourceOptions:
    return read_source({"servers": broker.address, **given}, is_stream=False)


def of_original(broker: Broker, **given: str) -> tuple[SyncClient, SourceOptions]:
    """A client, for this call alone, that finds nothing but the calls of the original."""
    timeout = {"fetch.timeout": f"{next(_timeouts)}ms"}
    options = options_of(broker, **{**timeout, **given})
    client = cluster.planner_of(options)
    client.has_data = False
    return client, options


def rows_of(client: SyncClient, wanted: Range, options: SourceOptions) -> list[dict[str, Any]]:
    batches = records_of(client, [wanted], layout_of(options.shape), options)
    return [row for batch in batches for row in batch.to_pylist()]


def delivered_bytes(broker: Broker) -> float:
    return broker.metric("liftbridge_delivered_bytes_total{")


PLAIN = {"key": b"", "value": b"", "headers": {}, "subject": "same.a", "reply_subject": ""}


@example(records=[{**PLAIN, "gap": 1}, {**PLAIN, "gap": 7}], cut=(0, 4))
@settings(max_examples=12)
@given(records=st.lists(RECORD, min_size=1, max_size=8), cut=st.tuples(*2 * [st.integers(0, 9)]))
def test_rows_are_the_same_in_each_encoding(
    broker: Broker, lb: SyncClient, records: list[dict[str, Any]], cut: tuple[int, int]
) -> None:
    name = f"same-{next(_names)}"
    stream = lb.streams.create(name)
    offset = -1
    placed = []
    for at, record in enumerate(records):
        offset += record["gap"]
        more = {"offset": offset, "timestamp": 1_700_000_000_000_000_000 + at}
        placed.append({**record, **more, "headers": list(record["headers"].items())})
    kinds = {
        "offset": pa.int64(),
        "timestamp": pa.timestamp("ns", "UTC"),
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.map_(pa.string(), pa.binary()),
        "subject": pa.string(),
        "reply_subject": pa.string(),
    }
    stream.restore(0, [pa.Table.from_pylist(placed, pa.schema(kinds)).to_batches()[0]])
    (bounds,) = stream.bounds()
    start, end = bounds.log_start + cut[0], bounds.high_watermark - cut[1]
    wanted = Range(name, bounds.stream_id, 0, start, end)
    raw, single = (
        rows_of(
            lb, wanted, options_of(
                broker, subscribe=name, includeHeaders="true", **{"fetch.encoding": encoding}
            ),
        )
        for encoding in ENCODINGS
    )  # fmt: skip
    assert [row.pop("leader_epoch") is None for row in raw] == [False] * len(raw)
    assert [row.pop("leader_epoch") for row in single] == [None] * len(single)
    assert single == raw
    assert [row["offset"] for row in raw] == [
        record["offset"] for record in placed if start <= record["offset"] < end
    ]


def test_a_server_of_the_original_tells_the_same_bounds_and_rows(
    broker: Broker, lb: SyncClient, name: str
) -> None:
    stream = lb.streams.create(name, partitions=3)
    for value in (b"a", b"b", b"c"):
        stream.publish(value, partition=1)
    client, options = of_original(broker, subscribe=name)
    parts = [PartitionId(name, number) for number in range(3)]
    bounds = cluster.bounds_at_start(client, options)
    assert [bounds[one][1:3] for one in parts] == [(0, 0), (0, 3), (0, 0)]
    stream_id = bounds[parts[1]].stream_id
    rows = rows_of(client, Range(name, stream_id, 1, 0, 3), options)
    assert [row["value"] for row in rows] == [b"a", b"b", b"c"]
    assert [row["leader_epoch"] for row in rows] == [None] * 3
    for time_ns in (0, rows[1]["timestamp_ns"], rows[2]["timestamp_ns"] + 10**12):
        times = dict.fromkeys(parts, time_ns)
        assert cluster.offsets_by_time(client, times) == cluster.offsets_by_time(lb, times)
    _, raw = of_original(broker, subscribe=name, **{"fetch.encoding": "raw"})
    with pytest.raises(OptionError, match=r"'fetch\.encoding': raw needs brokers of this project"):
        cluster.ask(raw, lambda client: cluster.bounds_at_start(client, raw))


@pytest.mark.parametrize("is_original", [False, True])
def test_single_messages_do_not_pass_over_what_is_gone(
    broker: Broker,
    lb: SyncClient,
    name: str,
    wait_for: Callable[[Callable[[], bool]], None],
    *,
    is_original: bool,
) -> None:
    settings_ = StreamSettings(
        retention_max_messages=5, segment_max_bytes=500, cleaner_interval=timedelta(seconds=1)
    )
    stream = lb.streams.create(name, settings=settings_)
    for _ in range(20):
        stream.publish(bytes(200))
    wait_for(lambda: 20 - stream.bounds()[0].log_start < 8)  # nothing more is due then
    given = {"subscribe": name, "fetch.encoding": "subscribe"}
    client = lb
    if is_original:
        client, _ = of_original(broker, **given)
        given["fetch.timeout"] = "3s"  # of the wait for what is beyond the end
    options = options_of(broker, **given)
    known = cluster.bounds_at_start(client, options)[PartitionId(name, 0)]
    whole = Range(name, known.stream_id, 0, 0, known.latest)
    with pytest.raises(DataLossError, match=f"offsets 0 to {known.earliest - 1} of {name}/0 are"):
        rows_of(client, whole, options)
    with pytest.raises(DataLossError, match=f"offsets 0 to 0 of {name}/0 are"):
        rows_of(client, whole._replace(end=1), options)
    beyond = whole._replace(start=known.latest - 1, end=known.latest + 4)
    with pytest.raises(DataLossError, match=f"offsets {known.latest} to {known.latest + 3} of"):
        rows_of(client, beyond, options)
    lenient = options_of(broker, **given, failOnDataLoss="false")
    found = [row["offset"] for row in rows_of(client, whole, lenient)]
    assert found == list(range(known.earliest, known.latest))
    stream.delete()
    lb.streams.create(name).publish(b"another")
    with pytest.raises(DataLossError, match=f"stream of id {known.stream_id} is another one now"):
        rows_of(client, whole._replace(end=1), options)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_paused_partition_is_refused_or_resumed(
    broker: Broker, lb: SyncClient, name: str, encoding: str
) -> None:
    stream = lb.streams.create(name, partitions=2)
    stream.publish(b"kept", partition=1)
    stream.pause(1)
    given = {"subscribe": name, "fetch.encoding": encoding}
    options = options_of(broker, **given)
    with pytest.raises(cluster.PausedError, match=f"partition {name}/1 is paused; set resume=true"):
        cluster.bounds_at_start(lb, options)
    resuming = options_of(broker, **given, resume="true")
    stream_id = cluster.bounds_at_start(lb, resuming)[PartitionId(name, 1)].stream_id
    wanted = Range(name, stream_id, 1, 0, 1)
    assert [row["value"] for row in rows_of(lb, wanted, options)] == [b"kept"]
    assert not lb.streams.get(name).info().partitions[1].paused


def test_a_partition_that_is_paused_later_is_named(
    broker: Broker, lb: SyncClient, name: str
) -> None:
    stream = lb.streams.create(name)
    stream.publish(b"kept")
    stream.pause()
    options = options_of(broker, subscribe=name, **{"fetch.encoding": "subscribe"})
    wanted = Range(name, stream.bounds()[0].stream_id, 0, 0, 1)
    with pytest.raises(cluster.PausedError, match=f"partition {name}/0 is paused"):
        rows_of(lb, wanted, options)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_few_bytes_at_a_time_are_all_the_same(
    broker: Broker, lb: SyncClient, name: str, encoding: str
) -> None:
    stream = lb.streams.create(name)
    for number in range(20):
        stream.publish(bytes([number]) * 3_000)
    wanted = Range(name, stream.bounds()[0].stream_id, 0, 3, 18)
    options = options_of(
        broker, subscribe=name, **{"fetch.maxBytes": "4k", "fetch.encoding": encoding}
    )
    batches = list(records_of(lb, [wanted], layout_of(options.shape), options))
    assert max(batch.num_rows for batch in batches) <= 2
    found = [row["value"][0] for batch in batches for row in batch.to_pylist()]
    assert found == list(range(3, 18))


def test_a_slow_task_holds_little(broker: Broker, lb: SyncClient, name: str) -> None:
    stream = lb.streams.create(name)
    for _ in range(200):
        stream.publish(bytes(3_000))
    wanted = Range(name, stream.bounds()[0].stream_id, 0, 0, 200)
    options = options_of(broker, subscribe=name, **{"fetch.maxBytes": str(BYTES_MAX)})
    before, taken, held = delivered_bytes(broker), 0, []
    for batch in records_of(lb, [wanted], layout_of(options.shape), options):
        held.append(delivered_bytes(broker) - before - taken)
        taken += batch.nbytes
    assert taken > 200 * 3_000
    # Two answers are waiting behind the one that is looked at; each may end with a whole batch.
    assert max(held) <= 3 * (BYTES_MAX + 3_500)


def test_brokers_are_asked_as_often_as_the_option_says_and_in_its_time() -> None:
    asked: list[int] = []

    def refuse(_client: object) -> None:
        asked.append(1)
        raise RetriableError("no leader")

    options = read_source(
        {"servers": "127.0.0.1:1", "subscribe": "s", "fetch.timeout": "200ms"}, is_stream=False
    )
    with pytest.raises(RetriableError, match=r"127\.0\.0\.1:1"):
        cluster.ask(options, refuse)
    assert not asked


def test_a_question_is_asked_again(broker: Broker) -> None:
    asked: list[int] = []

    def answer(_client: object) -> int:
        asked.append(1)
        if len(asked) < 3:
            raise RetriableError("no leader")
        return 7

    assert cluster.ask(options_of(broker, subscribe="s"), answer) == 7
    asked.clear()
    with pytest.raises(RetriableError):
        cluster.ask(options_of(broker, subscribe="s", **{"fetch.retries": "1"}), answer)
    assert len(asked) == 2
