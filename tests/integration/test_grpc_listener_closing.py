"""A closed listener leaves no socket open and no connection without its end."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import ExitStack

import pytest
import uvloop

from liftbridge_broker.api.grpc.listener import ACCEPTS_MAX, HANDSHAKES_MAX, Listener, bound_sockets
from liftbridge_broker.api.grpc.tls import ServerTls, TlsFiles
from liftbridge_testkit.certs import Authority
from liftbridge_testkit.grpc_echo import echo_server, eventually
from liftbridge_testkit.open_files import open_files

CLIENTS = 2 * HANDSHAKES_MAX
TURNS_MAX = 12
"""By then every client that can shake hands has done so, or waits in its handshake."""

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    issued = Authority(tmp_path_factory.mktemp("ca")).issue("server")
    return TlsFiles(certificate=issued.cert, key=issued.key)


def hello() -> bytes:
    """What a TLS client says first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


class Served(asyncio.Protocol):
    """A connection whose owner closes it, at once when the listener is closed."""

    def __init__(
        self, made: "dict[Served, asyncio.BaseTransport]", is_over: Callable[[], bool]
    ) -> None:
        self._made = made
        self.is_over = is_over
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep it."""
        self._made[self] = transport
        if self.is_over():
            transport.close()

    def connection_lost(self, _exc: Exception | None) -> None:
        """Note it."""
        self.is_lost = True


async def closed_after(turns: int, said: bytes, tls: ServerTls | None) -> int:
    """Close a listener some turns after its clients have come; sockets that stay open for it."""
    made: dict[Served, asyncio.BaseTransport] = {}
    over = asyncio.Event()
    before = open_files()
    listener = Listener(
        await bound_sockets("127.0.0.1", 0),
        lambda: Served(made, over.is_set),
        tls,
        greetings_max=CLIENTS,
        files_max=1 << 20,
        on_refused=lambda _error: None,
    )
    listener.listen()
    with ExitStack() as stack:
        address = ("127.0.0.1", listener.port)
        for _ in range(CLIENTS):
            stack.enter_context(socket.create_connection(address)).sendall(said)
        for _ in range(turns):
            await asyncio.sleep(0)
        listener.close()
        over.set()
        for one in made.values():
            one.close()
        for _ in range(TURNS_MAX):
            await asyncio.sleep(0)
        assert all(one.is_lost for one in made)
        opened = open_files() - before
        return sum(count for name, count in opened.items() if "socket" in name) - CLIENTS


@pytest.mark.parametrize("turns", range(TURNS_MAX))
@pytest.mark.parametrize("cut", [None, 0, 9, 100, -1, 1 << 20])
@pytest.mark.parametrize("make_loop", LOOPS.values(), ids=LOOPS)
def test_closed_listener_leaves_no_socket_open(
    files: TlsFiles,
    make_loop: Callable[[], asyncio.AbstractEventLoop],
    cut: int | None,
    turns: int,
) -> None:
    """Clients of clear text, or cut anywhere in their first message; at each turn of the loop."""
    assert CLIENTS <= ACCEPTS_MAX
    said = b"" if cut is None else hello()[:cut]
    with asyncio.Runner(loop_factory=make_loop) as runner:
        tls = None if cut is None else ServerTls(files)
        assert runner.run(closed_after(turns, said, tls)) == 0


async def bugs_at_the_end_of_a_server(turns: int) -> list[object]:
    """End a server some turns after its clients have come; what the loop is told of."""
    bugs: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: bugs.append(context))
    async with echo_server() as echo:
        async with asyncio.TaskGroup() as group:
            with ExitStack() as stack:
                for _ in range(CLIENTS):
                    stack.enter_context(socket.create_connection(("127.0.0.1", echo.port)))
                for _ in range(turns):
                    await asyncio.sleep(0)
                group.create_task(echo.server.close())
                for _ in range(TURNS_MAX):
                    await asyncio.sleep(0)
        await eventually(lambda: not echo.server.stats.connections_open)
    return bugs


@pytest.mark.parametrize("turns", range(TURNS_MAX))
@pytest.mark.parametrize("make_loop", LOOPS.values(), ids=LOOPS)
def test_server_ends_in_order_while_connections_are_made(
    make_loop: Callable[[], asyncio.AbstractEventLoop], turns: int
) -> None:
    with asyncio.Runner(loop_factory=make_loop) as runner:
        assert runner.run(bugs_at_the_end_of_a_server(turns)) == []
