"""The process kit against a real nats-server: starts, restarts, faults, measures."""

import os
import select
import signal
import socket
from pathlib import Path

import pytest

from liftbridge_testkit.processes import NatsServer, ProcessError, ServerProcess, free_port


def greeting(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 5.0) as connection:
        connection.settimeout(5.0)
        return connection.recv(4)


def test_server_answers_once_started(tmp_path: Path) -> None:
    with NatsServer(tmp_path) as nats:
        assert greeting(nats.port) == b"INFO"
        assert nats.url == f"nats://127.0.0.1:{nats.port}"


def test_killed_server_restarts_on_the_same_port(tmp_path: Path) -> None:
    with NatsServer(tmp_path) as nats:
        first = nats.pid
        nats.kill()
        assert not nats.is_alive()
        nats.start()
        assert nats.pid != first
        assert nats.starts == 2
        assert greeting(nats.port) == b"INFO"


def test_stop_returns_the_exit_code(tmp_path: Path) -> None:
    server = NatsServer(tmp_path).start()
    assert server.stop() in {0, 1}
    assert not server.is_alive()


def test_frozen_server_does_not_greet_until_it_goes_on(tmp_path: Path) -> None:
    with NatsServer(tmp_path) as nats:
        nats.pause()
        assert not nats.is_ready()
        nats.resume()
        nats.wait_until(nats.is_ready, "ready")
        assert greeting(nats.port) == b"INFO"


def test_jetstream_keeps_its_files_in_the_work_dir(tmp_path: Path) -> None:
    with NatsServer(tmp_path, jetstream=True) as nats:
        assert nats.store_dir.is_dir()
        assert "JetStream" in nats.log_text()


def test_configuration_text_reaches_the_server(tmp_path: Path) -> None:
    with (
        NatsServer(tmp_path, config="authorization { token: secret }\n") as nats,
        socket.create_connection(("127.0.0.1", nats.port), 5.0) as connection,
    ):
        connection.settimeout(5.0)
        assert b'"auth_required":true' in connection.recv(4096)


def test_server_that_cannot_start_raises_with_its_log(tmp_path: Path) -> None:
    server = NatsServer(tmp_path, config="no such setting {{{\n")
    with pytest.raises(ProcessError, match="exited with code"):
        server.start()
    assert not server.is_alive()


def test_server_on_a_taken_port_is_noticed(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = NatsServer(tmp_path, port=taken.getsockname()[1])
        with pytest.raises(ProcessError):
            server.start(ready_seconds_max=5.0)


def test_measures_count_the_children(tmp_path: Path) -> None:
    with Parent(tmp_path) as parent:
        assert parent.cpu_seconds() >= 0.1
        assert parent.rss_bytes() > 1_000_000


def test_kill_ends_the_children_too(tmp_path: Path) -> None:
    with Parent(tmp_path) as parent:
        child = os.pidfd_open(int((tmp_path / "child").read_text()))
        parent.kill()
        ended, _, _ = select.select([child], [], [], 10.0)
        os.close(child)
        assert ended == [child]
        assert not parent.is_alive()


def test_signal_reaches_the_server_alone(tmp_path: Path) -> None:
    with Parent(tmp_path) as parent:
        parent.signal(signal.SIGTERM)
        assert parent.wait() == -signal.SIGTERM


def test_free_ports_are_free() -> None:
    ports = {free_port() for _ in range(20)}
    for port in ports:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
    assert len(ports) > 10


class Parent(ServerProcess):
    """A shell that runs a busy child for a moment and then both wait."""

    def __init__(self, work_dir: Path) -> None:
        super().__init__("parent", work_dir, environment=None)

    def command(self) -> list[str]:
        busy = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; touch busy-done; sleep 60"
        return ["sh", "-c", f"sh -c '{busy}' & echo $! > child; wait"]

    def is_ready(self) -> bool:
        return (self.work_dir / "busy-done").exists()
