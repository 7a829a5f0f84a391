"""However many clients come at once, a turn of the loop takes a few and shakes hands with a few."""

import asyncio
import resource
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from select import select
from typing import Any

import pytest

from liftbridge_broker.api.grpc.listener import ACCEPTS_MAX, HANDSHAKES_MAX, STARTS_MAX
from liftbridge_broker.api.grpc.tls import ServerTls, TlsFiles
from liftbridge_testkit.certs import Authority
from liftbridge_testkit.grpc_echo import EchoServer, echo_server, eventually
from liftbridge_testkit.http2_peer import Http2Peer

CLIENTS = 60
GONE = 5 * ACCEPTS_MAX
RECORD = 5
SOMAXCONN = Path("/proc/sys/net/core/somaxconn")


class Turns:
    """Counts turns of the running loop, and what happened in each."""

    def __init__(self) -> None:
        self.number = 0
        self.seen: Counter[int] = Counter()
        self._tick()

    def _tick(self) -> None:
        self.number += 1
        asyncio.get_running_loop().call_soon(self._tick)

    def note(self, count: int = 1) -> None:
        """Something happens in this turn."""
        self.seen[self.number] += count


class CountingTls(ServerTls):
    """Notes the turn of each handshake."""

    def __init__(self, files: TlsFiles, turns: Turns) -> None:
        super().__init__(files)
        self._turns = turns
        self.context.sni_callback = self._on_hello

    def _on_hello(self, *_args: Any) -> None:
        self._turns.note()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    issued = Authority(tmp_path_factory.mktemp("ca")).issue("server")
    return TlsFiles(certificate=issued.cert, key=issued.key)


@contextmanager
def connected(echo: EchoServer, count: int) -> Iterator[list[socket.socket]]:
    """Clients that have connected, which the kernel does by itself."""
    with ExitStack() as stack:
        address = ("127.0.0.1", echo.port)
        yield [stack.enter_context(socket.create_connection(address)) for _ in range(count)]


def client_hello() -> bytes:
    """What a TLS client says first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def is_let_go(client: socket.socket) -> bool:
    """Whether the server closes, with what it has not read or without."""
    client.settimeout(10)
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


async def turned(count: int) -> None:
    """Let the loop turn."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_turn_takes_a_few_connections() -> None:
    async with echo_server() as echo:
        with connected(echo, CLIENTS) as clients:
            taken: list[int] = []
            while not taken or taken[-1] < CLIENTS:
                taken.append(echo.server.stats.connections_total)
                await asyncio.sleep(0)
            assert max(after - before for before, after in pairwise(taken)) == STARTS_MAX
            clients[-1].sendall(Http2Peer.hello())
            await eventually(lambda: echo.server.stats.bytes_received > 0)


def come_and_go(port: int, *, resets: bool) -> None:
    """Connect, say hello, and close or reset the connection."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(Http2Peer.hello())
        if resets:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize("resets", [False, True], ids=["closed", "reset"])
async def test_clients_that_are_gone_hold_up_nobody(resets: bool) -> None:
    """Else a flood fills the kernel's queue, and clients that find it full wait for 30 s."""
    async with echo_server() as echo:
        for _ in range(GONE):
            come_and_go(echo.port, resets=resets)
        with connected(echo, 1) as (client,):
            client.sendall(Http2Peer.hello())
            turns = Turns()
            await eventually(lambda: bool(select([client], [], [], 0)[0]))
            assert turns.number < GONE // STARTS_MAX // 2
            assert echo.server.stats.connections_total < GONE // 3


async def test_kernel_queues_as_many_clients_as_it_may() -> None:
    allowed = await asyncio.to_thread(SOMAXCONN.read_text)
    async with echo_server() as echo:
        (listener,) = echo.server._listeners.values()
        (listening,) = listener._sockets
        info = listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32)
        (queue_max,) = struct.unpack_from("I", info, 28)  # `tcpi_sacked` while listening
        assert queue_max == int(allowed)


@pytest.mark.parametrize("cut", [0, 1, 8, 9, 10, 100, -1])
async def test_turn_shakes_hands_with_a_few(files: TlsFiles, cut: int) -> None:
    """Also with clients that keep back a part of their first message, and then send it together."""
    turns, hello = Turns(), client_hello()
    async with echo_server(tls=CountingTls(files, turns)) as echo:
        with connected(echo, CLIENTS) as clients:
            for each in clients:
                each.sendall(hello[:cut])
            await turned(CLIENTS)
            assert not turns.seen
            for each in clients:
                each.sendall(hello[cut:])
            await eventually(lambda: turns.seen.total() == CLIENTS)
    assert max(turns.seen.values()) <= HANDSHAKES_MAX


@pytest.mark.parametrize("cut", [0, 1, 8, 9, 100, -1])
async def test_client_that_ends_within_its_first_message_is_let_go(
    files: TlsFiles, cut: int
) -> None:
    async with echo_server(tls=ServerTls(files)) as echo:
        with connected(echo, 1) as (client,):
            client.sendall(client_hello()[:cut])
            client.shutdown(socket.SHUT_WR)
            assert await asyncio.to_thread(is_let_go, client)


async def test_first_message_in_several_records_is_not_taken(files: TlsFiles) -> None:
    turns, hello = Turns(), client_hello()
    head, message = hello[:3], hello[RECORD:]
    pieces = (message[:50], message[50:])
    cut = b"".join(head + len(piece).to_bytes(2, "big") + piece for piece in pieces)
    async with echo_server(tls=CountingTls(files, turns)) as echo:
        with connected(echo, 1) as (client,):
            client.sendall(cut)
            assert await asyncio.to_thread(is_let_go, client)
    assert not turns.seen


class Told:
    """What was told."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def transition(self, kind: str, _fields: Mapping[str, object]) -> None:
        self.kinds.append(kind)


async def test_client_that_no_file_was_left_for_is_taken_later() -> None:
    told = Told()
    async with echo_server(observer=told) as echo:
        with connected(echo, 1):
            with no_more_files():
                await eventually(lambda: told.kinds == ["grpc_accept_failed"])
                assert echo.server.stats.connections_total == 0
            await eventually(lambda: echo.server.stats.connections_total == 1)
    assert told.kinds == ["grpc_accept_failed"]


async def test_clients_do_not_take_the_files_that_are_kept_for_logs() -> None:
    """Nobody needs a right to connect; who comes too late is let go and may come back."""
    told = Told()
    files_max = lowest_free() + CLIENTS + CLIENTS // 2  # the clients are in this process too
    async with echo_server(observer=told, files_max=files_max) as echo:
        with connected(echo, CLIENTS):
            await eventually(lambda: "grpc_accept_failed" in told.kinds)
            await eventually(lambda: echo.server.stats.connections_open > 0)
            assert echo.server.stats.connections_total < CLIENTS
            assert lowest_free() == files_max
        await eventually(lambda: not echo.server.stats.connections_open)
        with connected(echo, 1):
            await eventually(lambda: echo.server.stats.connections_open == 1)


def lowest_free() -> int:
    """Number that the next file gets."""
    with Path("/dev/null").open("rb") as lowest:
        return lowest.fileno()


@contextmanager
def no_more_files() -> Iterator[None]:
    """No file can be opened meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free(), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
