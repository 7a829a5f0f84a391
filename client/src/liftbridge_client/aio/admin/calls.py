"""Calls of the Admin service, routed to a broker that can answer, with retries."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from operator import attrgetter
from typing import Any, Final, TypeVar

from google.protobuf.message import Message as ProtoMessage

from liftbridge_client import admin_model as model
from liftbridge_client.aio.listening import Hub
from liftbridge_client.core.deadlines import TRY_SECONDS_MIN, one_deadline, seconds_left
from liftbridge_client.errors import (
    CallTimeoutError,
    ClosedError,
    Doubt,
    FailedPreconditionError,
    LiftbridgeError,
    NotFoundError,
    RetriableError,
    UnimplementedError,
    UsageError,
)
from liftbridge_client.model import TlsFiles
from liftbridge_client.transport import Method, Transport
from liftbridge_proto.ext.v1 import admin_pb2

_Response = TypeVar("_Response", bound=ProtoMessage)

_ADMIN: Final = "/liftbridge.ext.v1.Admin/"

_PORT_ADVICE: Final = (
    "Name the admin port of a broker, 9294 unless it is set otherwise, or upgrade the broker."
)

_ELSEWHERE: Final = "does not lead the metadata group"
"""Error texts of a broker that is not the leader; after these, the client waits for a leader."""

_WAIT_FIRST_SECONDS: Final = 0.05
_WAIT_MAX_SECONDS: Final = 1.0

_deadline = one_deadline(attrgetter("call_seconds"))


class AdminCalls:
    """The brokers of a cluster, by their admin addresses.

    Attributes:
        call_seconds: Limit for a whole call.
    """

    def __init__(
        self, addresses: Sequence[str], *, tls: TlsFiles | None, timeout: float, retry: float
    ) -> None:
        self._addresses = tuple(addresses)
        self._tls = tls
        self._timeout = timeout
        self._retry = retry
        self.call_seconds = retry or timeout
        self._transport: Transport | None = None

    def open(self) -> None:
        """Read the TLS files; connections are opened when needed.

        Raises:
            UsageError: The client is already open, or a file cannot be read.
        """
        if self._transport is not None:
            raise UsageError("the client is already open: create another with `connect_admin`")
        transport = Transport(self._tls, Hub())
        transport.open()
        self._transport = transport

    async def aclose(self) -> None:
        """Close all connections."""
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.close()

    async def identities(self) -> dict[str, model.Identity]:
        """Identify the broker behind each address; addresses that do not answer are left out."""
        found, _ = await self._identities()
        return found

    async def _identities(self) -> tuple[dict[str, model.Identity], list[LiftbridgeError]]:
        """Identify the broker behind each address that answers; return the errors of the rest."""
        answers = await asyncio.gather(
            *(self._identity(address) for address in self._addresses), return_exceptions=True
        )
        identities: dict[str, model.Identity] = {}
        errors = []
        for address, answer in zip(self._addresses, answers, strict=True):
            if isinstance(answer, model.Identity):
                identities[address] = answer
            elif isinstance(answer, LiftbridgeError) and not isinstance(answer, UsageError):
                errors.append(answer)
            else:
                raise answer
        return identities, errors

    async def partitions(
        self,
        request: admin_pb2.ListPartitionsRequest,
        find: Callable[[], Awaitable[str]] | None,
    ) -> AsyncGenerator[model.PartitionStatus, None]:
        """List partitions, page by page, from the broker whose address `find` returns.

        Args:
            request: The request; its page token is updated for each page.
            find: As for `call`.
        """
        while True:
            response = await self.call(
                "ListPartitions", request, admin_pb2.ListPartitionsResponse, find=find
            )
            for partition in response.partitions:
                yield model.partition_of(partition)
            request.page_token = response.next_page_token
            if not request.page_token:
                return

    async def _identity(self, address: str) -> model.Identity:
        response = await self._once(
            address, "Identity", admin_pb2.IdentityRequest(), admin_pb2.IdentityResponse
        )
        return model.identity_of(response)

    async def _once(
        self,
        address: str,
        name: str,
        request: ProtoMessage,
        response: type[_Response],
    ) -> _Response:
        if self._transport is None:
            raise ClosedError(
                "the client is not open: use it inside `async with connect_admin(...)`"
            )
        path = name if name.startswith("/") else _ADMIN + name
        method: Method[Any, _Response] = Method(path, type(request), response)
        limit = min(self._timeout, seconds_left())
        if limit <= 0:
            raise CallTimeoutError(f"timed out before asking {address}")
        try:
            return await self._transport.unary(address, method, request, limit)
        except UnimplementedError as error:
            unimplemented = UnimplementedError(
                f"{address} has no call {path.rpartition('/')[2]} for operators: it is another "
                "port than the admin port, an older broker, or another server",
                server_text=error.server_text,
            )
            unimplemented.advice = _PORT_ADVICE
            raise unimplemented from error

    @_deadline
    async def call(
        self,
        name: str,
        request: ProtoMessage,
        response: type[_Response],
        *,
        find: Callable[[], Awaitable[str]] | None = None,
    ) -> _Response:
        """Call the broker at the address that `find` returns, or any broker; retry."""
        doubt = Doubt()

        async def ask(address: str) -> _Response:
            try:
                return await self._once(address, name, request, response)
            except LiftbridgeError as error:
                doubt.weigh(error)
                raise

        wait = _WAIT_FIRST_SECONDS
        while True:
            try:
                return await (self._anywhere(ask) if find is None else ask(await find()))
            except LiftbridgeError as error:
                doubt.weigh(error)
                is_last = not self._retry or wait > seconds_left() - TRY_SECONDS_MIN
                if is_last or not isinstance(error, RetriableError):
                    raise
            await asyncio.sleep(wait)
            wait = min(2 * wait, _WAIT_MAX_SECONDS)

    async def _anywhere(self, ask: Callable[[str], Awaitable[_Response]]) -> _Response:
        """Try each address once, until one answers; after a refusal, try the metadata leader."""
        last: RetriableError | None = None
        for address in self._addresses:
            try:
                return await ask(address)
            except RetriableError as error:
                last = error
            except FailedPreconditionError as error:
                try:
                    leader = await self.leader()
                except RetriableError:
                    if _ELSEWHERE in error.server_text:
                        raise
                    raise error from None
                if leader == address:
                    raise
                return await ask(leader)
        assert last is not None
        raise last

    async def leader(self) -> str:
        """Find the address of the metadata leader that most brokers report.

        Raises:
            RetriableError: No broker knows it, or it is not among the addresses.
            LiftbridgeError: No address answers; raises the error of the first address.
        """
        found, errors = await self._identities()
        named = [one.metadata_leader for one in found.values() if one.metadata_leader]
        if errors and not found:
            raise errors[0]
        if not named:
            raise RetriableError("no broker that knows the leader of the metadata group answered")
        leader = max(sorted(set(named)), key=named.count)
        for address, one in found.items():
            if one.broker == leader:
                return address
        raise RetriableError(
            f"broker {leader} leads the metadata group, but no given address leads to it"
        )

    async def address_of(self, broker: str) -> str:
        """Find the address of a broker.

        Raises:
            NotFoundError: All addresses answer, and none leads to the broker.
            RetriableError: The broker may have an address that does not answer.
            LiftbridgeError: No address answers; raises the error of the first address.
        """
        found, errors = await self._identities()
        if errors and not found:
            raise errors[0]
        for address, one in found.items():
            if one.broker == broker:
                return address
        known = ", ".join(sorted(one.broker for one in found.values())) or "none"
        text = f"no given address leads to broker {broker!r}; they lead to: {known}"
        if len(found) == len(self._addresses):
            raise NotFoundError(text)
        raise RetriableError(text)


def ref_of(partition: model.PartitionName) -> admin_pb2.PartitionRef:
    """Convert a partition name to its message on the wire."""
    return admin_pb2.PartitionRef(stream=partition.stream, partition=partition.partition)
