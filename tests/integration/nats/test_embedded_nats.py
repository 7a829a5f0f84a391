"""`--embedded-nats`: the child serves, is watched, and never outlives its parent."""

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from liftbridge_broker.adapters.nats import embedded
from liftbridge_broker.adapters.nats.embedded import EmbeddedNats, EmbeddedOptions
from liftbridge_broker.adapters.nats.options import NatsOptions
from liftbridge_broker.adapters.nats.probe import reachable_server
from liftbridge_broker.errors import ConfigError, UnavailableError
from liftbridge_testkit.nats_client import nats_client, settled
from liftbridge_testkit.nats_link import RecordingObserver, frame, linked
from liftbridge_testkit.processes import NatsServer, free_port


@contextlib.asynccontextmanager
async def running(**given):
    observer = RecordingObserver()
    server = EmbeddedNats(EmbeddedOptions(**given), observer)
    await server.start()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.run())
        try:
            yield server, observer
        finally:
            await server.stop()


def is_alive(pid):
    """Whether a process runs; one that is dead and not yet waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_serves_and_ends(tmp_path):
    port = free_port()
    url = f"nats://127.0.0.1:{port}"
    async with running(server=url) as (server, observer):
        pid = server.pid
        assert observer.of("nats_server_started") == [
            {"pid": pid, "host": "127.0.0.1", "port": port}
        ]
        async with linked(NatsOptions(server_id="a", servers=(url,))) as (messaging, sink, _):
            messaging.subscribe(1, "x", "")
            await messaging.quiet._connection.flushed()
            messaging.publish_echo([frame("x", b"hello")])
            await sink.until(lambda: sink.payloads(1) == [b"hello"])
    assert server.pid is None
    assert not is_alive(pid)
    assert observer.of("nats_server_stopped") == [{"pid": pid, "code": 0}]
    assert observer.of("nats_server_died") == []


def listening():
    """Rows of the kernel's tables of TCP sockets."""
    tables = [Path(f"/proc/net/{kind}").read_text() for kind in ("tcp", "tcp6")]
    return [line.split() for table in tables for line in table.splitlines()]


async def test_listens_on_loopback_only():
    port = free_port()
    async with running(server=f"nats://127.0.0.1:{port}"):
        rows = listening()
    addresses = {row[1].partition(":")[0] for row in rows if row[1].endswith(f":{port:04X}")}
    assert addresses == {"0100007F"}


@pytest.mark.parametrize("server", ["nats://0.0.0.0:4222", "nats://nats.example:4222", "10.1.2.3"])
async def test_other_addresses_need_a_configuration_file(server):
    with pytest.raises(ConfigError, match=r"not loopback: set a configuration file in nats\.embe"):
        EmbeddedNats(EmbeddedOptions(server=server), RecordingObserver())


async def test_own_configuration_file(tmp_path):
    port = free_port()
    config = tmp_path / "nats.conf"
    config.write_text(f'host: "127.0.0.1"\nport: {port}\nmax_payload: 12345\n')
    url = f"nats://127.0.0.1:{port}"
    async with (
        running(server=url, config=str(config)),
        linked(NatsOptions(server_id="a", servers=(url,))) as (messaging, _, _),
    ):
        assert messaging.payload_bytes_max == 12345


async def refusal(**given):
    server = EmbeddedNats(EmbeddedOptions(**given), RecordingObserver())
    with pytest.raises((UnavailableError, ConfigError)) as caught:
        await server.start()
    assert server.pid is None
    return str(caught.value)


async def test_faulty_configuration_is_told_with_the_log(tmp_path):
    config = tmp_path / "nats.conf"
    config.write_text("max_payload: {\n")
    url = f"nats://127.0.0.1:{free_port()}"
    text = await refusal(server=url, config=str(config))
    assert "nats-server ended with code 1 at start" in text
    assert "Parse error" in text
    assert "is not a file" in await refusal(server=url, config=str(tmp_path / "absent.conf"))


async def test_port_of_another_server_is_not_taken_for_our_own(tmp_path):
    with NatsServer(tmp_path) as other:
        assert "address already in use" in await refusal(server=other.url)
        config = tmp_path / "own.conf"
        config.write_text(f'host: "127.0.0.1"\nport: {other.port}\n')
        assert "address already in use" in await refusal(server=other.url, config=str(config))
        assert other.is_alive()


async def test_server_that_does_not_serve_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(embedded, "READY_SECONDS_MAX", 0.3)
    silent = tmp_path / "nats-server"
    silent.write_text("#!/bin/sh\necho starting slowly\nexec sleep 100\n")
    silent.chmod(0o755)
    text = await refusal(server=f"nats://127.0.0.1:{free_port()}", program=str(silent))
    assert "does not serve" in text
    assert "starting slowly" in text


async def test_server_that_ignores_sigterm_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(embedded, "STOP_SECONDS_MAX", 0.2)
    monkeypatch.setattr(embedded, "READY_SECONDS_MAX", 0.5)
    stubborn = tmp_path / "nats-server"
    pid_file = tmp_path / "pid"
    stubborn.write_text(
        f"#!{sys.executable}\nimport os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"open({str(pid_file)!r}, 'w').write(str(os.getpid()))\ntime.sleep(100)\n"
    )
    stubborn.chmod(0o755)
    await refusal(server=f"nats://127.0.0.1:{free_port()}", program=str(stubborn))
    assert not is_alive(int(pid_file.read_text()))


async def test_missing_program_is_told(tmp_path):
    text = await refusal(server=f"nats://127.0.0.1:{free_port()}", program=str(tmp_path / "absent"))
    assert "ended with code" in text


async def test_child_that_dies_is_started_again(tmp_path):
    url = f"nats://127.0.0.1:{free_port()}"
    async with (
        running(server=url) as (server, observer),
        linked(NatsOptions(server_id="a", servers=(url,), reconnect_wait_ms=20)) as (m, sink, _),
    ):
        first = server.pid
        os.kill(first, signal.SIGKILL)
        await sink.until(lambda: not m.is_connected)
        await sink.until(lambda: m.is_connected)
        assert server.pid != first
        assert observer.of("nats_server_died") == [{"pid": first, "code": -9}]
        await observer.until(lambda: len(observer.of("nats_server_started")) == 2)


async def test_child_that_keeps_dying_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(embedded, "RESTART_WAIT_SECONDS", 0.001)
    config = tmp_path / "nats.conf"
    port = free_port()
    config.write_text(f'host: "127.0.0.1"\nport: {port}\n')
    observer = RecordingObserver()
    server = EmbeddedNats(
        EmbeddedOptions(server=f"nats://127.0.0.1:{port}", config=str(config)), observer
    )
    await server.start()
    config.write_text("port: {")
    os.kill(server.pid, signal.SIGKILL)
    with pytest.raises(UnavailableError, match="ended 6 times in a row"):
        await server.run()
    assert len(observer.of("nats_server_died")) == 6
    await server.stop()


async def test_stop_during_the_wait_before_a_restart(tmp_path, monkeypatch):
    monkeypatch.setattr(embedded, "RESTART_WAIT_SECONDS", 60.0)
    started = time.monotonic()
    async with running(server=f"nats://127.0.0.1:{free_port()}") as (server, observer):
        os.kill(server.pid, signal.SIGKILL)
        await observer.until(lambda: observer.of("nats_server_died"))
    assert time.monotonic() - started < 30.0
    assert server.pid is None


PARENT = """
import asyncio, sys
from liftbridge_broker.adapters.nats.embedded import EmbeddedNats, EmbeddedOptions
class Observer:
    def transition(self, kind, fields):
        print(fields["pid"], flush=True)
async def main():
    server = EmbeddedNats(EmbeddedOptions(server=sys.argv[1]), Observer())
    await server.start()
    await server.run()
asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_child_ends_with_a_parent_that_dies(number):
    port = free_port()
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, f"nats://127.0.0.1:{port}"], stdout=subprocess.PIPE
    )
    with parent:
        pid = int(parent.stdout.readline())
        handle = os.pidfd_open(pid)
        try:
            parent.send_signal(number)
            # The handle becomes readable when the process ends, whoever its parent is by then.
            assert select.select([handle], [], [], 10.0)[0]
        finally:
            os.close(handle)
    assert not is_alive(pid)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


async def test_interrupt_of_the_terminal_does_not_reach_the_child():
    async with running(server=f"nats://127.0.0.1:{free_port()}") as (server, _):
        assert os.getpgid(server.pid) != os.getpgid(0)


async def test_log_of_the_child_appears_on_request():
    for shows_log in (True, False):
        # The logger of the module is bound when the adapter is made, within the capture.
        with capture_logs() as lines:
            async with running(server=f"nats://127.0.0.1:{free_port()}", shows_log=shows_log):
                pass
        texts = [line["line"] for line in lines if line["event"] == "nats_server_log"]
        assert any("Server is ready" in text for text in texts) is shows_log
        assert all(line["log_level"] == "debug" for line in lines)


@pytest.mark.parametrize("user", ["broker", 'odd "name"'])
async def test_anybody_but_brokers_is_kept_off_their_subjects(user, tmp_path):
    url, password = f"nats://127.0.0.1:{free_port()}", 'a"b\\c $d'
    own = NatsOptions(server_id="a", servers=(url,), user=user, password=password)
    anybody = NatsOptions(server_id="b", servers=(url,))
    inside = "_LIFTBRIDGE.liftbridge-default.b.a.meta"
    async with (
        running(server=url, user=user, password=password),
        linked(own) as (broker, heard, _),
        nats_client(url) as stranger,
    ):
        broker.subscribe(1, inside, "")
        broker.subscribe(2, "orders", "")
        await broker.quiet._connection.flushed()
        await stranger.publish(inside, b"forged")
        await stranger.publish("orders", b"apples")
        await heard.until(lambda: heard.payloads(2) == [b"apples"])
        assert heard.payloads(1) == []
        eavesdrops = await stranger.subscribe(">")
        await settled(stranger)
        broker.publish_echo([frame(inside, b"vote"), frame("orders", b"pears")])
        subjects = [(await eavesdrops.next_msg(timeout=10)).subject]
        while subjects[-1] != "orders":
            subjects.append((await eavesdrops.next_msg(timeout=10)).subject)
        assert inside not in subjects
        assert await reachable_server(anybody) == ""


async def test_server_that_keeps_nobody_off_the_subjects_of_brokers_is_told():
    url = f"nats://127.0.0.1:{free_port()}"
    options = NatsOptions(server_id="a", servers=("nats://127.0.0.1:1", url))
    assert await reachable_server(options) == ""
    async with running(server=url):
        assert await reachable_server(options) == url.removeprefix("nats://")


async def test_no_file_with_a_password_is_left(tmp_path, monkeypatch):
    url = f"nats://127.0.0.1:{free_port()}"
    monkeypatch.setattr(embedded.tempfile, "tempdir", str(tmp_path))
    async with running(server=url, password="secret") as (server, observer):
        assert list(tmp_path.iterdir()) == []
        os.kill(server.pid, signal.SIGKILL)
        await observer.until(lambda: len(observer.of("nats_server_started")) == 2)
        assert list(tmp_path.iterdir()) == []
        own = NatsOptions(server_id="a", servers=(url,), user="broker", password="secret")
        async with linked(own):
            pass


@pytest.mark.parametrize(
    "greeting", [b"", b"HTTP/1.1 200 OK\r\n\r\n", b"INFO {\r\n", b"INFO {}\r\n"]
)
async def test_whatever_answers_to_a_stranger_does_not_end_the_broker(greeting):
    ended = asyncio.Event()

    async def answer(reader, writer):
        writer.write(greeting)
        while not greeting and await reader.read(100):
            pass
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        ended.set()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        options = NatsOptions(server_id="a", servers=(f"nats://127.0.0.1:{port}",))
        assert await reachable_server(options) == ""
        async with asyncio.timeout(10):
            await ended.wait()
