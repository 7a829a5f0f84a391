"""Conditions of clusters from observations: which reason holds, and what never holds together."""

import json
from dataclasses import replace

import pytest

from liftbridge_operator.cluster.observing.desired import memory_of, recorded_of
from liftbridge_operator.cluster.planning.decide import decide
from liftbridge_operator.cluster.planning.decision import Memory
from liftbridge_operator.cluster.planning.observation import Recorded, SetShape
from liftbridge_operator.cluster.reporting.account import Account, Certificates
from liftbridge_operator.cluster.reporting.conditions import conditions
from liftbridge_operator.cluster.reporting.status import Surroundings, status_of
from liftbridge_operator.model.catalogue.load import load_catalogue
from liftbridge_operator.model.catalogue.names import ClusterConditionType
from liftbridge_operator.model.cluster import ClusterSpec
from liftbridge_testkit.operator_sim.samples import (
    healthy,
    later,
    passes,
    recorded,
    with_desired,
    with_member,
    with_metadata,
    with_partition,
    with_pod,
    with_report,
)

SPEC = ClusterSpec.model_validate(
    {
        "version": "0.1.0",
        "replicas": 3,
        "nats": {"embedded": {}},
        "storage": {"data": {"size": "1Gi"}},
    }
)
VALID = Certificates("Valid", not_after_ms=10**13)
OFFLINE = {"leader": "", "isr": ("c-0",)}


def account(seen, memory=None, **changes):
    found = {"spec": SPEC, "certificates": VALID, "monitoring": ("NotWanted", {}), **changes}
    return Account(seen=seen, decision=decide(seen, memory or Memory()), **found)


def told(seen, memory=None, **changes):
    """Reasons by condition."""
    found = conditions(account(seen, memory, **changes), {})
    return {one["type"]: (one["status"], one["reason"]) for one in found}


def unfounded():
    """The identity is written, and nobody has founded yet."""
    seen = replace(healthy(), metadata=None, reports=(), budget=0)
    return replace(seen, identity=replace(seen.identity, founders=(), is_started=False))


def test_cluster_at_rest():
    assert told(healthy()) == {
        "Ready": ("True", "Reconciled"),
        "Available": ("True", "Serving"),
        "Progressing": ("False", "Complete"),
        "Degraded": ("False", "None"),
        "DisruptionAllowed": ("True", "Allowed"),
        "NatsConnected": ("True", "Connected"),
        "StorageReady": ("True", "Bound"),
        "CertificatesReady": ("True", "Valid"),
        "MonitoringReady": ("True", "NotWanted"),
        "Paused": ("False", "NotPaused"),
    }


CASES = {
    "no broker answers": (
        replace(healthy(), metadata=None, reports=()),
        {
            "Ready": ("Unknown", "MetadataUnknown"),
            "Available": ("Unknown", "MetadataUnknown"),
            "Degraded": ("Unknown", "MetadataUnknown"),
            "DisruptionAllowed": ("Unknown", "RiskUnknown"),
            "NatsConnected": ("Unknown", "MetadataUnknown"),
        },
    ),
    "no metadata leader": (
        replace(healthy(), metadata=None),
        {"Ready": ("False", "NoMetadataLeader"), "Available": ("Unknown", "MetadataUnknown")},
    ),
    "a partition without leader": (
        with_partition(healthy(), **OFFLINE),
        {"Ready": ("False", "PartitionsOffline"), "Available": ("False", "PartitionsOffline")},
    ),
    "too few in sync": (
        with_partition(healthy(), isr=("c-0",)),
        {
            "Degraded": ("True", "BelowMinISR"),
            "Available": ("True", "Serving"),
            "DisruptionAllowed": ("False", "IsrNotFull"),
        },
    ),
    "one not in sync": (
        with_partition(healthy(), isr=("c-0", "c-1")),
        {"Degraded": ("True", "UnderReplicated")},
    ),
    "a pod is away": (
        with_pod(healthy(), "c-1", is_ready=False),
        {
            "Ready": ("False", "BrokersNotReady"),
            "DisruptionAllowed": ("False", "AnotherDisruption"),
        },
    ),
    "NATS is away": (
        with_report(with_report(healthy(), "c-0", is_nats_connected=False), "c-1"),
        {"NatsConnected": ("False", "NatsUnreachable"), "Available": ("True", "Serving")},
    ),
    "a disk is full": (
        with_report(healthy(), "c-1", is_disk_full=True),
        {"StorageReady": ("False", "Full"), "Degraded": ("True", "VolumeFull")},
    ),
    "paused": (
        with_desired(healthy(), is_paused=True),
        {"Ready": ("Unknown", "Paused"), "Paused": ("True", "Paused")},
    ),
    "deleted": (with_desired(healthy(), is_deleting=True), {"Ready": ("False", "Deleting")}),
    "wrong": (
        with_desired(healthy(), config_errors=("spec.x: no",)),
        {
            "Ready": ("False", "InvalidSpec"),
            "Stalled": ("True", "InvalidSpec"),
            "Progressing": ("False", "Waiting"),
        },
    ),
    "being founded": (
        unfounded(),
        {"Ready": ("False", "Bootstrapping"), "Available": ("False", "Bootstrapping")},
    ),
    "rolling": (
        recorded(with_desired(healthy(), revision="r2")),
        {
            "Ready": ("False", "RollingUpdate"),
            "Progressing": ("True", "RollingUpdate"),
            "Reconciling": ("True", "RollingUpdate"),
        },
    ),
    "window closed": (
        with_desired(healthy(), revision="r2", is_window_open=False),
        {"DisruptionAllowed": ("False", "MaintenanceWindowClosed")},
    ),
    "quorum lost": (
        replace(healthy(), metadata=None, reports=()),
        {"Available": ("Unknown", "MetadataUnknown")},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_reason_that_holds(name):
    seen, expected = CASES[name]
    found = told(seen)
    assert {kind: found.get(kind) for kind in expected} == expected


@pytest.mark.parametrize("name", CASES)
def test_all_conditions_are_told_from_the_first_look_on(name):
    found = conditions(account(CASES[name][0]), {})
    kinds = {one["type"] for one in found}
    optional = {ClusterConditionType.RECONCILING, ClusterConditionType.STALLED}
    assert set(ClusterConditionType) - optional <= kinds
    assert all(one["message"] and one["lastTransitionTime"] for one in found)
    assert not {"Reconciling", "Stalled"} <= kinds
    statuses = {one["type"]: one["status"] for one in found}
    assert not ("Stalled" in kinds and statuses["Progressing"] == "True")


@pytest.mark.parametrize("name", CASES)
def test_reason_of_every_case_is_in_the_catalogue(name):
    catalogue = load_catalogue()
    for one in conditions(account(CASES[name][0]), {}):
        entry = catalogue.condition("LiftbridgeCluster", one["type"]).reasons[one["reason"]]
        assert entry.status == one["status"]


def test_quorum_that_is_lost_is_said():
    seen = healthy()
    wiped = tuple(
        replace(one, data_dir_id=f"new-{one.broker}", has_metadata=False, cluster_id="")
        for one in seen.reports
    )
    found = told(replace(seen, metadata=None, reports=wiped, budget=0))
    assert found["Stalled"] == ("True", "QuorumLost")
    assert found["Available"] == ("False", "QuorumLost")


def test_transition_time_moves_with_the_status_alone():
    seen = healthy()
    first = conditions(account(seen), {})
    again = conditions(account(later(seen, 60_000)), {"conditions": first})
    assert again == first
    gone = replace(with_pod(seen, "c-1", is_ready=False), budget=0)
    away = conditions(account(later(gone, 60_000)), {"conditions": first})
    times = {one["type"]: one["lastTransitionTime"] for one in first}
    moved = {one["type"] for one in away if times.get(one["type"]) != one["lastTransitionTime"]}
    assert moved == {"Ready", "DisruptionAllowed"}


def test_cluster_that_is_ready_is_not_told_to_be_in_work():
    seen = replace(healthy(), budget=0)
    assert account(seen).decision.action is not None
    found = told(seen)
    assert found["Ready"] == ("True", "Reconciled")
    assert "Reconciling" not in found


def test_gate_that_stays_closed_is_told_after_a_while_and_never_forced():
    # A broker that is behind may itself be restarted; with two behind nobody may.
    closed = with_partition(with_desired(healthy(), revision="r2"), isr=("c-0",))
    closed = replace(closed, budget=0)
    memory = passes(closed)[-1].memory
    assert "Stalled" not in told(later(closed, 5 * 60_000), memory)
    found = told(later(closed, 11 * 60_000), memory)
    assert found["Stalled"] == ("True", "GateBlocked")
    assert found["Progressing"] == ("False", "Waiting")


def test_trouble_with_the_api_server_is_said_first():
    trouble = ("MissingRights", {"verb": "create", "object": "pods"})
    found = conditions(account(healthy(), trouble=trouble), {})
    stalled = next(one for one in found if one["type"] == "Stalled")
    assert stalled["message"] == "The operator is not allowed to create pods."
    assert next(one for one in found if one["type"] == "Ready")["reason"] == "MissingRights"


# -- the whole status ---------------------------------------------------------------------------


def status(seen, kept=None, memory=None):
    return status_of(account(seen, memory), kept or seen.recorded, Surroundings(), {})


def test_status_made_again_later_is_the_same():
    seen = healthy()
    memory = passes(seen)[-1].memory
    first = status(seen, memory=memory)
    again = status_of(account(later(seen, 3_600_000), memory), seen.recorded, Surroundings(), first)
    assert again == first


def test_waits_are_told_after_half_a_minute():
    seen = with_pod(healthy(), "c-1", is_ready=False)
    seen = replace(seen, budget=0)
    memory = passes(seen, 1)[-1].memory
    assert status(later(seen, 29_000), memory=memory)["waits"] == []
    found = status(later(seen, 31_000), memory=memory)["waits"]
    assert [(one["what"], one["object"]) for one in found] == [("BrokersNotReady", "c-1")]
    assert found[0]["runbook"]


def test_status_of_a_large_cluster_stays_small():
    seen = healthy(100)
    one = seen.metadata.partitions[0]
    degraded = tuple(replace(one, number=number, isr=("c-0",)) for number in range(5_000))
    made = status(with_metadata(seen, partitions=degraded))
    assert made["partitions"]["underReplicated"] == 5_000
    assert len(made["partitions"]["worst"]) == 10
    assert len(json.dumps(made)) < 32 * 1_024


def test_member_without_a_vote_is_none():
    made = status(with_member(healthy(), "c-2", is_voter=False))
    assert [one["voter"] for one in made["brokers"]] == [True, True, False]


def test_record_is_read_back_as_it_was_written():
    kept = Recorded(recorded(healthy()).recorded.disruption, SetShape(3, "r1", "g", "b"), risks=())
    made = status(with_pod(healthy(), "c-1", is_ready=False), kept)
    assert recorded_of({"status": made}) == kept
    assert memory_of({"status": made}).gate is None
