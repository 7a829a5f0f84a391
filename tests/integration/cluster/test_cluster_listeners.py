"""Several listeners on real brokers: who comes by one is told the addresses of that one."""

import json
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from liftbridge_client import connect_sync
from liftbridge_proto import api_pb2
from liftbridge_testkit.certs import Authority
from liftbridge_testkit.load import api
from liftbridge_testkit.processes import Broker, NatsServer, ProcessError, free_port

NAMES = ("b1", "b2")


def told_at(port: int, trust: grpc.ChannelCredentials | None = None) -> dict[str, str]:
    """Addresses of brokers as FetchMetadata tells them at a port."""
    address = f"localhost:{port}"
    channel = grpc.secure_channel(address, trust) if trust else grpc.insecure_channel(address)
    with channel:
        answer = api(channel).FetchMetadata(api_pb2.FetchMetadataRequest(), timeout=5)
    return {one.id: f"{one.host}:{one.port}" for one in answer.brokers}


class Pair:
    """Two brokers with a listener `outside`, the first with `secure` as well.

    Attributes:
        brokers: By name.
        outside: Ports of `outside`, by name.
        secure: Port of `secure`.
        authority: Issued the certificate of `secure`.
    """

    def __init__(self, work_dir: Path, nats: NatsServer) -> None:
        self.authority = Authority(work_dir / "ca")
        issued = self.authority.issue("server")
        self.outside = {name: free_port() for name in NAMES}
        self.secure = free_port()
        self._work_dir = work_dir
        self.brokers: dict[str, Broker] = {}
        for name in NAMES:
            self.tell(name, f"outside=127.0.0.1:{self.outside[name]}")
            listeners = [f"outside=127.0.0.1:{self.outside[name]}"]
            more = {}
            if name == "b1":
                listeners.append(f"secure=127.0.0.1:{self.secure}")
                more = {"tls.cert": str(issued.cert), "tls.key": str(issued.key)}
                more |= {"listen.tls": "false", "listeners.plain": "outside"}
            config = {
                "data.reserve.bytes": 0,
                "data.free.min.bytes": 0,
                "listeners": listeners,
                "listeners.advertised.file": str(self.told(name)),
                **more,
            }
            self.brokers[name] = Broker(
                work_dir,
                nats_url=nats.url,
                name=name,
                config=config,
                bootstrap=("--raft-bootstrap-peers", ",".join(NAMES)),
            )

    def told(self, name: str) -> Path:
        return self._work_dir / f"{name}.listeners"

    def tell(self, name: str, text: str) -> None:
        """Replace the file with addresses, as kubelets do."""
        fresh = self.told(name).with_suffix(".new")
        fresh.write_text(text)
        fresh.rename(self.told(name))

    def brokers_at(self, port: int, *, is_secure: bool = False) -> dict[str, str]:
        """Addresses of brokers at a port."""
        trust = grpc.ssl_channel_credentials(self.authority.cert.read_bytes())
        return told_at(port, trust if is_secure else None)

    def until_told(self, port: int, wanted: dict[str, str], *, is_secure: bool = False) -> None:
        self.brokers["b1"].wait_until(
            lambda: self.brokers_at(port, is_secure=is_secure) == wanted, f"told {wanted}"
        )


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with NatsServer(tmp_path) as nats:
        made = Pair(tmp_path, nats)
        try:
            for broker in made.brokers.values():
                broker.spawn()
            for broker in made.brokers.values():
                broker.wait_until(broker.is_ready, "ready")
            yield made
        finally:
            for broker in made.brokers.values():
                broker.kill()


def test_each_listener_tells_its_own_addresses_of_all_brokers(pair: Pair) -> None:
    mains = {name: f"127.0.0.1:{pair.brokers[name].port}" for name in NAMES}
    outsides = {name: f"127.0.0.1:{pair.outside[name]}" for name in NAMES}
    pair.until_told(pair.brokers["b1"].port, mains)
    pair.until_told(pair.outside["b1"], outsides)
    pair.until_told(pair.outside["b2"], outsides)
    assert next(iter(pair.brokers_at(pair.outside["b2"]))) == "b2"  # whom one asked comes first
    assert pair.brokers_at(pair.secure, is_secure=True) == {}  # not told of in the file

    with connect_sync(f"127.0.0.1:{pair.outside['b1']}") as client:
        stream = client.streams.create("orders", partitions=2, replication=1)
        assert [stream.publish(b"x", partition=number).offset for number in (0, 1)] == [0, 0]


def test_addresses_that_change_are_told_without_a_restart(pair: Pair) -> None:
    outsides = {name: f"127.0.0.1:{pair.outside[name]}" for name in NAMES}
    pair.until_told(pair.outside["b1"], outsides)

    pair.tell("b2", "outside=node-2.example.com:30392\nelsewhere=h:1\n")
    pair.tell("b1", f"outside=:{pair.outside['b1']},secure=:0")
    moved = {"b1": f"127.0.0.1:{pair.outside['b1']}", "b2": "node-2.example.com:30392"}
    pair.until_told(pair.outside["b1"], moved)
    # The second broker has no such listener.
    pair.until_told(pair.secure, {"b1": f"127.0.0.1:{pair.secure}"}, is_secure=True)

    pair.tell("b2", "outside")
    b2 = pair.brokers["b2"]
    b2.wait_until(lambda: "configuration_reload_refused" in b2.log_text(), "told of the fault")
    assert pair.brokers_at(pair.outside["b1"]) == moved

    pair.told("b2").unlink()
    pair.until_told(pair.outside["b1"], {"b1": moved["b1"]})
    b2.kill()
    pair.tell("b2", "outside=node-2.example.com:1")
    b2.start()
    pair.until_told(pair.outside["b1"], moved | {"b2": "node-2.example.com:1"})


def test_one_certificate_serves_all_listeners_and_all_close(pair: Pair) -> None:
    b1 = pair.brokers["b1"]
    before = ssl.get_server_certificate(("127.0.0.1", pair.secure))
    pair.authority.issue("server")
    b1.signal(signal.SIGHUP)
    b1.wait_until(lambda: "certificate_reloaded" in b1.log_text(), "reloaded")
    assert ssl.get_server_certificate(("127.0.0.1", pair.secure)) != before
    with pytest.raises(OSError, match=r"SSL|EOF|reset"):
        ssl.get_server_certificate(("127.0.0.1", b1.port))

    assert b1.stop() == 0
    for port in (b1.port, pair.outside["b1"], pair.secure):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)


def test_addresses_in_the_configuration_are_told_after_a_reload(tmp_path: Path) -> None:
    with NatsServer(tmp_path) as nats:
        port = free_port()
        config = {"listeners": f"out=127.0.0.1:{port}", "listeners.advertised": "out=a.example:1"}
        with Broker(tmp_path, nats_url=nats.url, config=config) as broker:
            path = tmp_path / "broker.yaml"
            fresh = {"listeners.advertised": "out=a.example:2"}
            path.write_text(json.dumps(json.loads(path.read_text()) | fresh))
            assert told_at(port) == {"broker": "a.example:1"}
            broker.signal(signal.SIGHUP)
            broker.wait_until(lambda: "a.example:2" in broker.log_text(), "told anew")
            assert told_at(port) == {"broker": "a.example:2"}


def test_port_of_a_listener_in_use_refuses_the_start(tmp_path: Path) -> None:
    with NatsServer(tmp_path) as nats, socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = {"listeners": f"outside=127.0.0.1:{port}"}
        broker = Broker(tmp_path, nats_url=nats.url, config=config)
        with pytest.raises(ProcessError, match="listeners: outside: cannot bind"):
            broker.start()
