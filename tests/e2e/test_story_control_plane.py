"""The API server and NATS go away under load; and first boots that go wrong."""

import signal

import pytest

from liftbridge_testkit.kube.acts import NATS
from liftbridge_testkit.kube.timeline import reasons

pytestmark = [pytest.mark.e2e, pytest.mark.full]

MISSING_IMAGE = "liftbridge.test/broker:there-is-none"
AWAY_SECONDS = 60
NATS_SERVER = """
apiVersion: v1
kind: Service
metadata: {name: nats}
spec: {selector: {app: nats}, ports: [{port: 4222}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: nats}
spec:
  replicas: 1
  selector: {matchLabels: {app: nats}}
  template:
    metadata: {labels: {app: nats}}
    spec:
      automountServiceAccountToken: false
      securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
      terminationGracePeriodSeconds: 1
      containers:
      - name: nats
        image: IMAGE
        command: [nats-server, --addr, 0.0.0.0, --port, "4222"]
        readinessProbe: {tcpSocket: {port: 4222}, periodSeconds: 1}
        securityContext:
          allowPrivilegeEscalation: false
          capabilities: {drop: [ALL]}
"""


@pytest.mark.story("api-server-restarted", minutes=4)
def test_api_server_is_restarted_in_a_roll(play):
    with play() as s:
        with s.marked("roll"):
            s.change(image=s.stage.next_image)
            s.until(lambda: s.cluster["status"].get("disruption"), "that a broker restarts", 120)
            s.restart_api_server()
            s.await_ready()
        s.check_roll("roll", brokers=3)


@pytest.mark.story("embedded-nats-killed", minutes=3)
def test_all_servers_of_embedded_nats_are_killed(play):
    with play() as s, s.marked("NATS killed"):
        for number in range(3):
            s.signal(number, signal.SIGKILL, NATS)
        s.await_acks(more=20)
        s.await_ready()
    assert s.result.gaps["NATS killed"] < 60


@pytest.mark.story("external-nats-lost", minutes=5)
def test_all_external_nats_servers_are_lost_for_a_minute(play):
    nats = {"embedded": None, "servers": ["nats://nats:4222"]}
    with play(spec={"nats": nats}, is_ready=False) as s:
        s.kubectl("apply", "-f", "-", text=NATS_SERVER.replace("IMAGE", s.stage.image))
        s.await_ready()
        s.start_load()
        with s.marked("NATS lost"):
            s.kubectl("scale", "deployment/nats", "--replicas=0")
            s.rest(AWAY_SECONDS)
            told = reasons(s.timeline, "NatsConnected")
            s.kubectl("scale", "deployment/nats", "--replicas=1")
            s.await_acks(more=20)
            s.await_ready()
        assert {status for status, _ in told} - {"True"}


@pytest.mark.story("first-boot-bad-image", minutes=3)
def test_image_that_is_bad_from_the_first_boot_on_is_mended(play):
    with play(spec={"image": MISSING_IMAGE}, is_ready=False) as s:
        with s.marked("bad image"):
            s.until(lambda: is_stalled(s), "told that the image cannot be had", 180)
        with s.marked("mended"):
            s.change(image=s.stage.image)
            s.await_ready()
        s.start_load()
        s.await_acks(more=20)
        images = {one["spec"]["containers"][0]["image"] for one in s.get("pods")}
        assert images == {s.stage.image}


def is_stalled(s):
    told = [reason for status, reason in reasons(s.timeline, "Stalled") if status == "True"]
    return {"ImagePull", "BadRevision"} & set(told)


@pytest.mark.story("memory-limit", minutes=6)
def test_memory_limit_that_kills_brokers_is_mended(play):
    """The limit is too low for a start: a roll stops at the first broker that it kills."""
    low = {"requests": {"memory": "24Mi"}, "limits": {"memory": "24Mi"}}
    whole = {"requests": {"memory": "192Mi"}, "limits": {"memory": "512Mi"}}
    with play(is_ready=False, spec={"resources": low}) as s:
        with s.marked("killed"):
            s.until(lambda: len(killed(s)) >= 2, "two brokers killed for memory", 180)
        with s.marked("mended"):
            s.change(resources=whole)
            s.await_ready()
        s.start_load()
        uids = {one["metadata"]["uid"] for one in s.get("pods")}
        with s.marked("low again"):
            generation = s.change(resources=low)
            s.until(lambda: killed(s), "one broker killed for memory", 240)
            s.until(lambda: is_stalled_of(s, generation), "told that it does not run", 240)
            s.await_acks(more=40)
            kept = {one["metadata"]["uid"] for one in s.get("pods")}
            assert len(uids & kept) == 2
        with s.marked("mended again"):
            s.change(resources=whole)
            s.await_ready()


def is_stalled_of(s, generation):
    """Whether the present condition says so: the first one of a story was about another change."""
    status = s.cluster["status"]
    told = {one["type"]: one["reason"] for one in status.get("conditions", ())}
    return status["observedGeneration"] == generation and told.get("Stalled") == "BadRevision"


def killed(s):
    """Pods whose broker was ended for its memory and does not serve."""
    found = set()
    for pod in s.get("pods"):
        for one in pod["status"].get("containerStatuses", ()):
            last = {**one.get("lastState", {}), **one["state"]}.get("terminated", {})
            if one["name"] == "broker" and not one["ready"] and last.get("reason") == "OOMKilled":
                found.add(pod["metadata"]["name"])
    return found
