"""Connections, metadata, routing and retries: what everything else of the client calls through."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Final, Self, TypeVar

from google.protobuf.message import Message as ProtoMessage
from tenacity import (
    AsyncRetrying,
    retry_if_exception,
    stop_after_delay,
    wait_exponential_jitter,
)

from liftbridge_client import methods
from liftbridge_client.core.codec import metadata_of
from liftbridge_client.errors import (
    ClosedError,
    FailedPreconditionError,
    LiftbridgeError,
    NotFoundError,
    RetriableError,
    UnimplementedError,
    publish_error,
)
from liftbridge_client.model import Metadata, StreamInfo, TlsFiles
from liftbridge_client.transport import Method, Transport
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2

_Request = TypeVar("_Request", bound=ProtoMessage)
_Response = TypeVar("_Response", bound=ProtoMessage)

WAIT_FIRST_SECONDS: Final = 0.05
WAIT_MAX_SECONDS: Final = 1.0


@dataclass(slots=True)
class ClientStats:
    """Plain counters of a client.

    Attributes:
        calls: Calls made.
        retries: Calls made again.
        published: Messages acknowledged.
        received: Messages delivered.
    """

    calls: int = 0
    retries: int = 0
    published: int = 0
    received: int = 0


class Session:
    """Connections to a cluster, what is known of it, and how calls find their broker.

    Attributes:
        timeout_seconds: How long a single call may take.
        retry_seconds: How long a call that met an absent broker is made again.
        has_data: Whether the servers offer our own calls, known once entered.
        stats: Counters.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        tls: TlsFiles | None,
        timeout: timedelta,
        retry_time: timedelta,
    ) -> None:
        self._seeds = tuple(addresses)
        self._tls = tls
        self._transport: Transport | None = None
        self._metadata = Metadata({}, {})
        self.retry_seconds = retry_time.total_seconds()
        self.timeout_seconds = timeout.total_seconds()
        self.has_data = False
        self.stats = ClientStats()

    async def __aenter__(self) -> Self:
        """Connect: the first seed that answers tells of all brokers.

        Raises:
            RetriableError: No seed answers within the retry time.
        """
        self._transport = Transport(self._tls)
        self._transport.open()
        try:
            await self.refresh()
            await self._look_for_data()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections; calls that run are cancelled."""
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.close()

    @property
    def transport(self) -> Transport:
        """The open connections.

        Raises:
            ClosedError: The client was not entered, or is closed.
        """
        if self._transport is None:
            raise ClosedError("the client is not open: use it inside `async with connect(...)`")
        return self._transport

    # -- metadata -----------------------------------------------------------------------------

    async def metadata(self) -> Metadata:
        """Brokers and streams, asked for anew."""
        return await self.refresh()

    async def refresh(self) -> Metadata:
        """Ask for metadata and remember it."""
        response = await self.call(methods.FETCH_METADATA, api_pb2.FetchMetadataRequest())
        self._metadata = metadata_of(response)
        return self._metadata

    async def stream_info(self, stream: str) -> StreamInfo:
        """What is known of a stream; asked for when it is not known.

        Raises:
            NotFoundError: There is no such stream.
        """
        known = self._metadata.streams.get(stream)
        if known is None:
            known = (await self.refresh()).streams.get(stream)
        if known is None:
            raise NotFoundError(f"no such stream: {stream}")
        return known

    async def leader_address(self, stream: str, partition: int) -> str:
        """Address of the broker that leads a partition.

        Raises:
            NotFoundError: There is no such stream or partition.
            RetriableError: The partition has no leader.
        """
        info = (await self.stream_info(stream)).partitions.get(partition)
        if info is None:
            raise NotFoundError(f"no such partition: {stream}/{partition}")
        broker = self._metadata.brokers.get(info.leader)
        if broker is None:
            raise RetriableError(f"partition {stream}/{partition} has no leader")
        return f"{broker.host}:{broker.port}"

    def _any_address(self) -> str:
        known = [f"{b.host}:{b.port}" for b in self._metadata.brokers.values()]
        return random.choice(known or self._seeds)  # noqa: S311 - spreads load, keeps no secret

    async def _look_for_data(self) -> None:
        try:
            await self.call(methods.LIST_STREAMS, data_pb2.ListStreamsRequest(page_size=1))
            self.has_data = True
        except UnimplementedError:
            self.has_data = False

    # -- calls --------------------------------------------------------------------------------

    async def call(
        self,
        method: Method[_Request, _Response],
        request: _Request,
        *,
        leader_of: tuple[str, int] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - travels to the server as the deadline
        is_repeatable: bool = True,
    ) -> _Response:
        """Call any broker, or the leader of a partition, again while that may help.

        Args:
            method: What to call.
            request: The request.
            leader_of: Stream and partition whose leader is asked; `None` asks any broker.
            timeout: Seconds for each attempt; `None` takes the client's.
            is_repeatable: Whether a call whose answer was lost may be made again; one that
                publishes must not, since the message may be stored.

        Raises:
            LiftbridgeError: The last attempt's error.
        """
        limit = self.timeout_seconds if timeout is None else timeout
        attempt_count = 0
        async for attempt in AsyncRetrying(
            retry=retry_if_exception(
                lambda error: _may_help(error, asks_leader=leader_of is not None)
            ),
            stop=stop_after_delay(self.retry_seconds),
            wait=wait_exponential_jitter(
                multiplier=WAIT_FIRST_SECONDS, max=WAIT_MAX_SECONDS, jitter=WAIT_FIRST_SECONDS
            ),
            reraise=True,
        ):
            with attempt:
                attempt_count += 1
                if attempt_count > 1:
                    self.stats.retries += 1
                    await self._forget(leader_of)
                self.stats.calls += 1
                address = (
                    self._seeds[(attempt_count - 1) % len(self._seeds)]
                    if not self._metadata.brokers
                    else await self.leader_address(*leader_of)
                    if leader_of is not None
                    else self._any_address()
                )
                try:
                    return await self.transport.unary(address, method, request, limit)
                except LiftbridgeError as error:
                    if is_repeatable:
                        raise
                    raise publish_error(error) from error
        raise AssertionError("the loop above returns or raises")

    async def _forget(self, leader_of: tuple[str, int] | None) -> None:
        """After a failure the metadata may be old: ask the seeds again."""
        if leader_of is None:
            self._metadata = Metadata({}, {})
            return
        for seed in self._seeds:
            try:
                response = await self.transport.unary(
                    seed, methods.FETCH_METADATA, api_pb2.FetchMetadataRequest(), 1.0
                )
            except LiftbridgeError:
                continue
            self._metadata = metadata_of(response)
            return


def _may_help(error: BaseException, *, asks_leader: bool) -> bool:
    """Whether another attempt, perhaps at another broker, may succeed."""
    if isinstance(error, LiftbridgeError) and error.retriable:
        return True
    is_elsewhere = isinstance(error, FailedPreconditionError) and "leader" in error.server_text
    return asks_leader and is_elsewhere
