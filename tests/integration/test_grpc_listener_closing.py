"""A listener that is closed leaves no socket open, however far its clients have got."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import uvloop

from liftbridge_broker.api.listener import ACCEPTS_MAX, HANDSHAKES_MAX, Listener, bound_sockets
from liftbridge_broker.api.tls import ServerTls, TlsFiles
from liftbridge_testkit.certs import Authority

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
    """A connection that was made: whoever owns it closes it."""

    def __init__(self, made: list[asyncio.BaseTransport]) -> None:
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep it."""
        self._made.append(transport)


def open_sockets() -> int:
    """Sockets that this process has open."""
    links = Path("/proc/self/fd").iterdir()
    return sum(1 for link in list(links) if _target(link).startswith("socket:"))


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:  # the directory that is being listed
        return ""


async def closed_after(turns: int, said: bytes, tls: ServerTls | None) -> int:
    """Close a listener some turns after its clients have come; sockets that stay open for it."""
    made: list[asyncio.BaseTransport] = []
    before = open_sockets()
    listener = Listener(
        await bound_sockets("127.0.0.1", 0),
        lambda: Served(made),
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
        for one in made:
            one.close()
        for _ in range(TURNS_MAX):
            await asyncio.sleep(0)
        return open_sockets() - before - CLIENTS


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
