"""Where partitions begin and end, asked of every broker that can tell, and put together."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from liftbridge_client import methods
from liftbridge_client.errors import LiftbridgeError, RetriableError
from liftbridge_proto.ext.v1 import data_pb2

if TYPE_CHECKING:
    from liftbridge_client.aio.session import Session


async def fetch_bounds(
    client: "Session",
    stream: str,
    partitions: Sequence[int],
    *,
    timestamp: int | None = None,
    read_replica: bool = False,
) -> Sequence[data_pb2.PartitionBounds]:
    """Bounds of partitions in the order given, of all of them when none is.

    Raises:
        RetriableError: A partition had nobody who could tell for the retry time.
        LiftbridgeError: A broker refused.
    """
    numbers = partitions or sorted((await client.stream_info(stream)).partitions)
    found: dict[int, data_pb2.PartitionBounds] = {}
    avoided: set[str] = set()

    async def ask(address: str, asked: Sequence[int]) -> LiftbridgeError | None:
        request = data_pb2.PartitionBoundsRequest(
            stream=stream, partitions=asked, timestamp=timestamp, read_replica=read_replica
        )
        try:
            response = await client.ask(address, methods.PARTITION_BOUNDS, request)
        except LiftbridgeError as error:
            avoided.add(address)
            for number in asked:
                client.doubt_leader(stream, number)
            return error
        found.update((one.partition, one) for one in response.partitions)
        return None

    async def find(number: int) -> str:
        if read_replica:
            return await client.replica_address(stream, number, avoided)
        return await client.leader_address(stream, number)

    async for attempt in client.attempts(methods.PARTITION_BOUNDS.path):
        with attempt:
            groups: dict[str, list[int]] = {}
            for number in dict.fromkeys(numbers):
                if number not in found:
                    groups.setdefault(await find(number), []).append(number)
            refusals = await asyncio.gather(*(ask(*group) for group in groups.items()))
            errors = [error for error in refusals if error is not None]
            # What will not be otherwise later is told at once.
            errors.sort(key=lambda error: isinstance(error, RetriableError))
            if errors:
                raise errors[0]
    return [found[number] for number in numbers]
