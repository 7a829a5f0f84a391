"""A client that works without a pause while something is done to its credentials.

await work(client, await client.streams.create("lasting"), change)
"""

import asyncio
from collections.abc import Awaitable, Callable

from liftbridge_broker.adapters.clock import SystemClock
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_client import Client, Start, Stream

IN_FLIGHT = 20


def now_s() -> int:
    """Return the time in Unix seconds."""
    return SystemClock().wall_ns() // SECOND_NS


async def work(client: Client, stream: Stream, change: Callable[[], Awaitable[int]]) -> None:
    """Publish by a publisher, which always has messages in flight, publish one by one, and read.

    Args:
        client: The client.
        stream: An empty stream of one partition.
        change: Called once all of it has begun; returns when to stop, in Unix seconds.

    Raises:
        LiftbridgeError: A call failed.
        AssertionError: The stream does not have each message once.
    """
    until: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    next_offset = 0
    async with asyncio.TaskGroup() as group:
        group.create_task(_publish(stream, until))
        async for message in stream.subscribe(start=Start.earliest()):
            assert message.offset == next_offset
            next_offset += 1
            if not until.done():
                until.set_result(await change())
            if message.value == b"last":
                break
            if message.value == b"0":
                await stream.publish(b"single")
                assert (await client.who_am_i()).principal


async def _publish(stream: Stream, until: "asyncio.Future[int]") -> None:
    async with stream.publisher() as publisher:
        while not until.done() or now_s() < until.result():
            values = [b"%d" % number for number in range(IN_FLIGHT)]
            await asyncio.gather(*map(publisher.publish, values))
        await publisher.publish(b"last")
