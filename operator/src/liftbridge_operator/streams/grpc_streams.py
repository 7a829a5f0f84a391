"""`StreamBrokers` over gRPC, on the admin ports of brokers.

A poll asks one broker. A majority confirms its first answer, so the two lists read afterwards are
not older than the poll.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from liftbridge_operator.cluster.brokers.reach import Endpoint
from liftbridge_operator.streams import wire
from liftbridge_operator.streams.grpc_calls import ADMIN, GrpcCalls
from liftbridge_operator.streams.observation import ObservedStream
from liftbridge_operator.streams.port import ChangedError, RefusedError, SilentError
from liftbridge_operator.streams.settings import Value
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import admin_pb2, data_pb2

API: Final = "/proto.API/"
DATA: Final = "/liftbridge.ext.v1.Data/"
CREATE_SECONDS: Final = 15.0
"""Creating a stream of thousands of partitions takes a while."""
PAGE_SIZE: Final = 1_000
PAGES_MAX: Final = 1_000


class GrpcStreams(GrpcCalls):
    """Implements `StreamBrokers`; its creator closes it."""

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
