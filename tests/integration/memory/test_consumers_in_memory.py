"""Members of consumer groups on a broker in memory, whose sessions last a second."""

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta

import grpc
import pytest

from liftbridge_client import (
    FailedPreconditionError,
    FencedError,
    JsonCodec,
    NotFoundError,
    Start,
    StreamSettings,
    UsageError,
    connect_sync,
)
from liftbridge_client.aio.consumers import member, reading
from liftbridge_client.aio.subscription import Subscription
from liftbridge_client.testing import Broker
from liftbridge_proto import api_pb2
from liftbridge_proto.api_pb2_grpc import APIStub
from liftbridge_proto.ext.v1 import groups_pb2
from liftbridge_proto.ext.v1.groups_pb2_grpc import GroupsStub
from liftbridge_testkit.grpc_echo import eventually

PARTITIONS = 4
RARELY = timedelta(hours=1)
"""Interval of automatic commits that no test waits for."""


@pytest.fixture
async def broker():
    async with Broker(config={"groups.consumer.timeout": "1s"}) as running:
        yield running


@pytest.fixture
async def lb(broker):
    async with broker.client() as client:
        await client.streams.create("orders", partitions=PARTITIONS)
        yield client


async def publish(lb, count, stream="orders", partitions=PARTITIONS):
    async with lb.streams.get(stream).publisher() as publisher:
        for number in range(count):
            await publisher.publish(b"%d" % number, partition=number % partitions)


async def read(consumer, count):
    """Values that come first, at least so many; the batch of the last one stays unfinished."""
    values = []
    async for batch in consumer:
        values += [int(message.value) for message in batch]
        if len(values) >= count:
            break
    return values


def positions(lb, group="g"):
    stream = lb.streams.get("orders")
    names = range(PARTITIONS)
    return asyncio.gather(*(stream.fetch_cursor(f"__group:{group}", partition=n) for n in names))


async def until_stored(lb, offset):
    """Wait until the group has this position everywhere."""
    while await positions(lb) != [offset] * PARTITIONS:
        pass


@asynccontextmanager
async def waiting_for_more(consumer):
    """Let the application wait for the next batch meanwhile."""
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(anext(consumer))
        yield
        waiting.cancel()


async def call(broker, name, request):
    async with grpc.aio.insecure_channel(broker.address) as channel:
        await getattr(GroupsStub(channel), name)(request)


# -- positions ------------------------------------------------------------------------------------


async def test_what_was_finished_is_stored_at_leave_and_the_rest_is_delivered_again(lb):
    await publish(lb, 40)
    async with lb.consumers.join(
        "g", ["orders"], commit_interval=RARELY, batch_messages=1
    ) as consumer:
        first = await read(consumer, 30)
    assert sum(one + 1 for one in await positions(lb) if one is not None) == 29
    async with lb.consumers.join("g", ["orders"]) as consumer:
        second = await read(consumer, 11)
    assert sorted([*first[:-1], *second]) == list(range(40))


async def test_finished_batches_are_stored_from_time_to_time(lb):
    await publish(lb, 8)
    interval = timedelta(milliseconds=20)
    async with lb.consumers.join("g", ["orders"], commit_interval=interval) as consumer:
        await read(consumer, 8)
        async with waiting_for_more(consumer):  # all eight are finished
            await until_stored(lb, 1)
    assert await positions(lb) == [1] * PARTITIONS


async def test_explicit_commits_store_everything_that_was_returned_and_nothing_else_does(lb):
    await publish(lb, 40)
    async with lb.consumers.join("g", ["orders"], commits="explicit") as consumer:
        await read(consumer, 40)
    assert await positions(lb) == [None] * 4
    async with lb.consumers.join("g", ["orders"], commits="explicit") as consumer:
        assert sorted(await read(consumer, 40)) == list(range(40))
        await consumer.commit()
    assert await positions(lb) == [9] * 4


async def test_explicit_commits_may_be_made_when_partitions_are_revoked(lb):
    await publish(lb, 40)

    async def revoked(_partitions):
        await consumer.commit()

    async with lb.consumers.join(
        "g", ["orders"], commits="explicit", on_revoked=revoked
    ) as consumer:
        await read(consumer, 40)
        async with waiting_for_more(consumer), lb.consumers.join("g", ["orders"]) as other:
            await eventually(lambda: len(other.assignment) == 2)
            stored = {
                one.partition: (await positions(lb))[one.partition] for one in other.assignment
            }
            assert set(stored.values()) == {9}
    assert await positions(lb) == [9] * PARTITIONS


async def test_lag_counts_what_is_not_finished(lb):
    await publish(lb, 8)
    async with lb.consumers.join("g", ["orders"], commits="explicit") as consumer:
        await read(consumer, 8)
        await consumer.commit()
        await publish(lb, 6)
        assert list((await consumer.lag()).values()) == [2, 2, 1, 1]
        assert [one.partition for one in consumer.assignment] == [0, 1, 2, 3]


async def test_a_group_that_begins_with_new_messages_keeps_its_place(lb):
    await publish(lb, 8)
    async with lb.consumers.join("g", ["orders"], start=Start.new()):
        await until_stored(lb, 1)
    await publish(lb, 4)
    async with lb.consumers.join("g", ["orders"], start=Start.new()) as consumer:
        assert sorted(await read(consumer, 4)) == [0, 1, 2, 3]


async def test_a_position_that_retention_has_overtaken_continues_at_the_log_start(lb, broker):
    small = StreamSettings(segment_max_bytes=1, retention_max_messages=3)
    await lb.streams.create("short", settings=small)
    await publish(lb, 4, "short", 1)
    async with lb.consumers.join("g", ["short"], commits="explicit", batch_messages=1) as consumer:
        assert await read(consumer, 1) == [0]
        await consumer.commit()
    await publish(lb, 20, "short", 1)
    await broker.advance(timedelta(hours=1))
    (bounds,) = await lb.streams.get("short").bounds()
    assert bounds.log_start > 1
    async with lb.consumers.join("g", ["short"]) as consumer:
        batch = await anext(consumer)
        assert batch[0].offset == bounds.log_start


# -- given and revoked ----------------------------------------------------------------------------


async def test_a_second_member_gets_its_half_after_the_first_let_go(lb):
    await publish(lb, 80)
    told = []

    def telling(who, what):
        async def tell(partitions):
            told.append((who, what, {one.partition for one in partitions}))

        return tell

    def member(who):
        return lb.consumers.join(
            "g",
            ["orders"],
            commit_interval=RARELY,
            batch_messages=5,
            on_assigned=telling(who, "given"),
            on_revoked=telling(who, "revoked"),
        )

    values = {"a": [], "b": []}

    async def run(who, consumer):
        async for batch in consumer:
            values[who] += [int(message.value) for message in batch]

    async with asyncio.TaskGroup() as tasks, member("a") as first:
        running = [tasks.create_task(run("a", first))]
        await eventually(lambda: len(values["a"]) == 80)
        async with member("b") as second:
            running.append(tasks.create_task(run("b", second)))
            await eventually(lambda: len(second.assignment) == 2)
            await publish(lb, 80)
            await eventually(lambda: len(values["a"]) + len(values["b"]) == 160)
            halves = [{one.partition for one in each.assignment} for each in (first, second)]
            for one in running:
                one.cancel()
    moved = halves[1]
    assert told[0] == ("a", "given", {0, 1, 2, 3})
    assert told[1] == ("a", "revoked", moved)
    assert told[2] == ("b", "given", moved)
    assert halves[0] | moved == {0, 1, 2, 3}
    assert sorted(values["a"] + values["b"]) == sorted([*range(80), *range(80)])  # none twice


async def test_a_partition_stays_while_the_application_has_a_batch_of_it():
    patient = {"groups.consumer.timeout": "20s"}
    async with (
        asyncio.timeout(20),
        Broker(config=patient) as broker,
        broker.client() as lb,
    ):
        await lb.streams.create("orders", partitions=2)
        await publish(lb, 2, partitions=2)
        async with lb.consumers.join("g", ["orders"], commit_interval=RARELY) as first:
            batch = await anext(first)
            other = await anext(first)
            async with lb.consumers.join("g", ["orders"], commit_interval=RARELY) as second:
                await eventually(lambda: len(first.assignment) == 1)
                if other.partition in {one.partition for one in first.assignment}:
                    await eventually(lambda: len(second.assignment) == 1)  # of the finished batch
                else:
                    assert second.assignment == ()
                    async with waiting_for_more(first):
                        await eventually(lambda: len(second.assignment) == 1)
                (moved,) = second.assignment
                stream = lb.streams.get("orders")
                position = await stream.fetch_cursor("__group:g", partition=moved.partition)
                assert position == 0
                assert {batch.partition, other.partition} == {0, 1}


async def test_streams_that_are_created_later_are_read_and_deleted_ones_are_not_missed(lb):
    async with lb.consumers.join("g", ["returns.*"], commits="explicit") as consumer:
        assert consumer.assignment == ()
        await lb.streams.create("returns.eu")
        await publish(lb, 3, "returns.eu", 1)
        assert await read(consumer, 3) == [0, 1, 2]
        await consumer.commit()
        await lb.streams.delete("returns.eu")
        await lb.streams.create("returns.eu")
        await publish(lb, 2, "returns.eu", 1)
        assert await read(consumer, 2) == [0, 1]  # not after the position of the former stream


async def test_a_stream_that_is_created_again_before_the_member_hears_of_it_is_read_from_the_start(
    lb, monkeypatch
):
    """The reader hears only that the partition is not its own any more, and heartbeats are late."""

    class Overtaken(Subscription):
        async def batches(self):
            try:
                async for batch in super().batches():
                    yield batch
            except NotFoundError as error:
                if "deleted" not in str(error):
                    raise
                raise FencedError("no longer read") from error

    monkeypatch.setattr(reading, "Subscription", Overtaken)
    await lb.streams.create("returns")
    await publish(lb, 3, "returns", 1)
    async with lb.consumers.join("g", ["returns"], commits="explicit") as consumer:
        assert await read(consumer, 3) == [0, 1, 2]
        await consumer.commit()
        monkeypatch.setattr(member, "BEAT_SECONDS_MIN", 0.9)
        await lb.streams.delete("returns")
        await lb.streams.create("returns")
        await publish(lb, 5, "returns", 1)
        async with asyncio.timeout(10):
            assert await read(consumer, 5) == [0, 1, 2, 3, 4]


async def test_a_position_of_a_deleted_stream_is_not_stored_for_the_next_one(lb):
    await publish(lb, 4)
    async with lb.consumers.join("g", ["orders"], commits="explicit") as consumer:
        await read(consumer, 4)
        for claim in consumer._membership.claims:
            claim.stream_id -= 1  # as if it had read a former stream, and heard of no other
        with pytest.raises(FencedError, match="it was recreated"):
            await consumer.commit()
    assert await positions(lb) == [None] * 4


async def test_a_group_does_not_continue_after_its_position_in_a_deleted_stream(lb):
    await publish(lb, 8)
    async with lb.consumers.join("g", ["orders"]) as consumer:
        await read(consumer, 8)
    await lb.streams.delete("orders")
    await lb.streams.create("orders", partitions=PARTITIONS)
    await publish(lb, 12)
    async with (
        asyncio.timeout(10),
        lb.consumers.join("g", ["orders"]) as consumer,  # it has read no former stream
    ):
        assert sorted(await read(consumer, 12)) == list(range(12))


# -- the end of a membership ----------------------------------------------------------------------


async def test_a_member_that_was_evicted_joins_again_and_reads_from_the_stored_position(lb, broker):
    await publish(lb, 4)
    revoked = []
    async with lb.consumers.join(
        "g", ["orders"], commits="explicit", on_revoked=revoked.append
    ) as consumer:
        assert sorted(await read(consumer, 4)) == [0, 1, 2, 3]
        evict = groups_pb2.EvictMemberRequest(group_id="g", member_id=consumer.name)
        await call(broker, "EvictMember", evict)
        assert sorted(await read(consumer, 4)) == [0, 1, 2, 3]
        assert len(revoked[0]) == PARTITIONS
        with pytest.raises(FencedError, match=r"orders/0, .* and 1 more went to another member"):
            await consumer.commit()
        await consumer.commit()
    assert await positions(lb) == [0] * 4


async def test_a_commit_without_a_group_is_refused_and_the_next_one_is_not(lb, broker):
    await publish(lb, 4)
    async with lb.consumers.join("g", ["orders"], commits="explicit") as consumer:
        await read(consumer, 4)
        await call(broker, "DeleteGroup", groups_pb2.DeleteGroupRequest(group_id="g"))
        with pytest.raises(FencedError):
            await consumer.commit()
    async with lb.consumers.join("g", ["orders"], commits="explicit") as consumer:
        await read(consumer, 4)
        await consumer.commit()
    assert await positions(lb) == [0] * 4


async def test_a_member_without_its_coordinator_stops_after_its_session(lb, broker):
    await publish(lb, 40)
    async with lb.consumers.join("g", ["orders"], batch_messages=1) as consumer:
        await read(consumer, 1)
        broker.pause()
        before = asyncio.get_running_loop().time()
        await eventually(lambda: not consumer.assignment)
        assert asyncio.get_running_loop().time() - before < 2
        with pytest.raises(TimeoutError):  # although messages waited here
            async with asyncio.timeout(0.1):
                await anext(consumer)
        broker.resume()
        assert set(await read(consumer, 40)) == set(range(40))


async def test_another_process_of_the_same_name_ends_this_one(lb):
    async with (
        lb.consumers.join("g", ["orders"], name="c") as first,
        lb.consumers.join("g", ["orders"], name="c"),
    ):
        with pytest.raises(FencedError, match="another process joined group g as c"):
            await anext(first)


async def test_an_instance_that_restarts_keeps_its_partitions(lb, broker):
    async with (
        lb.consumers.join("g", ["orders"], instance_id="pod-1") as former,
        lb.consumers.join("g", ["orders"], instance_id="pod-2") as other,
    ):
        await eventually(lambda: len(other.assignment) == PARTITIONS // 2)
        mine = former.assignment
        async with lb.consumers.join("g", ["orders"], instance_id="pod-1") as again:
            assert again.assignment == mine
            with pytest.raises(FencedError, match="instance pod-1"):
                await anext(former)


# -- the application ------------------------------------------------------------------------------


class ApplicationError(Exception):
    """An error of the application."""


async def group_is_gone(broker):
    async with grpc.aio.insecure_channel(broker.address) as channel:
        found = await APIStub(channel).FetchMetadata(api_pb2.FetchMetadataRequest(groups=["g"]))
    return bool(found.groupMetadata[0].error)


async def test_an_error_of_the_application_leaves_the_group_and_is_its_own(lb, broker):
    async def run():
        async with lb.consumers.join("g", ["orders"]) as consumer:
            async for _ in consumer:
                raise ApplicationError

    await publish(lb, 4)
    with pytest.raises(ApplicationError):
        await run()
    assert await group_is_gone(broker)


@pytest.mark.parametrize("when", ["on_assigned", "on_revoked"])
async def test_an_error_of_a_callback_is_raised_to_the_application(lb, broker, when):
    def fail(_partitions):
        raise ApplicationError

    await publish(lb, 4)
    with pytest.raises(ApplicationError):
        async with lb.consumers.join("g", ["orders"], **{when: fail}) as consumer:
            await anext(consumer)
    assert await group_is_gone(broker)


async def test_no_more_is_read_than_there_is_room_for(lb):
    await publish(lb, 400)
    before = lb.stats.received
    async with lb.consumers.join("g", ["orders"], batch_messages=5, buffer_messages=10) as consumer:
        batch = await anext(consumer)
        await eventually(lambda: lb.stats.received >= before + 10)
        await consumer.lag()
        await consumer.lag()
        assert lb.stats.received - before <= 10 + len(batch) + PARTITIONS
        assert len(await read(consumer, 400 - len(batch))) + len(batch) == 400


async def test_values_are_decoded(lb):
    await publish(lb, 1)
    async with lb.consumers.join("g", ["orders"], codec=JsonCodec(int)) as consumer:
        assert [message.value for message in await anext(consumer)] == [0]


async def test_classic_groups_and_wrong_arguments_are_refused(lb, broker):
    async with grpc.aio.insecure_channel(broker.address) as channel:
        join = api_pb2.JoinConsumerGroupRequest(groupId="g", consumerId="c", streams=["orders"])
        await APIStub(channel).JoinConsumerGroup(join)
    with pytest.raises(FailedPreconditionError, match="classic"):
        async with lb.consumers.join("g", ["orders"]):
            pass
    with pytest.raises(UsageError, match="must name a stream"):
        lb.consumers.join("g", [])
    with pytest.raises(UsageError, match="cursor"):
        lb.consumers.join("g", ["orders"], start=Start.cursor("x"))


async def test_blocking_members_do_the_same(lb, broker):
    await publish(lb, 8)

    def run():
        told, values = [], []
        with connect_sync(broker.address) as blocking:

            def given(partitions):
                # It runs where it may call the client.
                told.append((len(partitions), len(blocking.metadata().brokers)))

            with blocking.consumers.join("g", ["orders"], on_assigned=given) as consumer:
                for batch in consumer:
                    values += [int(message.value) for message in batch]
                    if len(values) == 8:
                        consumer.commit()
                        break
                assert sum(consumer.lag().values()) == 0
        return told, sorted(values)

    assert await asyncio.to_thread(run) == ([(PARTITIONS, 1)], list(range(8)))
    assert await positions(lb) == [1] * 4
