"""What brokers tell while they look for a cluster or a quorum, and where they are found."""

import json
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from liftbridge_proto import api_pb2
from liftbridge_testkit.cluster import BASE_CONFIG, CALL_SECONDS, ClusterKit
from liftbridge_testkit.load import api
from liftbridge_testkit.processes import Broker, NatsServer

WAITS = ("--set", "clustering.raft.bootstrap.wait=true")


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """One NATS server; each test has a namespace of its own."""
    with NatsServer(tmp_path_factory.mktemp("nats")) as running:
        yield running


@contextmanager
def spawned(broker: Broker) -> Iterator[Broker]:
    """A broker whose process runs, ready or not."""
    broker.spawn()
    try:
        yield broker
    finally:
        broker.kill()


def asked(broker: Broker, path: str) -> tuple[int, dict[str, object]]:
    """Status and body of a health page; 0 while nobody answers."""
    url = f"http://127.0.0.1:{broker.metrics_port}{path}"
    try:
        with urllib.request.urlopen(url, timeout=CALL_SECONDS) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as refusal:
        return refusal.code, json.loads(refusal.read())
    except OSError:
        return 0, {}


def is_waiting(broker: Broker, reason: str) -> bool:
    """Whether a broker is alive, not ready for one reason, and lets nobody in."""
    if asked(broker, "/readyz") != (503, {"ready": False, "reasons": [reason]}):
        return False
    assert asked(broker, "/healthz")[0] == 200
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", broker.port), timeout=CALL_SECONDS)
    return True


def test_health_answers_while_a_cluster_is_awaited(tmp_path: Path, nats: NatsServer) -> None:
    waiter = Broker(tmp_path, nats_url=nats.url, bootstrap=WAITS)
    with spawned(waiter):
        waiter.wait_until(
            lambda: is_waiting(waiter, "cluster: waiting for a cluster"), "waiting for a cluster"
        )
        url = f"http://127.0.0.1:{waiter.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=CALL_SECONDS) as answer:
            assert "liftbridge_broker_ready 0" in answer.read().decode()
        assert waiter.stop() == 0


def test_health_answers_while_nats_is_away(tmp_path: Path) -> None:
    with NatsServer(tmp_path) as nats:
        url = nats.url
    broker = Broker(tmp_path, nats_url=url)
    with spawned(broker):
        broker.wait_until(lambda: is_waiting(broker, "nats: disconnected"), "waiting for NATS")
        assert asked(broker, "/healthz")[0] == 200


def test_health_answers_while_a_metadata_leader_is_awaited(tmp_path: Path) -> None:
    with ClusterKit(tmp_path) as cluster:
        assert cluster.stop() == [0, 0, 0]
        first = cluster["b1"]
        with spawned(first):
            first.wait_until(
                lambda: is_waiting(first, "cluster: waiting for the metadata leader"),
                "waiting for the metadata leader",
            )
            cluster.start("b2")
            first.wait_until(lambda: asked(first, "/readyz")[0] == 200, "ready")


def seed(work_dir: Path, nats: NatsServer, name: str, *flags: str) -> Broker:
    """A broker with flags that say how its cluster begins, in a namespace of its test."""
    return Broker(
        work_dir,
        nats_url=nats.url,
        name=name,
        config={**BASE_CONFIG, "clustering.namespace": work_dir.name},
        bootstrap=flags or ("--raft-bootstrap-seed",),
    )


def await_told(broker: Broker, pattern: str) -> None:
    """Wait until the log of a broker has a line like this."""
    broker.wait_until(lambda: re.search(pattern, broker.log_text()) is not None, pattern)


def test_two_seeds_that_start_at_once_end_as_one_cluster(tmp_path: Path, nats: NatsServer) -> None:
    first, second = seed(tmp_path, nats, "a"), seed(tmp_path, nats, "b")
    with spawned(second), spawned(first):
        for broker in (first, second):
            broker.wait_until(broker.is_ready, "ready")
            with broker.channel() as channel:
                answer = api(channel).FetchMetadata(
                    api_pb2.FetchMetadataRequest(), timeout=CALL_SECONDS
                )
            assert answer.brokers
        # Which one depends on how far apart the two come up.
        founded = [f"is_founded={one}" in first.log_text() for one in (True, False)]
        assert sorted(founded) == [False, True]
        assert founded == [f"is_founded={one}" in second.log_text() for one in (False, True)]
        assert "other_cluster_met" not in first.log_text() + second.log_text()


def test_second_history_in_a_namespace_is_told_by_both(tmp_path: Path, nats: NatsServer) -> None:
    """Two seeds that founded where they could not hear each other meet later."""
    first = seed(tmp_path, nats, "a")
    with NatsServer(tmp_path, name="other-nats") as elsewhere:
        second = seed(tmp_path, elsewhere, "b")
        with spawned(second):
            second.wait_until(second.is_ready, "ready")
            assert second.stop() == 0
    again = seed(tmp_path, nats, "b")
    with spawned(first):
        first.wait_until(first.is_ready, "ready")
        with spawned(again):
            await_told(first, "other_cluster_met.*broker=b")
            await_told(again, "other_cluster_met.*broker=a")


def test_lists_of_peers_that_differ_are_told_and_nothing_is_founded(
    tmp_path: Path, nats: NatsServer
) -> None:
    lists = {"a": "a,b", "b": "b,a,c"}
    first, second = (
        seed(tmp_path, nats, name, "--raft-bootstrap-peers", peers) for name, peers in lists.items()
    )
    with spawned(first), spawned(second):
        await_told(first, "a lists a, b; b lists a, b, c")
        await_told(second, "b lists a, b, c; a lists a, b")
        for broker in (first, second):
            assert asked(broker, "/readyz")[1]["reasons"] == ["cluster: waiting for a cluster"]
        assert second.stop() == 0
        mended = seed(tmp_path, nats, "b", "--raft-bootstrap-peers", "a,b")
        with spawned(mended):
            for broker in (first, mended):
                broker.wait_until(broker.is_ready, "ready")


def test_port_that_was_free_is_told_by_every_broker(tmp_path: Path) -> None:
    with ClusterKit(tmp_path, 2) as cluster:
        third = cluster.add("b3")
        third.port = 0
        third.spawn()
        cluster.until(lambda: "broker_started" in third.log_text(), "b3 to start")
        found = re.search(r"broker_started.*? port=(\d+)", third.log_text())
        assert found is not None
        bound = int(found[1])
        assert bound > 0
        for name in ("b1", "b2"):
            told = {broker.id: broker.port for broker in cluster.metadata(name).brokers}
            assert told["b3"] == bound
        with grpc.insecure_channel(f"127.0.0.1:{bound}") as channel:
            answer = api(channel).FetchMetadata(
                api_pb2.FetchMetadataRequest(), timeout=CALL_SECONDS
            )
        assert {broker.id: broker.port for broker in answer.brokers}["b3"] == bound
