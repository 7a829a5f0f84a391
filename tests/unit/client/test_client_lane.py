"""What messages that were sent together are told."""

import asyncio

from liftbridge_client.aio.lane import Item
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
