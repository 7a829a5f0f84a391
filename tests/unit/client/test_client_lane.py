"""What messages that were sent together are told."""

import asyncio
from types import SimpleNamespace

import pytest

from liftbridge_client import LiftbridgeError, OutcomeUnknownError
from liftbridge_client.aio.items import Item
from liftbridge_client.aio.lane import Lane
from liftbridge_client.model import Ack

FIRST = Ack("s", 0, 3, 9)


async def test_a_batch_in_pieces_has_the_offsets_of_its_pieces():
    whole = asyncio.get_running_loop().create_future()
    item = Item(values=[b"a", b"b", b"c"], whole=whole)
    item.acked_in_pieces(FIRST, [(3, 2), (9, 1)])
    assert [ack.offset for ack in await whole] == [3, 4, 9]


async def test_messages_of_a_batch_in_pieces_have_the_offsets_of_their_pieces():
    futures = [asyncio.get_running_loop().create_future() for _ in range(3)]
    item = Item(values=[b"a", b"b", b"c"], futures=futures)
    item.acked_in_pieces(FIRST, [(3, 1), (7, 2)])
    assert [(await future).offset for future in futures] == [3, 7, 8]


async def test_whatever_ends_the_task_of_a_lane_fails_all_that_waits():
    """Nobody else would tell them: the task belongs to the lane alone."""

    async def leader_address(_stream, _partition):
        raise TypeError("expected bytes, str found")

    settled = []
    client = SimpleNamespace(leader_address=leader_address, call_seconds=5.0)
    owner = SimpleNamespace(stream_name="s", client=client, on_settled=settled.append)
    lane = Lane(owner, 0, 0)
    loop = asyncio.get_running_loop()
    items = [Item(values=[b"v"], futures=[loop.create_future()], send_count=n) for n in range(2)]
    async with asyncio.timeout(10):
        for item in items:
            lane.put(item)
        with pytest.raises(LiftbridgeError, match="TypeError: expected bytes") as never_sent:
            await items[0].futures[0]
        with pytest.raises(OutcomeUnknownError, match="TypeError") as sent:
            await items[1].futures[0]
    assert isinstance(never_sent.value.__cause__, TypeError)
    assert sent.value.__cause__ is never_sent.value
    assert settled == items
