"""`StreamBrokers` over gRPC, on the admin ports of brokers.

A poll asks one broker. A majority confirms its first answer, so the two lists read afterwards are
not older than the poll. After a broker does not answer, the next call goes to the next broker.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message as ProtoMessage

from liftbridge_operator.cluster.brokers.channels import open_channel
from liftbridge_operator.cluster.brokers.reach import Endpoint
from liftbridge_operator.streams import wire
from liftbridge_operator.streams.observation import ObservedStream
from liftbridge_operator.streams.port import ChangedError, RefusedError, SilentError
from liftbridge_operator.streams.settings import Value
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import admin_pb2, data_pb2

_Response = TypeVar("_Response", bound=ProtoMessage)

API: Final = "/proto.API/"
DATA: Final = "/liftbridge.ext.v1.Data/"
ADMIN: Final = "/liftbridge.ext.v1.Admin/"
CALL_SECONDS: Final = 5.0
CREATE_SECONDS: Final = 15.0
"""Creating a stream of thousands of partitions takes a while."""
PAGE_SIZE: Final = 1_000
PAGES_MAX: Final = 1_000
_CHANGED: Final = frozenset({grpc.StatusCode.NOT_FOUND, grpc.StatusCode.ALREADY_EXISTS})
_SAID: Final = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)


class GrpcStreams:
    """Implements `StreamBrokers`; its creator closes it.

    Attributes:
        endpoints: All brokers of the cluster.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        """Start without connections.

        Args:
            endpoints: All brokers of the cluster, at least one.
            credentials: CA and client certificate; None for plaintext, which brokers offer on
                loopback only.
        """
        assert endpoints, "a cluster has at least one broker"
        self.endpoints = tuple(endpoints)
        self._credentials = credentials
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._first = 0

    async def close(self) -> None:
        """See `StreamBrokers`."""
        channels, self._channels = self._channels, {}
        await asyncio.gather(*(channel.close(None) for channel in channels.values()))

    def _channel(self, address: str) -> grpc.aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = open_channel(address, self._credentials)
            self._channels[address] = channel
        return channel

    async def _ask(
        self,
        at: Endpoint,
        service: str,
        request: ProtoMessage,
        response: type[_Response],
        seconds: float = CALL_SECONDS,
    ) -> _Response:
        """Make one call; the method is the name of the request.

        Raises:
            SilentError: No broker that could answer did.
            RefusedError: The brokers refused the request.
            ChangedError: The stream does not exist, exists already, or was changed.
        """
        method = type(request).__name__.removesuffix("Request")
        call: Any = self._channel(at.address).unary_unary(
            service + method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )
        try:
            answer: _Response = await call(request, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            text = f"{at.broker}, {method}: {error.details() or error.code().name}"
            if error.code() in _CHANGED:
                raise ChangedError(text) from error
            if error.code() in _SAID:
                raise RefusedError(error.details() or error.code().name) from error
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION and service == ADMIN:
                raise ChangedError(text) from error
            self._first = (self._first + 1) % len(self.endpoints)
            raise SilentError(text) from error
        return answer

    @property
    def _preferred(self) -> Endpoint:
        return self.endpoints[self._first]

    # -- reads --------------------------------------------------------------------------------

    async def streams(self) -> Mapping[str, ObservedStream]:
        """See `StreamBrokers`."""
        last: SilentError | None = None
        for _ in self.endpoints:
            try:
                return await self._streams(self._preferred)
            except SilentError as error:
                last = error
            except (ChangedError, RefusedError) as error:
                raise SilentError(str(error)) from error
        assert last is not None
        raise last

    async def _streams(self, at: Endpoint) -> Mapping[str, ObservedStream]:
        await self._ask(
            at,
            ADMIN,
            admin_pb2.ListBrokersRequest(is_confirmed=True),
            admin_pb2.ListBrokersResponse,
        )
        described: list[data_pb2.StreamDescription] = []
        after = ""
        for _ in range(PAGES_MAX):
            page = await self._ask(
                at,
                DATA,
                data_pb2.ListStreamsRequest(page_size=PAGE_SIZE, page_token=after),
                data_pb2.ListStreamsResponse,
            )
            described += page.streams
            after = page.next_page_token
            if not after:
                break
        return wire.observed(described, await self._partitions(at))

    async def _partitions(self, at: Endpoint) -> Iterable[admin_pb2.PartitionStatus]:
        found: list[admin_pb2.PartitionStatus] = []
        token = 0
        for _ in range(PAGES_MAX):
            page = await self._ask(
                at,
                ADMIN,
                admin_pb2.ListPartitionsRequest(page_size=PAGE_SIZE, page_token=token),
                admin_pb2.ListPartitionsResponse,
            )
            found += page.partitions
            token = page.next_page_token
            if not token:
                break
        return found

    async def count_messages(self, stream: ObservedStream) -> int | None:
        """See `StreamBrokers`."""
        by_leader: dict[str, list[int]] = {}
        for partition in stream.partitions:
            by_leader.setdefault(partition.leader, []).append(partition.number)
        places = {endpoint.broker: endpoint for endpoint in self.endpoints}
        if not by_leader or not set(by_leader) <= set(places):
            return None
        count = 0
        for leader, numbers in by_leader.items():
            request = data_pb2.PartitionBoundsRequest(stream=stream.name, partitions=numbers)
            answer = await self._ask(
                places[leader], DATA, request, data_pb2.PartitionBoundsResponse
            )
            if len(answer.partitions) != len(numbers):
                return None
            count += sum(partition.log_end - partition.log_start for partition in answer.partitions)
        return count

    # -- changes ------------------------------------------------------------------------------

    async def create(
        self,
        name: str,
        *,
        subject: str,
        group: str,
        partitions: int,
        factor: int,
        settings: Mapping[str, Value],
    ) -> int:
        """See `StreamBrokers`."""
        stream = api_pb2.CreateStreamRequest(
            name=name,
            subject=subject,
            group=group,
            partitions=partitions,
            replicationFactor=factor,
        )
        request = data_pb2.CreateStreamRequest(stream=stream)
        wire.fill(settings, request.stream, request.options)
        answer = await self._ask(
            self._preferred, DATA, request, data_pb2.CreateStreamResponse, CREATE_SECONDS
        )
        return answer.stream_id

    async def mark(self, name: str, stream_id: int, *, expected: str, owner: str) -> None:
        """See `StreamBrokers`."""
        request = admin_pb2.SetStreamOwnerRequest(
            stream=name, stream_id=stream_id, expected=expected, owner=owner
        )
        await self._ask(self._preferred, ADMIN, request, admin_pb2.SetStreamOwnerResponse)

    async def alter(self, name: str, settings: Mapping[str, Value], *, factor: int) -> None:
        """See `StreamBrokers`."""
        request = data_pb2.AlterStreamRequest(name=name)
        request.settings.replicationFactor = factor
        wire.fill(settings, request.settings, request.options)
        answer = await self._ask(self._preferred, DATA, request, data_pb2.AlterStreamResponse)
        unknown = wire.passed_over(request.options, answer.options)
        if unknown:
            raise RefusedError(
                f"{unknown} is not in force: a broker of the cluster is too old to know it, and "
                "acts as if it were not set; upgrade all brokers"
            )

    async def set_readonly(self, name: str, *, is_readonly: bool) -> None:
        """See `StreamBrokers`."""
        request = api_pb2.SetStreamReadonlyRequest(name=name, readonly=is_readonly)
        await self._ask(self._preferred, API, request, api_pb2.SetStreamReadonlyResponse)

    async def delete(self, name: str) -> None:
        """See `StreamBrokers`."""
        request = api_pb2.DeleteStreamRequest(name=name)
        await self._ask(self._preferred, API, request, api_pb2.DeleteStreamResponse, CREATE_SECONDS)
