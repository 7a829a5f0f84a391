"""`PipelineBrokers` over gRPC, by the ports for operators.

Each broker tells the bounds of the partitions that it leads. A cursor is told by the leader of the
partition that keeps it, which nobody needs to know: brokers are asked in turn, beginning with the
one that told the cursor of this partition the last time.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message as ProtoMessage

from liftbridge_operator.brokers.channels import open_channel
from liftbridge_operator.brokers.reach import Endpoint
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
"""Cursors that are asked for at the same time."""


class GrpcPositions:
    """See `PipelineBrokers`; whoever makes it closes it."""

    def __init__(
        self, endpoints: Sequence[Endpoint], credentials: grpc.ChannelCredentials | None = None
    ) -> None:
        """Connect to nobody yet.

        Args:
            endpoints: All brokers of the cluster, at least one.
            credentials: To trust and to show; None is plaintext, offered on loopback only.
        """
        assert endpoints, "a cluster has at least one broker"
        self._endpoints = tuple(endpoints)
        self._credentials = credentials
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._first: dict[Place, int] = {}
        self._room = asyncio.Semaphore(CALLS_MAX)

    async def close(self) -> None:
        """See `PipelineBrokers`."""
        channels, self._channels = self._channels, {}
        await asyncio.gather(*(channel.close(None) for channel in channels.values()))

    async def positions(self, stream: str, cursor: str) -> Positions:
        """See `PipelineBrokers`."""
        count = await self._count(stream)
        request = data_pb2.PartitionBoundsRequest(stream=stream)
        answers = await asyncio.gather(
            *(
                self._ask(one, BOUNDS, request, data_pb2.PartitionBoundsResponse)
                for one in self._endpoints
            ),
            return_exceptions=True,
        )
        bounds: dict[int, data_pb2.PartitionBounds] = {}
        for answer in answers:
            if isinstance(answer, grpc.aio.AioRpcError):
                continue
            if isinstance(answer, BaseException):
                raise answer
            bounds |= {one.partition: one for one in answer.partitions}
        missing = [number for number in range(count) if number not in bounds]
        if missing:
            raise SilentError(f"partition {missing[0]} of stream {stream} has no leader that tells")
        places = [Place(stream, number) for number in range(count)]
        cursors = await asyncio.gather(*(self._cursor(place, cursor) for place in places))
        return {
            place: Position(
                bounds[place.partition].log_start, bounds[place.partition].high_watermark, offset
            )
            for place, offset in zip(places, cursors, strict=True)
        }

    async def _count(self, stream: str) -> int:
        """Partitions of a stream.

        Raises:
            UnknownStreamError: There is no such stream.
            SilentError: Nobody answers.
        """
        last: grpc.aio.AioRpcError | None = None
        # Streams are listed by name, so the one of just this name comes first.
        request = data_pb2.ListStreamsRequest(prefix=stream, page_size=1)
        for one in self._endpoints:
            try:
                answer = await self._ask(one, STREAMS, request, data_pb2.ListStreamsResponse)
            except grpc.aio.AioRpcError as error:
                last = error
                continue
            found = next((each for each in answer.streams if each.settings.name == stream), None)
            if found is None:
                raise UnknownStreamError(stream)
            return found.partitions
        assert last is not None, "there is at least one broker"
        raise SilentError(_said(last)) from last

    async def _cursor(self, place: Place, cursor: str) -> int:
        """Last offset that is archived of a partition; -1 for none.

        The cursor itself is the first offset that is not.

        Raises:
            CursorError: Nobody tells.
        """
        request = api_pb2.FetchCursorRequest(
            stream=place.stream, partition=place.partition, cursorId=cursor
        )
        first = self._first.get(place, 0)
        last: grpc.aio.AioRpcError | None = None
        async with self._room:
            for turn in range(len(self._endpoints)):
                number = (first + turn) % len(self._endpoints)
                try:
                    answer = await self._ask(
                        self._endpoints[number], CURSOR, request, api_pb2.FetchCursorResponse
                    )
                except grpc.aio.AioRpcError as error:
                    last = error
                    continue
                self._first[place] = number
                return max(answer.offset, 0) - 1
        assert last is not None, "there is at least one broker"
        raise CursorError(_said(last)) from last

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
        answer: _Response = await call(request, timeout=CALL_SECONDS)
        return answer


def _said(error: grpc.aio.AioRpcError) -> str:
    return error.details() or error.code().name
