"""A story from its beginning to its end, on real brokers that a kubectl of this test tells of."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from liftbridge_proto import api_pb2
from liftbridge_testkit.cluster import ClusterKit
from liftbridge_testkit.kube.choose import Cluster
from liftbridge_testkit.kube.cluster import Kubernetes
from liftbridge_testkit.kube.journal import wall_seconds
from liftbridge_testkit.kube.load import path_of
from liftbridge_testkit.kube.release import OperatorRelease
from liftbridge_testkit.kube.results import read_all
from liftbridge_testkit.kube.stories import Stage, Story, key, story
from liftbridge_testkit.load import api

STREAMS = ("orders", "events")
PARTITIONS = 2

KUBECTL = """#!/bin/sh
cd '{folder}'
echo "$*" >> calls
case "$*" in
  *"get lbc c "*) cat lbc.json ;;
  *--watch*) for kind in pods statefulsets liftbridgeclusters streams; do
      case "$*" in *"get $kind"*) cat "$kind.watch" ;; esac
    done; exec sleep 600 ;;
  *--output=json*) echo '{{"items": []}}' ;;
  *"delete namespace"*) test ! -e stuck ;;
  *apply*) cat >> applied ;;
esac
"""


def condition(kind: str, status: str, generation: int = 1) -> dict[str, Any]:
    about = {"type": kind, "status": status, "reason": "R", "message": "."}
    return about | {"observedGeneration": generation}


def resource(brokers: list[str], *, generation: int = 1) -> dict[str, Any]:
    listener = {"name": "outside", "address": brokers[0], "brokers": ["", *brokers]}
    return {
        "kind": "LiftbridgeCluster",
        "metadata": {"name": "c", "uid": "u", "generation": generation},
        "spec": {"replicas": 3, "image": "b:1", "tls": {"mode": "Disabled"}},
        "status": {
            "observedGeneration": generation,
            "conditions": [condition("Ready", "True")],
            "listeners": [listener],
        },
    }


def pod(number: int) -> dict[str, Any]:
    return {
        "kind": "Pod",
        "metadata": {"name": f"c-{number}", "uid": f"u{number}"},
        "spec": {"nodeName": "n1", "containers": [{"name": "broker", "image": "b:1"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }


class Place:
    """Real brokers, and a kubectl that tells of them."""

    def __init__(self, folder: Path, brokers: list[str]) -> None:
        self.folder = folder
        self.brokers = brokers
        program = folder / "kubectl"
        program.write_text(KUBECTL.format(folder=folder))
        program.chmod(0o755)
        self.tell(resource(brokers))
        kubernetes = Kubernetes(Cluster.GIVEN, {"PATH": f"{folder}:/usr/bin:/bin"})
        operator = OperatorRelease(kubernetes)
        self.stage = Stage(kubernetes, operator, "b:1", "b:2", "o:1", folder / "results")

    def tell(self, body: dict[str, Any]) -> None:
        sets = {"kind": "StatefulSet", "metadata": {"name": "c"}, "spec": {"replicas": 3}}
        (self.folder / "lbc.json").write_text(json.dumps(body))
        for name, bodies in {
            "pods": [pod(number) for number in range(3)],
            "statefulsets": [sets],
            "liftbridgeclusters": [body],
            "streams": [],
        }.items():
            lines = [json.dumps({"type": "ADDED", "object": one}) + "\n" for one in bodies]
            (self.folder / f"{name}.watch").write_text("".join(lines))


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterKit]:
    with ClusterKit(tmp_path_factory.mktemp("brokers"), has_proxies=False) as cluster:
        cluster.until(lambda: len(cluster.metadata().brokers) == 3, "all known")
        yield cluster


@pytest.fixture
def place(tmp_path: Path, brokers: ClusterKit) -> Iterator[Place]:
    with brokers["b1"].channel() as channel:
        for stream in STREAMS:
            request = api_pb2.CreateStreamRequest(
                name=stream, subject=stream, partitions=PARTITIONS, replicationFactor=3
            )
            api(channel).CreateStream(request, timeout=10)
        yield Place(tmp_path, [broker.address for broker in brokers.brokers.values()])
        for stream in STREAMS:
            api(channel).DeleteStream(api_pb2.DeleteStreamRequest(name=stream), timeout=10)


def result_of(place: Place) -> Any:
    (one,) = read_all(key(), place.stage.folder).values()
    return one


def played(place: Place, act: Callable[[Story], object] = bool, *, is_ready: bool = True) -> None:
    """A story with one deed in it."""
    with story(place.stage, "a", stream={"partitions": PARTITIONS}, is_ready=is_ready) as s:
        act(s)


def rest(s: Story) -> None:
    with s.marked("calm"):
        s.await_acks(more=3)


def lose(s: Story) -> None:
    """Stop publishing, and claim one more acknowledgement than there was."""
    assert s.load is not None
    s.load.stop()
    about = {"t": wall_seconds(), "p": 9, "s": 0}
    lines = [about | {"e": "sent", "n": 64}, about | {"e": "acked", "o": 10**6}]
    with path_of(s.folder, "orders", 1).open("a") as journal:
        journal.writelines(json.dumps(line) + "\n" for line in lines)


def test_story_that_holds_leaves_a_result_and_what_its_test_may_still_need(place: Place) -> None:
    played(place, rest)
    one = result_of(place)
    assert one.passed
    assert one.counts["acked"] == one.counts["stored"] == one.counts["delivered"] >= 24
    assert list(one.gaps) == ["calm"]
    assert 0 < one.gaps["calm"] < 5
    assert set(one.marks) == {"ready from nothing", "calm"}
    left = place.stage.folder / key()
    assert {path.name for path in left.iterdir()} == {"a.json", "a"}
    assert (left / "a" / "orders-1.jsonl").exists()
    assert "namespace: story-a" in (place.folder / "applied").read_text()
    calls = (place.folder / "calls").read_text().splitlines()
    assert calls[-1].startswith("delete namespace story-a")


def test_planted_loss_fails_a_story(place: Place) -> None:
    with pytest.raises(AssertionError, match=r"orders/1: acked: .* is missing"):
        played(place, lose)
    assert not result_of(place).passed
    assert (place.stage.folder / key() / "a" / "orders-1.jsonl").exists()


def test_status_that_claims_too_much_fails_a_story(place: Place) -> None:
    place.tell(resource(place.brokers, generation=2))
    with pytest.raises(AssertionError, match="ready by a condition of 1"):
        played(place)
    assert not result_of(place).passed


def test_what_a_story_runs_into_and_leaves_behind_is_kept(place: Place) -> None:
    def act(_story: Story) -> None:
        (place.folder / "stuck").touch()
        raise ValueError("a broken story")

    with pytest.raises(ValueError, match="a broken story"):
        played(place, act, is_ready=False)
    failures = result_of(place).failures
    assert failures[0] == "ValueError: a broken story"
    assert failures[1].startswith("not removed: ")
