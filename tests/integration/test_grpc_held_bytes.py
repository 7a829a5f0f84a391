"""What all connections make the broker hold together has a bound; who holds most lets go of it."""

import asyncio
import struct
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial

import pytest
from grpc import StatusCode, aio

from liftbridge_broker.http2 import frames
from liftbridge_broker.http2.frames import Http2Code
from liftbridge_broker.http2.stream import STREAM_BYTES
from liftbridge_testkit.grpc_echo import SERVICE, EchoServer, echo_server, eventually
from liftbridge_testkit.grpc_raw import raw
from liftbridge_testkit.http2_peer import Frame, Http2Peer, of_kind

BOUND = 1 << 20
PIECE = 16_000


class Told:
    """What was told."""

    def __init__(self) -> None:
        self.fields: list[Mapping[str, object]] = []

    def transition(self, kind: str, fields: Mapping[str, object]) -> None:
        if kind == "grpc_largest_user_shed":
            self.fields.append(fields)


def begun(peer: Http2Peer, stream_id: int, pieces: int) -> bytes:
    """A request with so much of a message that does not end."""
    first = (1 << 21).to_bytes(5, "big") + bytes(PIECE - 5)
    rest = Http2Peer.data(stream_id, bytes(PIECE)) * (pieces - 1)
    return peer.request(stream_id, SERVICE + "Unary") + Http2Peer.data(stream_id, first) + rest


async def read_until(reader: asyncio.StreamReader, peer: Http2Peer, kind: int) -> list[Frame]:
    found: list[Frame] = []
    async with asyncio.timeout(10):
        while not of_kind(found, kind):
            data = await reader.read(65_536)
            assert data, found
            found += peer.read(data)
    return found


def has_received(echo: EchoServer, size: int) -> bool:
    return echo.server.stats.bytes_received >= size


async def test_incomplete_requests_of_the_largest_connection_are_refused() -> None:
    told = Told()
    async with AsyncExitStack() as stack:
        echo = await stack.enter_async_context(echo_server(held_bytes_max=BOUND, observer=told))
        clients, total = [], 0
        for pieces in (40, 10, 20):  # the last one makes it too much, the first holds most
            peer = Http2Peer()
            reader, writer = await asyncio.open_connection("127.0.0.1", echo.port)
            stack.callback(writer.transport.abort)
            clients.append((reader, peer, writer))  # one that is forgotten closes
            sent = peer.hello() + begun(peer, 1, pieces)
            total += len(sent)
            writer.write(sent)
            await eventually(partial(has_received, echo, total))
        answer = of_kind(await read_until(*clients[0][:2], frames.HEADERS), frames.HEADERS)[0]
        assert answer.fields["grpc-status"] == str(StatusCode.RESOURCE_EXHAUSTED.value[0])
        assert "grpc.receive.max.bytes" in answer.fields["grpc-message"]
        stats = echo.server.stats
        assert stats.sheds == {"receive": 1, "send": 0}
        assert 25 * PIECE <= stats.received_held <= BOUND
        assert [(one["kind"], one["limit"]) for one in told.fields] == [("receive", BOUND)]
        assert stats.floods == {}
    assert (stats.received_held, stats.unsent_held) == (0, 0)


def silent_calls(peer: Http2Peer, count: int) -> bytes:
    """Calls that never send a message."""
    return b"".join(peer.request(one, SERVICE + "Hang") for one in range(1, 2 * count, 2))


def unended_visits(peer: Http2Peer, count: int) -> bytes:
    """Requests for the page at the root that do not end."""
    ids = range(1, 2 * count, 2)
    return b"".join(peer.request(one, "/", verb="GET", more=()) for one in ids)


def unread_answers(peer: Http2Peer, count: int) -> bytes:
    """Calls whose answers the client gives no window for."""
    ids = range(1, 2 * count, 2)
    return b"".join(
        peer.request(one, SERVICE + "Unary") + Http2Peer.message(one, b"?", ends=True)
        for one in ids
    )


@pytest.mark.parametrize("kind", [silent_calls, unended_visits, unread_answers])
async def test_connection_with_most_of_too_many_streams_is_ended(
    kind: Callable[[Http2Peer, int], bytes],
) -> None:
    told = Told()
    async with AsyncExitStack() as stack:
        echo = await stack.enter_async_context(echo_server(held_bytes_max=BOUND, observer=told))
        clients, total = [], 0
        count = BOUND // STREAM_BYTES
        for streams in (count // 4, count // 2, count // 4, 2):
            peer = Http2Peer()
            reader, writer = await asyncio.open_connection("127.0.0.1", echo.port)
            stack.callback(writer.transport.abort)
            clients.append((reader, peer, writer))
            settings = {frames.SETTING_INITIAL_WINDOW_SIZE: 0}
            sent = peer.hello(settings) + kind(peer, streams)
            total += len(sent)
            writer.write(sent)
            await eventually(partial(has_received, echo, total))
        found = await read_until(*clients[1][:2], frames.GOAWAY)
        (goaway,) = of_kind(found, frames.GOAWAY)
        assert goaway.error_code == Http2Code.ENHANCE_YOUR_CALM
        assert "grpc.receive.max.bytes" in goaway.debug_text
        stats = echo.server.stats
        assert [one["kind"] for one in told.fields] == ["receive"]
        for reader, peer, writer in (clients[0], clients[2], clients[3]):
            writer.write(frames.ping_frame(b"12345678"))
            found = await read_until(reader, peer, frames.PING)
            assert of_kind(found, frames.GOAWAY) == []
        # At least what the streams of the others count.
        assert count // 2 * STREAM_BYTES <= stats.received_held <= BOUND
    assert (stats.received_held, stats.unsent_held) == (0, 0)


async def test_connection_that_is_gone_holds_nothing() -> None:
    """Also one that goes while it stands in line, with requests that are incomplete."""
    async with echo_server(held_bytes_max=BOUND) as echo:
        for _ in range(20):
            _, writer = await asyncio.open_connection("127.0.0.1", echo.port)
            sent = Http2Peer.hello() + begun(Http2Peer(), 1, 10) + frames.ping_frame(bytes(8)) * 9
            writer.write(sent + Http2Peer.data(1, bytes(PIECE)))
            await eventually(lambda: echo.server.stats.received_held > 10 * PIECE)
            writer.transport.abort()
            await eventually(lambda: echo.server.stats.connections_open == 0)
            for _ in range(5):
                await asyncio.sleep(0)
            assert echo.server.stats.received_held == 0
    assert echo.server.stats.sheds == {"receive": 0, "send": 0}


async def test_connection_that_leaves_most_answers_unread_is_ended() -> None:
    told = Told()
    async with (
        echo_server(held_bytes_max=BOUND, observer=told) as echo,
        aio.insecure_channel(echo.address) as channel,
    ):
        call = raw(channel).unary_stream(SERVICE + "Flood")(struct.pack(">QI", 20_000, 1000))
        await eventually(lambda: echo.server.stats.sheds["send"] == 1)
        with pytest.raises(aio.AioRpcError, match=r"grpc\.send\.max\.bytes"):
            await asyncio.wait_for(read_all(call), 10)
        assert [one["kind"] for one in told.fields] == ["send"]
        assert await raw(channel).unary_unary(SERVICE + "Unary")(b"?", timeout=10) == b"?"
        stats = echo.server.stats
    assert (stats.received_held, stats.unsent_held) == (0, 0)


async def read_all(call: aio.UnaryStreamCall[bytes, bytes]) -> None:
    """Read to the end."""
    async for _ in call:
        pass
