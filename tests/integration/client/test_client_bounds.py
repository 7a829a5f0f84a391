"""Bounds that wait, of a real broker, by the asynchronous and the blocking client."""

import asyncio
from datetime import timedelta

import pytest

from liftbridge_client import UsageError, connect_sync

LONG = timedelta(seconds=30)


def marks(found):
    return {one.partition: one.high_watermark for one in found}


async def test_bounds_come_as_soon_as_more_is_committed(lb, name):
    stream = await lb.streams.create(name, partitions=2)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(stream.bounds(known={0: 0, 1: 0}, wait=LONG))
        await stream.publish(b"a", partition=1, ack_policy="all")
    assert marks(waiting.result()) == {0: 0, 1: 1}
    assert marks(await stream.bounds(1, known={1: 0}, wait=LONG)) == {1: 1}


async def test_bounds_come_at_the_end_of_the_wait(lb, name):
    stream = await lb.streams.create(name)
    assert marks(await stream.bounds(known={0: 0}, wait=timedelta(milliseconds=20))) == {0: 0}
    with pytest.raises(UsageError, match="wait 31 s"):
        await stream.bounds(known={0: 0}, wait=timedelta(seconds=31))


def test_the_blocking_client_waits_as_well(broker, name):
    with connect_sync(broker.address) as client:
        stream = client.streams.create(name)
        stream.publish(b"a")
        assert marks(stream.bounds(known={0: 0}, wait=LONG)) == {0: 1}
