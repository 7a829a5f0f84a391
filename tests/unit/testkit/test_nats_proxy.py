"""The NATS proxy: what it drops and breaks, and that it changes nothing else."""

import contextlib
import socket
import threading

import pytest

from liftbridge_testkit.nats_proxy import NatsProxy, PublishFilter

STREAM = (
    b'CONNECT {"verbose":false}\r\nPING\r\n'
    b"PUB ns.b.b2.meta 5\r\nPUB x\r\n"
    b"PUB ns.b.b3.meta 4\r\n\r\n\r\n\r\n"
    b"HPUB ns.b.b2.data reply 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"
    b"SUB ns.b.b2.meta 1\r\nPUB ns.b.b22.meta 0\r\n\r\n"
)
KEPT = (
    b'CONNECT {"verbose":false}\r\nPING\r\n'
    b"PUB ns.b.b3.meta 4\r\n\r\n\r\n\r\n"
    b"SUB ns.b.b2.meta 1\r\nPUB ns.b.b22.meta 0\r\n\r\n"
)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1_000])
def test_publishes_to_a_broker_are_dropped_however_they_are_cut(size):
    filtered = PublishFilter()
    pieces = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    assert b"".join(filtered.take(piece, ["ns.b.b2."]) for piece in pieces) == KEPT
    assert filtered.dropped_count == 2


@pytest.mark.parametrize("size", [1, 5, 1_000])
def test_without_a_prefix_everything_passes(size):
    filtered = PublishFilter()
    pieces = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    assert b"".join(filtered.take(piece, []) for piece in pieces) == STREAM
    assert filtered.dropped_count == 0


def is_open(connection):
    """Return whether a connection carries data; wait until that is clear."""
    try:
        connection.sendall(b"PING\r\n")
        return connection.recv(6) == b"PING\r\n"
    except ConnectionError:
        return False


@pytest.mark.parametrize(("is_all", "left"), [(False, [False, True, True]), (True, 3 * [False])])
def test_severed_connections_break_and_new_ones_pass(is_all, left):
    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as stack:
        threading.Thread(target=echo, args=(server,), daemon=True).start()
        proxy = stack.enter_context(NatsProxy(server.getsockname()[1]))

        def connect():
            return stack.enter_context(socket.create_connection(("127.0.0.1", proxy.port), 5.0))

        connections = []
        for _ in left:
            connections.append(connect())
            assert is_open(connections[-1])
        assert proxy.sever(is_all=is_all) == left.count(False)
        assert [is_open(one) for one in connections] == left
        assert is_open(connect())


def echo(server):
    """Send back what each connection sends, until the server is closed."""
    with contextlib.suppress(OSError):
        while True:
            connection, _ = server.accept()
            threading.Thread(target=_echo_one, args=(connection,), daemon=True).start()


def _echo_one(connection):
    with connection, contextlib.suppress(OSError):
        while data := connection.recv(4_096):
            connection.sendall(data)
