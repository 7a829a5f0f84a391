"""Bounded reads of whole stored batches, which go on at another leader where one broke off."""

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Final

from liftbridge_client import methods
from liftbridge_client.aio.bounds import fetch_bounds
from liftbridge_client.core.batches import walk
from liftbridge_client.core.history import cut_at
from liftbridge_client.errors import LiftbridgeError, RetriableError, TruncatedError
from liftbridge_proto.ext.v1 import data_pb2

if TYPE_CHECKING:
    from liftbridge_client.aio.session import Session

WAIT_SECONDS: Final = 0.05


async def read_bulk(
    client: "Session", stream: str, partition: int, start: int, end: int, max_bytes: int
) -> AsyncGenerator[bytes, None]:
    """Whole batches of a range, everything in it that was acknowledged before the call.

    Raises:
        RetriableError: Nobody could serve the rest for the retry time.
        TruncatedError: Records that were given out are gone.
        LiftbridgeError: The broker refused.
    """
    loop = asyncio.get_running_loop()
    progress_at, position, epoch = loop.time(), start, 0
    left = max_bytes
    while True:
        try:
            if epoch:
                (bounds,) = await fetch_bounds(client, stream, (partition,))
                epochs = ((one.leader_epoch, one.start_offset) for one in bounds.epochs)
                cut = cut_at(epochs, epoch, position)
                if cut is not None:
                    raise TruncatedError(
                        f"an unclean election cut {stream}/{partition} off at offset {cut}",
                        offset=cut,
                        next_offset=position,
                    )
            request = data_pb2.FetchBatchesRequest(
                stream=stream,
                partition=partition,
                start_offset=position,
                end_offset=end,
                max_bytes=left,
            )
            address = await client.leader_address(stream, partition)
            reading = client.transport.server_stream(address, methods.FETCH_BATCHES, request)
            try:
                while (response := await reading.read()) is not None:
                    yield response.data
                    position, progress_at = response.next_offset, loop.time()
                    epoch = max((b.leader_epoch for b in walk(response.data)), default=epoch)
                    left -= min(left, len(response.data))
                    if max_bytes and not left:
                        return
            finally:
                reading.cancel()
        except RetriableError:
            client.doubt_leader(stream, partition)
            if loop.time() - progress_at > client.retry_seconds:
                raise
            await asyncio.sleep(WAIT_SECONDS)
        except LiftbridgeError:
            client.doubt_leader(stream, partition)
            raise
        else:
            return
