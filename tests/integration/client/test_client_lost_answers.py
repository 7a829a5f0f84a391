"""Answers that a real broker gave and nobody got, and what grpcio makes of broken connections."""

import asyncio
import socket
import struct

import grpc.aio
import pytest

from liftbridge_client import (
    AlreadyExistsError,
    CallTimeoutError,
    LiftbridgeError,
    NotFoundError,
    RetriableError,
    StreamSettings,
    connect,
    methods,
)
from liftbridge_client.aio.listening import Hub
from liftbridge_client.errors import publish_error
from liftbridge_client.transport import Transport
from liftbridge_proto import api_pb2
from liftbridge_testkit.processes import free_port


class Gateway:
    """Passes calls on to a broker, and loses the answers of some.

    Attributes:
        losses: How many answers to changes are lost yet.
        calls: Changes that were passed on.
    """

    def __init__(self, broker_address):
        self.losses = 0
        self.calls = 0
        self.channel = grpc.aio.insecure_channel(broker_address)
        self.server = grpc.aio.server()
        self.server.add_generic_rpc_handlers((self,))
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.address = f"127.0.0.1:{self.port}"

    def service(self, details):
        async def on(request, call):
            path = details.method
            try:
                answer = await self.channel.unary_unary(path)(request)
            except grpc.aio.AioRpcError as error:
                await call.abort(error.code(), error.details())
            if path.endswith("FetchMetadata"):
                metadata = api_pb2.FetchMetadataResponse.FromString(answer)
                for one in metadata.brokers:
                    one.host, one.port = "127.0.0.1", self.port
                return metadata.SerializeToString()
            if not path.endswith(("ListStreams", "FetchCursor")):
                self.calls += 1
                if self.losses:
                    self.losses -= 1
                    await call.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
            return answer

        return grpc.unary_unary_rpc_method_handler(on)

    async def __aenter__(self):
        await self.server.start()
        return self

    async def __aexit__(self, *_):
        await self.server.stop(None)
        await self.channel.close()


CHANGES = {
    "create": lambda streams, name: streams.create(name, partitions=2),
    "create with own settings": lambda streams, name: streams.create(
        name, settings=StreamSettings(fsync_policy="commit")
    ),
    "pause": lambda streams, name: streams.get(name).pause(),
    "set_readonly": lambda streams, name: streams.get(name).set_readonly(),
    "alter": lambda streams, name: streams.get(name).alter(StreamSettings(min_isr=1)),
    "set_cursor": lambda streams, name: streams.get(name).set_cursor("c", 7),
    "delete": lambda streams, name: streams.delete(name),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_change_whose_answer_was_lost_is_done(broker, name, change):
    async with Gateway(broker.address) as gateway, connect(gateway.address) as lb:
        if not change.startswith("create"):
            await lb.streams.create(name)
        gateway.losses, before = 1, gateway.calls
        await CHANGES[change](lb.streams, name)
        assert gateway.calls - before == 1 + change.startswith(("pause", "set", "alter"))
        assert (name in names(await lb.streams.list())) == (change != "delete")


def names(streams):
    return {one.name for one in streams}


async def test_stream_of_somebody_else_is_not_taken_for_that_of_a_lost_answer(broker, name):
    async with connect(broker.address) as lb:
        await lb.streams.create(name, partitions=2)
        with pytest.raises(NotFoundError):
            await lb.streams.delete(name + "-absent")
        with pytest.raises(AlreadyExistsError):
            await lb.streams.create(name, partitions=2)


# -- what grpcio makes of connections that break -----------------------------------------------


def frame(kind, flags, stream, body=b""):
    head = len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")
    return head + body


def goaway(code, last):
    return frame(7, 0, 0, last.to_bytes(4, "big") + code.to_bytes(4, "big"))


def reset(code):
    return lambda stream: frame(3, 0, stream, code.to_bytes(4, "big"))


BREAKS = {
    "closed": lambda _stream: b"",
    "aborted": lambda _stream: None,
    "no HTTP/2": lambda _stream: b"no frame" * 9,
    "GOAWAY": lambda stream: goaway(0, stream),
    "GOAWAY of too much": lambda stream: goaway(11, stream),
    **{f"RST_STREAM {code}": reset(code) for code in range(14)},
}
"""What the peer answers a whole request with before it closes the connection, by HTTP/2's codes."""


class Peer:
    """Speaks just enough HTTP/2 to take a request whole, and then breaks.

    Attributes:
        requests: Requests that came whole.
    """

    def __init__(self, kind):
        self.requests = 0
        self._kind = kind

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._on, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self._server.close()
        await self._server.wait_closed()

    async def _on(self, reader, writer):
        try:
            await reader.readexactly(24)
            writer.write(frame(4, 0, 0))
            while True:
                head = await reader.readexactly(9)
                body = await reader.readexactly(int.from_bytes(head[:3], "big"))
                kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
                if kind in {4, 6} and not flags & 1:
                    writer.write(frame(kind, 1, 0, body if kind == 6 else b""))
                if kind == 0 and flags & 1:
                    self.requests += 1
                    await self._break(reader, writer, stream)
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _break(self, reader, writer, stream):
        answer = BREAKS[self._kind](stream)
        if answer is None:
            linger = struct.pack("ii", 1, 0)  # closes with a reset of TCP
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            return
        writer.write(answer)
        await writer.drain()
        if self._kind.startswith("RST"):
            await reader.read()  # until the client is gone, or it would see the end of TCP first


async def ended(address, seconds=5.0):
    """The error that a publish ends with, as the transport tells it."""
    transport = Transport(None, Hub())
    transport.open()
    try:
        await transport.unary(address, methods.PUBLISH, api_pb2.PublishRequest(value=b"v"), seconds)
    except LiftbridgeError as error:
        return error
    finally:
        await transport.close()
    raise AssertionError("nobody answers here")


@pytest.mark.parametrize("kind", BREAKS)
async def test_request_that_was_sent_may_be_done_however_the_connection_broke(kind):
    async with Peer(kind) as peer:
        error = await ended(peer.address)
    assert peer.requests == 1
    assert error.may_be_done


async def test_request_that_met_nobody_was_not_sent():
    error = await ended(f"127.0.0.1:{free_port()}")
    assert type(error) is RetriableError
    assert not error.may_be_done


async def test_request_that_waited_for_a_connection_was_not_sent():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        error = await ended(f"127.0.0.1:{silent.getsockname()[1]}", 0.3)
    assert type(error) is CallTimeoutError
    assert not error.may_be_done


async def test_request_without_an_answer_in_time_may_be_done(mortal_broker):
    transport = Transport(None, Hub())
    transport.open()
    ask = (mortal_broker.address, methods.FETCH_METADATA, api_pb2.FetchMetadataRequest())
    await transport.unary(*ask, 5)
    mortal_broker.pause()
    with pytest.raises(CallTimeoutError) as late:
        await transport.unary(*ask, 0.3)
    assert late.value.may_be_done
    mortal_broker.kill()
    await transport.close()


async def test_publish_that_met_nobody_is_made_again(name):
    address = f"127.0.0.1:{free_port()}"
    transport = Transport(None, Hub())
    transport.open()
    ask = (address, methods.PUBLISH, api_pb2.PublishRequest(stream=name))
    with pytest.raises(RetriableError):
        await transport.unary(*ask, 5)
    with pytest.raises(RetriableError) as again:
        await transport.unary(*ask, 5)
    assert publish_error(again.value) is again.value
    await transport.close()
