"""Connections, metadata, routing and retries; all calls of the client go through it."""

import asyncio
import contextlib
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from operator import attrgetter
from typing import Final, TypeVar

from google.protobuf.message import Message as ProtoMessage
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_before_delay,
    wait_exponential_jitter,
)

from liftbridge_client import methods
from liftbridge_client.aio.listening import Events, Hub
from liftbridge_client.aio.race import first_answer
from liftbridge_client.core.addresses import written
from liftbridge_client.core.changes import changes
from liftbridge_client.core.codec import metadata_of
from liftbridge_client.core.deadlines import (
    TRY_SECONDS_MIN,
    one_deadline,
    seconds_left,
    try_seconds,
)
from liftbridge_client.errors import (
    CallTimeoutError,
    ClosedError,
    Doubt,
    LiftbridgeError,
    NotFoundError,
    RetriableError,
    UnimplementedError,
    UsageError,
    publish_error,
)
from liftbridge_client.events import CallRetried, SlowCall
from liftbridge_client.model import Metadata, StreamInfo, TlsFiles, Token
from liftbridge_client.strangers import PORT_ADVICE
from liftbridge_client.transport import Method, Transport
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2

_Request = TypeVar("_Request", bound=ProtoMessage)
_Response = TypeVar("_Response", bound=ProtoMessage)

WAIT_FIRST_SECONDS: Final = 0.05
WAIT_MAX_SECONDS: Final = 1.0
LOOKS_MAX: Final = 5
LOOK_SECONDS: Final = 0.1
"""Number of retries, and their interval in seconds, while brokers do not know a stream."""

STAGGER_SECONDS: Final = 0.25
"""Seconds of silence of a broker after which metadata is fetched from another broker as well."""

_deadline = one_deadline(attrgetter("call_seconds"))


@dataclass(slots=True)
class ClientStats:
    """Counters of a client.

    Attributes:
        calls: Calls made.
        retries: Calls retried.
        published: Messages acknowledged.
        received: Messages delivered.
    """

    calls: int = 0
    retries: int = 0
    published: int = 0
    received: int = 0


class Session:
    """Connections to a cluster, its cached metadata, and the routing of calls to brokers.

    Attributes:
        timeout_seconds: Limit for one attempt.
        retry_seconds: Limit of retries of a call whose broker is unavailable; 0 for no retry.
        call_seconds: Limit for a whole call, with all attempts.
        zone: Zone of this client, empty when unknown.
        has_data: Whether the servers have this project's calls; known once open.
        stats: Counters.
        hub: Delivers events to listeners.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        tls: TlsFiles | None,
        timeout: timedelta,
        retry_time: timedelta,
        zone: str = "",
        token: Token | None = None,
    ) -> None:
        self._seeds = tuple(addresses)
        self._tls = tls
        self._token = token
        self.zone = zone
        self._transport: Transport | None = None
        self._metadata = Metadata({}, {})
        self._doubted: set[tuple[str, int]] = set()
        self.retry_seconds = retry_time.total_seconds()
        self.timeout_seconds = try_seconds(timeout)
        self.call_seconds = self.retry_seconds or self.timeout_seconds
        self.has_data = False
        self.stats = ClientStats()
        self.hub = Hub()

    @_deadline
    async def open(self) -> None:
        """Connect: the first seed that answers names all brokers.

        Raises:
            RetriableError: No seed answers within the retry time.
            UsageError: The client is already open, or a TLS file or the token cannot be
                used.
        """
        if self._transport is not None:
            raise UsageError("the client is already open: create another one with `connect`")
        self._transport = Transport(self._tls, self.hub, token=self._token)
        try:
            self._transport.open()
            await self.refresh()
            await self._look_for_data()
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Close all connections, cancel running calls, and end all listeners."""
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.close()
        self.hub.close()

    def listen(self, slow_seconds: float) -> Events:
        """Add a listener; its first events are the existing connections."""
        transport = self.transport
        events = self.hub.listen(slow_seconds)
        transport.watch(events)
        return events

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

    @_deadline
    async def refresh(self) -> Metadata:
        """Fetch metadata and cache it."""
        async for attempt in self.attempts(methods.FETCH_METADATA.path):
            with attempt:
                await self.discover()
        return self._metadata

    async def discover(self) -> str:
        """Fetch metadata from the known brokers, then the seeds; return the address that answered.

        Raises:
            LiftbridgeError: No broker answered.
        """
        known = [written(b.host, b.port) for b in self._metadata.brokers.values()]
        random.shuffle(known)  # spreads the load
        addresses = tuple(dict.fromkeys((*known, *self._seeds)))
        doubted = frozenset(self._doubted)
        address, metadata = await first_answer(
            [partial(self._ask_for_metadata, address) for address in addresses], STAGGER_SECONDS
        )
        if self.hub.has_listeners:
            for event in changes(self._metadata, metadata):
                self.hub.emit(event)
        self._metadata = metadata
        self._doubted -= doubted
        return address

    async def _ask_for_metadata(self, address: str) -> tuple[str, Metadata]:
        request = api_pb2.FetchMetadataRequest()
        try:
            response = await self._unary(
                address, methods.FETCH_METADATA, request, self.timeout_seconds
            )
        except UnimplementedError as error:
            unimplemented = UnimplementedError(
                f"{address} has no calls for clients of Liftbridge: it is the admin port of a "
                "broker, or another server",
                server_text=error.server_text,
            )
            unimplemented.advice = PORT_ADVICE
            raise unimplemented from error
        return address, metadata_of(response)

    @_deadline
    async def stream_info(self, stream: str) -> StreamInfo:
        """Look up a stream in the cached metadata, or fetch it.

        A broker may not know a stream yet that another broker just created. So a few retries
        follow.

        Raises:
            NotFoundError: The stream does not exist.
        """
        if known := self._metadata.streams.get(stream):
            return known
        for look in range(LOOKS_MAX):
            if look:
                await asyncio.sleep(LOOK_SECONDS)
            metadata = await self.refresh()
            if known := metadata.streams.get(stream):
                return known
            if len(metadata.brokers) < 2:
                break
        raise NotFoundError(f"no such stream: {stream}")

    def doubt_leader(self, stream: str, partition: int) -> None:
        """Mark the cached leader as doubtful, so that the next call to it first fetches metadata.

        Does not await, because its caller may be cancelled at any moment.
        """
        if stream in self._metadata.streams:
            self._doubted.add((stream, partition))

    @_deadline
    async def leader_address(self, stream: str, partition: int) -> str:
        """Find the address of the broker that leads a partition.

        Raises:
            NotFoundError: The stream or partition does not exist.
            RetriableError: The partition has no leader.
        """
        await self._renew_doubted(stream, partition)
        info = (await self.stream_info(stream)).partitions.get(partition)
        if info is None:
            raise NotFoundError(f"no such partition: {stream}/{partition}")
        broker = self._metadata.brokers.get(info.leader)
        if broker is None:
            raise RetriableError(f"partition {stream}/{partition} has no leader")
        return written(broker.host, broker.port)

    @_deadline
    async def broker_address(self, broker: str, stream: str, partition: int) -> str:
        """Find the address of a broker by its id, for a call about a partition.

        Raises:
            RetriableError: The metadata does not list the broker; it may register later.
        """
        await self._renew_doubted(stream, partition)
        known = self._metadata.brokers.get(broker)
        if known is None:
            known = (await self.refresh()).brokers.get(broker)
        if known is None:
            raise RetriableError(f"no such broker in the cluster now: {broker}")
        return written(known.host, known.port)

    async def _renew_doubted(self, stream: str, partition: int) -> None:
        """Fetch metadata if the cached leader of a partition is doubtful."""
        if (stream, partition) in self._doubted:
            # If no broker answers, the call itself raises the error.
            with contextlib.suppress(LiftbridgeError):
                await self.refresh()

    @_deadline
    async def replica_address(
        self, stream: str, partition: int, avoided: Collection[str] = ()
    ) -> str:
        """Find the address of an in-sync follower, in this client's zone if there is one.

        If `avoided` has all in-sync followers, return the leader's address.
        """
        leader = await self.leader_address(stream, partition)
        info = (await self.stream_info(stream)).partitions[partition]
        brokers = self._metadata.brokers
        others = [brokers[one] for one in info.isr if one in brokers and one != info.leader]
        left = [other for other in others if written(other.host, other.port) not in avoided]
        near = [one for one in left if self.zone and one.zone == self.zone]
        if not left:
            return leader
        chosen = random.choice(near or left)  # noqa: S311 - spreads load, keeps no secret
        return written(chosen.host, chosen.port)

    def _any_address(self) -> str:
        known = [written(b.host, b.port) for b in self._metadata.brokers.values()]
        return random.choice(known)  # noqa: S311 - spreads load, keeps no secret

    async def _look_for_data(self) -> None:
        try:
            await self.call(methods.LIST_STREAMS, data_pb2.ListStreamsRequest(page_size=1))
            self.has_data = True
        except UnimplementedError:
            self.has_data = False

    # -- calls --------------------------------------------------------------------------------

    @_deadline
    async def call(
        self,
        method: Method[_Request, _Response],
        request: _Request,
        *,
        leader_of: tuple[str, int] | None = None,
        read_replica: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - travels to the server as the deadline
        is_repeatable: bool = True,
    ) -> _Response:
        """Call any broker, or the leader of a partition, with retries.

        Args:
            method: What to call.
            request: The request.
            leader_of: Stream and partition whose leader is called; `None` calls any broker.
            read_replica: Whether to call an in-sync replica first, instead of the leader.
            timeout: Seconds for each attempt; `None` takes the client's.
            is_repeatable: Whether to repeat a call whose answer was lost; false for a publish,
                since the message may be stored.

        Raises:
            LiftbridgeError: The last attempt's error; `may_be_done` covers all attempts.
        """
        limit = self.timeout_seconds if timeout is None else timeout
        is_first = True
        doubt = Doubt()
        async for attempt in self.attempts(method.path):
            with attempt:
                was_first, is_first = is_first, False
                try:
                    address = await self._address(leader_of, is_first=was_first)
                    if read_replica and was_first and leader_of is not None:
                        address = await self.replica_address(*leader_of)
                    return await self._unary(address, method, request, limit)
                except LiftbridgeError as error:
                    doubt.weigh(error)
                    translated = error if is_repeatable else publish_error(error)
                    if translated is error:
                        raise
                    raise translated from error
        raise AssertionError("the loop above returns or raises")

    def attempts(self, path: str) -> AsyncRetrying:
        """Return the attempts of a call, until the deadline or a final error."""
        return AsyncRetrying(
            retry=retry_if_exception_type(RetriableError),
            stop=stop_before_delay(min(self.retry_seconds, seconds_left()) - TRY_SECONDS_MIN),
            wait=wait_exponential_jitter(
                multiplier=WAIT_FIRST_SECONDS, max=WAIT_MAX_SECONDS, jitter=WAIT_FIRST_SECONDS
            ),
            before_sleep=partial(self._on_retry, path),
            reraise=True,
        )

    def _on_retry(self, path: str, state: RetryCallState) -> None:
        self.stats.retries += 1
        cause = state.outcome.exception() if state.outcome is not None else None
        if isinstance(cause, LiftbridgeError):
            self.hub.emit(CallRetried(path, state.attempt_number + 1, cause))

    async def _address(self, leader_of: tuple[str, int] | None, *, is_first: bool) -> str:
        """Choose the broker to call; after a failure, fetch metadata first, as it may be stale."""
        if not is_first or not self._metadata.brokers:
            answered = await self.discover()
            if leader_of is None:
                return answered
        return self._any_address() if leader_of is None else await self.leader_address(*leader_of)

    async def ask(
        self,
        address: str,
        method: Method[_Request, _Response],
        request: _Request,
        *,
        wait_seconds: float = 0.0,
    ) -> _Response:
        """Call one broker, once.

        Args:
            address: The broker.
            method: What to call.
            request: The request.
            wait_seconds: Seconds that the broker may wait before it answers, added to the timeout.

        Raises:
            LiftbridgeError: The call failed.
        """
        return await self._unary(address, method, request, self.timeout_seconds + wait_seconds)

    async def _unary(
        self,
        address: str,
        method: Method[_Request, _Response],
        request: _Request,
        limit: float,
    ) -> _Response:
        """Make one attempt; count it and, if there is a listener, time it."""
        transport = self.transport
        limit = min(limit, seconds_left())
        if limit <= 0:
            raise CallTimeoutError(f"timed out before asking {address}")
        self.stats.calls += 1
        if not self.hub.has_listeners:
            return await transport.unary(address, method, request, limit)
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            return await transport.unary(address, method, request, limit)
        finally:
            self.hub.emit(SlowCall(method.path, address, loop.time() - began))
