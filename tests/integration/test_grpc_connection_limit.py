"""At the limit of connections a new one takes the place of one that nobody misses."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final

import pytest
from grpc import aio

from liftbridge_broker.http2 import frames
from liftbridge_testkit.grpc_echo import SERVICE, EchoServer, echo_server, eventually
from liftbridge_testkit.grpc_raw import raw
from liftbridge_testkit.http2_peer import Frame, Http2Peer, of_kind

LIMIT: Final = 24
ROUNDS: Final = 3
SECONDS: Final = 3.0
"""A client that comes to a full server is served within this time."""

SAID: Final = {
    "silent": b"",
    "half a preface": frames.PREFACE[:12],
    "preface": frames.PREFACE,
    "settings": Http2Peer.hello(),
    "settings and pings": Http2Peer.hello() + frames.ping_frame(b"12345678") * 3,
    "half a frame": Http2Peer.hello() + b"\x00\x00",
    "half a header block": Http2Peer.hello() + frames.frame(frames.HEADERS, 0, 1, b"\x83"),
}
"""What clients say who open a connection and then make no call."""

FLOODS: Final = {**{name: [name] for name in SAID}, "mixed": list(SAID)}


class Raw:
    """A connection that says what it is told."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.peer = Http2Peer()

    async def read_all(self) -> list[Frame]:
        """Everything until the server closes."""
        async with asyncio.timeout(SECONDS):
            return self.peer.read(await self.reader.read())

    @property
    def is_ended(self) -> bool:
        """Whether the server has closed it."""
        return self.reader.at_eof()


def _has_come(echo: EchoServer, before: int) -> bool:
    return echo.server.stats.connections_total > before


@asynccontextmanager
async def connected(echo: EchoServer, said: Iterable[bytes]) -> AsyncIterator[list[Raw]]:
    """Connections, one after the other."""
    async with AsyncExitStack() as stack:
        found = []
        for each in said:
            before = echo.server.stats.connections_total
            one = Raw(*await asyncio.open_connection("127.0.0.1", echo.port))
            stack.callback(one.writer.transport.abort)
            one.writer.write(each)
            await eventually(partial(_has_come, echo, before))
            found.append(one)
        yield found


@asynccontextmanager
async def channel(echo: EchoServer) -> AsyncIterator[aio.Channel]:
    """A client of gRPC with a connection of its own."""
    options = (("grpc.use_local_subchannel_pool", 1),)
    async with aio.insecure_channel(echo.address, options) as made:
        yield made


async def asked(on: aio.Channel) -> bytes:
    """Answer of a call that is made once."""
    async with asyncio.timeout(SECONDS):
        return bytes(await raw(on).unary_unary(SERVICE + "Unary")(b"?"))


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
async def test_flood_of_connections_without_a_call_keeps_nobody_out(flood: list[str]) -> None:
    said = [SAID[flood[number % len(flood)]] for number in range(LIMIT)]
    async with (
        echo_server(connections_max=LIMIT) as echo,
        connected(echo, said),
        channel(echo) as one,
        channel(echo) as other,
    ):
        assert [await asked(one), await asked(other)] == [b"?", b"?"]


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
async def test_clients_with_a_call_or_a_recent_one_stay(flood: list[str]) -> None:
    """However many come after them, as long as others have been idle for longer."""
    said = [SAID[flood[number % len(flood)]] for number in range(LIMIT - 2)]
    async with echo_server(connections_max=LIMIT) as echo, AsyncExitStack() as stack:
        busy = await stack.enter_async_context(channel(echo))
        recent = await stack.enter_async_context(channel(echo))
        subscription = raw(busy).unary_stream(SERVICE + "Hang")(b"")
        await eventually(lambda: len(echo.log.hanging) == 1)
        for _ in range(ROUNDS):
            await stack.enter_async_context(connected(echo, said))
            assert await asked(recent) == b"?"
        assert echo.server.stats.connections_total == 2 + ROUNDS * len(said)  # none came again
        assert not subscription.done()
        subscription.cancel()
        await eventually(lambda: not echo.log.hanging)


async def test_the_one_that_goes_is_told_why() -> None:
    said = [Http2Peer.hello()] * 3
    async with (
        echo_server(connections_max=2) as echo,
        connected(echo, said) as (first, second, third),
    ):
        goaway = of_kind(await first.read_all(), frames.GOAWAY)[-1]
        assert goaway.error_code == frames.Http2Code.NO_ERROR
        assert "grpc.max.connections" in goaway.debug_text
        assert not second.is_ended
        assert not third.is_ended
        assert echo.server.stats.floods == {"idle_at_limit": 1}


async def test_new_one_is_refused_when_all_have_calls() -> None:
    async with echo_server(connections_max=2) as echo:
        call = Http2Peer.hello() + Http2Peer().request(1, SERVICE + "Hang")
        async with connected(echo, [call] * 2):
            await eventually(lambda: echo.server.stats.streams_open == 2)
            async with connected(echo, [Http2Peer.hello()]) as (third,):
                goaway = (await third.read_all())[-1]
                assert goaway.debug_text == "too many connections"
            assert echo.server.stats.streams_open == 2
            assert echo.server.stats.floods == {"refused_at_limit": 1}
