"""The NATS adapter against servers that break the protocol: clear words, no crash, no leak."""

import asyncio
import json
import random
from contextlib import asynccontextmanager

import pytest

from liftbridge_broker.adapters.nats.options import NatsOptions
from liftbridge_broker.errors import UnavailableError
from liftbridge_testkit.certs import Authority
from liftbridge_testkit.nats_link import linked

INFO = {"server_id": "FAKE", "version": "2.15.0", "headers": True, "max_payload": 1024}


def info_line(**more):
    return b"INFO " + json.dumps({**INFO, **more}).encode() + b"\r\n"


class FakeServer:
    """Answers each connection by a script of its own; keeps what it was sent."""

    def __init__(self):
        self.port = 0
        self.received = []
        self.connections = 0
        self.ended = asyncio.Event()

    @asynccontextmanager
    async def running(self, script):
        async def serve(reader, writer):
            self.connections += 1
            try:
                await script(self, reader, writer)
            except (ConnectionError, asyncio.IncompleteReadError):
                pass
            finally:
                writer.close()
                self.ended.set()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self

    async def handshake(self, reader, writer, **more):
        writer.write(info_line(**more))
        while True:
            line = await reader.readuntil(b"\r\n")
            self.received.append(line)
            if line == b"PING\r\n":
                writer.write(b"PONG\r\n")
                return

    async def answer_pings(self, reader, writer):
        while True:
            line = await reader.readuntil(b"\r\n")
            self.received.append(line)
            if line == b"PING\r\n":
                writer.write(b"PONG\r\n")


def options(server, **more):
    return NatsOptions(
        server_id="a",
        servers=(f"nats://127.0.0.1:{server.port}",),
        **{
            "reconnect_wait_ms": 10,
            "connect_attempts_max": 2,
            # Long enough for any machine; shorter where running out of time is what is tested.
            "connect_timeout_ms": 10_000,
            **more,
        },
    )


async def refusal(script, **more):
    server = FakeServer()
    async with server.running(script):
        with pytest.raises(UnavailableError) as caught:
            async with linked(options(server, **more)):
                pass
    assert server.connections == 2
    return str(caught.value)


def saying(data):
    async def script(_server, reader, writer):
        writer.write(data)
        await reader.read()

    return script


@pytest.mark.parametrize(
    ("greeting", "text"),
    [
        (b"HTTP/1.1 200 OK\r\n", "expecting INFO message"),
        (b"INFO nonsense\r\n", "malformed INFO"),
        (b"INFO []\r\n", "malformed INFO"),
        (b"INFO 7\r\n", "malformed INFO"),
        (info_line(max_payload="x"), "malformed INFO"),
        (info_line(connect_urls=[1]), "malformed INFO"),
        (info_line(nonce=None), "malformed INFO"),
        (info_line(max_payload=0), "malformed INFO"),
        (info_line(max_payload=-1), "malformed INFO"),
        (b"INFO " + b"[" * 60_000 + b"\r\n", "malformed INFO"),
        (b"INFO " + b'{"a":' * 10_000 + b"\r\n", "malformed INFO"),
        (b"x" * 200_000, "more than 65536 bytes before the handshake was over"),
        (b"INFO {", "no answer in time"),
        (b"", "no answer in time"),
        (info_line(), "no answer in time"),
        (info_line() + b"-ERR 'Maximum Connections Exceeded'\r\n", "Maximum Connections Exceeded"),
        (info_line() + b"RUBBISH\r\n", "ended the connection during the handshake"),
    ],
)
async def test_bad_greetings_fail_in_clear_words(greeting, text):
    timeout_ms = 150 if text == "no answer in time" else 10_000
    assert text in await refusal(saying(greeting), connect_timeout_ms=timeout_ms)


async def test_end_in_the_middle_of_the_handshake():
    async def script(_server, reader, writer):
        writer.write(info_line())
        await reader.readuntil(b"\r\n")

    assert "during the handshake" in await refusal(script)


async def test_server_without_headers_is_refused():
    async def script(server, reader, writer):
        await server.handshake(reader, writer, headers=False)
        await reader.read()

    assert "the server does not support message headers" in await refusal(script)


async def test_server_that_never_confirms_subscriptions():
    async def script(server, reader, writer):
        await server.handshake(reader, writer)
        await reader.read()

    assert "no answer in time" in await refusal(script, connect_timeout_ms=150)


async def test_info_before_the_first_pong_is_no_obstacle():
    async def script(server, reader, writer):
        writer.write(info_line())
        await reader.readuntil(b"PING\r\n")
        writer.write(b"PING\r\n" + info_line(max_payload=777) + b"PONG\r\n")
        await server.answer_pings(reader, writer)

    server = FakeServer()
    async with server.running(script), linked(options(server)) as (messaging, _, _):
        assert messaging.is_connected
        assert messaging.payload_bytes_max == 777
        while server.received.count(b"PONG\r\n") < 2:
            await messaging.quiet._connection.flushed()
            await messaging.echo._connection.flushed()


@pytest.mark.parametrize(
    ("rubbish", "text"),
    [
        (b"BLAH\r\n", "NATS protocol: unknown operation b'BLAH'"),
        (b"MSG foo 1 999999999999\r\n", "NATS protocol: message of 999999999999 bytes exceeds"),
        (b"MSG foo 1 3\r\nabcdefgh\r\n", "NATS protocol: a message is not as long"),
        (b"x" * 100_000, "NATS protocol: line longer than"),
        (b"-ERR 'Stale Connection'\r\n", "Stale Connection"),
        (b"INFO " + b"[" * 60_000 + b"\r\n-ERR 'Stale Connection'\r\n", "Stale Connection"),
        (b"", "closed by the server"),
    ],
)
async def test_rubbish_ends_the_connection_and_the_next_one_is_made(rubbish, text):
    async def script(server, reader, writer):
        number = server.connections
        await server.handshake(reader, writer)
        if number <= 2:
            await reader.readuntil(b"PING\r\n")
            writer.write(b"PONG\r\n")
            await go.wait()
            writer.write(rubbish)
            if rubbish and b"-ERR" not in rubbish:
                await reader.read()
        else:
            await server.answer_pings(reader, writer)

    go = asyncio.Event()
    server = FakeServer()
    async with server.running(script), linked(options(server)) as (messaging, sink, observer):
        go.set()
        await sink.until(lambda: len(sink.links) >= 2)
        await sink.until(lambda: messaging.is_connected)
        await observer.until(lambda: len(observer.of("nats_disconnected")) >= 2)
        assert all(text in fields["reason"] for fields in observer.of("nats_disconnected"))


@pytest.mark.parametrize("stage", ["greeting", "handshake", "subscriptions"])
async def test_close_while_an_attempt_hangs_ends_at_once(stage):
    async def script(server, reader, writer):
        if server.connections <= 3:
            await server.handshake(reader, writer)
            await reader.readuntil(b"PING\r\n")
            writer.write(b"PONG\r\n")
            await go.wait()
            return
        if stage == "handshake":
            writer.write(info_line())
        if stage == "subscriptions":
            await server.handshake(reader, writer)
            await reader.readuntil(b"PING\r\n")
        hanging.set()
        await reader.read()

    go, hanging = asyncio.Event(), asyncio.Event()
    server = FakeServer()
    loop = asyncio.get_running_loop()
    async with server.running(script):
        # Far longer than the test may take: nothing but the close ends the attempt.
        async with linked(options(server, connect_timeout_ms=300_000)) as (messaging, _, _):
            go.set()
            await hanging.wait()
            started = loop.time()
            await messaging.close()
        assert loop.time() - started < 10.0
        with pytest.raises(UnavailableError):
            messaging.publish_quiet([])


async def test_malformed_news_change_nothing():
    async def script(server, reader, writer):
        await server.handshake(reader, writer)
        writer.write(b"INFO nonsense\r\nINFO []\r\n")
        writer.write(info_line(connect_urls=[7, "x:y:z", "", None], max_payload=-1))
        writer.write(info_line(connect_urls="abc", ldm=True))
        await server.answer_pings(reader, writer)

    server = FakeServer()
    async with server.running(script), linked(options(server)) as (messaging, _, observer):
        await messaging.quiet._connection.flushed()
        reasons = [f["reason"] for f in observer.of("nats_error") if f["connection"] == "quiet"]
        assert reasons == [
            "INFO is not a JSON object",
            "INFO is not a JSON object",
            "the server is about to stop (lame duck mode)",
        ]
        assert messaging.payload_bytes_max == 1024
        assert len(messaging.quiet._servers._discovered) <= 1


async def test_servers_told_of_are_bounded():
    urls = [f"10.0.0.{i % 250}:{4000 + i}" for i in range(1000)]

    async def script(server, reader, writer):
        await server.handshake(reader, writer, connect_urls=urls)
        writer.write(info_line(connect_urls=urls))
        await server.answer_pings(reader, writer)

    server = FakeServer()
    async with server.running(script), linked(options(server)) as (messaging, _, _):
        await messaging.quiet._connection.flushed()
        assert len(messaging.quiet._servers._discovered) == 64


async def test_credentials_are_not_sent_in_clear_when_tls_is_wanted():
    async def script(server, reader, writer):
        writer.write(info_line(auth_required=True))
        server.received.append(await reader.read())

    server = FakeServer()
    async with server.running(script):
        with pytest.raises(UnavailableError, match="does not ask for TLS"):
            async with linked(
                NatsOptions(
                    server_id="a",
                    servers=(f"tls://127.0.0.1:{server.port}",),
                    user="u",
                    password="topsecret",
                    connect_attempts_max=1,
                )
            ):
                pass
        await server.ended.wait()
    assert b"".join(server.received) == b""


async def test_bytes_smuggled_in_before_tls_are_refused(tmp_path):
    authority = Authority(tmp_path)
    text = await refusal(
        saying(info_line(tls_required=True) + b"PONG\r\nMSG x 1 1\r\nx\r\n"),
        tls_ca=str(authority.cert),
    )
    assert "the server sent data between INFO and TLS" in text


async def test_server_that_hangs_in_the_tls_handshake(tmp_path):
    authority = Authority(tmp_path)
    text = await refusal(
        saying(info_line(tls_required=True)), tls_ca=str(authority.cert), connect_timeout_ms=150
    )
    assert "no answer in time" in text


async def test_random_bytes_after_the_handshake_never_stop_the_adapter():
    rng = random.Random(11)
    rounds = 60

    async def script(server, reader, writer):
        number = server.connections
        await server.handshake(reader, writer)
        await reader.readuntil(b"PING\r\n")
        writer.write(b"PONG\r\n")
        if number < rounds:
            await go.wait()
            pieces = (b"MSG x 1 3\r\nabc\r\n", b"PING\r\n", b"-ERR 'x'\r\n", rng.randbytes(30))
            writer.write(b"".join(rng.choice(pieces) for _ in range(5)))
            await writer.drain()
        else:
            await server.answer_pings(reader, writer)

    go = asyncio.Event()
    server = FakeServer()
    async with server.running(script), linked(options(server, reconnect_wait_ms=1)) as (m, sink, _):
        m.subscribe(1, "x", "")
        go.set()
        await sink.until(lambda: server.connections >= rounds and m.is_connected)
        assert set(sink.payloads(1)) <= {b"abc"}
