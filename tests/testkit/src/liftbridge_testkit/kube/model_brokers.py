"""A model of three brokers behind their real admin port, over TLS, and a proxy to it.

    brokers = ModelBrokers("events")
    async with serving(brokers, certificate) as port, relaying(lambda: port) as relay:
        ... # an operator with `grpc_proxy` set to the relay's port brokers.lose("orders") # as
        another client that deletes it

It keeps streams as messages of the protocol, and answers the requests of the stream reconciler:
`ListBrokers`, `ListStreams`, `ListPartitions`, the creation, change and deletion of streams, and
their marks. It answers other calls with UNIMPLEMENTED. All replicas are always in sync.

An operator connects to brokers by the DNS names of their pods, and checks their certificates for
these names. Without pods no server resolves the names. But with a proxy, gRPC leaves that to the
proxy, and the relay is a proxy that connects every name to the model.
"""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import grpc
import grpc.aio

from liftbridge_proto import api_pb2, api_pb2_grpc
from liftbridge_proto.ext.v1 import admin_pb2, admin_pb2_grpc, data_pb2, data_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

BROKERS: Final = 3
PAGE_MAX: Final = 1_000
_CHUNK: Final = 1 << 16
_Context = grpc.aio.ServicerContext[Any, Any]


class ServerFiles(NamedTuple):
    """Certificate and key that the model presents, and CAs that it trusts; all in PEM."""

    key: bytes
    cert: bytes
    ca: bytes


class _Held(NamedTuple):
    """A stream."""

    about: data_pb2.StreamDescription
    partitions: list[admin_pb2.PartitionStatus]


class ModelBrokers:
    """Shared state of all brokers of a cluster.

    Attributes:
        names: Names of the brokers.
        changes: Number of requested changes.
        looks: Number of times that a client began to list all streams.
    """

    def __init__(self, cluster: str) -> None:
        self.names = tuple(f"{cluster}-{ordinal}" for ordinal in range(BROKERS))
        self.changes = self.looks = 0
        self._held: dict[str, _Held] = {}
        self._ids = count(1)

    def __len__(self) -> int:
        """Return the number of streams."""
        return len(self._held)

    def owner(self, name: str) -> str:
        """Return the owner of a stream; empty for none, or without such a stream."""
        held = self._held.get(name)
        return held.about.owner if held is not None else ""

    def lose(self, name: str) -> None:
        """Delete a stream, as another client."""
        del self._held[name]

    # Requests; a KeyError is a missing stream

    def create(self, request: data_pb2.CreateStreamRequest) -> int:
        """Create a stream; return its id.

        Raises:
            ValueError: The stream exists.
        """
        self.changes += 1
        wanted = request.stream
        if wanted.name in self._held:
            raise ValueError(f"stream {wanted.name} exists")
        about = data_pb2.StreamDescription(
            stream_id=next(self._ids),
            creation_timestamp=1,
            partitions=wanted.partitions or 1,
            settings=_defaults(),
            options=_default_options(),
        )
        about.settings.MergeFrom(wanted)
        about.options.MergeFrom(request.options)
        if wanted.replicationFactor < 1:
            about.settings.replicationFactor = BROKERS
        self._held[wanted.name] = _Held(
            about, [self._partition(about, number) for number in range(about.partitions)]
        )
        return about.stream_id

    def alter(self, request: data_pb2.AlterStreamRequest) -> None:
        """Change settings of a stream."""
        self.changes += 1
        about, partitions = self._held[request.name]
        about.settings.MergeFrom(request.settings)
        about.options.MergeFrom(request.options)
        partitions[:] = [self._partition(about, number) for number in range(about.partitions)]

    def mark(self, request: admin_pb2.SetStreamOwnerRequest) -> None:
        """Change the owner of a stream.

        Raises:
            ValueError: The id or the owner of the stream differs.
        """
        self.changes += 1
        about = self._held[request.stream].about
        known = {request.expected, request.owner}
        if about.stream_id != request.stream_id or about.owner not in known:
            raise ValueError(f"stream {about.stream_id} of {about.owner!r}")
        about.owner = request.owner

    def set_readonly(self, request: api_pb2.SetStreamReadonlyRequest) -> None:
        """Make a stream read-only, or writable again."""
        self.changes += 1
        for partition in self._held[request.name].partitions:
            partition.is_readonly = request.readonly

    def delete(self, name: str) -> None:
        """Delete a stream."""
        self.changes += 1
        del self._held[name]

    def streams(self, after: str, size: int) -> data_pb2.ListStreamsResponse:
        """Return a page of streams by name."""
        size = size or 100
        found = sorted(name for name in self._held if name > after)
        page = [self._held[name].about for name in found[:size]]
        token = found[size - 1] if len(found) > size else ""
        return data_pb2.ListStreamsResponse(streams=page, next_page_token=token)

    def partitions(self, begin: int, size: int) -> admin_pb2.ListPartitionsResponse:
        """Return a page of partitions in the order in which their streams were created."""
        size = size or PAGE_MAX
        everything = (partition for held in self._held.values() for partition in held.partitions)
        page = list(islice(everything, begin, begin + size + 1))
        token = begin + size if len(page) > size else 0
        return admin_pb2.ListPartitionsResponse(partitions=page[:size], next_page_token=token)

    def _partition(
        self, about: data_pb2.StreamDescription, number: int
    ) -> admin_pb2.PartitionStatus:
        first = about.stream_id + number
        replicas = [
            self.names[(first + place) % BROKERS]
            for place in range(min(about.settings.replicationFactor, BROKERS))
        ]
        return admin_pb2.PartitionStatus(
            partition=admin_pb2.PartitionRef(stream=about.settings.name, partition=number),
            stream_id=about.stream_id,
            leader=replicas[0],
            leader_epoch=1,
            isr=replicas,
            min_isr=about.settings.minIsr.value,
            replicas=[
                admin_pb2.ReplicaStatus(broker=replica, is_in_sync=True) for replica in replicas
            ],
        )


def _defaults() -> api_pb2.CreateStreamRequest:
    """Return the settings that a broker fills in; missing settings are zero."""
    found = api_pb2.CreateStreamRequest()
    found.retentionMaxAge.value = 604_800_000
    found.cleanerInterval.value = 300_000
    found.segmentMaxBytes.value = 1 << 28
    found.compactMaxGoroutines.value = 10
    found.minIsr.value = 2
    return found


def _default_options() -> data_pb2.StreamOptions:
    return data_pb2.StreamOptions(
        fsync_policy=data_pb2.FSYNC_POLICY_INTERVAL,
        tombstone_retention_ms=86_400_000,
        unclean_mode=data_pb2.UNCLEAN_MODE_BALANCED,
    )


# Methods have the names of the protocol.


class _Data(data_pb2_grpc.DataServicer):
    def __init__(self, brokers: ModelBrokers) -> None:
        self._brokers = brokers

    async def CreateStream(self, request: Any, context: _Context) -> Any:  # noqa: N802 - of the protocol
        try:
            made = self._brokers.create(request)
        except ValueError as error:
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, str(error))
        return data_pb2.CreateStreamResponse(stream_id=made)

    async def AlterStream(self, request: Any, context: _Context) -> Any:  # noqa: N802 - of the protocol
        await _known(context, self._brokers.alter, request)
        return data_pb2.AlterStreamResponse()

    async def ListStreams(self, request: Any, _: _Context) -> Any:  # noqa: N802 - of the protocol
        return self._brokers.streams(request.page_token, request.page_size)


class _Admin(admin_pb2_grpc.AdminServicer):
    def __init__(self, brokers: ModelBrokers) -> None:
        self._brokers = brokers

    async def ListBrokers(self, _: Any, __: _Context) -> Any:  # noqa: N802 - of the protocol
        self._brokers.looks += 1
        told = [admin_pb2.BrokerDescription(broker=name) for name in self._brokers.names]
        return admin_pb2.ListBrokersResponse(brokers=told)

    async def ListPartitions(self, request: Any, _: _Context) -> Any:  # noqa: N802 - of the protocol
        return self._brokers.partitions(request.page_token, request.page_size)

    async def SetStreamOwner(self, request: Any, context: _Context) -> Any:  # noqa: N802 - of the protocol
        await _known(context, self._brokers.mark, request)
        return admin_pb2.SetStreamOwnerResponse()


class _Api(api_pb2_grpc.APIServicer):
    def __init__(self, brokers: ModelBrokers) -> None:
        self._brokers = brokers

    async def SetStreamReadonly(self, request: Any, context: _Context) -> Any:  # noqa: N802 - of the protocol
        await _known(context, self._brokers.set_readonly, request)
        return api_pb2.SetStreamReadonlyResponse()

    async def DeleteStream(self, request: Any, context: _Context) -> Any:  # noqa: N802 - of the protocol
        await _known(context, self._brokers.delete, request.name)
        return api_pb2.DeleteStreamResponse()


async def _known(context: _Context, change: Callable[[Any], None], request: Any) -> None:
    """Change a stream, or abort the call with the reason."""
    try:
        change(request)
    except KeyError as error:
        await context.abort(grpc.StatusCode.NOT_FOUND, f"no stream {error}")
    except ValueError as error:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))


@asynccontextmanager
async def serving(brokers: ModelBrokers, files: ServerFiles) -> AsyncIterator[int]:
    """Serve on a free port of loopback, for clients with a certificate; yield the port."""
    server = grpc.aio.server()
    data_pb2_grpc.add_DataServicer_to_server(_Data(brokers), server)  # type: ignore[no-untyped-call]  # generated
    admin_pb2_grpc.add_AdminServicer_to_server(_Admin(brokers), server)  # type: ignore[no-untyped-call]  # generated
    api_pb2_grpc.add_APIServicer_to_server(_Api(brokers), server)  # type: ignore[no-untyped-call]  # generated
    credentials = grpc.ssl_server_credentials(
        [(files.key, files.cert)], files.ca, require_client_auth=True
    )
    bound = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(None)


@asynccontextmanager
async def relaying(port: Callable[[], int]) -> AsyncIterator[int]:
    """Run an HTTP proxy on loopback that connects every name to one port; yield its own port.

    Args:
        port: Returns the target; 0 if no broker is to be reached.
    """
    under_way: set[asyncio.Task[None]] = set()

    async def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        under_way.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await _relay(reader, writer, port())
        finally:
            under_way.discard(task)
            writer.close()

    server = await asyncio.start_server(met, "127.0.0.1", 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"CONNECT ") or not port:
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        return
    far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        async with asyncio.TaskGroup() as ways:
            ways.create_task(_pump(reader, far_writer))
            ways.create_task(_pump(far_reader, writer))
    finally:
        far_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy one direction until its end; a broken connection ends both directions anyway."""
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
