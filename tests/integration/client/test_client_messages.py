"""Publishing and reading with the client, by our own calls and by the original's alone."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import get_args

import pytest

from liftbridge_client import (
    Ack,
    ClosedError,
    CodecError,
    FailedPreconditionError,
    FullError,
    IncorrectOffsetError,
    InvalidRequestError,
    JsonCodec,
    NotFoundError,
    Outgoing,
    RetriableError,
    Start,
    Stop,
    StreamSettings,
    UnimplementedError,
    UsageError,
    by_key,
    connect,
    connect_sync,
    round_robin,
)
from liftbridge_client.model import UncleanMode


async def read(stream, partition=0, start=None, stop=None, **more):
    start, stop = start or Start.earliest(), stop or Stop.latest()
    reading = stream.subscribe(partition=partition, start=start, stop=stop, **more)
    return [message async for message in reading]


async def test_message_comes_back_as_it_was_published(lb, name):
    stream = await lb.streams.create(name)
    before = datetime.now(UTC)
    ack = await stream.publish(b"value", key=b"key", headers={"a": b"1", "b": b"\xff"})
    assert ack == Ack(name, 0, 0, ack.timestamp, leader_epoch=ack.leader_epoch)
    (bounds,) = await stream.bounds(0)
    assert [ack.leader_epoch] == [epoch for epoch, _ in bounds.epochs]
    (message,) = await read(stream)
    assert (message.offset, message.key, message.value) == (0, b"key", b"value")
    assert (message.stream, message.partition, message.subject) == (name, 0, name)
    assert message.timestamp == ack.timestamp
    assert before - timedelta(seconds=1) <= message.time <= datetime.now(UTC)
    assert (message.headers["a"], message.headers["b"]) == (b"1", b"\xff")


async def test_every_message_of_a_batch_has_its_result_in_order(lb, name):
    stream = await lb.streams.create(name, partitions=3)
    messages = [Outgoing(b"%d" % i, b"k%d" % (i % 7), {"n": b"%d" % i}) for i in range(2_500)]
    async with stream.publisher() as publisher:
        results = await publisher.publish_batch(messages)
    stored = {
        (m.partition, m.offset): (m.value, m.key, m.headers["n"])
        for partition in range(3)
        for m in await read(stream, partition)
    }
    assert len(stored) == len(results) == len(messages)
    for message, ack in zip(messages, results, strict=True):
        assert ack.partition == by_key(message.key, 3)
        expected = (message.value, message.key, message.headers["n"])
        assert stored[ack.partition, ack.offset] == expected


async def test_bare_values_go_to_the_partition_named(lb, name):
    stream = await lb.streams.create(name, partitions=2)
    values = [b"%d" % i for i in range(3_000)]
    async with stream.publisher(max_in_flight=700) as publisher:
        results = await publisher.publish_batch(values, partition=1)
    assert [ack.offset for ack in results] == list(range(3_000))
    assert [m.value for m in await read(stream, 1)] == values
    assert await read(stream, 0) == []


async def test_empty_value_and_no_key_come_back(lb, name):
    stream = await lb.streams.create(name)
    async with stream.publisher() as publisher:
        await publisher.publish_batch([b"", Outgoing(b"", b"k")])
    assert [(m.key, m.value) for m in await read(stream)] == [(b"", b""), (b"k", b"")]


@pytest.mark.parametrize("policy", ["leader", "all", "none"])
async def test_every_ack_policy_stores_the_message(lb, name, policy):
    stream = await lb.streams.create(name)
    async with stream.publisher(ack_policy=policy) as publisher:
        ack = await publisher.publish(b"one")
    single = await stream.publish(b"two", ack_policy=policy)
    assert (single is None) == (policy == "none")
    if policy != "none":
        assert ack.offset == 0
    async with asyncio.timeout(10):
        messages = aiter(stream.subscribe(start=Start.earliest()))
        found = [(await anext(messages)).value for _ in range(2)]
        await messages.aclose()
    assert sorted(found) == [b"one", b"two"]


@pytest.mark.parametrize(
    ("start", "stop", "offsets"),
    [
        (Start.earliest(), Stop.latest(), range(10)),
        (Start.latest(), Stop.latest(), [9]),
        (Start.at(4), Stop.latest(), range(4, 10)),
        (Start.at(4), Stop.at(6), range(4, 7)),
        (Start.earliest(), Stop.at(0), [0]),
    ],
)
async def test_positions_bound_what_is_read(lb, name, start, stop, offsets):
    stream = await lb.streams.create(name)
    async with stream.publisher() as publisher:
        await publisher.publish_batch([b"%d" % i for i in range(10)])
    assert [m.offset for m in await read(stream, start=start, stop=stop)] == list(offsets)


async def test_times_bound_what_is_read(lb, name):
    stream = await lb.streams.create(name)
    acks = []
    for number in range(3):
        acks.append(await stream.publish(b"%d" % number))
        # Positions are microseconds here, timestamps nanoseconds: leave room between messages.
        while datetime.now(UTC) < _time(acks[-1]) + timedelta(milliseconds=2):  # noqa: ASYNC110 - a server is watched
            await asyncio.sleep(0)
    middle = _time(acks[1])
    later = middle + timedelta(microseconds=1)
    assert [m.offset for m in await read(stream, start=Start.time(middle))] == [1, 2]
    assert [m.offset for m in await read(stream, start=Start.time(later))] == [2]
    assert [m.offset for m in await read(stream, stop=Stop.time(later))] == [0, 1]


def _time(ack):
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=ack.timestamp // 1000)


async def test_reverse_gives_the_newest_first(lb, name):
    stream = await lb.streams.create(name)
    async with stream.publisher() as publisher:
        await publisher.publish_batch([b"%d" % i for i in range(5)])
    found = await read(stream, start=Start.latest(), stop=Stop.never(), reverse=True)
    assert [m.offset for m in found] == [4, 3, 2, 1, 0]


async def test_empty_stream_read_to_its_end_gives_nothing(lb, name):
    stream = await lb.streams.create(name)
    assert await read(stream) == []


async def test_new_only_gives_what_comes_afterwards(lb, name):
    stream = await lb.streams.create(name)
    await stream.publish(b"old")
    async with asyncio.TaskGroup() as tasks, asyncio.timeout(10):
        reading = stream.subscribe(start=Start.new())
        messages = aiter(reading)
        first = tasks.create_task(anext(messages))
        while not first.done():
            await stream.publish(b"new")
            await asyncio.sleep(0)
    assert first.result().value == b"new"
    await messages.aclose()


async def test_subscription_of_a_deleted_stream_says_so(lb, name):
    stream = await lb.streams.create(name)
    await stream.publish(b"x")
    messages = aiter(stream.subscribe(start=Start.earliest()))
    assert (await anext(messages)).value == b"x"
    await stream.delete()
    with pytest.raises(NotFoundError):
        async with asyncio.timeout(10):
            await anext(messages)


async def test_readonly_stream_refuses_each_message(lb, name):
    stream = await lb.streams.create(name)
    await stream.set_readonly()
    async with stream.publisher() as publisher:
        results = await publisher.publish_batch([b"a", b"b"])
    assert [type(result) for result in results] == [FailedPreconditionError] * 2
    await stream.set_readonly(readonly=False)
    assert (await stream.publish(b"c")).offset == 0


async def test_expected_offset_decides_who_wins(lb, name):
    settings = StreamSettings(optimistic_concurrency_control=True)
    stream = await lb.streams.create(name, settings=settings)
    assert (await stream.publish(b"a", expected_offset=0)).offset == 0
    with pytest.raises(IncorrectOffsetError):
        await stream.publish(b"b", expected_offset=0)
    assert [m.value for m in await read(stream)] == [b"a"]


async def test_publisher_works_on_a_stream_with_optimistic_concurrency(lb, name):
    settings = StreamSettings(optimistic_concurrency_control=True)
    stream = await lb.streams.create(name, settings=settings)
    async with stream.publisher() as publisher:
        results = await publisher.publish_batch([b"%d" % i for i in range(300)])
        one = await publisher.publish(b"one", key=b"k")
    assert [ack.offset for ack in results] == list(range(300))
    # Whoever compares is refused or not by where the publisher has come to.
    with pytest.raises(IncorrectOffsetError):
        await stream.publish(b"late", expected_offset=one.offset)
    assert (await stream.publish(b"next", expected_offset=one.offset + 1)).offset == 301
    assert [m.value for m in await read(stream)] == [
        *(b"%d" % i for i in range(300)),
        b"one",
        b"next",
    ]


async def test_publisher_to_a_queue_group_stores_each_message_in_one_of_its_streams(lb, name):
    streams = [
        await lb.streams.create(f"{name}-{part}", subject=name, group="workers") for part in "ab"
    ]
    values = [b"%d" % i for i in range(400)]
    async with streams[0].publisher() as publisher:
        acks = await publisher.publish_batch(values)
    stored = {
        (stream.name, message.offset): message.value
        for stream in streams
        for message in await read(stream)
    }
    assert {stream for stream, _ in stored} == {stream.name for stream in streams}
    assert {
        (ack.stream, ack.offset): value for ack, value in zip(acks, values, strict=True)
    } == stored
    assert len(stored) == len(values)


@pytest.mark.parametrize(
    "options",
    [
        {"group": "workers"},
        {"settings": StreamSettings(optimistic_concurrency_control=True)},
    ],
    ids=["group", "optimistic"],
)
async def test_stream_that_takes_single_messages_takes_no_idempotent_publisher(lb, name, options):
    stream = await lb.streams.create(name, **options)
    kind = FailedPreconditionError if lb.has_data else UnimplementedError
    with pytest.raises(kind, match="idempotent"):
        await stream.publisher(idempotent=True).__aenter__()


async def test_stream_beside_one_that_takes_single_messages_takes_batches(lb, name):
    # Streams are found by prefix: the one that comes first must not be taken for another.
    settings = StreamSettings(optimistic_concurrency_control=True)
    await lb.streams.create(f"{name}-longer", settings=settings)
    stream = await lb.streams.create(name)
    async with stream.publisher() as publisher:
        first, last = await publisher.publish_batch([b"a", b"b"])
        assert publisher.takes_single is not lb.has_data
    assert (first.offset, last.offset) == (0, 1)


async def test_policy_none_gives_no_ack(lb, name):
    stream = await lb.streams.create(name)
    assert await stream.publish(b"a", ack_policy="none") is None
    assert await lb.publish_to_subject(name, b"b", ack_policy="none") is None
    assert (await stream.publish(b"c", ack_policy="all")).stream == name


async def test_typed_values_come_back_as_they_were_published(lb, name):
    stream = await lb.streams.create(name, partitions=2)
    codec = JsonCodec(dict[str, int])
    async with stream.publisher(codec=codec) as publisher:
        assert (await publisher.publish({"a": 1}, partition=1)).offset == 0
        assert (await publisher.publish_nowait({"a": 2}, partition=1)).offset == 1
        results = await publisher.publish_batch(
            [{"a": 3}, Outgoing({"a": 4}, headers={"h": b"1"}), {"a": object()}, {"a": 5}],
            partition=1,
        )
        with pytest.raises(CodecError, match="cannot be encoded"):
            await publisher.publish({"a": object()})
        with pytest.raises(CodecError):
            publisher.publish_nowait({"a": object()})
    assert [type(result) for result in results] == [Ack, Ack, CodecError, Ack]
    found = await read(stream, 1, codec=codec)
    assert [m.value for m in found] == [{"a": n} for n in range(1, 6)]
    assert found[3].headers["h"] == b"1"
    assert (await read(stream, 1))[0].value == b'{"a":1}'


async def test_reader_goes_on_behind_a_message_that_cannot_be_decoded(lb, name):
    stream = await lb.streams.create(name)
    async with stream.publisher() as publisher:
        await publisher.publish_batch([b"1", b"?", b"3"])
    codec, found = JsonCodec(int), []

    async def read_on(start):
        async for message in stream.subscribe(codec=codec, start=start, stop=Stop.latest()):
            found.append(message.value)  # noqa: PERF401 - what came before the error counts

    with pytest.raises(CodecError, match="offset 1 ") as caught:
        await read_on(Start.earliest())
    assert caught.value.data == b"?"
    await read_on(Start.at(caught.value.offset + 1))
    assert found == [1, 3]


async def test_publish_to_a_subject_reaches_its_stream(lb, name):
    stream = await lb.streams.create(name, subject=f"{name}.*")
    ack = await lb.publish_to_subject(f"{name}.x", b"v", key=b"k", headers={"h": b"1"})
    assert (ack.stream, ack.offset) == (name, 0)
    (message,) = await read(stream)
    assert (message.subject, message.key, message.value) == (f"{name}.x", b"k", b"v")


async def test_error_ack_of_a_subject_is_an_error(lb, name):
    settings = StreamSettings(optimistic_concurrency_control=True)
    stream = await lb.streams.create(name, settings=settings)
    await stream.publish(b"0", expected_offset=0)
    with pytest.raises(IncorrectOffsetError):
        await lb.publish_to_subject(name, b"1")


async def test_unknown_stream_is_refused_everywhere(lb, name):
    stream = lb.streams.get(name)
    for call in (
        stream.publish(b"x"),
        stream.info(),
        stream.delete(),
        stream.pause(),
        stream.set_readonly(),
        stream.publisher().__aenter__(),
        read(stream),
    ):
        with pytest.raises(NotFoundError):
            await call


async def test_cursor_is_found_under_its_name(lb, name):
    stream = await lb.streams.create(name, partitions=2)
    assert await stream.fetch_cursor("me", partition=1) is None
    await stream.set_cursor("me", 17, partition=1)
    assert await stream.fetch_cursor("me", partition=1) == 17
    assert await stream.fetch_cursor("me", partition=0) is None


async def test_subscription_goes_on_behind_a_cursor(lb, name):
    stream = await lb.streams.create(name)
    for number in range(5):
        await stream.publish(b"%d" % number)
    start = Start.cursor("me")
    assert [m.offset for m in await read(stream, start=start)] == [0, 1, 2, 3, 4]
    await stream.set_cursor("me", 2)
    assert [m.offset for m in await read(stream, start=start)] == [3, 4]
    with pytest.raises(UsageError, match="cursor"):
        stream.subscribe(start=start, reverse=True)


async def test_cursor_needs_no_stream_of_its_name(lb, name):
    stream = lb.streams.get(name)
    assert await stream.fetch_cursor("me") is None
    await stream.set_cursor("me", 4)
    assert await stream.fetch_cursor("me") == 4


async def test_cursor_meant_for_a_former_stream_is_refused_and_stays(lb, name):
    stream = await lb.streams.create(name)
    (former,) = await stream.bounds()
    await stream.set_cursor("me", 4, stream_id=former.stream_id)
    await stream.delete()
    with pytest.raises(FailedPreconditionError, match=f"id {former.stream_id} does not exist"):
        await stream.set_cursor("me", 5, stream_id=former.stream_id)
    assert await stream.fetch_cursor("me") == 4
    stream = await lb.streams.create(name)
    with pytest.raises(FailedPreconditionError, match=f"not {former.stream_id}: it was recreated"):
        await stream.set_cursor("me", 6, stream_id=former.stream_id)
    assert await stream.fetch_cursor("me") is None
    (present,) = await stream.bounds()
    await stream.set_cursor("me", 7, stream_id=present.stream_id)
    assert await stream.fetch_cursor("me") == 7


async def test_cursor_is_set_in_the_history_that_is_named(lb, name):
    stream = await lb.streams.create(name)
    (bounds,) = await stream.bounds()
    assert bounds.unclean_epoch == 0
    await stream.set_cursor("me", 4, stream_id=bounds.stream_id, unclean_epoch=0)
    with pytest.raises(FailedPreconditionError, match="read in history 7, and 0 is current"):
        await stream.set_cursor("me", 5, stream_id=bounds.stream_id, unclean_epoch=7)
    with pytest.raises(FailedPreconditionError, match="read in history 7, and 0 is current"):
        await stream.set_cursor("me", 5, unclean_epoch=7)
    assert await stream.fetch_cursor("me") == 4


async def test_publish_resumes_a_paused_partition(lb, name):
    stream = await lb.streams.create(name)
    await stream.publish(b"a")
    await stream.pause()
    assert (await stream.info()).partitions[0].paused
    async with asyncio.timeout(10):
        ack = await stream.publish(b"b")
    assert ack.offset == 1
    assert [m.value for m in await read(stream)] == [b"a", b"b"]


async def test_partition_that_does_not_exist_is_refused(lb, name):
    stream = await lb.streams.create(name, partitions=2)
    with pytest.raises(UsageError, match="partitions 0 to 1"):
        await stream.publish(b"x", partition=2)
    with pytest.raises(NotFoundError):
        await read(stream, 2)


async def test_name_that_breaks_a_rule_is_refused(lb):
    with pytest.raises(InvalidRequestError):
        await lb.streams.create("")


async def test_idempotent_publishing_needs_our_calls(lb, name):
    stream = await lb.streams.create(name)
    if lb.has_data:
        async with stream.publisher(idempotent=True) as publisher:
            assert (await publisher.publish(b"x")).duplicate is False
    else:
        with pytest.raises(UnimplementedError):
            await stream.publisher(idempotent=True).__aenter__()


async def test_partitioner_of_the_callers_is_asked(lb, name):
    stream = await lb.streams.create(name, partitions=3)
    async with stream.publisher(partitioner=round_robin()) as publisher:
        results = await publisher.publish_batch([Outgoing(b"x", b"same")] * 6)
    assert [ack.partition for ack in results] == [0, 1, 2, 0, 1, 2]


async def test_full_window_is_told_or_waited_for(lb, name):
    stream = await lb.streams.create(name)
    async with stream.publisher(max_in_flight=2, on_full="raise") as publisher:
        first = [publisher.publish_nowait(b"1"), publisher.publish_nowait(b"2")]
        with pytest.raises(FullError):
            publisher.publish_nowait(b"3")
        with pytest.raises(FullError):
            await publisher.publish(b"3")
        assert [(await ack).offset for ack in first] == [0, 1]
        assert len(await publisher.publish_batch([Outgoing(b"x")] * 20)) == 20
    async with stream.publisher(max_in_flight=2) as publisher:
        acks = await asyncio.gather(*(publisher.publish(b"y") for _ in range(20)))
    assert sorted(ack.offset for ack in acks) == list(range(22, 42))


async def test_lingering_publisher_sends_one_batch(lb, name):
    stream = await lb.streams.create(name)
    async with stream.publisher(linger=timedelta(milliseconds=50)) as publisher:
        one = publisher.publish_nowait(b"1")
        await asyncio.sleep(0)
        two = publisher.publish_nowait(b"2")
        await publisher.flush()
        assert one.done()
        assert two.done()
    if lb.has_data:
        assert one.result().timestamp == two.result().timestamp


async def test_cancelled_publish_leaves_the_publisher_working(lb, name):
    stream = await lb.streams.create(name)
    async with stream.publisher() as publisher:
        task = asyncio.create_task(publisher.publish(b"1"))  # noqa: TID251 - awaited below
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await publisher.publish(b"2")
    assert [m.value for m in await read(stream)][-1] == b"2"


async def test_closing_waits_for_the_messages_in_flight(lb, name):
    stream = await lb.streams.create(name)
    async with stream.publisher() as publisher:
        futures = [publisher.publish_nowait(b"%d" % i) for i in range(500)]
    assert [future.result().offset for future in futures] == list(range(500))
    with pytest.raises(ClosedError):
        publisher.publish_nowait(b"x")
    with pytest.raises(ClosedError):
        await publisher.publish_batch([b"x"])


async def test_client_that_was_not_entered_fails_at_once(broker):
    client = connect(broker.address)
    stream = client.streams.get("x")
    for call in (
        client.metadata(),
        stream.publish(b"x"),
        stream.publisher().__aenter__(),
        anext(aiter(stream.subscribe())),
        client.publish_to_subject("x", b""),
    ):
        with pytest.raises(ClosedError, match="async with connect"):
            await call
    with pytest.raises(ClosedError, match="with connect_sync"):
        connect_sync(broker.address).metadata()


async def test_absent_broker_is_reported_after_the_retry_time():
    started = asyncio.get_running_loop().time()
    client = connect("127.0.0.1:1", retry_time=timedelta(seconds=0.3))
    with pytest.raises(RetriableError, match="failed to connect"):
        await client.__aenter__()
    assert asyncio.get_running_loop().time() - started < 5
    assert client.stats.retries > 0


@pytest.mark.parametrize("mode", get_args(UncleanMode))
async def test_unclean_mode_is_set_and_told(broker, name, mode):
    async with connect(broker.address) as lb:
        stream = await lb.streams.create(name, settings=StreamSettings(unclean_mode=mode))
        (made,) = [one async for one in lb.streams.describe(name) if one.name == name]
        assert made.settings.unclean_mode == mode
        await stream.alter(StreamSettings(unclean_mode="manual"))
        (altered,) = [one async for one in lb.streams.describe(name) if one.name == name]
        assert altered.settings.unclean_mode == "manual"
