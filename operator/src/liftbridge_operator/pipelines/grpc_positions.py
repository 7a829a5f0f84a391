"""`PipelineBrokers` over gRPC, on the admin ports of brokers.

Each broker returns the bounds of the partitions that it leads. Only the leader of the partition
that stores a cursor returns the cursor, and the operator need not know that broker: it asks the
brokers in turn, first the one that answered last, and last those whose calls timed out. So a broker
on a lost node costs one time-out, not one for each partition.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message as ProtoMessage

from liftbridge_operator.cluster.brokers.channels import open_channel
from liftbridge_operator.cluster.brokers.reach import Endpoint
from liftbridge_operator.pipelines.port import CursorError, SilentError, UnknownStreamError
from liftbridge_operator.pipelines.positions import Place, Position, Positions
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2

_Response = TypeVar("_Response", bound=ProtoMessage)

BOUNDS: Final = "/liftbridge.ext.v1.Data/PartitionBounds"
CURSOR: Final = "/proto.API/FetchCursor"
STREAMS: Final = "/liftbridge.ext.v1.Data/ListStreams"
CALL_SECONDS: Final = 5.0
CALLS_MAX: Final = 8
"""Maximum number of concurrent cursor requests."""


class GrpcPositions:
    """Implements `PipelineBrokers`; its creator closes it."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        credentials: grpc.ChannelCredentials | None = None,
        *,
        first: str = "",
        call_seconds: float = CALL_SECONDS,
    ) -> None:
        """Start without connections.

        Args:
            endpoints: All brokers of the cluster, at least one.
            credentials: CA and client certificate; None for plaintext, which brokers offer on
                loopback only.
            first: Address of the broker to ask first; empty for any.
            call_seconds: Bound of each call.
        """
        assert endpoints, "a cluster has at least one broker"
        self._endpoints = tuple(endpoints)
        self._credentials = credentials
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._call_seconds = call_seconds
        self._order = sorted(self._endpoints, key=lambda one: one.address != first)
        self._room = asyncio.Semaphore(CALLS_MAX)

    async def close(self) -> None:
        """See `PipelineBrokers`."""
        channels, self._channels = self._channels, {}
        await asyncio.gather(*(channel.close(None) for channel in channels.values()))

    @property
    def answered(self) -> str:
        """See `PipelineBrokers`."""
        return self._order[0].address

    async def positions(self, stream: str, cursor: str) -> Positions:
        """See `PipelineBrokers`."""
        count = await self._count(stream)
        bounds = await self._bounds(stream, count)
        places = [Place(stream, number) for number in range(count)]
        cursors = await asyncio.gather(*(self._cursor(place, cursor) for place in places))
        return {
            place: Position(
                bounds[place.partition].log_start, bounds[place.partition].high_watermark, offset
            )
            for place, offset in zip(places, cursors, strict=True)
        }

    async def _bounds(self, stream: str, count: int) -> dict[int, data_pb2.PartitionBounds]:
        """Return bounds of all partitions; wait for silent brokers only while some are missing.

        Raises:
            SilentError: A partition has no leader that answers.
        """
        request = data_pb2.PartitionBoundsRequest(stream=stream)
        bounds: dict[int, data_pb2.PartitionBounds] = {}
        async with asyncio.TaskGroup() as group:
            calls = [
                group.create_task(self._bounds_at(endpoint, request))
                for endpoint in self._endpoints
            ]
            for call in asyncio.as_completed(calls):
                bounds |= await call
                if len(bounds) >= count:
                    break
            for each in calls:
                each.cancel()
        missing = [number for number in range(count) if number not in bounds]
        if missing:
            raise SilentError(
                f"partition {missing[0]} of stream {stream} has no leader that reports its bounds"
            )
        return bounds

    async def _bounds_at(
        self, at: Endpoint, request: data_pb2.PartitionBoundsRequest
    ) -> dict[int, data_pb2.PartitionBounds]:
        """Return bounds of the partitions that a broker leads; empty when it does not answer."""
        try:
            answer = await self._ask(at, BOUNDS, request, data_pb2.PartitionBoundsResponse)
        except grpc.aio.AioRpcError:
            return {}
        return {partition.partition: partition for partition in answer.partitions}

    async def _count(self, stream: str) -> int:
        """Return the number of partitions of a stream.

        Raises:
            UnknownStreamError: There is no such stream.
            SilentError: No broker answers.
        """
        # Streams are sorted by name, so the stream of exactly this name comes first.
        request = data_pb2.ListStreamsRequest(prefix=stream, page_size=1)
        try:
            answer = await self._ask_in_turn(STREAMS, request, data_pb2.ListStreamsResponse)
        except grpc.aio.AioRpcError as error:
            raise SilentError(_said(error)) from error
        found = next((each for each in answer.streams if each.settings.name == stream), None)
        if found is None:
            raise UnknownStreamError(stream)
        return found.partitions

    async def _cursor(self, place: Place, cursor: str) -> int:
        """Return the last archived offset of a partition; -1 for none.

        The cursor itself is the first offset that is not archived.

        Raises:
            CursorError: No broker returns the cursor.
        """
        request = api_pb2.FetchCursorRequest(
            stream=place.stream, partition=place.partition, cursorId=cursor
        )
        async with self._room:
            try:
                answer = await self._ask_in_turn(CURSOR, request, api_pb2.FetchCursorResponse)
            except grpc.aio.AioRpcError as error:
                raise CursorError(_said(error)) from error
        return max(answer.offset, 0) - 1

    async def _ask_in_turn(
        self, method: str, request: ProtoMessage, response: type[_Response]
    ) -> _Response:
        """Return the first answer of a broker.

        Raises:
            AioRpcError: Error of the last broker, when none answers.
        """
        last: grpc.aio.AioRpcError | None = None
        for one in tuple(self._order):
            try:
                answer = await self._ask(one, method, request, response)
            except grpc.aio.AioRpcError as error:
                last = error
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    self._order.remove(one)
                    self._order.append(one)
                continue
            self._order.remove(one)
            self._order.insert(0, one)
            return answer
        assert last is not None, "there is at least one broker"
        raise last

    async def _ask(
        self, at: Endpoint, method: str, request: ProtoMessage, response: type[_Response]
    ) -> _Response:
        channel = self._channels.get(at.address)
        if channel is None:
            channel = self._channels[at.address] = open_channel(at.address, self._credentials)
        call: Any = channel.unary_unary(
            method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )
        answer: _Response = await call(request, timeout=self._call_seconds)
        return answer


def _said(error: grpc.aio.AioRpcError) -> str:
    return error.details() or error.code().name
