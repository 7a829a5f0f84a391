"""Nothing in the catalogue is dead: reasons are found from observations, and every word is used."""

import ast
from dataclasses import replace

import pytest

from liftbridge_operator.cluster.planning.decide import decide
from liftbridge_operator.cluster.planning.decision import Memory
from liftbridge_operator.cluster.planning.observation import DesiredVolume, Replacement, StuckCause
from liftbridge_operator.cluster.reporting.account import Account, Certificates
from liftbridge_operator.cluster.reporting.conditions import conditions
from liftbridge_operator.model.catalogue import names
from liftbridge_operator.model.catalogue.generate import constant
from liftbridge_operator.model.catalogue.load import load_catalogue
from liftbridge_operator.model.cluster import ClusterSpec
from liftbridge_testkit.operator_sim.samples import (
    NOW,
    healthy,
    later,
    passes,
    recorded,
    with_broker,
    with_claim,
    with_desired,
    with_node,
    with_partition,
    with_pod,
    with_report,
    with_set,
)
from liftbridge_testkit.repository import ROOT

CATALOGUE = load_catalogue()
SPEC = ClusterSpec.model_validate(
    {
        "version": "0.1.0",
        "replicas": 3,
        "nats": {"embedded": {}},
        "storage": {"data": {"size": "1Gi"}},
    }
)
VALID = Certificates("Valid", not_after_ms=10**13)
CODE = ROOT / "operator" / "src" / "liftbridge_operator"
TESTS = (
    ROOT / "tests" / "unit" / "operator",
    ROOT / "tests" / "testkit" / "src" / "liftbridge_testkit" / "operator_sim",
)


def every(seen, change, *names_, **changes):
    """The same with a change of all of these."""
    for name in names_ or ("c-0", "c-1", "c-2"):
        seen = change(seen, name, **changes)
    return seen


def after(seen, minutes):
    """What is observed, and the memory of passes some minutes before."""
    return later(seen, minutes * 60_000), passes(seen)[-1].memory


def closed(seen):
    """The same with the budget for others closed already."""
    return replace(seen, budget=0)


def unfounded():
    seen = replace(healthy(), metadata=None, reports=(), claims=(), budget=0)
    return replace(seen, identity=replace(seen.identity, founders=(), is_started=False))


def wiped():
    seen = healthy()
    told = tuple(
        replace(one, data_dir_id=f"new-{one.broker}", has_metadata=False, cluster_id="")
        for one in seen.reports
    )
    return replace(seen, metadata=None, reports=told, budget=0)


NONE = replace(healthy(), metadata=None, reports=())
NO_PODS = replace(with_set(healthy(), replicas=0), pods=(), budget=0)
ROLLING = with_desired(healthy(), revision="r2")
ALONE = {"replicas": ("c-0",), "isr": ("c-0",), "leader": "c-0", "min_isr": 1}

OBSERVED = {
    "at rest": (healthy(), Memory()),
    "nobody answers": (NONE, Memory()),
    "nobody leads": (replace(healthy(), metadata=None), Memory()),
    "unfounded": (unfounded(), Memory()),
    "wiped": (wiped(), Memory()),
    "suspending": (with_desired(closed(healthy()), is_suspended=True), Memory()),
    "suspended": (with_desired(NO_PODS, is_suspended=True), Memory()),
    "resuming": (NO_PODS, Memory()),
    "paused": (with_desired(healthy(), is_paused=True), Memory()),
    "deleted": (with_desired(healthy(), is_deleting=True), Memory()),
    "wrong": (with_desired(healthy(), config_errors=("spec.x: no",)), Memory()),
    "no pod ready": (every(healthy(), with_pod, is_ready=False), Memory()),
    "one pod away": (with_pod(healthy(), "c-1", is_ready=False), Memory()),
    "all cut off": (every(healthy(), with_report, is_nats_connected=False), Memory()),
    "without routes": (
        every(healthy(3, has_own_nats=True), with_report, nats_servers=2),
        Memory(),
    ),
    "full": (with_report(healthy(), "c-1", is_disk_full=True), Memory()),
    "damaged": (with_report(healthy(), "c-1", damage="s/0: cannot be read"), Memory()),
    "clock off": (with_report(healthy(), "c-1", clock_ms=NOW - 40_000), Memory()),
    "retired": (with_report(healthy(), "c-1", is_retired=True), Memory()),
    "fenced": (with_broker(healthy(), "c-1", is_fenced=True), Memory()),
    "cordoned": (with_broker(healthy(), "c-1", is_cordoned=True), Memory()),
    "ambiguous": (every(closed(ROLLING), with_report, start_id="another"), Memory()),
    "node lost": (with_node(healthy(), "c-1", is_ready=False), Memory()),
    "node lost for long": after(
        with_pod(closed(healthy()), "c-1", is_ready=False, stuck=StuckCause.NODE_LOST), 20
    ),
    "no leader": (with_partition(healthy(), leader="", isr=("c-0",)), Memory()),
    "one in sync": (with_partition(healthy(), isr=("c-0",)), Memory()),
    "two in sync": (with_partition(healthy(), isr=("c-0", "c-1")), Memory()),
    "moving": (with_partition(healthy(), target=("c-0", "c-1")), Memory()),
    "one replica": (with_partition(healthy(), **ALONE), Memory()),
    "two brokers": (healthy(2), Memory()),
    "rolling": (recorded(ROLLING), Memory()),
    "window closed": (with_desired(ROLLING, is_window_open=False), Memory()),
    "not approved": (with_desired(closed(ROLLING), needs_approval=True), Memory()),
    "gate closed": after(closed(with_partition(ROLLING, isr=("c-0",))), 11),
    "bad": (with_desired(with_set(healthy(), bad_revision="r2"), revision="r2"), Memory()),
    "growing": (healthy(3, replicas=4), Memory()),
    "shrinking": (with_desired(closed(healthy(4)), replicas=3), Memory()),
    "too small": (with_desired(closed(healthy()), replicas=2), Memory()),
    "replaced": (
        with_desired(closed(healthy()), replace=(Replacement("c-2", "claim-c-2"),)),
        Memory(),
    ),
    "larger": (with_desired(healthy(), data_volume=DesiredVolume(20)), Memory()),
    "resizing": (
        with_claim(
            with_desired(healthy(), data_volume=DesiredVolume(20)), "c-1", requested_bytes=20
        ),
        Memory(),
    ),
    "foreign": (with_claim(healthy(), "c-1", cluster_id="other"), Memory()),
    "larger than asked for": (
        with_claim(healthy(), "c-1", requested_bytes=20, capacity_bytes=20),
        Memory(),
    ),
    "of other attributes": (
        with_claim(healthy(), "c-1", attributes_class="gold"),
        Memory(),
    ),
    "too large": (
        with_claim(
            with_desired(healthy(), data_volume=DesiredVolume(20)),
            "c-1",
            requested_bytes=20,
            infeasible="no",
        ),
        Memory(),
    ),
    "without its attributes": (
        with_desired(healthy(), data_volume=DesiredVolume(10, attributes_class="fast")),
        Memory(),
    ),
    "of another class": (with_desired(healthy(), data_volume=DesiredVolume(10, "fast")), Memory()),
}

ACCOUNTS = {
    "waiting for a certificate": {"certificates": Certificates()},
    "ending": {"certificates": Certificates("Expiring", "x", not_after_ms=NOW + 1_000)},
    "ended": {"certificates": Certificates("Expired", not_after_ms=NOW - 1_000)},
    "nonsense": {"certificates": Certificates("Untrusted", secret="shown")},
    "not asked for": {"certificates": Certificates("Refused", "no right")},
    "pending": {"pending": ("claim",)},
    "lost": {"lost": ("claim",)},
    "to be resized": {"unresized": ("claim",)},
    "no right": {"trouble": ("MissingRights", {"verb": "create", "object": "pods"})},
    "quota": {"trouble": ("QuotaExceeded", {"object": "pods", "detail": "3"})},
    "refused": {"trouble": ("UnsupportedChange", {"detail": "x"})},
    **{
        reason: {"trouble": (reason, {"object": "x", "detail": "y"})}
        for reason in (
            "AdmissionDenied",
            "Contested",
            "NoAnswer",
            "PodMissing",
            "PortTaken",
            "VolumeCannotGrow",
        )
    },
    "watched": {"monitoring": ("Kept", {})},
    "no right to watch": {"monitoring": ("MissingRights", {"verb": "keep", "object": "x"})},
    "no monitors": {"monitoring": ("NotInstalled", {"object": "x"})},
    "monitor refused": {"monitoring": ("Refused", {"object": "x", "detail": "y"})},
    "foreign monitor": {"monitoring": ("Conflict", {"object": "x", "detail": "y"})},
}

SCHEMA = "NotReconciled"
"""Reason of an object that nobody looked at; the definition itself writes it."""


def told(seen, memory=None, **changes):
    found = {"spec": SPEC, "certificates": VALID, "monitoring": ("NotWanted", {}), **changes}
    account = Account(seen=seen, decision=decide(seen, memory or Memory()), **found)
    return conditions(account, {})


def all_told():
    found = [one for seen, memory in OBSERVED.values() for one in told(seen, memory)]
    return found + [one for changes in ACCOUNTS.values() for one in told(healthy(), **changes)]


def test_every_reason_of_a_cluster_is_found_from_an_observation():
    produced = {(one["type"], one["reason"]) for one in all_told()}
    known = {
        (spec.type, reason)
        for spec in CATALOGUE.of_resource("LiftbridgeCluster")
        for reason in spec.reasons
        if reason != SCHEMA
    }
    assert known - produced == set()


@pytest.mark.parametrize("name", OBSERVED)
def test_what_is_told_of_an_observation_fits_together(name):
    seen, memory = OBSERVED[name]
    statuses = {one["type"]: one["status"] for one in told(seen, memory)}
    assert not {"Reconciling", "Stalled"} <= set(statuses)
    assert (statuses["Progressing"] == "True") == ("Reconciling" in statuses)
    assert not (statuses["Ready"] == "True" and "Reconciling" in statuses)


# -- words --------------------------------------------------------------------------------------


def words_of(*folders):
    """Texts, and names of members of enumerations, in all code of some folders."""
    found = set()
    for folder in folders:
        for path in folder.rglob("*.py"):
            if path.parent.name == "catalogue":
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.add(node.value)
                elif isinstance(node, ast.Attribute):
                    found.add(node.attr)
    return found


KINDS = {
    "WaitFor": names.WaitFor,
    "StepAction": names.StepAction,
    "RiskKind": names.RiskKind,
    "EventReason": names.EventReason,
}


@pytest.fixture(scope="module")
def in_code():
    return words_of(CODE)


@pytest.fixture(scope="module")
def in_tests():
    return words_of(*TESTS)


def unused(words, used):
    return [word.value for word in words if not {word.value, constant(word)} & used]


def test_every_reason_of_a_stream_is_in_code_and_tests(in_code, in_tests):
    reasons = {
        names.Reason(reason)
        for spec in CATALOGUE.of_resource("Stream")
        for reason in spec.reasons
        if reason != SCHEMA
    }
    assert unused(reasons, in_code) == []
    assert unused(reasons, in_tests) == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_word_is_in_the_code(in_code, kind):
    assert unused(KINDS[kind], in_code) == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_word_is_in_a_test(in_tests, kind):
    assert unused(KINDS[kind], in_tests) == []
