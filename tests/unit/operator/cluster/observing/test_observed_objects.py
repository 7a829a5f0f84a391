"""Objects as the API server writes them, read as values of the planner."""

import pytest

from liftbridge_operator.cluster.observing.objects import (
    budget_of,
    bytes_of,
    claim_of,
    identity_of,
    is_owned_by,
    is_volume_lost,
    node_of,
    pod_of,
    set_of,
)
from liftbridge_operator.cluster.observing.reads import broker_pods, data_claims
from liftbridge_operator.cluster.observing.times import moment_ms
from liftbridge_operator.cluster.planning.observation import Member, StuckCause

BORN = "2026-11-21T10:00:00Z"
CHANGED = "2026-11-21T10:05:00Z"


def pod(**status):
    """A pod that runs and is ready."""
    return {
        "metadata": {
            "name": "c-2",
            "uid": "u",
            "resourceVersion": "41",
            "creationTimestamp": BORN,
            "annotations": {"liftbridge.io/revision": "r1", "liftbridge.io/kept": "t"},
            "labels": {"topology.kubernetes.io/zone": "label-zone"},
        },
        "spec": {"nodeName": "node-a"},
        "status": {
            "conditions": [ready("True"), {"type": "PodScheduled", "status": "True"}],
            "containerStatuses": [{"name": "broker", "state": {"running": {}}}],
            **status,
        },
    }


def ready(status):
    return {"type": "Ready", "status": status, "lastTransitionTime": CHANGED}


def waiting(reason, name="broker"):
    return [{"name": name, "state": {"waiting": {"reason": reason}}}]


def not_running(containers=(), **status):
    return pod(conditions=[ready("False")], containerStatuses=list(containers), **status)


def test_pod_that_runs():
    found = pod_of(pod())
    assert (found.name, found.ordinal, found.uid, found.resource_version) == ("c-2", 2, "u", 41)
    assert (found.revision, found.node, found.kept) == ("r1", "node-a", "t")
    assert (found.created_ms, found.changed_ms) == (moment_ms(BORN), moment_ms(CHANGED))
    assert (found.is_ready, found.is_running, found.is_terminating) == (True, True, False)
    assert (found.stuck, found.stuck_since_ms) == (None, 0)


def test_zone_of_the_node_stands_over_the_label():
    assert pod_of(pod()).zone == "label-zone"
    assert pod_of(pod(), zone="node-zone").zone == "node-zone"


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("ErrImagePull", StuckCause.IMAGE_PULL),
        ("ImagePullBackOff", StuckCause.IMAGE_PULL),
        ("InvalidImageName", StuckCause.IMAGE_PULL),
        ("CreateContainerConfigError", StuckCause.CONFIG),
        ("RunContainerError", StuckCause.CONFIG),
        ("CrashLoopBackOff", StuckCause.CRASH_LOOP),
        ("ContainerCreating", None),
        ("PodInitializing", None),
    ],
)
def test_cause_of_a_container_that_waits(reason, cause):
    found = pod_of(not_running(waiting(reason)))
    assert found.stuck is cause
    assert found.stuck_since_ms == (moment_ms(CHANGED) if cause else 0)


def test_container_that_has_failed_and_is_not_started_yet_crashes():
    failed = [{"name": "broker", "state": {"terminated": {"exitCode": 137}}}]
    ended = [{"name": "broker", "state": {"terminated": {"exitCode": 0}}}]
    assert pod_of(not_running(failed)).stuck is StuckCause.CRASH_LOOP
    assert pod_of(not_running(ended)).stuck is None


def test_sidecar_that_does_not_start_keeps_the_broker_from_running():
    found = pod_of(
        not_running(
            waiting("PodInitializing"), initContainerStatuses=waiting("ImagePullBackOff", "nats")
        )
    )
    assert (found.is_running, found.stuck) == (False, StuckCause.IMAGE_PULL)


def test_sidecar_that_crashes_beside_a_broker_that_runs_is_not_the_brokers_fault():
    found = pod_of(pod(initContainerStatuses=waiting("CrashLoopBackOff", "nats")))
    assert (found.is_running, found.stuck) == (True, None)


def test_pod_that_no_node_takes():
    body = pod(conditions=[{"type": "PodScheduled", "status": "False"}], containerStatuses=[])
    found = pod_of(body)
    assert found.stuck is StuckCause.UNSCHEDULABLE
    assert found.changed_ms == found.stuck_since_ms == moment_ms(BORN)
    assert pod_of(body, is_lost=True).stuck is StuckCause.NODE_LOST


def test_pod_on_a_node_that_is_lost():
    assert pod_of(not_running(reason="NodeLost")).stuck is StuckCause.NODE_LOST


def test_odd_fields_are_read_as_absent():
    found = pod_of({"metadata": {"name": "odd", "resourceVersion": "x"}})
    assert (found.ordinal, found.resource_version, found.node) == (-1, 0, "")
    assert (found.is_ready, found.is_running, found.stuck) == (False, False, None)


def test_set():
    body = {
        "metadata": {
            "uid": "u",
            "resourceVersion": "7",
            "annotations": {"liftbridge.io/good-revision": "g", "liftbridge.io/bad-revision": "b"},
        },
        "spec": {
            "replicas": 3,
            "template": {"metadata": {"annotations": {"liftbridge.io/revision": "r"}}},
            "volumeClaimTemplates": [
                claim_template("liftbridge-raft", "1Gi"),
                claim_template("liftbridge-data", "2Gi"),
            ],
        },
    }
    found = set_of(body)
    assert (found.replicas, found.revision) == (3, "r")
    assert (found.good_revision, found.bad_revision) == ("g", "b")
    assert found.claim_bytes == 2 << 30


def claim_template(name, size):
    return {
        "metadata": {"name": name},
        "spec": {"resources": {"requests": {"storage": size}}},
    }


def claim(**changes):
    return {
        "metadata": {
            "name": "liftbridge-data-c-4",
            "uid": "u",
            "resourceVersion": "3",
            "labels": {"liftbridge.io/cluster-id": "id"},
        },
        "spec": {"resources": {"requests": {"storage": "2Gi"}}, "volumeName": "pv"},
        "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
    } | changes


def test_claim():
    found = claim_of(claim())
    assert (found.ordinal, found.cluster_id) == (4, "id")
    assert (found.requested_bytes, found.capacity_bytes) == (2 << 30, 1 << 30)
    assert not found.is_retired
    assert claim_of(claim(status={"phase": "Pending"})).capacity_bytes == 0
    retired = claim()
    retired["metadata"]["annotations"] = {"liftbridge.io/retired": BORN}
    assert claim_of(retired).is_retired


@pytest.mark.parametrize(
    ("quantity", "size"),
    [
        ("1Gi", 1 << 30),
        ("1500m", 2),
        ("1e3", 1_000),
        ("12", 12),
        (7, 7),
        (None, 0),
        ("", 0),
        ("much", 0),
        ("nan", 0),
        ("1e99999", 0),
    ],
)
def test_quantities_as_the_api_server_writes_them(quantity, size):
    assert bytes_of(quantity) == size


def volume(*hosts):
    terms = [{"key": "kubernetes.io/hostname", "operator": "In", "values": list(hosts)}]
    return {
        "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": terms}]}}}
    }


def node(name, status="True", **spec):
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": spec,
        "status": {"conditions": [{"type": "Ready", "status": status}]},
    }


@pytest.mark.parametrize(
    ("volumes", "nodes", "is_lost"),
    [
        ({"pv": volume("a")}, [node("a"), node("b")], False),
        ({"pv": volume("a")}, [node("b")], True),
        ({"pv": volume("a")}, [node("a", "Unknown"), node("b")], True),
        ({"pv": volume("a", "b")}, [node("b")], False),
        ({"pv": {"spec": {}}}, [node("b")], False),
        ({}, [node("b")], False),
    ],
)
def test_volume_is_lost_with_all_nodes_that_could_have_it(volumes, nodes, is_lost):
    assert is_volume_lost(claim(), volumes, nodes) is is_lost


def test_node():
    taints = [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]
    assert node_of(node("a")).is_ready
    assert not node_of(node("a", "Unknown")).is_ready
    assert node_of(node("a", unschedulable=True)).is_unschedulable
    assert node_of(node("a", taints=taints)).is_gone


def test_budget_counts_only_as_a_number():
    assert budget_of({"spec": {"maxUnavailable": 1}}) == 1
    assert budget_of({"spec": {"maxUnavailable": "50%"}}) is None
    assert budget_of({"spec": {}}) is None


def test_identity_that_somebody_else_wrote_is_told():
    body = {
        "metadata": {"resourceVersion": "2"},
        "data": {
            "cluster-id": "id",
            "state": "started",
            "founders": '[{"broker": "c-0", "dataDirId": "d"}]',
        },
    }
    found = identity_of(body)
    assert (found.cluster_id, found.is_started) == ("id", True)
    assert found.founders == (Member("c-0", "d"),)
    with pytest.raises(ValueError, match="cannot be read"):
        identity_of({"metadata": {}, "data": {"other": "x"}})


def test_owner_is_told_by_its_uid():
    body = {"metadata": {"ownerReferences": [{"kind": "LiftbridgeCluster", "uid": "u1"}]}}
    assert is_owned_by(body, "u1")
    assert not is_owned_by(body, "u2")
    assert not is_owned_by({"metadata": {}}, "u1")


def named(*names):
    return [{"metadata": {"name": name}} for name in names]


def test_only_pods_and_claims_of_the_cluster_count():
    pods = broker_pods(named("c-10", "c-2", "c-x", "other-0", "c-2-debug"), "c")
    assert [one["metadata"]["name"] for one in pods] == ["c-2", "c-10"]
    claims = data_claims(
        named("liftbridge-data-c-0", "liftbridge-raft-c-0", "liftbridge-data-c-b-0", "x"), "c"
    )
    assert [one["metadata"]["name"] for one in claims] == ["liftbridge-data-c-0"]
