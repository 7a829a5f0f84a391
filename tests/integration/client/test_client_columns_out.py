"""Records in columns, published to a real broker and read back."""

from contextlib import suppress
from datetime import timedelta

import pyarrow as pa
import pytest

from liftbridge_client import (
    FailedPreconditionError,
    LiftbridgeError,
    NotFoundError,
    Numbering,
    Published,
    Start,
    Stop,
    StreamSettings,
    UsageError,
    connect,
    connect_sync,
)
from liftbridge_testkit.processes import Broker

HEADERS = pa.map_(pa.string(), pa.binary())
TEXTS = pa.array([[("h", "text")]], pa.map_(pa.string(), pa.string()))


def batch(values, **columns):
    kinds = {"key": pa.binary(), "headers": HEADERS, "partition": pa.int32()}
    arrays = {name: pa.array(given, kinds[name]) for name, given in columns.items()}
    return pa.record_batch({"value": pa.array(values, pa.binary()), **arrays})


def typed(**columns):
    """A batch whose columns have the types of what is given."""
    return pa.record_batch({name: pa.array(given) for name, given in columns.items()})


def counted(first, count):
    """`count` values that tell their place."""
    return [b"%d" % number for number in range(first, first + count)]


async def stored(stream, partition=0):
    read = stream.subscribe(partition=partition, start=Start.earliest(), stop=Stop.latest())
    return [message async for message in read]


async def test_columns_come_back_as_messages_in_their_order(lb, name):
    stream = await lb.streams.create(name, partitions=3)
    given = batch(
        [b"a", b"", b"c", b"d"],
        key=[b"k", None, b"", b"k"],
        headers=[[("h", b"1"), ("i", b"")], None, [], [("h", b"2")]],
        partition=[2, 0, 2, 2],
    )
    assert await stream.publish_columns([given, given.slice(1, 2)]) == Published(6, 0)
    messages = await stored(stream, 2)
    assert [(one.value, one.key) for one in messages] == [
        (b"a", b"k"), (b"c", b""), (b"d", b"k"), (b"c", b""),
    ]  # fmt: skip
    told = [{k: v for k, v in one.headers.items() if k in "hi"} for one in messages]
    assert told == [{"h": b"1", "i": b""}, {}, {"h": b"2"}, {}]
    assert [one.value for one in await stored(stream, 0)] == [b"", b""]


async def test_keys_choose_partitions_as_for_single_messages(lb, name):
    stream = await lb.streams.create(name, partitions=4)
    keys = [b"key-%d" % number for number in range(50)]
    await stream.publish_columns([batch(counted(0, 50), key=keys)])
    acks = [await stream.publish(b"", key=key) for key in keys]
    for number in range(4):
        found = [one.key for one in await stored(stream, number)]
        assert found == [key for key, ack in zip(keys, acks, strict=True)
                         if ack.partition == number] * 2  # fmt: skip


async def test_many_columns_are_more_than_what_may_wait(broker, name):
    async with connect(broker.address) as lb:
        stream = await lb.streams.create(name)
        batches = [batch(counted(first, 20_000)) for first in range(0, 100_000, 20_000)]
        assert await stream.publish_columns(batches) == Published(100_000, 0)
        tables = [one.records async for one in stream.fetch_columns(0, 0, 0, columns=["value"])]
        assert pa.Table.from_batches(tables)["value"].to_pylist() == counted(0, 100_000)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (batch([b"a"]).rename_columns(["values"]), "not values"),
        (batch([b"a", None]), "column value has 1 nulls"),
        (batch([b"a"], partition=[None]), "column partition has 1 nulls"),
        (batch([b"a", b"b"], partition=[0, 2]), "partition 2: the stream has partitions 0 to 1"),
        (batch([b"a", b"b"], partition=[-1, 0]), "partition -1"),
        (typed(value=["a"]), "column value is of type string: cast it to binary"),
        (typed(value=[7]), "column value is of type int64"),
        (typed(value=[b"a"], key=["k"]), "column key is of type string"),
        (typed(value=[b"a"], headers=[{"h": b"1"}]), "column headers is of type struct"),
        (typed(value=[b"a"], headers=TEXTS), "column headers is of type map<string, string>"),
    ],
)
async def test_columns_of_no_use_are_refused_before_anything_is_sent(lb, name, given, told):
    stream = await lb.streams.create(name, partitions=2)
    with pytest.raises(UsageError, match=told):
        await stream.publish_columns([given])
    assert await stored(stream, 0) == await stored(stream, 1) == []


async def test_streams_that_take_no_batches_or_do_not_exist_are_refused(broker, name):
    async with connect(broker.address) as lb:
        with pytest.raises(NotFoundError):
            await lb.streams.get(name).publish_columns([batch([b"a"])])
        settings = StreamSettings(optimistic_concurrency_control=True)
        stream = await lb.streams.create(name, settings=settings)
        for numbering in (None, Numbering("p", 0)):
            with pytest.raises(FailedPreconditionError, match="optimistic concurrency"):
                await stream.publish_columns([batch([b"a"])], numbering=numbering)


async def test_a_repetition_sends_what_is_not_stored_and_nothing_else(broker, name):
    async with connect(broker.address) as lb:
        stream = await lb.streams.create(name, partitions=2)
        halves = [0, 1] * 5
        given = batch(counted(0, 10), partition=halves)
        first = Numbering("spark", 7 << 32)
        assert await stream.publish_columns([given.slice(0, 6)], numbering=first) == (6, 0)
        assert await stream.publish_columns([given], numbering=first) == (4, 6)
        assert await stream.publish_columns([given], numbering=first) == (0, 10)
        # The next batch is far beyond; what lies between was never sent.
        second = Numbering("spark", 9 << 32)
        assert await stream.publish_columns([given], numbering=second) == (10, 0)
        for number in (0, 1):
            mine = [value for value, half in zip(counted(0, 10), halves, strict=True)
                    if half == number]  # fmt: skip
            assert [one.value for one in await stored(stream, number)] == mine * 2
        # One that comes back after that has nothing to send.
        assert await stream.publish_columns([given], numbering=first) == (0, 10)


async def test_an_older_attempt_is_fenced(broker, name):
    async with connect(broker.address) as lb:
        stream = await lb.streams.create(name)
        numbering = Numbering("task", 1 << 32)
        async with stream.column_publisher(numbering=numbering) as old:
            await old.put(batch(counted(0, 5)))
            await old.finish()
            assert await stream.publish_columns([batch(counted(0, 8))], numbering=numbering) == (
                3, 5,
            )  # fmt: skip
            await old.put(batch(counted(5, 3)))
            with pytest.raises(LiftbridgeError, match="is fenced by epoch"):
                await old.finish()
        assert [one.value for one in await stored(stream)] == counted(0, 8)


async def test_what_is_refused_is_not_passed_over_by_a_repetition(broker, name):
    """A record in the middle is too large: what lies behind it must not be stored before it."""
    async with connect(broker.address) as lb:
        stream = await lb.streams.create(name)
        numbering = Numbering("task", 1 << 32)
        good = [batch(counted(first, 1_000)) for first in range(0, 4_000, 1_000)]
        large = batch([bytes(9 * 1024 * 1024)])
        with pytest.raises(LiftbridgeError):
            await stream.publish_columns([good[0], large, *good[1:]], numbering=numbering)
        assert [one.value for one in await stored(stream)] == counted(0, 1_000)
        mended = [good[0], batch([b"small"]), *good[1:]]
        assert await stream.publish_columns(mended, numbering=numbering) == (3_001, 1_000)
        assert [one.value for one in await stored(stream)] == [
            *counted(0, 1_000), b"small", *counted(1_000, 3_000),
        ]  # fmt: skip


async def test_a_broker_killed_amid_columns_has_each_once(mortal_broker, name):
    retry = timedelta(seconds=20)
    async with connect(mortal_broker.address, retry_time=retry) as lb:
        stream = await lb.streams.create(name)
        numbering = Numbering("task", 3 << 32)
        batches = [batch(counted(first, 2_000)) for first in range(0, 20_000, 2_000)]
        async with stream.column_publisher(numbering=numbering) as publisher:
            for one in batches[:5]:
                await publisher.put(one)
            mortal_broker.kill()
            mortal_broker.start()
            with suppress(LiftbridgeError):
                for one in batches[5:]:
                    await publisher.put(one)
                await publisher.finish()
        await stream.publish_columns(batches, numbering=numbering)
        tables = [one.records async for one in stream.fetch_columns(0, 0, 0, columns=["value"])]
        assert pa.Table.from_batches(tables)["value"].to_pylist() == counted(0, 20_000)


def test_the_blocking_client_publishes_columns_as_well(broker, name):
    with connect_sync(broker.address) as lb:
        stream = lb.streams.create(name)
        assert stream.publish_columns([batch(counted(0, 3))], numbering=Numbering("p", 5)) == (3, 0)
        assert [one.value for one in stream.subscribe(
            start=Start.earliest(), stop=Stop.latest())] == counted(0, 3)  # fmt: skip


def test_a_publisher_that_was_forgotten_repeats_what_is_stored(tmp_path):
    """What `publishers.max` bounds: whoever comes back after too many others begins anew."""
    numbering, given = Numbering("first", 1 << 32), [batch(counted(0, 3))]
    with (
        Broker(tmp_path, config={"publishers.max": 1}) as broker,
        connect_sync(broker.address) as lb,
    ):
        stream = lb.streams.create("forgetful")
        assert stream.publish_columns(given, numbering=numbering) == (3, 0)
        assert stream.publish_columns(given, numbering=numbering) == (0, 3)
        assert stream.publish_columns(given, numbering=Numbering("second", 0)) == (3, 0)
        assert stream.publish_columns(given, numbering=numbering) == (3, 0)
        found = [one.value for one in stream.subscribe(start=Start.earliest(), stop=Stop.latest())]
    assert found == counted(0, 3) * 3
