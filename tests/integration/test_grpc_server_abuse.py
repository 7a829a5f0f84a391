"""Clients that misbehave towards a live server: it ends them with a clear code and lives on."""

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

import pytest
from grpc import aio

from liftbridge_broker.api.grpc.connection import GrpcConnection
from liftbridge_broker.http2 import frames
from liftbridge_broker.http2.connection import Connection
from liftbridge_broker.http2.frames import Http2Code
from liftbridge_broker.http2.limits import Limits
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_testkit.grpc_echo import SERVICE, EchoServer, echo_server, eventually
from liftbridge_testkit.grpc_raw import raw
from liftbridge_testkit.http2_broken import broken_inputs
from liftbridge_testkit.http2_peer import GRPC_FIELDS, Frame, Http2Peer, of_kind

MALFORMED_INPUTS = 10_000
AT_A_TIME = 50
TENTH_NS = SECOND_NS // 10


class RawClient:
    """A socket that speaks whatever a test makes it say."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.peer = Http2Peer()

    async def read_all(self) -> list[Frame]:
        """Everything until the server closes."""
        async with asyncio.timeout(10):
            return self.peer.read(await self.reader.read())

    async def read_until(self, kind: int) -> list[Frame]:
        """Everything up to the first frame of a type."""
        found: list[Frame] = []
        async with asyncio.timeout(10):
            while not of_kind(found, kind):
                data = await self.reader.read(65_536)
                assert data, f"closed without a frame of type {kind}"
                found += self.peer.read(data)
        return found


@asynccontextmanager
async def raw_client(echo: EchoServer, *, hello: bool = True) -> AsyncIterator[RawClient]:
    """Connect without any manners."""
    reader, writer = await asyncio.open_connection("127.0.0.1", echo.port)
    client = RawClient(reader, writer)
    if hello:
        writer.write(client.peer.hello())
    try:
        yield client
    finally:
        writer.transport.abort()


async def still_serves(echo: EchoServer) -> bool:
    """Whether an ordinary client gets its answer."""
    async with aio.insecure_channel(echo.address) as channel:
        return bool(await raw(channel).unary_unary(SERVICE + "Unary")(b"?", timeout=10) == b"?")


async def test_ten_thousand_malformed_inputs_neither_crash_nor_leak() -> None:
    """Each on a connection of its own; every answer is whole frames, every end has a reason."""
    limits = Limits(message_bytes_max=1000, header_list_bytes_max=1000)
    inputs = broken_inputs(seed=20)
    codes: dict[int, int] = {}

    async def feed(echo: EchoServer, data: bytes) -> None:
        async with raw_client(echo, hello=False) as client:
            client.writer.write(data)
            client.writer.write_eof()
            answer = await client.reader.read()
            if answer.startswith(b"HTTP/1.1"):
                return
            found = client.peer.read(answer)
            assert client.peer._pending == b"", data
            for goaway in of_kind(found, frames.GOAWAY):
                assert goaway.debug_text
                codes[goaway.error_code] = codes.get(goaway.error_code, 0) + 1

    before = live_connections()
    async with asyncio.timeout(100), echo_server(limits) as echo:
        for _ in range(MALFORMED_INPUTS // AT_A_TIME):
            async with asyncio.TaskGroup() as group:
                for _ in range(AT_A_TIME):
                    group.create_task(feed(echo, next(inputs)))
        await eventually(lambda: echo.server.stats.connections_open == 0)
        stats = echo.server.stats
        assert stats.connections_total == MALFORMED_INPUTS
        assert stats.streams_open == 0
        assert stats.protocol_errors == codes
        assert set(codes) >= {1, 3, 6, 9}
        assert set(codes) <= set(Http2Code)
        assert await still_serves(echo)
    assert live_connections() <= before


def live_connections() -> int:
    """Connections that are still in memory."""
    gc.collect()
    return sum(isinstance(each, GrpcConnection | Connection) for each in gc.get_objects())


async def test_thousand_connections_come_and_go_without_a_trace() -> None:
    before = live_connections()
    async with echo_server() as echo:
        for _ in range(10):
            clients = [socket.create_connection(("127.0.0.1", echo.port)) for _ in range(100)]
            peer = Http2Peer()
            request = peer.hello() + peer.request(1, SERVICE + "Hang")
            for client in clients:
                client.sendall(request)
            await eventually(lambda: len(echo.log.hanging) == 100)
            assert echo.server.stats.streams_open == 100
            for client in clients:
                client.close()
            await eventually(lambda: echo.server.stats.connections_open == 0)
            # Calls of many lost connections are cancelled in turns of the loop.
            await eventually(lambda: echo.server.stats.streams_open == 0)
        assert echo.server.stats.connections_total == 1000
        assert len(echo.log.cancelled) == 1000
        assert live_connections() <= before


async def test_flood_is_answered_counted_and_told() -> None:
    told: list[tuple[str, dict[str, object]]] = []

    class Told:
        def transition(self, kind: str, fields: Mapping[str, object]) -> None:
            told.append((kind, dict(fields)))

    async with echo_server(observer=Told()) as echo, raw_client(echo) as client:
        client.writer.write(frames.ping_frame(b"12345678") * 20)
        found = await client.read_all()
        assert len(of_kind(found, frames.PING)) == 10
        goaway = found[-1]
        assert (goaway.error_code, goaway.debug_text) == (11, "too_many_pings")
        assert echo.server.stats.floods == {"ping": 1}
        assert echo.server.stats.protocol_errors == {11: 1}
        host, port = client.writer.get_extra_info("sockname")
        fields = {"peer": f"{host}:{port}", "code": 11, "text": "too_many_pings", "flood": "ping"}
        assert told == [("grpc_connection_refused", fields)]


@pytest.mark.parametrize(
    ("start", "text"),
    [
        (b"", "no SETTINGS within 0 s"),
        (frames.PREFACE[:12], "no SETTINGS within 0 s"),
        (frames.PREFACE, "no SETTINGS within 0 s"),
        (Http2Peer.hello() + b"\x00\x00", "frame incomplete for 0 s"),
        (Http2Peer.hello() + frames.frame(1, 0, 1, b"\x83"), "headers incomplete for 0 s"),
    ],
)
async def test_slow_client_is_sent_away(start: bytes, text: str) -> None:
    limits = Limits(handshake_ns=TENTH_NS, frame_ns=TENTH_NS)
    async with echo_server(limits) as echo, raw_client(echo, hello=False) as client:
        client.writer.write(start)
        goaway = (await client.read_all())[-1]
        assert (goaway.kind, goaway.debug_text) == (frames.GOAWAY, text)
        assert echo.server.stats.floods == {"slow": 1}


async def test_unary_request_that_never_comes_is_given_up() -> None:
    limits = Limits(message_ns=TENTH_NS)
    async with echo_server(limits) as echo, raw_client(echo) as client:
        client.writer.write(client.peer.request(1, SERVICE + "Unary"))
        (trailers,) = of_kind(await client.read_until(frames.RST_STREAM), frames.HEADERS)
        assert trailers.fields["grpc-status"] == "4"
        assert echo.server.stats.streams_open == 0


async def test_unary_requests_that_do_not_end_are_bounded_together() -> None:
    limits = Limits(partial_bytes_max=2500)
    async with echo_server(limits) as echo, raw_client(echo) as client:
        peer = client.peer
        for stream_id in (1, 3, 5):
            # One message in two frames, and no END_STREAM.
            message = peer.message(stream_id, bytes(1000))[frames.HEADER_BYTES :]
            client.writer.write(
                peer.request(stream_id, SERVICE + "Unary")
                + peer.data(stream_id, message[:500])
                + peer.data(stream_id, message[500:])
            )
        (trailers,) = of_kind(await client.read_until(frames.RST_STREAM), frames.HEADERS)
        assert (trailers.stream_id, trailers.fields["grpc-status"]) == (5, "8")
        client.writer.write(peer.data(1, b"", ends=True) + peer.data(3, b"", ends=True))
        await eventually(lambda: echo.server.stats.requests.get((SERVICE + "Unary", 0)) == 2)
        assert echo.server.stats.streams_open == 0


async def test_complete_unary_request_that_never_ends_is_given_up() -> None:
    async with echo_server(Limits(message_ns=TENTH_NS)) as echo, raw_client(echo) as client:
        client.writer.write(client.peer.request(1, SERVICE + "Unary"))
        await eventually(lambda: echo.server.stats.streams_open == 1)
        message = client.peer.message(1, bytes(1000))[frames.HEADER_BYTES :]
        client.writer.write(client.peer.data(1, message[:500]) + client.peer.data(1, message[500:]))
        (trailers,) = of_kind(await client.read_until(frames.RST_STREAM), frames.HEADERS)
        assert trailers.fields["grpc-status"] == "4"
        assert echo.server.stats.streams_open == 0


async def test_plain_request_is_answered_when_it_has_ended_or_is_late() -> None:
    async with echo_server(Limits(message_ns=TENTH_NS)) as echo, raw_client(echo) as client:
        client.writer.write(client.peer.request(1, "/", more=()) + frames.ping_frame(b"12345678"))
        assert of_kind(await client.read_until(frames.PING), frames.HEADERS) == []
        client.writer.write(client.peer.data(1, b"body", ends=True))
        (headers,) = of_kind(await client.read_until(frames.DATA), frames.HEADERS)
        assert headers.fields[":status"] == "200"
        client.writer.write(client.peer.request(3, "/", more=()))
        client.writer.write(client.peer.request(5, "/", more=()) + frames.rst_stream_frame(5, 8))
        (late,) = of_kind(await client.read_until(frames.DATA), frames.HEADERS)
        assert (late.stream_id, late.fields[":status"]) == (3, "408")


async def test_client_that_reads_nothing_is_cut_off() -> None:
    limits = Limits(write_stall_ns=TENTH_NS, stream_window_bytes=1 << 20)
    async with echo_server(limits) as echo, raw_client(echo) as client:
        settings = frames.settings_frame({frames.SETTING_INITIAL_WINDOW_SIZE: 1 << 30})
        client.reader._transport.pause_reading()  # type: ignore[attr-defined] # asyncio gives no other way
        size = (1 << 20).to_bytes(8, "big") + (1000).to_bytes(4, "big")
        client.writer.write(
            settings
            + frames.window_update_frame(0, 1 << 30)
            + client.peer.request(1, SERVICE + "Stream")
            + client.peer.message(1, size)
        )
        await eventually(lambda: echo.server.stats.floods == {"unread": 1})
        await eventually(lambda: echo.server.stats.connections_open == 0)
        assert echo.server.stats.bytes_sent < 100 << 20


async def test_idle_connection_is_asked_to_leave_and_the_client_comes_back() -> None:
    async with (
        echo_server(Limits(idle_ns=TENTH_NS)) as echo,
        aio.insecure_channel(echo.address) as channel,
    ):
        unary = raw(channel).unary_unary(SERVICE + "Unary")
        assert await unary(b"1") == b"1"
        await eventually(lambda: echo.server.stats.connections_open == 0)
        assert await unary(b"2") == b"2"
        assert echo.server.stats.connections_total == 2
        assert echo.server.stats.protocol_errors == {}


async def test_dead_peer_is_found_by_keepalive() -> None:
    limits = Limits(keepalive_ns=TENTH_NS, keepalive_timeout_ns=TENTH_NS)
    async with echo_server(limits) as echo, raw_client(echo) as client:
        await client.read_until(frames.PING)
        await eventually(lambda: echo.server.stats.connections_open == 0)
        assert echo.server.stats.floods == {}


async def test_deadline_is_enforced_without_the_clients_help() -> None:
    async with echo_server() as echo, raw_client(echo) as client:
        more = (*GRPC_FIELDS, ("grpc-timeout", "100m"))
        client.writer.write(client.peer.request(1, SERVICE + "Hang", more=more))
        (trailers,) = of_kind(await client.read_until(frames.RST_STREAM), frames.HEADERS)
        assert (trailers.fields["grpc-status"], trailers.fields["grpc-message"]) == (
            "4",
            "deadline exceeded",
        )
        assert echo.log.cancelled == [SERVICE + "Hang"]
        assert echo.server.stats.requests == {(SERVICE + "Hang", 4): 1}


@pytest.mark.parametrize(
    ("path", "verb", "content_type", "status"),
    [
        ("/", "GET", "", "200"),
        ("/", "POST", "", "200"),
        ("/", "HEAD", "", "200"),
        ("/", "POST", "application/json", "200"),
        (SERVICE + "Unary", "POST", "application/json", "415"),
        (SERVICE + "Unary", "POST", "", "415"),
        (SERVICE + "Unary", "GET", "application/grpc", "405"),
        ("/favicon.ico", "GET", "", "415"),
    ],
)
async def test_http_that_is_not_grpc_is_answered_as_http(
    path: str, verb: str, content_type: str, status: str
) -> None:
    async with echo_server() as echo, raw_client(echo) as client:
        more = (("content-type", content_type),) if content_type else ()
        client.writer.write(client.peer.request(1, path, verb=verb, more=more, ends=True))
        found = await client.read_until(frames.DATA)
        (headers,) = of_kind(found, frames.HEADERS)
        assert headers.fields[":status"] == status
        assert headers.fields["content-type"] == "text/plain; charset=utf-8"
        assert echo.server.stats.requests == {}


@pytest.mark.parametrize(
    ("field", "status"), [(("x", "y" * 17_000), "431"), (("grpc-timeout", "soon"), "400")]
)
async def test_plain_request_with_bad_headers_is_answered_as_http(
    field: tuple[str, str], status: str
) -> None:
    async with echo_server() as echo, raw_client(echo) as client:
        block = client.peer.request(1, "/", more=(field,), ends=True)
        word, flags, stream_id = frames.FRAME_HEADER.unpack_from(block)
        assert word & 0xFF == frames.HEADERS
        payload = block[frames.HEADER_BYTES :]
        client.writer.write(frames.frame(frames.HEADERS, flags & ~4, stream_id, payload[:16_000]))
        client.writer.write(frames.frame(frames.CONTINUATION, 4, stream_id, payload[16_000:]))
        (headers,) = of_kind(await client.read_until(frames.DATA), frames.HEADERS)
        assert headers.fields[":status"] == status


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ((), "no request message in a unary call"),
        ((b"1", b"2"), "more than one request message in a unary call"),
    ],
)
async def test_unary_call_takes_exactly_one_message(messages: tuple[bytes, ...], text: str) -> None:
    async with echo_server() as echo, aio.insecure_channel(echo.address) as channel:
        call = raw(channel).stream_unary(SERVICE + "Unary")(iter(messages))
        with pytest.raises(aio.AioRpcError) as refused:
            await call
        assert (refused.value.code().value[0], refused.value.details()) == (13, text)
        assert echo.log.opened == []


async def test_bug_in_a_handler_closes_the_connection_and_is_reported() -> None:
    seen: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: seen.append(context["exception"])
    )
    async with echo_server() as echo:
        broken = KeyError("a bug")

        def handler(_call: object, _request: bytes) -> None:
            raise broken

        echo.server.unary("/test.Bug/Call", handler)
        async with aio.insecure_channel(echo.address) as channel:
            with pytest.raises(aio.AioRpcError) as refused:
                await raw(channel).unary_unary("/test.Bug/Call")(b"", timeout=10)
        assert refused.value.code().value[0] == 14
        assert seen == [broken]
        assert await still_serves(echo)


async def test_late_answers_to_a_gone_client_are_dropped() -> None:
    async with echo_server() as echo:
        async with raw_client(echo) as client:
            client.writer.write(client.peer.request(1, SERVICE + "Hang"))
            await eventually(lambda: len(echo.log.hanging) == 1)
        (call,) = echo.log.hanging
        await eventually(lambda: not call.is_open)
        call.send(b"late")
        call.send_message(b"late")
        call.reply(b"late")
        call.finish(13, "late")
        call.pause_reading()
        call.resume_reading()
        call.expect_request()
        assert call.peer_certificate is None
        assert echo.server.stats.requests == {(SERVICE + "Hang", 1): 1}


def opened_and_reset(first: int, count: int) -> bytes:
    """Calls that are reset at once."""
    peer = Http2Peer()
    ids = range(first, first + 2 * count, 2)
    return b"".join(
        peer.request(one, SERVICE + "Hang") + frames.rst_stream_frame(one, Http2Code.CANCEL)
        for one in ids
    )


def has_cancelled(echo: EchoServer, calls: int) -> bool:
    return len(echo.log.cancelled) == calls


async def test_connections_that_each_keep_their_budget_of_resets_have_one_together() -> None:
    """The one that reset most is ended and told why; the others go on."""
    told: list[Mapping[str, object]] = []

    class Told:
        def transition(self, _kind: str, fields: Mapping[str, object]) -> None:
            told.append(fields)

    async with (
        echo_server(resets_max=100, observer=Told()) as echo,
        raw_client(echo) as small,
        raw_client(echo) as large,
        raw_client(echo) as last,
    ):
        reset = 0
        for client, count in ((small, 20), (large, 60), (last, 21)):
            client.writer.write(opened_and_reset(1, count))
            reset += count
            await eventually(partial(has_cancelled, echo, reset))
        goaway = of_kind(await large.read_all(), frames.GOAWAY)[0]
        assert goaway.error_code == Http2Code.ENHANCE_YOUR_CALM
        assert "more than 100 streams" in goaway.debug_text
        assert "60" in goaway.debug_text
        for client in (small, last):
            client.writer.write(frames.ping_frame(b"12345678"))
            assert of_kind(await client.read_until(frames.PING), frames.GOAWAY) == []
        assert echo.server.stats.floods == {"resets_of_all": 1}
        assert [one["flood"] for one in told] == ["resets_of_all"]
