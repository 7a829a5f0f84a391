"""The client while its broker is killed, frozen, restarted or absent."""

import asyncio
from datetime import timedelta

import pytest

from liftbridge_client import (
    Ack,
    AckTimeoutError,
    CallTimeoutError,
    LiftbridgeError,
    OutcomeUnknownError,
    RetriableError,
    SequenceError,
    Start,
    Stop,
    TooLargeError,
    connect,
)

PATIENT = timedelta(seconds=60)
SHORT = timedelta(seconds=2)  # enough for a busy machine to connect


@pytest.fixture
def broker(mortal_broker):
    return mortal_broker


async def until(condition):
    """Wait for something that tasks of this loop bring about."""
    while not condition():  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0)


async def restart(broker):
    broker.kill()
    await asyncio.to_thread(broker.start)


async def taken(publisher, value, ack=None):
    """The ack of a message; asked for again while the broker, just started, still recovers.

    That is a refusal that says for sure that nothing is stored, which a plain publisher is told.
    """
    while True:
        try:
            return await (ack or publisher.publish(value))
        except RetriableError as error:
            assert "not appended: the partition recovers" in str(error)  # noqa: PT017 - all others
            ack = None


async def read(stream, partition=0):
    reading = stream.subscribe(partition=partition, start=Start.earliest(), stop=Stop.latest())
    return [message async for message in reading]


async def test_idempotent_publisher_stores_every_message_once_across_kills(broker, name):
    count, chunk = 30_000, 250
    async with connect(broker.address, retry_time=PATIENT) as lb:
        stream = await lb.streams.create(name)
        acked = 0
        results = []

        async def publish():
            nonlocal acked
            async with stream.publisher(idempotent=True) as publisher:
                for first in range(0, count, chunk):
                    values = [b"%d" % i for i in range(first, first + chunk)]
                    results.extend(await publisher.publish_batch(values))
                    acked = len(results)

        async with asyncio.TaskGroup() as tasks:
            publishing = tasks.create_task(publish())
            for part in (1, 2):
                await until(lambda: acked >= part * count // 3)  # noqa: B023 - called at once
                assert not publishing.done()
                await restart(broker)
        assert [ack.offset for ack in results] == list(range(count))
        assert [message.value for message in await read(stream)] == [
            b"%d" % i for i in range(count)
        ]
        assert lb.stats.retries > 0


async def test_other_publisher_is_told_that_the_outcome_is_unknown(broker, name):
    async with connect(broker.address, retry_time=PATIENT) as lb:
        stream = await lb.streams.create(name)
        async with stream.publisher() as publisher:
            assert (await publisher.publish(b"0")).offset == 0
            broker.pause()
            lost = publisher.publish_nowait(b"1")
            await until(lambda: publisher._lanes[0]._unanswered)
            await restart(broker)
            with pytest.raises(OutcomeUnknownError):
                await lost
            again = await taken(publisher, b"2")
        values = [message.value for message in await read(stream)]
        assert values[again.offset] == b"2"
        assert values.count(b"2") == values.count(b"0") == 1


async def test_silent_broker_ends_in_a_timeout_and_not_in_a_hang(broker, name):
    async with connect(broker.address, timeout=SHORT, retry_time=SHORT) as lb:
        stream = await lb.streams.create(name)
        async with stream.publisher() as publisher:
            await publisher.publish(b"0")
            broker.pause()
            async with asyncio.timeout(20):
                with pytest.raises(OutcomeUnknownError):
                    await publisher.publish(b"1")
                with pytest.raises(AckTimeoutError):
                    await stream.publish(b"2")
                with pytest.raises(CallTimeoutError):
                    await lb.metadata()
        broker.resume()


async def test_frozen_broker_costs_an_idempotent_publisher_time_only(broker, name):
    async with connect(broker.address, timeout=SHORT, retry_time=PATIENT) as lb:
        stream = await lb.streams.create(name)
        async with stream.publisher(idempotent=True) as publisher:
            await publisher.publish(b"0")
            broker.pause()
            futures = [publisher.publish_nowait(b"%d" % i) for i in range(1, 50)]
            await until(lambda: lb.stats.retries)
            broker.resume()
            acks = await asyncio.gather(*futures)
        assert [ack.offset for ack in acks] == list(range(1, 50))
        assert [message.value for message in await read(stream)] == [b"%d" % i for i in range(50)]


async def test_publisher_that_was_idle_for_long_still_has_its_retry_time(broker, name):
    async with connect(broker.address, retry_time=timedelta(seconds=10)) as lb:
        stream = await lb.streams.create(name)
        async with stream.publisher(idempotent=True) as publisher:
            await publisher.publish(b"0")
            (lane,) = publisher._lanes.values()
            lane._progress_at -= 3600
            broker.kill()
            future = publisher.publish_nowait(b"1")
            await asyncio.to_thread(broker.start)
            assert (await future).offset == 1


async def test_publisher_without_broker_gives_up_after_the_retry_time(broker, name):
    async with connect(broker.address, timeout=SHORT, retry_time=SHORT) as lb:
        stream = await lb.streams.create(name)
        async with stream.publisher(idempotent=True) as publisher:
            await publisher.publish(b"0")
            broker.kill()
            async with asyncio.timeout(20):
                results = await publisher.publish_batch([b"1", b"2"])
        assert all(isinstance(result, LiftbridgeError) for result in results)


async def test_message_that_met_no_connection_is_certainly_not_stored(broker, name):
    async with connect(broker.address, timeout=SHORT, retry_time=SHORT) as lb:
        stream = await lb.streams.create(name)
        async with stream.publisher() as publisher:
            await publisher.publish(b"0")
            broker.kill()
            lane = publisher._lanes[0]
            await until(lane._task.done)  # the call broke while it owed nothing
            async with asyncio.timeout(20):
                (result,) = await publisher.publish_batch([b"1"])
    assert isinstance(result, RetriableError)


async def test_message_of_a_plain_publisher_waits_for_a_connection(broker, name):
    async with connect(broker.address, retry_time=PATIENT) as lb:
        stream = await lb.streams.create(name)
        async with stream.publisher() as publisher:
            await publisher.publish(b"0")
            before = lb.stats.retries
            broker.kill()
            await until(lambda: lb.stats.retries > before + 1)
            future = publisher.publish_nowait(b"1")
            before = lb.stats.retries
            await until(lambda: lb.stats.retries > before + 1)
            await asyncio.to_thread(broker.start)
            assert (await taken(publisher, b"1", future)).offset == 1
        assert [message.value for message in await read(stream)] == [b"0", b"1"]


async def test_closing_without_broker_says_how_many_acks_are_missing(broker, name):
    async with connect(broker.address, retry_time=PATIENT) as lb:
        stream = await lb.streams.create(name)
        publisher = await stream.publisher(idempotent=True).__aenter__()
        await publisher.publish(b"0")
        broker.kill()
        futures = [publisher.publish_nowait(b"x") for _ in range(3)]
        with pytest.raises(AckTimeoutError, match="3 messages"):
            await publisher.aclose(timedelta(seconds=0.3))
        results = await asyncio.gather(*futures, return_exceptions=True)
        assert all(isinstance(result, LiftbridgeError) for result in results)


@pytest.mark.parametrize("mib", [2, 8], ids=["limit of streams", "limit of gRPC"])
async def test_refused_batch_does_not_stall_an_idempotent_publisher(broker, name, mib):
    async with connect(broker.address) as lb:
        stream = await lb.streams.create(name)
        async with stream.publisher(idempotent=True) as publisher:
            await publisher.publish(b"0")
            big = publisher.publish_batch([b"x" * mib * 1024 * 1024])
            small = publisher.publish_batch([b"1"])
            later = publisher.publish_batch([b"2"])
            (refusal,), (one,), (two,) = await asyncio.gather(big, small, later)
            last = await publisher.publish(b"3")
        assert isinstance(refusal, TooLargeError)
        assert [one.offset, two.offset, last.offset] == [1, 2, 3]
        assert [message.value for message in await read(stream)] == [b"0", b"1", b"2", b"3"]


async def test_second_publisher_of_a_name_fences_the_first(broker, name):
    async with connect(broker.address) as lb:
        stream = await lb.streams.create(name)
        async with stream.publisher(idempotent=True, name="p") as first:
            await first.publish(b"0")
            async with stream.publisher(idempotent=True, name="p") as second:
                assert (await second.publish(b"1")).offset == 1
                with pytest.raises(SequenceError):
                    await first.publish(b"2")


@pytest.mark.parametrize("has_data", [True, False])
async def test_subscription_goes_on_across_restarts_without_loss_or_repetition(
    broker, name, has_data
):
    count = 3_000
    async with connect(broker.address, retry_time=PATIENT) as lb:
        stream = await lb.streams.create(name)
        found = []

        async def follow():
            lb.has_data = has_data
            async for message in stream.subscribe(start=Start.earliest()):
                found.append((message.offset, message.value))
                if len(found) == 2 * count:
                    return

        async with connect(broker.address, retry_time=PATIENT) as other:
            publishing = other.streams.get(name)
            async with asyncio.TaskGroup() as tasks, asyncio.timeout(60):
                following = tasks.create_task(follow())
                for part in range(2):
                    async with publishing.publisher(idempotent=True) as publisher:
                        await publisher.publish_batch(
                            [b"%d" % i for i in range(part * count, (part + 1) * count)]
                        )
                    await until(lambda: len(found) >= count // 2)
                    if part == 0:
                        await restart(broker)
                await following
        assert found == [(i, b"%d" % i) for i in range(2 * count)]


async def test_subscription_gives_up_when_the_broker_stays_away(broker, name):
    async with connect(broker.address, retry_time=SHORT) as lb:
        stream = await lb.streams.create(name)
        await stream.publish(b"x")
        messages = aiter(stream.subscribe(start=Start.earliest()))
        assert (await anext(messages)).value == b"x"
        broker.kill()
        async with asyncio.timeout(20):
            with pytest.raises(RetriableError):
                await anext(messages)


async def test_plain_publisher_keeps_the_acks_that_came_before_the_break(broker, name):
    async with connect(broker.address, retry_time=PATIENT) as lb:
        lb.has_data = False
        stream = await lb.streams.create(name)
        async with stream.publisher() as publisher:
            publishing = asyncio.gather(
                *(
                    publisher.publish_batch([b"%d.%d" % (k, i) for i in range(1_000)])
                    for k in range(9)
                )
            )
            await until(lambda: lb.stats.published >= 500)
            await restart(broker)
            results = [result for batch in await publishing for result in batch]
        stored = {message.offset: message.value for message in await read(stream)}
        acks = [result for result in results if isinstance(result, Ack)]
        assert len(acks) >= 500
        assert len({ack.offset for ack in acks}) == len(acks)
        assert all(ack.offset in stored for ack in acks)
        others = [result for result in results if not isinstance(result, Ack)]
        assert all(isinstance(error, LiftbridgeError) for error in others)
