"""Cursors: the partition that stores a cursor, and calls to fetch and set it."""

from typing import TYPE_CHECKING, Final
from zlib import crc32

from liftbridge_client import methods
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2

if TYPE_CHECKING:
    from liftbridge_client.aio.session import Session

CURSORS_STREAM: Final = "__cursors"


async def cursor_partition(
    client: "Session", stream: str, partition: int, cursor_id: str
) -> tuple[str, int] | None:
    """Find the partition of `__cursors` that stores a cursor; `None` without that stream."""
    cursors = (await client.refresh()).streams.get(CURSORS_STREAM)
    if cursors is None:
        return None  # any broker says that there are none
    key = f"{cursor_id},{stream},{partition}".encode()
    return CURSORS_STREAM, crc32(key) % len(cursors.partitions)


async def fetch_cursor(
    client: "Session", stream: str, partition: int, cursor_id: str
) -> int | None:
    """Fetch the position stored under a name, `None` if there is none."""
    request = api_pb2.FetchCursorRequest(stream=stream, partition=partition, cursorId=cursor_id)
    target = await cursor_partition(client, stream, partition, cursor_id)
    response = await client.call(methods.FETCH_CURSOR, request, leader_of=target)
    return None if response.offset < 0 else response.offset


async def set_cursor(
    client: "Session",
    cursor: api_pb2.SetCursorRequest,
    stream_id: int,
    unclean_epoch: int | None,
) -> None:
    """Store a position under a name, for the given stream id and history."""
    target = await cursor_partition(client, cursor.stream, cursor.partition, cursor.cursorId)
    if stream_id == 0 and unclean_epoch is None:
        await client.call(methods.SET_CURSOR, cursor, leader_of=target)
        return
    of_stream = data_pb2.SetCursorRequest(
        cursor=cursor, stream_id=stream_id, unclean_epoch=unclean_epoch
    )
    await client.call(methods.DATA_SET_CURSOR, of_stream, leader_of=target)
