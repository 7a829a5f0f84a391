"""grpcio's client against the server: every shape of call, in clear text."""

import asyncio
import struct
from collections.abc import AsyncIterator

import grpc
import pytest
from grpc import StatusCode, aio

from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.errors import InvalidRequestError
from liftbridge_broker.http2 import frames
from liftbridge_broker.http2.limits import Limits
from liftbridge_testkit.grpc_echo import SERVICE, EchoServer, echo_server, eventually, frame
from liftbridge_testkit.grpc_raw import EOF, raw
from liftbridge_testkit.http2_peer import Http2Peer, of_kind


@pytest.fixture
async def echo() -> AsyncIterator[EchoServer]:
    async with echo_server() as running:
        yield running


@pytest.fixture
async def channel(echo: EchoServer) -> AsyncIterator[aio.Channel]:
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    async with aio.insecure_channel(echo.address, options=options) as opened:
        yield opened


async def many(*messages: bytes) -> AsyncIterator[bytes]:
    """Requests of a client stream."""
    for message in messages:
        yield message


async def test_unary_call_is_answered(channel: aio.Channel) -> None:
    assert await raw(channel).unary_unary(SERVICE + "Unary")(b"hello") == b"hello"


async def test_empty_messages_are_messages(channel: aio.Channel) -> None:
    assert await raw(channel).unary_unary(SERVICE + "Unary")(b"") == b""
    call = raw(channel).stream_stream(SERVICE + "Bidi")(many(b"", b"x", b""))
    assert [message async for message in call] == [b"", b"x", b""]


async def test_many_calls_at_a_time_share_a_connection(
    channel: aio.Channel, echo: EchoServer
) -> None:
    unary = raw(channel).unary_unary(SERVICE + "Unary")
    answers = await asyncio.gather(*[unary(b"%d" % number) for number in range(2000)])
    assert answers == [b"%d" % number for number in range(2000)]
    assert echo.server.stats.connections_total == 1
    assert echo.server.stats.requests == {(SERVICE + "Unary", 0): 2000}


async def test_large_messages_pass_both_ways(channel: aio.Channel) -> None:
    message = bytes(range(256)) * (16_383 * 4 // 16)
    assert len(message) < 4 << 20
    assert await raw(channel).unary_unary(SERVICE + "Unary")(message) == message


async def test_message_over_the_limit_is_refused(channel: aio.Channel) -> None:
    with pytest.raises(aio.AioRpcError) as refused:
        await raw(channel).unary_unary(SERVICE + "Unary")(bytes((4 << 20) + 1))
    assert refused.value.code() == StatusCode.RESOURCE_EXHAUSTED
    assert refused.value.details() == "received message larger than max (4194305 vs. 4194304)"


async def test_metadata_of_callers_is_taken_text_and_binary(channel: aio.Channel) -> None:
    metadata = (("x-text", "some text"), ("x-data-bin", b"\x00\xff\x80"), ("x-text", "again"))
    assert await raw(channel).unary_unary(SERVICE + "Unary")(b"?", metadata=metadata) == b"?"


@pytest.mark.parametrize("code", [code for code in StatusCode if code is not StatusCode.OK])
async def test_every_status_and_text_reaches_the_client(
    channel: aio.Channel, code: StatusCode
) -> None:
    text = "l\u00fcft%bridge \u2192 \U0001f309\nsecond line"
    with pytest.raises(aio.AioRpcError) as refused:
        await raw(channel).unary_unary(SERVICE + "Fail")(bytes((code.value[0],)) + text.encode())
    assert (refused.value.code(), refused.value.details()) == (code, text)


async def test_refusal_that_a_handler_raises_is_answered(channel: aio.Channel) -> None:
    with pytest.raises(aio.AioRpcError) as refused:
        await raw(channel).unary_unary(SERVICE + "Refuse")(b"bad name")
    assert refused.value.code() == StatusCode.INVALID_ARGUMENT
    assert refused.value.details() == "bad name"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/test.Echo/Nope", "unknown method Nope for service test.Echo"),
        ("/no.Service/Nope", "unknown service no.Service"),
        ("/nonsense", "malformed method name: '/nonsense'"),
    ],
)
async def test_unknown_methods_are_unimplemented(
    channel: aio.Channel, echo: EchoServer, path: str, text: str
) -> None:
    with pytest.raises(aio.AioRpcError) as refused:
        await raw(channel).unary_unary(path)(b"")
    assert (refused.value.code(), refused.value.details()) == (StatusCode.UNIMPLEMENTED, text)
    assert echo.server.stats.requests == {("unknown", 12): 1}


async def test_compressed_requests_are_unimplemented(channel: aio.Channel) -> None:
    call = raw(channel).unary_unary(SERVICE + "Unary")
    with pytest.raises(aio.AioRpcError) as refused:
        await call(bytes(10_000), compression=grpc.Compression.Gzip)
    assert refused.value.code() == StatusCode.UNIMPLEMENTED
    assert refused.value.details() == "grpc-encoding gzip is not supported"


async def test_bidirectional_stream_answers_each_message(channel: aio.Channel) -> None:
    call = raw(channel).stream_stream(SERVICE + "Bidi")()
    for number in range(200):
        message = b"%d" % number * number
        await call.write(message)
        assert await call.read() == message
    await call.done_writing()
    assert await call.read() is EOF
    assert await call.code() == StatusCode.OK


async def test_long_server_stream_arrives_whole_and_in_bounded_memory(
    channel: aio.Channel, echo: EchoServer
) -> None:
    call = raw(channel).unary_stream(SERVICE + "Stream")(struct.pack(">QI", 3000, 10_000))
    count = 0
    async for message in call:
        assert len(message) == 10_000
        count += 1
        (connection,) = echo.server._connections
        assert connection._core.queued_bytes <= 1 << 20
    assert count == 3000


async def test_client_stream_may_be_cancelled(channel: aio.Channel, echo: EchoServer) -> None:
    call = raw(channel).stream_stream(SERVICE + "Hang")()
    await call.write(b"one")
    await eventually(lambda: echo.log.messages == [b"one"])
    call.cancel()
    await eventually(lambda: echo.log.cancelled == [SERVICE + "Hang"])
    assert echo.server.stats.requests == {(SERVICE + "Hang", 1): 1}


async def test_deadline_ends_a_call_that_is_not_answered(
    channel: aio.Channel, echo: EchoServer
) -> None:
    call = raw(channel).stream_stream(SERVICE + "Hang")(timeout=0.1)
    with pytest.raises(aio.AioRpcError) as ended:
        await call.read()
    assert ended.value.code() == StatusCode.DEADLINE_EXCEEDED
    await eventually(lambda: echo.log.cancelled == [SERVICE + "Hang"])


async def test_closed_channel_cancels_its_calls(echo: EchoServer) -> None:
    async with aio.insecure_channel(echo.address) as channel:
        call = raw(channel).stream_stream(SERVICE + "Hang")()
        await call.write(b"one")
        await eventually(lambda: len(echo.log.messages) == 1)
    await eventually(lambda: not echo.log.hanging)
    assert echo.log.cancelled == [SERVICE + "Hang"]


async def test_credit_is_held_while_reading_is_paused() -> None:
    limits = Limits(stream_window_bytes=65_535, connection_window_bytes=1 << 20)
    async with echo_server(limits) as echo, aio.insecure_channel(echo.address) as channel:
        call = raw(channel).stream_stream(SERVICE + "Paused")(many(*[bytes(1000)] * 60, b"go"))
        answers = [len(message) async for message in call]
        assert answers == [1000] * 60 + [2]


async def test_paused_call_takes_no_more_than_its_window() -> None:
    limits = Limits(stream_window_bytes=65_535, connection_window_bytes=1 << 20)
    async with echo_server(limits) as echo, aio.insecure_channel(echo.address) as channel:
        call = raw(channel).stream_stream(SERVICE + "Paused")(many(*[bytes(1000)] * 500))
        for _ in range(60):
            assert len(await call.read()) == 1000
        assert echo.server.stats.bytes_received < 80_000
        assert call.cancel()


async def test_answers_to_a_client_that_does_not_read_end_its_connection() -> None:
    async with (
        echo_server(Limits(queued_bytes_max=1 << 20)) as echo,
        aio.insecure_channel(echo.address) as channel,
    ):
        call = raw(channel).unary_stream(SERVICE + "Flood")(struct.pack(">QI", 100_000, 1000))
        await eventually(lambda: echo.server.stats.floods == {"unread": 1})
        with pytest.raises(aio.AioRpcError):
            await asyncio.wait_for(_read_all(call), 10)


async def _read_all(call: aio.UnaryStreamCall[bytes, bytes]) -> None:
    """Read to the end."""
    async for _ in call:
        pass


async def test_sync_client_works_from_a_thread(echo: EchoServer) -> None:
    def work() -> list[bytes]:
        with grpc.insecure_channel(echo.address) as channel:
            call = raw(channel).stream_stream(SERVICE + "Bidi")
            return list(call(iter([b"a", b"b"])))

    assert await asyncio.to_thread(work) == [b"a", b"b"]


class TestDrain:
    """The server leaves when its calls have ended, or when the grace is over."""

    async def test_running_unary_calls_end_and_then_the_server(self) -> None:
        taken: list[Call] = []
        async with echo_server() as echo, aio.insecure_channel(echo.address) as channel:
            echo.server.unary("/test.Slow/Call", lambda call, _request: taken.append(call))
            call = raw(channel).unary_unary("/test.Slow/Call")(b"x")
            await eventually(lambda: len(taken) == 1)
            drained = asyncio.get_running_loop().create_task(echo.server.drain(30))
            await asyncio.sleep(0)
            assert not drained.done()
            taken[0].reply(b"in time")
            assert await call == b"in time"
            assert await asyncio.wait_for(drained, 10)
            assert echo.server.stats.connections_open == 0

    async def test_streams_are_ended_behind_what_is_queued_for_them(self) -> None:
        async with echo_server() as echo, aio.insecure_channel(echo.address) as channel:
            call = raw(channel).stream_stream(SERVICE + "Hang")()
            await call.write(b"one")
            await eventually(lambda: len(echo.log.messages) == 1)
            echo.log.hanging[0].send_message(b"last words")
            assert await echo.server.drain(30)
            assert await call.read() == b"last words"
            assert await call.code() == StatusCode.UNAVAILABLE
            assert echo.log.cancelled == [SERVICE + "Hang"]

    async def test_unary_calls_that_do_not_end_are_told_that_the_server_leaves(self) -> None:
        cancelled: list[str] = []

        def never(call: Call, _request: bytes) -> None:
            call.on_cancel = lambda: cancelled.append(call.method)

        async with echo_server() as echo, aio.insecure_channel(echo.address) as channel:
            echo.server.unary("/test.Slow/Never", never)
            call = raw(channel).unary_unary("/test.Slow/Never")(b"x")
            await eventually(lambda: echo.server.stats.streams_open == 1)
            assert not await echo.server.drain(0.05)
            assert await call.code() == StatusCode.UNAVAILABLE
            assert await call.details() == "server is shutting down"
            assert cancelled == ["/test.Slow/Never"]

    async def test_no_connection_is_taken_any_more(self) -> None:
        async with echo_server() as echo:
            await echo.server.drain(0.05)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", echo.port)


async def test_socket_that_fills_up_and_empties_again_loses_nothing(echo: EchoServer) -> None:
    """The client's kernel is full for a while; the server waits without piling up memory."""
    reader, writer = await asyncio.open_connection("127.0.0.1", echo.port, limit=1 << 16)
    peer = Http2Peer()
    count, size = 60_000, 1000
    writer.write(
        peer.hello({frames.SETTING_INITIAL_WINDOW_SIZE: (1 << 31) - 1})
        + frames.window_update_frame(0, 1 << 30)
        + peer.request(1, SERVICE + "Stream")
        + peer.message(1, struct.pack(">QI", count, size))
    )
    await eventually(lambda: len(echo.server._connections) == 1)
    (connection,) = echo.server._connections
    await eventually(lambda: connection._core._is_blocked)
    assert connection._core.queued_bytes <= 1 << 20
    body = 0
    async with asyncio.timeout(30):
        while True:
            found = peer.read(await reader.read(1 << 20))
            body += sum(len(each.payload) for each in of_kind(found, frames.DATA))
            if of_kind(found, frames.RST_STREAM):  # behind the trailers
                break
    writer.transport.abort()
    assert body == count * (size + 5)
    assert echo.server.stats.requests == {(SERVICE + "Stream", 0): 1}


class TestRefusalsOfStreams:
    """A `LiftbridgeError` from any callback of a stream becomes its status."""

    @staticmethod
    def refuse(*_arguments: object) -> None:
        raise InvalidRequestError("not today")

    def at_once(self, _call: Call) -> None:
        self.refuse()

    def on_message(self, call: Call) -> None:
        call.on_messages = self.refuse

    def on_half_close(self, call: Call) -> None:
        call.on_half_close = self.refuse

    def on_writable(self, call: Call) -> None:
        call.on_writable = self.refuse
        call.send([frame(bytes(1 << 20))])

    @pytest.mark.parametrize("moment", ["at_once", "on_message", "on_half_close", "on_writable"])
    async def test_status_and_text_reach_the_client(self, echo: EchoServer, moment: str) -> None:
        echo.server.streaming("/test.Refusal/Call", getattr(self, moment))
        async with aio.insecure_channel(echo.address) as channel:
            call = raw(channel).unary_stream("/test.Refusal/Call")(b"x")
            with pytest.raises(aio.AioRpcError) as refused:
                await _read_all(call)
            assert refused.value.code() == StatusCode.INVALID_ARGUMENT
            assert refused.value.details() == "not today"


async def test_producer_without_a_callback_is_not_missed(echo: EchoServer) -> None:
    def handler(call: Call) -> None:
        call.send([frame(bytes(1 << 20))])
        assert not call.writable
        call.on_half_close = lambda: None
        asyncio.get_running_loop().call_later(0.05, call.finish)

    echo.server.streaming("/test.Quiet/Call", handler)
    async with aio.insecure_channel(echo.address) as channel:
        call = raw(channel).unary_stream("/test.Quiet/Call")(b"x")
        assert [len(message) async for message in call] == [1 << 20]


async def test_time_of_a_request_may_be_bounded_later() -> None:
    async with (
        echo_server(Limits(message_ns=50_000_000)) as echo,
        aio.insecure_channel(echo.address) as channel,
    ):
        call = raw(channel).stream_stream(SERVICE + "Hang")()
        await call.write(b"one")
        await eventually(lambda: len(echo.log.messages) == 1)
        echo.log.hanging[0].expect_request()
        assert await call.code() == StatusCode.DEADLINE_EXCEEDED
