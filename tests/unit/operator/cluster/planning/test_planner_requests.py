"""What a person asks for beside the specification: restarts of single pods, brokers drained."""

from dataclasses import replace

import pytest

from liftbridge_operator.cluster.observing import marks
from liftbridge_operator.cluster.observing.desired import LISTED_MAX, desired_of
from liftbridge_operator.cluster.planning import actions as act
from liftbridge_operator.cluster.planning import plan
from liftbridge_operator.cluster.planning.decide import decide
from liftbridge_operator.cluster.planning.decision import Memory
from liftbridge_operator.cluster.planning.observation import Node, StuckCause
from liftbridge_operator.cluster.reporting.events import of_action
from liftbridge_operator.model.cluster import ClusterSpec
from liftbridge_testkit.operator_sim.samples import (
    came_back,
    healthy,
    kinds,
    led_by,
    passes,
    recorded,
    waits,
    with_broker,
    with_desired,
    with_member,
    with_metadata,
    with_node,
    with_partition,
    with_pod,
    with_report,
)


def action_of(seen):
    return decide(seen, Memory()).action


def plan_of(seen):
    return decide(seen, Memory()).status.plan


# -- the wish ---------------------------------------------------------------------------------


def wish(**annotations):
    named = {f"liftbridge.io/{key.replace('_', '-')}": text for key, text in annotations.items()}
    spec = {"version": "0.1.0", "nats": {"embedded": {}}, "storage": {"data": {"size": "1Gi"}}}
    resource = {"metadata": {"name": "c", "annotations": named}, "spec": spec}
    return desired_of(resource, ClusterSpec.model_validate(spec), revision="r", now_ms=0)


@pytest.mark.parametrize(("factor", "follows"), [(None, True), (-1, True), (2, False)])
def test_own_streams_of_brokers_follow_the_number_of_brokers(factor, follows):
    given = {
        "version": "0.1.0",
        "nats": {"embedded": {}},
        "storage": {"data": {"size": "1Gi"}},
        "config": {"cursors": {"replicationFactor": factor}},
    }
    spec = ClusterSpec.model_validate(given)
    desired = desired_of({}, spec, revision="r", now_ms=0, automatic=["s"])
    cursors = {"__cursors"} if follows else set()
    assert set(desired.automatic_factor) == {"s", "__activity", *cursors}


def test_annotations_list_pods_and_brokers():
    made = wish(restart_pods="uid-1, uid-2,,uid-1", drain="c-0,c-2")
    assert made.restarts == ("uid-1", "uid-2")
    assert made.drained == ("c-0", "c-2")
    assert (wish().restarts, wish(drain=" , ").drained) == ((), ())


def test_what_an_annotation_lists_is_bounded():
    assert len(wish(drain=",".join(f"c-{one}" for one in range(LISTED_MAX + 5))).drained) == 100


def test_cause_in_the_plan_names_the_annotation():
    assert marks.RESTART_PODS in plan.ASKED


# -- restarts ---------------------------------------------------------------------------------


def asked(**desired):
    """A restart of c-1 alone; the budget is closed already."""
    return replace(healthy(3, restarts=("uid-c-1",), **desired), budget=0)


def test_restart_that_is_asked_for_is_planned_and_goes_through_the_gate():
    assert [(one.object, one.cause) for one in plan_of(asked()).steps] == [("c-1", plan.ASKED)]
    decisions = passes(asked(), 5)
    assert kinds(decisions) == ["CheckRestart", "Record"]
    assert decisions[-1].action.recorded.disruption.broker == "c-1"
    assert not decisions[-1].status.is_ready


def test_recorded_restart_deletes_the_pod_and_writes_no_template():
    seen = recorded(asked(), "c-1")
    action = passes(seen, 3)[-1].action
    assert (action.name, action.uid, action.template) == ("c-1", "uid-c-1", None)
    told = of_action(action, seen)
    assert told.values["cause"] == "a restart was requested"


def test_restart_that_is_asked_for_waits_like_any_other():
    short = with_partition(asked(), isr=("c-0", "c-1"))
    assert "IsrNotFull" in waits(passes(short, 4))
    assert {*kinds(passes(short, 4))} <= {"ElectPreferred"}
    assert waits(passes(asked(is_window_open=False), 4)) == {"MaintenanceWindowClosed"}


def test_restart_is_done_when_the_pod_is_another_one():
    seen = with_desired(came_back(healthy(), "c-1"), restarts=("uid-c-1",))
    assert plan_of(seen).steps == ()
    assert isinstance(action_of(seen), act.Record)


def test_record_of_a_restart_that_nobody_wants_any_more_is_given_up():
    seen = with_desired(recorded(asked(), "c-1"), restarts=())
    assert isinstance(action_of(seen), act.KeepPod)


def test_stuck_pod_of_the_wanted_template_is_replaced_when_somebody_asks():
    seen = with_pod(
        asked(),
        "c-1",
        is_ready=False,
        is_running=False,
        stuck=StuckCause.CRASH_LOOP,
        changed_ms=1,
        stuck_since_ms=1,
    )
    assert isinstance(action_of(seen), act.DeletePod)
    assert not isinstance(action_of(with_desired(seen, restarts=())), act.DeletePod)


def test_approval_of_a_change_is_none_of_a_restart_that_is_asked_for_later():
    change = replace(healthy(revision="r2", needs_approval=True), budget=0)
    approved = with_desired(change, approved_hash=plan_of(change).hash)
    assert decide(approved, Memory()).status.stalled == ""
    later = with_desired(approved, restarts=("uid-c-1",))
    assert decide(later, Memory()).status.stalled == "ApprovalRequired"
    again = with_desired(later, approved_hash=plan_of(later).hash)
    assert kinds(passes(again, 5)) == ["CheckRestart", "Record"]


def test_pod_that_is_to_be_restarted_too_leads_the_metadata_last():
    seen = replace(led_by(healthy(restarts=("uid-c-2", "uid-c-0")), "c-0"), budget=0)
    decisions = passes(recorded(seen, "c-2"), 1)
    assert [one.object for one in decisions[0].status.plan.steps] == ["c-2", "c-0"]


# -- drains -----------------------------------------------------------------------------------


def drained(*names, count=3):
    """These brokers are drained, and cordoned already."""
    seen = healthy(count, drained=names)
    for name in names:
        seen = with_broker(seen, name, is_cordoned=True)
    return seen


def test_drained_broker_gets_nothing_new_and_keeps_what_it_holds():
    seen = healthy(drained=("c-0",))
    assert action_of(seen) == act.Cordon("c-0", is_draining=False)
    assert of_action(action_of(seen), seen).values["cause"] == "it is drained"


def test_drained_broker_hands_over_what_it_leads_then_the_metadata():
    seen = drained("c-0")
    assert action_of(seen) == act.TransferLeaders("c-0")
    without = with_partition(seen, leader="c-1")
    assert action_of(without) == act.TransferMetadataLeadership("c-1")
    assert action_of(with_metadata(without, leader="c-1")) is None


def test_drained_cluster_is_ready_and_lets_one_pod_go():
    decision = decide(led_by(drained("c-0"), "c-1"), Memory())
    assert decision.status.is_ready
    assert decision.action is None


def test_two_drained_brokers_do_not_hand_their_leaderships_to_and_fro():
    seen = drained("c-0", "c-1")
    assert action_of(seen) == act.TransferLeaders("c-0", to="c-2")
    assert action_of(led_by(seen, "c-1")) == act.TransferLeaders("c-1", to="c-2")
    assert action_of(led_by(seen, "c-2")) is None


def test_partition_that_only_drained_brokers_can_lead_stays():
    seen = with_partition(drained("c-0", "c-1"), isr=("c-0", "c-1"), replicas=("c-0", "c-1"))
    assert action_of(seen) == act.TransferMetadataLeadership("c-2")


def test_drain_of_all_brokers_is_no_drain():
    seen = healthy(drained=("c-0", "c-1", "c-2"))
    assert action_of(seen) is None
    cordoned = with_broker(seen, "c-1", is_cordoned=True)
    assert action_of(cordoned) == act.Uncordon("c-1")


def test_end_of_a_drain_ends_the_cordon_and_gives_leaderships_back():
    seen = led_by(with_desired(drained("c-0"), drained=()), "c-1")
    assert action_of(seen) == act.Uncordon("c-0")
    free = with_broker(seen, "c-0", is_cordoned=False)
    assert action_of(free) == act.ElectPreferred((("s", 0),))


def test_drain_goes_on_while_a_plan_waits_for_its_approval():
    seen = replace(drained("c-0"), budget=0)
    seen = with_desired(seen, revision="r2", needs_approval=True)
    decision = decide(seen, Memory())
    assert decision.action == act.TransferLeaders("c-0")
    rolled = with_desired(seen, needs_approval=False)
    assert not isinstance(action_of(rolled), act.TransferLeaders)


def test_metadata_go_to_a_broker_that_stays_when_a_restart_moves_them():
    seen = led_by(replace(drained("c-1"), budget=0), "c-0")
    seen = with_desired(with_partition(seen, leader="c-2"), restarts=("uid-c-0",))
    assert passes(seen, 3)[-1].action == act.TransferMetadataLeadership("c-2")


def test_drained_learner_that_has_caught_up_gets_its_vote():
    seen = with_member(drained("c-2"), "c-2", is_voter=False)
    assert isinstance(action_of(seen), act.PromoteLearner)


def test_broker_that_is_to_go_is_emptied_though_it_is_drained():
    seen = replace(healthy(4, replicas=3, drained=("c-3",)), budget=0)
    assert action_of(seen) == act.Cordon("c-3", is_draining=True)
    retired = with_report(with_broker(seen, "c-3", is_cordoned=True), "c-3", is_retired=True)
    assert not isinstance(action_of(retired), act.Cordon)


@pytest.mark.parametrize("heir", ["c-1", "c-2"])
def test_two_cordoned_nodes_hand_leaderships_to_the_third(heir):
    other = {"c-1": "c-2", "c-2": "c-1"}[heir]
    seen = with_node(
        with_node(healthy(), "c-0", is_unschedulable=True), other, is_unschedulable=True
    )
    assert action_of(seen) == act.TransferLeaders("c-0", to=heir)


def test_nothing_leaves_when_every_node_is_cordoned():
    seen = healthy()
    every = replace(seen, nodes=tuple(Node(one.name, is_unschedulable=True) for one in seen.nodes))
    assert action_of(every) is None
