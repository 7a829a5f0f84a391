"""Start, reload and end of the real program: one line for each refusal, deadlines, signals."""

import json
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic

import grpc
import pytest

from liftbridge_client import connect_admin_sync
from liftbridge_client.errors import LiftbridgeError
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import admin_pb2, admin_pb2_grpc
from liftbridge_testkit.certs import Authority
from liftbridge_testkit.checker import History, check
from liftbridge_testkit.load import GrpcPublisher, read_log
from liftbridge_testkit.processes import Broker, NatsServer, free_port
from liftbridge_testkit.world import World


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """One NATS server for all brokers of this file."""
    with NatsServer(tmp_path_factory.mktemp("nats")) as running:
        yield running


# End.


def test_signal_ends_publishers_and_subscribers_in_time(tmp_path: Path, nats: NatsServer) -> None:
    history = History()
    with Broker(tmp_path, nats_url=nats.url) as broker, broker.channel() as channel:
        world = World(channel)
        stream = world.create()
        idle = World(channel)
        idle.create()
        subscription = idle.subscribe()
        publisher = GrpcPublisher(history.new_publisher(), broker.address, stream)
        publisher.start()
        publisher.wait_for(500)
        began = monotonic()
        broker.signal(signal.SIGTERM)
        with pytest.raises(grpc.RpcError) as ended:
            next(subscription)
        assert broker.wait() == 0
        assert monotonic() - began < 5.0
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        assert ended.value.details() == "commit log was closed"
        publisher.join()
        acknowledged = publisher.done_count
    assert "is_clean=True" in broker.log_text()
    assert (broker.data_dir / "clean").exists()
    with broker, broker.channel() as channel:
        log = read_log(channel, stream)
        assert check(history, log) == []
        assert len(log) >= acknowledged
    assert "is_clean=True partitions=2" in broker.log_text()


def test_stuck_client_is_cut_off_at_the_deadline(tmp_path: Path, nats: NatsServer) -> None:
    config = {"shutdown.timeout": "1s"}
    with Broker(tmp_path, nats_url=nats.url, config=config) as broker, stuck(broker):
        began = monotonic()
        assert broker.stop() == 0
        assert 0.9 < monotonic() - began < 3.0
    assert "drain_timed_out" in broker.log_text()
    assert "is_clean=True" in broker.log_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_speeds_up(tmp_path: Path, nats: NatsServer, number: signal.Signals) -> None:
    config = {"shutdown.timeout": "20s"}
    with Broker(tmp_path, nats_url=nats.url, config=config) as broker, stuck(broker):
        began = monotonic()
        broker.signal(signal.SIGTERM)
        broker.wait_until(lambda: "broker_draining" in broker.log_text(), "draining")
        broker.signal(number)
        assert broker.wait() == 0
        assert monotonic() - began < 5.0
    assert "is_clean=True" in broker.log_text()


@contextmanager
def stuck(broker: Broker) -> Iterator[None]:
    """A client that subscribes to more than fits its window and reads none of it."""
    # Else gRPC widens the window while bytes flow, and may take all of them before the broker ends.
    narrow = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_536))
    with grpc.insecure_channel(broker.address, narrow) as channel:
        world = World(channel)
        world.create()
        world.publish_many([bytes(500_000)] * 40)
        subscription = world.subscribe(startPosition=api_pb2.StartPosition.EARLIEST)
        broker.wait_until(lambda: broker.metric("liftbridge_buffered_bytes ") > 0, "held up")
        yield
        subscription.cancel()  # type: ignore[attr-defined] # a call is an iterator and a future


# Start.


def refusal(broker: Broker) -> str:
    """What a broker that cannot start says; exactly one line beside the log events, code 1."""
    broker.spawn()
    assert broker.wait(seconds_max=20) == 1
    text = broker.log_text()
    assert "Traceback" not in text
    (line,) = [line for line in text.splitlines() if line.startswith("liftbridge-broker: ")]
    return line


def test_port_in_use_refuses_the_start(tmp_path: Path, nats: NatsServer) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = refusal(Broker(tmp_path, nats_url=nats.url, port=port))
    assert f"cannot bind 127.0.0.1:{port}" in line


def test_metrics_port_in_use_refuses_the_start(tmp_path: Path, nats: NatsServer) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        config = {"metrics.listen": address}
        line = refusal(Broker(tmp_path, nats_url=nats.url, config=config))
    assert f"metrics.listen: cannot bind {address}" in line


def test_metrics_port_of_the_default_is_left_to_who_has_it(
    tmp_path: Path, nats: NatsServer
) -> None:
    logs = []
    with ExitStack() as stack:
        for number in range(3):
            work_dir = tmp_path / str(number)
            work_dir.mkdir()
            config = {"metrics.listen": None, "clustering.namespace": f"metrics-{number}"}
            broker = stack.enter_context(Broker(work_dir, nats_url=nats.url, config=config))
            logs.append(broker.log_text())
    assert sum("metrics_not_served" in text for text in logs) >= 2


def test_locked_directory_refuses_the_start(tmp_path: Path, nats: NatsServer) -> None:
    with Broker(tmp_path, nats_url=nats.url) as holder:
        second = Broker(tmp_path / "second", nats_url=nats.url, data_dir=holder.data_dir)
        assert "is in use by" in refusal(second)


def test_absent_nats_refuses_the_start_after_bounded_attempts(tmp_path: Path) -> None:
    url = f"nats://127.0.0.1:{free_port()}"
    assert "cannot connect to NATS after" in refusal(Broker(tmp_path, nats_url=url))


def test_bad_certificate_refuses_the_start(tmp_path: Path, nats: NatsServer) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    config = {"tls.cert": str(bad), "tls.key": str(bad)}
    line = refusal(Broker(tmp_path, nats_url=nats.url, config=config))
    assert str(bad) in line


def test_signal_during_start_ends_it(tmp_path: Path) -> None:
    with socket.socket() as silent:
        # Takes connections and never greets: the start hangs in its first attempt.
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        broker = Broker(tmp_path, nats_url=f"nats://127.0.0.1:{silent.getsockname()[1]}")
        broker.spawn()
        with broker:
            broker.wait_until(lambda: "open_files_limited" in broker.log_text(), "at work")
            began = monotonic()
            assert broker.stop() == 0
            assert monotonic() - began < 3.0
    assert "broker_started" not in broker.log_text()


# Reload.


def reload(broker: Broker, **settings: object) -> None:
    """Write another configuration and have the broker read it."""
    path = broker.work_dir / f"{broker.name}.yaml"
    old = json.loads(path.read_text())
    path.write_text(json.dumps({**old, **{k.replace("_", "."): v for k, v in settings.items()}}))
    told = 'liftbridge_transitions_total{kind="configuration_reload'
    read = broker.metric(told)
    broker.signal(signal.SIGHUP)
    broker.wait_until(lambda: broker.metric(told) > read, "configuration read")


def code_of(act: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as refused:
        act()
    return refused.value.code(), refused.value.details() or ""


def test_reload_puts_limits_into_force(tmp_path: Path, nats: NatsServer) -> None:
    with Broker(tmp_path, nats_url=nats.url) as broker, broker.channel() as channel:
        world = World(channel)
        world.create()
        world.publish()
        reload(broker, subscriptions_max=1, streams_max_count=1, cursors_stream_partitions=1)
        assert "configuration_restart_needed" in broker.log_text()
        subscription = world.subscribe()
        code, text = code_of(world.subscribe)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "subscriptions.max" in text
        code, text = code_of(World(channel).create)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "streams.max.count" in text
        assert broker.metric("liftbridge_subscriptions ") == 1
        subscription.cancel()  # type: ignore[attr-defined] # a call is an iterator and a future


def test_reload_puts_disk_limits_and_log_level_into_force(tmp_path: Path, nats: NatsServer) -> None:
    with Broker(tmp_path, nats_url=nats.url) as broker, broker.channel() as channel:
        world = World(channel)
        world.create()
        world.publish()
        reload(broker, data_free_min_bytes="1000000GiB")
        broker.wait_until(lambda: "disk_full" in broker.log_text(), "full")
        code, _ = code_of(world.publish)
        assert code is grpc.StatusCode.UNAVAILABLE
        assert broker.metric('liftbridge_publish_rejected_total{reason="storage_full"}') == 1
        reload(broker, data_free_min_bytes="1MiB", logging_level="error")
        broker.wait_until(lambda: broker.metric("liftbridge_disk_full") == 0, "usable")
        world.publish()
        assert "disk_space_regained" not in broker.log_text()


def test_operators_have_the_configuration_read_and_are_told_what_came_of_it(
    tmp_path: Path, nats: NatsServer
) -> None:
    with (
        Broker(tmp_path, nats_url=nats.url) as broker,
        connect_admin_sync(broker.admin_address) as admin,
    ):
        path = broker.work_dir / f"{broker.name}.yaml"
        old = json.loads(path.read_text())
        changed = {**old, "subscriptions.max": 7, "cursors.stream.partitions": 1}
        path.write_text(json.dumps(changed))
        told = admin.reload(broker.name)
        assert told == (("subscriptions.max",), ("cursors.stream.partitions",))
        found = {one.key: one for one in admin.settings(broker.name)}
        limit, waiting = found["subscriptions.max"], found["cursors.stream.partitions"]
        assert (limit.value, limit.is_dynamic, limit.needs_restart) == ("7", True, False)
        assert str(path) in limit.source
        assert (waiting.is_dynamic, waiting.needs_restart) == (False, True)
        path.write_text(json.dumps({**old, "nonsense": 1}))
        with pytest.raises(LiftbridgeError, match="nonsense"):
            admin.reload(broker.name)
        assert {one.key: one for one in admin.settings(broker.name)} == found


def test_broker_without_a_cluster_reads_no_configuration_anew(
    tmp_path: Path, nats: NatsServer
) -> None:
    waits = ("--set", "clustering.raft.bootstrap.wait=true")
    broker = Broker(tmp_path, nats_url=nats.url, bootstrap=waits)
    broker.spawn()
    with broker, grpc.insecure_channel(broker.admin_address) as channel:
        reload_settings = admin_pb2_grpc.AdminStub(channel).ReloadSettings
        code, text = code_of(
            lambda: reload_settings(
                admin_pb2.ReloadSettingsRequest(), timeout=10, wait_for_ready=True
            )
        )
        assert (code, text) == (grpc.StatusCode.UNAVAILABLE, "the broker is starting")
        assert broker.is_alive()


def test_wrong_file_changes_nothing(tmp_path: Path, nats: NatsServer) -> None:
    with Broker(tmp_path, nats_url=nats.url) as broker, broker.channel() as channel:
        reload(broker, nonsense=1, streams_max_count=1)
        assert "configuration_reload_refused" in broker.log_text()
        World(channel).create()
        World(channel).create()


def test_reload_reads_the_certificate_anew(tmp_path: Path, nats: NatsServer) -> None:
    authority = Authority(tmp_path / "ca")
    issued = authority.issue("server")
    config = {"tls.cert": str(issued.cert), "tls.key": str(issued.key)}
    broker = Broker(tmp_path, nats_url=nats.url, config=config)
    broker.spawn()
    with broker:
        broker.wait_until(lambda: "broker_started" in broker.log_text(), "started")
        before = ssl.get_server_certificate(("127.0.0.1", broker.port))
        authority.issue("server")
        reload(broker)
        assert "certificate_reloaded" in broker.log_text()
        after = ssl.get_server_certificate(("127.0.0.1", broker.port))
        assert after != before
        issued.cert.write_text("nothing")
        reload(broker)
        assert f"{issued.cert} holds no certificate" in broker.log_text()
        assert ssl.get_server_certificate(("127.0.0.1", broker.port)) == after


def test_certificate_that_is_replaced_is_read_without_a_signal(
    tmp_path: Path, nats: NatsServer
) -> None:
    authority = Authority(tmp_path / "ca")
    issued = authority.issue("server")
    config = {"tls.cert": str(issued.cert), "tls.key": str(issued.key)}
    broker = Broker(tmp_path, nats_url=nats.url, config=config)
    broker.spawn()
    with broker:
        broker.wait_until(lambda: "broker_started" in broker.log_text(), "started")
        before = ssl.get_server_certificate(("127.0.0.1", broker.port))
        authority.issue("server")
        # The new key may be there before its certificate: what does not fit is left aside.
        broker.wait_until(lambda: "certificate_reloaded" in broker.log_text(), "reloaded")
        assert ssl.get_server_certificate(("127.0.0.1", broker.port)) != before


# Bugs.

PLANTED = """#!{python}
import sys
import uvloop

make = uvloop.new_event_loop


def fail():
    raise RuntimeError("planted")


def make_failing():
    loop = make()
    loop.call_later(1.0, fail)
    return loop


uvloop.new_event_loop = make_failing
from liftbridge_broker.cli import main

sys.exit(main(sys.argv[1:]))
"""


def test_bug_is_told_once_and_ends_the_process(tmp_path: Path, nats: NatsServer) -> None:
    script = tmp_path / "failing"
    script.write_text(PLANTED.format(python=sys.executable))
    script.chmod(0o755)
    broker = Broker(tmp_path, nats_url=nats.url, binary=script, config={"metrics.listen": "off"})
    broker.spawn()
    assert broker.wait(seconds_max=20) == 1
    lines = broker.log_text().splitlines()
    (told,) = [line for line in lines if "bug_found" in line]
    assert "RuntimeError: planted" in told
    assert lines[-1].startswith("liftbridge-broker: stopped because of a bug: RuntimeError")
    assert not (broker.data_dir / "clean").exists()


# Libraries.


@pytest.mark.parametrize("implementation", ["upb", "python"])
def test_a_library_without_its_compiled_part_is_reported(
    tmp_path: Path, nats: NatsServer, implementation: str
) -> None:
    forced = {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation}
    with Broker(tmp_path, nats_url=nats.url, environment=forced) as broker:
        is_reported = "library_slow" in broker.log_text()
        assert is_reported == (implementation == "python")
        assert ("library=protobuf" in broker.log_text()) == is_reported
        assert "library=google-crc32c" not in broker.log_text()
