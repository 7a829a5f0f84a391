"""Clusters that are deleted and made again, volumes that break, certificates that are exchanged."""

import base64
import json

import pytest

from liftbridge_testkit.kube.timeline import reasons

pytestmark = [pytest.mark.e2e, pytest.mark.full]

OF_CLAIM = {f"{verb} leases.coordination.k8s.io" for verb in ("get", "create", "patch")}
"""What an operator of one namespace asks for when its Role goes before that namespace."""

LEADERS_SECONDS_MAX = 30
GONE_SECONDS_MAX = 60
BRIEF = {
    "disruption": {"drainTimeout": "10s"},
    "podTemplate": {"terminationGracePeriodSeconds": 30},
}
"""A namespace that is deleted waits for half of what its pods are granted, however soon they go."""


@pytest.mark.story("resource-deleted", minutes=5)
def test_resource_is_deleted_under_load_and_made_again_over_kept_volumes(play):
    with play() as s:
        identity = s.cluster["status"]["clusterId"]
        with s.marked("deleted"):
            s.kubectl("delete", "lbc", "c", "--timeout=180s")
            s.until(lambda: not s.get("pods"), "no pod left", 180)
        assert len(s.get("pvc")) == 3
        with s.marked("made again"):
            s.apply()
            s.until(lambda: all_run(s), "all brokers run", 180)
            with s.marked("all lead"):
                s.await_acks(LEADERS_SECONDS_MAX)
            s.await_ready()
        assert s.cluster["status"]["clusterId"] == identity


def all_run(s):
    pods = s.get("pods")
    return len(pods) == 3 and all(one["status"]["phase"] == "Running" for one in pods)


@pytest.mark.story("namespace-deleted", minutes=3)
def test_namespace_is_deleted_with_everything_in_it(play):
    with play(spec=BRIEF) as s:
        s.load.stop()
        with s.marked("deleted"):
            s.kubernetes.kubectl(
                *("delete", "namespace", s.namespace, f"--timeout={GONE_SECONDS_MAX}s")
            )
        s.load = None
        left = s.kubernetes.kubectl("get", "namespaces", "--output=name").split()
        assert f"namespace/{s.namespace}" not in left


@pytest.mark.story("namespace-deleted-namespaced", minutes=5)
def test_namespace_of_an_operator_of_one_namespace_is_deleted(play, stage):
    namespace = "story-namespace-deleted-namespaced"

    def look_after_it_alone():
        stage.operator.upgrade(f"watchNamespaces={{{namespace}}}", "rbac.nodes=false")

    try:
        with play(spec=BRIEF, kills_operator=False, prepare=look_after_it_alone) as s:
            s.withheld = frozenset({"list nodes", *OF_CLAIM})
            s.load.stop()
            finalizers = {tuple(one["metadata"].get("finalizers", ())) for one in s.get("lbs")}
            with s.marked("deleted"):
                s.kubernetes.kubectl(
                    *("delete", "namespace", namespace, f"--timeout={GONE_SECONDS_MAX}s")
                )
            s.load = None
            assert finalizers == {()}
    finally:
        stage.operator.upgrade("watchNamespaces=null", "rbac.nodes=true")


@pytest.mark.story("volume-gone", minutes=7)
def test_volume_that_is_gone_after_a_crash_of_its_node_is_replaced(play):
    with play() as s:
        node, claim = s.node_of(1), s.get("pvc", "liftbridge-data-c-1")
        with s.marked("volume gone"), s.crashed(node):
            s.machines.volume("lose", node, claim["spec"]["volumeName"])
            s.await_acks(more=40)
        s.await_nodes()
        with s.marked("replaced"):
            s.change(replaceBrokers=[{"broker": 1, "volumeUID": claim["metadata"]["uid"]}])
            s.await_ready()
        assert set(s.timeline.isr[-1].sizes.values()) == {3}


@pytest.mark.story("volume-read-only", minutes=6)
def test_volume_that_turns_read_only_under_load_stops_its_broker_alone(play):
    storage = {"data": {"size": "1Gi", "storageClassName": "disk"}}
    with play(spec={"storage": storage}) as s:
        node, claim = s.node_of(1), s.get("pvc", "liftbridge-data-c-1")
        with s.marked("read-only"):
            s.machines.volume("readonly", node, claim["spec"]["volumeName"])
            s.until(lambda: not s.is_ready(), "told that a broker is away", 120)
            s.await_acks(more=40)
        with s.marked("mended"):
            with s.crashed(node):
                s.await_acks()
            s.await_nodes()
            s.await_ready()
        assert "c-1" in json.dumps([one.body for one in s.timeline.of("LiftbridgeCluster")])


@pytest.mark.story("two-volumes-wiped", minutes=5)
def test_cluster_that_lost_two_of_three_volumes_says_so_and_begins_no_new_history(play):
    with play(kills_operator=False) as s:
        identity = s.cluster["status"]["clusterId"]
        s.load.stop()
        s.lose_data()
        with s.marked("wiped"):
            for number in (0, 1):
                node, claim = s.node_of(number), s.get("pvc", f"liftbridge-data-c-{number}")
                with s.crashed(node):
                    s.machines.wipe_volume(node, claim["spec"]["volumeName"])
            s.await_nodes()
            s.await_condition("Stalled", "QuorumLost", 240)
        available = [one for one in reasons(s.timeline, "Available") if one[0] == "False"]
        assert ("False", "QuorumLost") in available
        assert s.cluster["status"]["clusterId"] == identity
        s.load = None


@pytest.mark.story("certificates", minutes=8)
def test_certificates_authority_and_keys_are_exchanged_without_a_failed_call(play):
    """The authority lasts twenty certificates; longer ones make it too old, so it is exchanged.

    The key by which brokers recognise one another is exchanged meanwhile, because somebody asks,
    and its Secret is deleted by somebody else.
    """
    tls = {"mode": "Generated", "duration": "4m", "renewBefore": "1m", "overlap": "20s"}
    listeners = [
        {"name": "internal"},
        {"name": "outside", "type": "NodePort", "port": 9392, "tls": True},
    ]
    with play(spec={"tls": tls, "listeners": listeners}) as s:
        before, keys = s.cluster["status"]["certificates"]["authority"], peer_keys(s)
        assert len(keys) == 1
        assert keys != ["open"]
        with s.marked("exchanged"):
            s.change(tls={"duration": "2h"})
            s.kubectl("annotate", "lbc", "c", "liftbridge.io/rotate-keys=now")
            s.until(lambda: len(peer_keys(s)) == 2, "another key", 120)
            s.kubectl("delete", "secret", "c-peer-keys")
            s.until(lambda: is_exchanged(s, before), "another authority alone", 420)
            s.until(lambda: is_key_exchanged(s, keys), "another key alone", 420)
            s.await_ready()
        s.await_acks(more=40)
    assert s.result.errors == {}
    assert s.result.counts["unknown"] == s.result.counts["refused"] == 0
    assert s.result.restarts == []


def peer_keys(s):
    """Lines of the file of keys that brokers mount."""
    told = s.kubectl("get", "secret", "c-peer-keys", "--output=jsonpath={.data.cluster\\.keys}")
    return base64.b64decode(told).decode().split()


def is_key_exchanged(s, before):
    is_steady = s.cluster["status"]["certificates"]["peerKeys"] == "Steady"
    return is_steady and len(peer_keys(s)) == 1 and peer_keys(s) != before


def is_exchanged(s, before):
    told = s.cluster["status"]["certificates"]
    return told["authority"] != before and told["phase"] == "Steady"
