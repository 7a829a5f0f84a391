"""Waiting for what is committed: one open call for each leader, and whoever knows more ends it."""

import asyncio
from datetime import timedelta

import pytest
from tenacity import AsyncRetrying, stop_after_attempt

from liftbridge_client import (
    ClosedError,
    NotFoundError,
    RetriableError,
    ServerError,
    UnimplementedError,
    UsageError,
    methods,
)
from liftbridge_client.aio import bounds
from liftbridge_client.aio.bounds import await_news
from liftbridge_client.aio.streams import Streams
from liftbridge_proto.ext.v1 import data_pb2

STREAM = "orders"


class Leaders:
    """A session to leaders of partitions; `tell` lets the open calls to one of them end."""

    call_seconds = 5.0

    def __init__(self, leaders, *, waits=True, is_older=False):
        self.is_older = is_older
        self.leaders = leaders
        self.waits = waits
        self.marks = dict.fromkeys(leaders, 0)
        self.asked = []
        self.is_open = asyncio.Event()
        self.failing = set()
        self._told = {address: asyncio.Event() for address in leaders.values()}

    def tell(self, partition, mark):
        self.marks[partition] = mark
        self._told[self.leaders[partition]].set()

    def fail(self, address):
        self.failing.add(address)
        self._told[address].set()

    def attempts(self, _path):
        return AsyncRetrying(stop=stop_after_attempt(1), reraise=True)

    async def leader_address(self, _stream, number):
        return self.leaders[number]

    async def ask(self, address, method, request, *, wait_seconds):
        if method is methods.AWAIT_NEWS:
            return await self._news(address, request)
        self.asked.append((address, sorted(request.partitions), wait_seconds))
        if len({one for one, *_ in self.asked}) == len(self._told):
            self.is_open.set()
        if self.waits and request.wait_ms:
            await self._told[address].wait()
        if address in self.failing:
            raise RetriableError("gone")
        return data_pb2.PartitionBoundsResponse(
            partitions=[
                data_pb2.PartitionBounds(partition=one, high_watermark=self.marks[one])
                for one in request.partitions
            ]
        )

    async def _news(self, address, request):
        if self.is_older:
            raise UnimplementedError("no such call")
        self.asked.append((address, [one.name for one in request.streams], request.wait_ms))
        if len(self.asked) == len(self._told):
            self.is_open.set()
        await self._told[address].wait()
        if address in self.failing:
            raise RetriableError("gone")
        news = [
            one.name
            for one in request.streams
            if any(self.marks[number] > mark for number, mark in one.high_watermarks.items())
        ]
        return data_pb2.AwaitNewsResponse(streams=news)


async def test_the_first_leader_that_knows_more_ends_the_wait():
    leaders = Leaders({0: "a", 1: "b", 2: "a"})
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(await_news(leaders, STREAM, {0: 0, 1: 0, 2: 0}, 30.0))
        await leaders.is_open.wait()
        assert not waiting.done()
        leaders.tell(1, 1)
    assert [(address, numbers) for address, numbers, _ in leaders.asked] == [
        ("a", [0, 2]),
        ("b", [1]),
    ]
    assert all(29 < seconds <= 30 for *_, seconds in leaders.asked)


async def test_a_leader_that_fails_ends_the_wait():
    leaders = Leaders({0: "a", 1: "b"})
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(await_news(leaders, STREAM, {0: 0, 1: 0}, 30.0))
        await leaders.is_open.wait()
        leaders.fail("b")
    assert waiting.result()
    assert len(leaders.asked) == 2


async def test_a_broker_that_knows_no_wait_is_asked_a_few_times(monkeypatch):
    monkeypatch.setattr(bounds, "_ANEW_SECONDS", 0.01)
    leaders = Leaders({0: "a"}, waits=False)
    assert not await await_news(leaders, STREAM, {0: 0}, 0.1)
    assert 1 < len(leaders.asked) <= 11
    leaders.asked.clear()
    leaders.tell(0, 5)
    assert await await_news(leaders, STREAM, {0: 4}, 30.0)
    assert len(leaders.asked) == 1


@pytest.mark.parametrize("seconds", [-1.0, 30.5])
async def test_a_wait_has_bounds(seconds):
    with pytest.raises(UsageError, match="must be 0 to 30 s"):
        await await_news(Leaders({0: "a"}), STREAM, {0: 0}, seconds)


async def test_no_partitions_are_not_waited_for():
    leaders = Leaders({})
    await await_news(leaders, STREAM, {}, 30.0)
    assert leaders.asked == []


async def test_a_broker_has_one_call_for_all_streams_and_the_first_with_news_ends_the_wait():
    leaders = Leaders({0: "a", 1: "b"})
    known = {"orders": {0: 0, 1: 0}, "payments": {1: 0}, "refunds": {0: 0}}
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(Streams(leaders).await_news(known, timedelta(seconds=30)))
        await leaders.is_open.wait()
        leaders.tell(1, 1)
    assert waiting.result() == {"orders", "payments"}
    assert leaders.asked == [
        ("a", ["orders", "refunds"], 30_000),
        ("b", ["orders", "payments"], 30_000),
    ]


async def test_all_brokers_without_news_end_the_wait_with_none():
    leaders = Leaders({0: "a", 1: "b"})
    known = {"orders": {0: 0, 1: 0}}
    leaders.tell(0, 0)
    leaders.tell(1, 0)
    assert await Streams(leaders).await_news(known, timedelta(seconds=30)) == frozenset()
    assert len(leaders.asked) == 2


@pytest.mark.parametrize(
    ("streams", "partitions", "sizes"),
    [(20_001, 1, [10_000, 10_000, 1]), (5, 40_000, [2, 2, 1]), (2, 100_001, [1, 1])],
)
async def test_a_call_has_as_many_streams_and_partitions_as_a_broker_takes(
    streams, partitions, sizes
):
    leaders = Leaders(dict.fromkeys(range(partitions), "a"))
    leaders.tell(0, 0)
    marks = dict.fromkeys(range(partitions), 0)
    known = {f"orders-{one}": marks for one in range(streams)}
    assert await Streams(leaders).await_news(known, timedelta(seconds=30)) == frozenset()
    assert [len(names) for _, names, _ in leaders.asked] == sizes
    assert [name for _, names, _ in leaders.asked for name in names] == list(known)


async def test_streams_of_a_broker_that_fails_may_have_news():
    leaders = Leaders({0: "a", 1: "b"})
    leaders.fail("b")
    known = {"orders": {0: 0}, "payments": {1: 0}}
    assert await Streams(leaders).await_news(known, timedelta(seconds=30)) == {"payments"}


async def test_with_older_brokers_the_first_stream_with_news_ends_the_wait_for_all():
    leaders = Leaders({0: "a", 1: "b"}, is_older=True)
    known = {"orders": {0: 0}, "payments": {1: 0}}
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(Streams(leaders).await_news(known, timedelta(seconds=30)))
        await leaders.is_open.wait()
        leaders.tell(1, 1)
    assert waiting.result() == {"payments"}
    assert sorted(address for address, *_ in leaders.asked) == ["a", "b"]


@pytest.mark.parametrize("error", [NotFoundError, ServerError, ClosedError])
async def test_a_stream_that_nobody_can_tell_of_ends_the_wait_for_all(error):
    class Leaderless(Leaders):
        async def leader_address(self, stream, number):
            if stream == "gone":
                raise error("nobody can tell")
            return await super().leader_address(stream, number)

    leaders = Leaderless({0: "a"})
    streams = Streams(leaders)
    both = {"orders": {0: 0}, "gone": {0: 0}}
    assert await streams.await_news(both, timedelta(seconds=30)) == {"gone"}
    assert await streams.await_news({}, timedelta(seconds=30)) == frozenset()
    assert len(leaders.asked) <= 1


@pytest.mark.parametrize(
    ("seconds", "rule"), [(-1, "must not be negative"), (31, "must be 0 to 30 s")]
)
async def test_a_wait_for_streams_that_brokers_would_refuse_is_refused(seconds, rule):
    with pytest.raises(UsageError, match=rule):
        await Streams(Leaders({0: "a"})).await_news({"orders": {0: 0}}, timedelta(seconds=seconds))
