"""A client that sends without end leaves turns to the others (uvloop reads on while it can)."""

import asyncio
import gc
import socket
import weakref
from functools import partial

import pytest

from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.api.grpc.connection import TURN_BYTES, GrpcConnection
from liftbridge_broker.api.grpc.sockets import is_reset
from liftbridge_broker.api.grpc.transport import GrpcServer
from liftbridge_broker.api.grpc.turns import SLICE_NS, TURN_NS, Turns, Waker
from liftbridge_broker.http2.frames import Http2Code, rst_stream_frame
from liftbridge_testkit.http2_peer import Http2Peer, RecordingTransport


def unhurried_server() -> GrpcServer:
    """A server whose turns do not end early where the machine is busy."""
    server = GrpcServer()
    server.turns = Turns(lambda: 0)
    return server


def opened() -> tuple[GrpcConnection, RecordingTransport]:
    connection, transport = GrpcConnection(unhurried_server()), RecordingTransport()
    connection.connection_made(transport)
    connection.data_received(Http2Peer().hello())
    return connection, transport


def unknown_frame(size: int) -> bytes:
    """Frames of a kind that is ignored, `size` bytes of them."""
    body = bytes(16_384 - 9)
    one = len(body).to_bytes(3, "big") + b"\xee\0" + bytes(4) + body
    return one * (size // len(one))


async def test_full_turn_is_read_on_only_after_the_others_had_theirs() -> None:
    connection, transport = opened()
    seen_by_others: list[bool] = []
    asyncio.get_running_loop().call_soon(lambda: seen_by_others.append(transport.is_read))
    connection.data_received(unknown_frame(TURN_BYTES))
    await asyncio.sleep(0)
    assert seen_by_others == [False]
    assert transport.is_read
    connection.connection_lost(None)


async def test_small_turn_is_not_interrupted() -> None:
    connection, transport = opened()
    connection.data_received(unknown_frame(TURN_BYTES // 2))
    assert transport.is_read
    connection.connection_lost(None)


async def test_connection_that_is_lost_meanwhile_is_not_read_again() -> None:
    connection, transport = opened()
    connection.data_received(unknown_frame(TURN_BYTES))
    connection.connection_lost(None)
    await asyncio.sleep(0)
    assert not transport.is_read


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        Http2Peer().hello(),
        Http2Peer().hello() + unknown_frame(TURN_BYTES),
        b"no HTTP/2 at all",
    ],
    ids=["nothing", "hello", "too much for a turn", "garbage"],
)
async def test_closed_connection_is_freed_without_the_garbage_collector(sent: bytes) -> None:
    """A flood of connections would be collected in turns of a second otherwise."""
    gc.collect()
    gc.disable()
    try:
        connection, transport = GrpcConnection(unhurried_server()), RecordingTransport()
        connection.connection_made(transport)
        if sent:
            connection.data_received(sent)
        connection.connection_lost(None)
        await asyncio.sleep(0)
        closed = weakref.ref(connection)
        del connection
        assert closed() is None
    finally:
        gc.enable()


async def test_connection_that_was_never_made_is_freed_without_the_garbage_collector() -> None:
    """Event loops drop those whose TLS handshake failed."""
    gc.disable()
    try:
        dropped = weakref.ref(GrpcConnection(unhurried_server()))
        assert dropped() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("ends", ["answered", "refused", "cancelled"])
async def test_call_that_ended_is_freed_without_the_garbage_collector(ends: str) -> None:
    class Service:
        """Refers to its call, as the call does to it."""

        def __init__(self, call: Call) -> None:
            self.call = call
            call.on_messages = self.on_messages
            call.on_half_close = call.on_cancel = call.on_writable = self.on_end
            ended.append(weakref.ref(self))

        def on_messages(self, _: list[bytes]) -> None:
            if ends != "cancelled":
                self.call.finish(0 if ends == "answered" else 3)

        def on_end(self) -> None:
            pass

    def serve(call: Call) -> None:
        Service(call)

    ended: list[weakref.ref[Service]] = []
    server, peer, transport = unhurried_server(), Http2Peer(), RecordingTransport()
    server.streaming("/test.Echo/Bidi", serve)
    connection = GrpcConnection(server)
    connection.connection_made(transport)
    connection.data_received(peer.hello())
    gc.collect()
    gc.disable()
    try:
        connection.data_received(peer.request(1) + peer.message(1, b"x"))
        if ends == "cancelled":
            connection.data_received(rst_stream_frame(1, Http2Code.CANCEL))
        await asyncio.sleep(0)
        (service,) = ended
        assert service() is None
    finally:
        gc.enable()
    connection.connection_lost(None)


class ResetSocket:
    """The socket of a client that reset the connection."""

    def getsockopt(self, _level: int, _name: int, size: int) -> bytes:
        return bytes([7] * size)


async def test_nothing_more_is_done_for_a_client_that_reset_its_connection() -> None:
    connection, transport = opened()
    connection.data_received(unknown_frame(TURN_BYTES))
    assert not transport.is_read
    transport.extra["socket"] = ResetSocket()
    await asyncio.sleep(0)
    assert transport.is_aborted
    assert not is_reset(transport), "the file of one that closes may be another connection's"
    connection.connection_lost(None)


async def test_clients_are_served_where_the_system_tells_no_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(socket, "TCP_INFO")
    connection, transport = opened()
    transport.extra["socket"] = ResetSocket()
    connection.data_received(unknown_frame(TURN_BYTES))
    await asyncio.sleep(0)
    assert transport.is_read
    connection.connection_lost(None)


WOKEN = 200
ACT_NS = 200_000


async def test_readers_of_one_client_do_not_delay_the_request_of_another() -> None:
    """One record wakes all of them; each takes a while to send it."""
    now, log = [0], list[str]()
    server, wakers = GrpcServer(), list[Waker]()
    server.turns = turns = Turns(lambda: now[0])

    def act(what: str) -> None:
        log.append(what)
        now[0] += ACT_NS

    def serve(call: Call) -> None:
        if call.peer == "reader":
            wakers.append(Waker(turns, call, partial(act, "woken")))
        else:
            act("served")

    server.streaming("/test.Echo/Bidi", serve)
    reader, other = [GrpcConnection(server) for _ in range(2)]
    peer = Http2Peer()
    for connection, name in ((reader, "reader"), (other, "other")):
        transport = RecordingTransport()
        transport.extra["peername"] = name
        connection.connection_made(transport)
        connection.data_received(peer.hello())
    for number in range(WOKEN):
        reader.data_received(Http2Peer().request(2 * number + 1))
    turns.spend(TURN_NS)
    for one in wakers:
        one.wake()
    other.data_received(Http2Peer().request(1))
    for _ in range(WOKEN):
        await asyncio.sleep(0)
    assert log.count("woken") == WOKEN
    assert log.index("served") <= SLICE_NS // ACT_NS
    for connection in (reader, other):
        connection.connection_lost(None)


LOST, CALLS = 50, 10


async def test_calls_of_connections_that_are_lost_at_once_end_in_turns() -> None:
    """As when a process with many connections is killed; each call takes a while to end."""
    now, log = [0], list[int]()
    server = GrpcServer()
    server.turns = Turns(lambda: now[0])

    def ended(number: int) -> None:
        log.append(number)
        now[0] += ACT_NS

    def serve(call: Call) -> None:
        call.on_cancel = partial(ended, int(call.peer))

    server.streaming("/test.Echo/Bidi", serve)
    connections = [GrpcConnection(server) for _ in range(LOST)]
    for number, connection in enumerate(connections):
        peer, transport = Http2Peer(), RecordingTransport()
        transport.extra["peername"] = str(number)
        connection.connection_made(transport)
        requests = [peer.request(2 * stream + 1) for stream in range(CALLS)]
        connection.data_received(peer.hello() + b"".join(requests))
    for connection in connections:
        connection.connection_lost(None)
    assert len(log) < TURN_NS // ACT_NS + CALLS
    for _ in range(LOST):
        await asyncio.sleep(0)
    assert log == sorted(log)
    assert len(log) == LOST * CALLS


async def test_calls_of_a_connection_that_failed_by_a_bug_end_when_it_is_lost() -> None:
    log: list[str] = []
    now, server = [0], GrpcServer()
    server.turns = turns = Turns(lambda: now[0])
    turns.on_bug = lambda error: log.append(str(error))

    def serve(call: Call) -> None:
        call.on_messages = fail
        call.on_cancel = partial(log.append, "ended")

    def fail(_messages: list[bytes]) -> None:
        raise RuntimeError("a bug")

    server.streaming("/test.Echo/Bidi", serve)
    connection, peer = GrpcConnection(server), Http2Peer()
    connection.connection_made(RecordingTransport())
    connection.data_received(peer.hello() + peer.request(1))
    turns.spend(TURN_NS)
    connection.data_received(peer.message(1, b"x"))
    await asyncio.sleep(0)
    assert log == ["a bug"]
    turns.spend(TURN_NS)
    connection.connection_lost(None)
    await asyncio.sleep(0)
    assert log == ["a bug", "ended"]
