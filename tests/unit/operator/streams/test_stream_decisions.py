"""What is decided for a stream: adoption, conflict, change and deletion, each by a table."""

import json
import shlex
from dataclasses import replace

import pytest

from liftbridge_operator.cluster.observing.times import moment_ms
from liftbridge_operator.model.catalogue.load import load_catalogue
from liftbridge_operator.model.catalogue.names import EventReason, Reason, StreamConditionType
from liftbridge_operator.model.stream import DeletionPolicy, StreamStatus
from liftbridge_operator.streams import actions as act
from liftbridge_operator.streams.decide import change_of, decide_stream
from liftbridge_operator.streams.deletion import decide_deletion
from liftbridge_operator.streams.marks import CONFIRM_DELETE, holder_of, mark_of
from liftbridge_operator.streams.observation import (
    Ask,
    ClusterState,
    PresentCondition,
    Refused,
    Rival,
    Seen,
    SeenCluster,
)
from liftbridge_operator.streams.status import status_of
from liftbridge_testkit.streams_memory import DEFAULTS, resource, stream

READY, SYNCED = StreamConditionType.READY, StreamConditionType.SYNCED
HEALTHY, BLOCKED = StreamConditionType.HEALTHY, StreamConditionType.DELETION_BLOCKED
MINE = mark_of("shop", "orders", "uid-1")
THEIRS = mark_of("shop", "other", "uid-2")


def told(reason, status="False"):
    return {READY: PresentCondition(status, reason, "", 1, "2026-11-21T10:00:00Z")}


def cluster(**changes):
    made = SeenCluster("shop/c", ClusterState.PRESENT, answered="2026-11-21T12:00:00Z")
    return replace(made, **changes)


def seen(found=None, **changes):
    return replace(Seen(cluster(), found), **changes)


def mine(**changes):
    return stream(owner=MINE, **changes)


def reasons(decision):
    return decision.claims[READY].reason, decision.claims[SYNCED].reason


# -- what stands in the way ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "ready"),
    [
        ({"state": ClusterState.MISSING, "is_heard": False}, Reason.CLUSTER_NOT_FOUND),
        ({"state": ClusterState.HIDDEN, "is_heard": False}, Reason.CLUSTER_NOT_FOUND),
        ({"state": ClusterState.DELETING}, Reason.CLUSTER_NOT_READY),
        ({"state": ClusterState.PAUSED}, Reason.CLUSTER_NOT_READY),
        ({"is_allowed": False}, Reason.NOT_ALLOWED),
        ({"is_heard": False, "answered": ""}, Reason.CLUSTER_NOT_READY),
        ({"is_heard": False}, Reason.CLUSTER_UNREACHABLE),
    ],
)
def test_nothing_is_done_with_a_cluster_that_takes_no_changes(changes, ready):
    decision = decide_stream(resource(), seen(cluster=cluster(**changes)))
    assert decision.action is None
    assert decision.claims[READY].reason is ready


def test_nothing_is_claimed_of_a_cluster_that_does_not_answer():
    decision = decide_stream(resource(), seen(cluster=cluster(is_heard=False)))
    status = status_of(resource(), decision, None, before={}, now_ms=0)
    assert {one["status"] for one in status["conditions"]} == {"Unknown"}


def test_specification_that_cannot_be_read_is_told_and_changes_nothing():
    decision = decide_stream(replace(resource(), spec=None), seen(mine()))
    assert decision.action is None
    assert decision.claims[READY].reason is Reason.INVALID_SPEC


# -- create -------------------------------------------------------------------------------------


def test_missing_stream_is_created_with_what_the_resource_says_and_nothing_else():
    spec = {
        "streamName": "o",
        "partitions": 4,
        "group": "g",
        "config": {"retentionMaxAge": "1h30m", "segmentMaxBytes": "1Mi", "fsyncPolicy": "commit"},
    }
    decision = decide_stream(resource(spec=spec), seen())
    wanted = {
        "retention_max_age": 5_400_000,
        "segment_max_bytes": 1 << 20,
        "fsync_policy": "commit",
    }
    assert decision.action == act.Create("o", "orders", "g", 4, 3, wanted)
    assert reasons(decision) == (Reason.CREATE_PENDING, Reason.NOT_FOUND)


def test_stream_that_was_there_before_is_created_again():
    action = decide_stream(resource(creation_id="7"), seen()).action
    assert isinstance(action, act.Create)
    assert action.is_again


@pytest.mark.parametrize(("factor", "wanted"), [(3, 2), (2, 1), (-1, None)])
def test_minimum_of_zero_is_two_of_three_replicas_and_one_of_fewer(factor, wanted):
    spec = {"replicationFactor": factor, "config": {"minISR": 0}}
    action = decide_stream(resource(spec=spec), seen()).action
    assert action.settings.get("min_isr") == wanted


def test_what_was_refused_is_not_asked_again_at_once():
    action = decide_stream(resource(), seen()).action
    refused = Refused(change_of(action), "cluster size 1", is_due=False)
    decision = decide_stream(resource(), seen(refused=refused))
    assert decision.action is None
    assert decision.claims[READY].reason is Reason.INVALID_SPEC
    assert decision.requeue_seconds > 0
    assert decide_stream(resource(), seen(refused=replace(refused, is_due=True))).action == action
    other = resource(spec={"replicationFactor": 1})
    assert decide_stream(other, seen(refused=refused)).action is not None


# -- whose it is --------------------------------------------------------------------------------

YOUNGER, OLDER = Rival("shop/other", is_older=False), Rival("shop/other", is_older=True)
NEVER = {"adoptionPolicy": "Never"}
PENDING = told("CreatePending")
ADOPTION = {
    "free and equal": ({}, stream(), {}, act.Mark(7, "")),
    "free, another subject": ({}, stream(subject="x"), {}, Reason.DRIFTED),
    "free, another group": ({}, stream(group="x"), {}, Reason.DRIFTED),
    "free, other partitions": ({}, stream(partition_count=2), {}, Reason.DRIFTED),
    "free, other settings": ({"config": {"minISR": 1}}, stream(), {}, act.Mark(7, "")),
    "free, never": (NEVER, stream(), {}, Reason.CONFLICT),
    "just created, never": (
        NEVER,
        stream(),
        {"conditions": PENDING},
        act.Mark(7, "", is_adopted=False),
    ),
    "of an older one": ({}, stream(owner=THEIRS), {"holder": OLDER}, Reason.CONFLICT),
    "of a younger one": ({}, stream(owner=THEIRS), {"holder": YOUNGER}, act.Mark(7, THEIRS)),
    "of one that is gone": ({}, stream(owner=THEIRS), {"holder": None}, act.Mark(7, THEIRS)),
    "of one gone, never": (NEVER, stream(owner=THEIRS), {"holder": None}, Reason.CONFLICT),
    "of one gone, unequal": (
        {},
        stream(owner=THEIRS, subject="x"),
        {"holder": None},
        Reason.DRIFTED,
    ),
    "of a person": (
        {},
        stream(owner="ops"),
        {"holder": Rival("ops", is_older=True)},
        Reason.CONFLICT,
    ),
    "older in sight": ({}, None, {"older": "shop/other"}, Reason.CONFLICT),
    "own, older in sight": ({}, mine(), {"older": "shop/other"}, Reason.CONFLICT),
    "own": ({}, mine(), {}, Reason.RECONCILED),
}


@pytest.mark.parametrize("case", ADOPTION)
def test_streams_are_adopted_or_left_as_the_rules_say(case):
    spec, found, changes, wanted = ADOPTION[case]
    changes = dict(changes)
    made = resource(spec=spec, conditions=changes.pop("conditions", {}))
    decision = decide_stream(made, seen(found, **changes))
    if isinstance(wanted, Reason):
        assert (decision.action, decision.claims[READY].reason) == (None, wanted)
    else:
        assert decision.action == wanted


def test_holder_of_a_mark_is_looked_up_before_anything_is_decided():
    decision = decide_stream(resource(), seen(stream(owner=THEIRS)))
    assert (decision.ask, decision.action) == (Ask.HOLDER, None)


def test_marks_name_resources_and_other_marks_do_not():
    assert holder_of(THEIRS) == ("shop", "other", "uid-2")
    for mark in ("ops", "", "streams.liftbridge.io/shop/orders", "a/b/c/d"):
        assert holder_of(mark) is None


# -- what it is ---------------------------------------------------------------------------------


CHANGES = {
    "settings": (
        {"config": {"retentionMaxBytes": "1Ki", "compactEnabled": True}},
        mine(),
        act.Alter(
            {"retention_max_bytes": 1_024, "compact_enabled": True},
            0,
            ("config.retentionMaxBytes", "config.compactEnabled"),
        ),
    ),
    "factor": ({"replicationFactor": 2}, mine(), act.Alter({}, 2, ("replicationFactor",))),
    "factor of all": ({"replicationFactor": -1}, mine(factor=2), None),
    "read-only": ({"readonly": True}, mine(), act.SetReadonly(is_readonly=True)),
    "writable": ({}, mine(readonly=True), act.SetReadonly(is_readonly=False)),
    "settings before read-only": (
        {"readonly": True, "config": {"minISR": 1}},
        mine(),
        act.Alter({"min_isr": 1}, 0, ("config.minISR",)),
    ),
    "nothing given": ({}, mine(settings={"retention_max_bytes": 5}), None),
}


@pytest.mark.parametrize("case", CHANGES)
def test_what_differs_is_changed(case):
    spec, found, wanted = CHANGES[case]
    decision = decide_stream(resource(spec=spec), seen(found))
    assert decision.action == wanted
    expected = (Reason.RECONCILED, Reason.EQUAL) if wanted is None else (Reason.ALTERING,) * 2
    assert reasons(decision) == expected


def test_what_somebody_else_changed_is_told_as_drift():
    made = resource(conditions=told("Reconciled", "True"))
    assert decide_stream(made, seen(mine(readonly=True))).action.is_drift
    newer = replace(made, generation=2)
    assert not decide_stream(newer, seen(mine(readonly=True))).action.is_drift


@pytest.mark.parametrize(
    ("spec", "found", "field"),
    [
        ({}, mine(subject="x"), "subject"),
        ({}, mine(group="x"), "group"),
        ({}, mine(partition_count=3), "partitions"),
        ({"config": {"encryption": True}}, mine(), "config.encryption"),
    ],
)
def test_what_cannot_be_changed_is_refused_by_a_condition(spec, found, field):
    decision = decide_stream(resource(spec=spec), seen(found))
    assert decision.action is None
    assert reasons(decision) == (Reason.DRIFTED, Reason.DRIFTED)
    assert decision.claims[READY].values["fields"] == field


def test_refused_settings_are_told_with_what_the_brokers_say():
    spec = {"config": {"segmentMaxBytes": 1}}
    action = decide_stream(resource(spec=spec), seen(mine())).action
    refused = Refused(change_of(action), "segment.max.bytes 1", is_due=False)
    decision = decide_stream(resource(spec=spec), seen(mine(), refused=refused))
    assert reasons(decision) == (Reason.INVALID_SPEC, Reason.REJECTED)


OBSERVE = {"managementPolicy": "Observe"}


@pytest.mark.parametrize(
    ("found", "action", "wanted"),
    [
        (None, None, (Reason.NOT_FOUND, Reason.NOT_FOUND)),
        (stream(), None, (Reason.OBSERVED, Reason.EQUAL)),
        (stream(owner=THEIRS), None, (Reason.OBSERVED, Reason.EQUAL)),
        (stream(subject="x"), None, (Reason.OBSERVED, Reason.DRIFTED)),
        (stream(readonly=True), None, (Reason.OBSERVED, Reason.DRIFTED)),
        (mine(), act.Forget(7), (Reason.OBSERVED, Reason.EQUAL)),
    ],
)
def test_observed_stream_is_never_changed(found, action, wanted):
    decision = decide_stream(resource(spec=OBSERVE), seen(found))
    assert (decision.action, reasons(decision)) == (action, wanted)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, Reason.IN_SYNC),
        ({"in_sync": 2}, Reason.UNDER_REPLICATED),
        ({"in_sync": 1}, Reason.BELOW_MIN_ISR),
        ({"leader": "", "in_sync": 0}, Reason.PARTITIONS_OFFLINE),
    ],
)
def test_health_names_the_worst(changes, reason):
    found = mine(partition_count=2)
    parts = (found.partitions[0], found.partitions[1]._replace(**changes))
    claim = decide_stream(resource(), seen(found._replace(partitions=parts))).claims[HEALTHY]
    assert claim.reason is reason
    assert claim.values["partitions"] == (2 if not changes else 1)


# -- deletion -----------------------------------------------------------------------------------

DELETE = {"deletionPolicy": "Delete"}


def going(spec=DELETE, **changes):
    return resource(spec=spec, **{"is_deleting": True, "has_finalizer": True, **changes})


def here(found=None, **changes):
    return seen(found, **{"is_ending": False, **changes})


def test_finalizer_is_there_before_the_stream_is():
    assert decide_stream(resource(spec=DELETE), seen()).action == act.AddFinalizer()
    with_it = resource(spec=DELETE, has_finalizer=True)
    assert isinstance(decide_stream(with_it, seen()).action, act.Create)
    namespaced = seen(is_namespaced=True)
    assert isinstance(decide_stream(resource(spec=DELETE), namespaced).action, act.Create)


DELETION = {
    "retained": (going({}), here(mine()), act.RemoveFinalizer(7)),
    "observed": (going(OBSERVE), here(stream()), act.RemoveFinalizer()),
    "unreadable": (replace(going(), spec=None), here(mine()), act.RemoveFinalizer(7)),
    "namespaced": (going(), here(mine(), is_namespaced=True), act.RemoveFinalizer(7)),
    "cluster gone": (
        going(),
        here(cluster=cluster(state=ClusterState.MISSING, is_heard=False)),
        act.RemoveFinalizer(),
    ),
    "cluster going": (
        going(),
        here(mine(), cluster=cluster(state=ClusterState.DELETING)),
        act.RemoveFinalizer(7),
    ),
    "not let in": (
        going(),
        here(mine(), cluster=cluster(is_allowed=False)),
        act.RemoveFinalizer(7),
    ),
    "namespace ends": (going(), here(mine(), is_ending=True), act.RemoveFinalizer(7)),
    "namespace unknown": (going(), seen(mine()), Ask.NAMESPACE),
    "no answer": (going(), here(cluster=cluster(is_heard=False)), Reason.CLUSTER_UNREACHABLE),
    "cluster hidden": (
        going(),
        here(cluster=cluster(state=ClusterState.HIDDEN, is_heard=False)),
        Reason.CLUSTER_UNREACHABLE,
    ),
    "no stream": (going(), here(), act.RemoveFinalizer()),
    "of somebody else": (going(), here(stream(owner=THEIRS)), act.RemoveFinalizer()),
    "of nobody": (going(), here(stream()), act.RemoveFinalizer()),
    "confirmed": (going(confirmed="7"), here(mine()), act.Delete(7)),
    "confirmed another": (going(confirmed="6"), here(mine(), messages=1), Reason.NOT_EMPTY),
    "not counted": (going(), here(mine()), Ask.MESSAGES),
    "empty": (going(), here(mine(), messages=0), act.Delete(7)),
    "not empty": (going(), here(mine(), messages=3), Reason.NOT_EMPTY),
    "not to be told": (going(), here(mine(), messages=None), Reason.CONFIRMATION_REQUIRED),
    "paused": (
        going(confirmed="7"),
        here(mine(), cluster=cluster(state=ClusterState.PAUSED)),
        None,
    ),
    "none of ours": (going(has_finalizer=False), here(mine(), messages=0), None),
}


@pytest.mark.parametrize("case", DELETION)
def test_messages_go_only_when_there_are_none_or_somebody_said_so(case):
    made, look, wanted = DELETION[case]
    decision = decide_deletion(made, look)
    assert decision.claims[READY].reason is Reason.DELETING
    if isinstance(wanted, Reason):
        assert decision.action is None
        assert decision.claims[BLOCKED].reason is wanted
        assert decision.event[0] is EventReason.DELETION_BLOCKED
    elif isinstance(wanted, Ask):
        assert (decision.action, decision.ask) == (None, wanted)
    else:
        assert (decision.action, decision.ask) == (wanted, None)
        assert BLOCKED not in decision.claims


def test_namespaced_operator_deletes_what_is_confirmed_while_the_resource_stands():
    def of(**changes):
        return resource(spec=DELETE, **{"creation_id": "7", "confirmed": "7", **changes})

    def alone(found=None):
        return seen(found, is_namespaced=True)

    assert decide_stream(of(), alone(mine())).action == act.Delete(7)
    after = decide_stream(of(), alone())
    assert (after.action, after.claims[READY].reason) == (None, Reason.DELETING)
    assert decide_stream(of(), alone(stream(owner=THEIRS))).action is None
    assert decide_stream(of(), alone(mine(stream_id=8))).action is None
    assert decide_stream(of(confirmed="6"), alone(mine())).action is None
    retained = resource(spec={}, creation_id="7", confirmed="7")
    assert decide_stream(retained, alone(mine())).action is None
    assert decide_stream(of(has_finalizer=True), seen(mine())).action is None


# -- status -------------------------------------------------------------------------------------


def test_times_of_conditions_move_only_with_their_status():
    first = status_of(resource(), decide_stream(resource(), seen()), None, before={}, now_ms=0)
    assert first["conditions"][0]["lastTransitionTime"] == "1970-01-01T00:00:00Z"
    made = resource(conditions=told("ClusterNotFound"))
    later_ms = moment_ms("2026-11-22T10:00:00Z")
    again = status_of(made, decide_stream(made, seen()), None, before={}, now_ms=later_ms)
    assert again["conditions"][0]["lastTransitionTime"] == "2026-11-21T10:00:00Z"
    assert again["conditions"][0]["reason"] == "CreatePending"


def test_status_tells_of_the_stream():
    found = mine(partition_count=2, settings={"retention_max_bytes": 5})
    spec = {"partitions": 2}
    decision = decide_stream(resource(spec=spec), seen(found))
    status = status_of(resource(spec=spec), decision, found, before={}, now_ms=0)
    assert (status["creationId"], status["replicas"], status["partitions"]) == ("7", 3, 2)
    assert status["observedConfig"] == {
        "retentionMaxBytes": 5,
        "retentionMaxMessages": 0,
        "retentionMaxAge": "168h",
        "minISR": DEFAULTS["min_isr"],
        "compactEnabled": False,
    }
    assert len(status["partitionDetails"]) == 2
    assert StreamStatus.model_validate(status).manifest()["conditions"] == status["conditions"]
    many = mine(partition_count=17)
    assert "partitionDetails" not in status_of(resource(), decision, many, before={}, now_ms=0)


def test_wait_is_told_after_half_a_minute():
    made = resource(conditions=told("Conflict"))
    decision = decide_stream(made, seen(older="shop/other"))
    early = status_of(made, decision, None, before={}, now_ms=1_795_255_200_000 + 29_000)
    late = status_of(made, decision, None, before={}, now_ms=1_795_255_200_000 + 31_000)
    assert "waits" not in early
    assert [one["what"] for one in late["waits"]] == ["Conflict"]


def typed(command, resource):
    """What of a resource a command changes, as kubectl would: annotations, and its policy."""
    words = shlex.split(command)
    assert words[0] == "kubectl"
    assert words[words.index("-n") + 1] == resource.namespace
    assert words[words.index("streams.liftbridge.io") + 1] == resource.name
    if words[1] == "annotate":
        key, _, value = words[-1].partition("=")
        assert key == CONFIRM_DELETE
        return replace(resource, confirmed=value)
    policy = json.loads(words[-1])["spec"]["deletionPolicy"]
    return replace(
        resource, spec=resource.spec.model_copy(update={"deletion_policy": DeletionPolicy(policy)})
    )


@pytest.mark.parametrize("case", [one for one in DELETION if isinstance(DELETION[one][2], Reason)])
def test_blocked_deletion_says_what_to_type_and_that_ends_it(case):
    resource, found, _ = DELETION[case]
    decision = decide_deletion(resource, found)
    claim = decision.claims[BLOCKED]
    said = load_catalogue().condition("Stream", "DeletionBlocked").reasons[claim.reason].text
    text = said.fill(claim.values)
    assert claim.values["keep"] in text
    kept = decide_deletion(typed(claim.values["keep"], resource), found)
    assert isinstance(kept.action, act.RemoveFinalizer)
    if "confirm" in claim.values:
        assert claim.values["confirm"] in text
        assert claim.values["confirm"] in decision.event[1]["detail"]
        confirmed = decide_deletion(typed(claim.values["confirm"], resource), found)
        assert confirmed.action == act.Delete(found.stream.stream_id)
