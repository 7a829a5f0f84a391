"""Connections of clients that share a process."""

import grpc.aio
import pytest

from liftbridge_client.aio.listening import Hub
from liftbridge_client.errors import RetriableError, UnimplementedError
from liftbridge_client.transport import Method, Transport
from liftbridge_proto import api_pb2
from liftbridge_testkit.processes import free_port

METHOD = Method(
    "/proto.API/FetchMetadata", api_pb2.FetchMetadataRequest, api_pb2.FetchMetadataResponse
)


async def asked(transport, address):
    await transport.unary(address, METHOD, METHOD.request(), 5)


async def test_client_does_not_wait_because_another_one_met_nobody():
    port = free_port()
    address = f"127.0.0.1:{port}"
    old, new = Transport(None, Hub()), Transport(None, Hub())
    with pytest.raises(RetriableError):
        await asked(old, address)
    server = grpc.aio.server()
    server.add_insecure_port(address)
    await server.start()
    with pytest.raises(UnimplementedError):
        await asked(new, address)
    await server.stop(None)
    await old.close()
    await new.close()
