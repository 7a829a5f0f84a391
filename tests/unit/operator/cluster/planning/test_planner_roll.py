"""Restarts: their order, the gate, consent, the record, and the proof that a broker is back."""

from dataclasses import replace

import pytest

from liftbridge_operator.cluster.planning import actions as act
from liftbridge_operator.cluster.planning.decide import decide
from liftbridge_operator.cluster.planning.decision import Memory, Token, TokenAnswer
from liftbridge_operator.cluster.planning.observation import (
    Disruption,
    Node,
    Partition,
    Recorded,
    StuckCause,
)
from liftbridge_operator.cluster.planning.roll import remember
from liftbridge_testkit.operator_sim.samples import (
    TOKEN,
    came_back,
    healthy,
    kinds,
    later,
    led_by,
    passes,
    pod,
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
    with_set,
)


def rolling(**desired):
    """Another template is desired; the budget is closed already."""
    return replace(healthy(3, **{"revision": "r2", **desired}), budget=0)


def last_one(**desired):
    """Only the broker with all leaderships is left to restart; everybody else has the template."""
    seen = with_set(rolling(**desired), revision="r2", good_revision="r2")
    return with_pod(with_pod(seen, "c-1", revision="r2"), "c-2", revision="r2")


def test_cluster_at_rest_is_ready_and_nothing_is_done():
    decision = decide(healthy(), Memory())
    assert decision.action is None
    assert decision.status.is_ready
    assert decision.status.waits == ()


def test_budget_is_closed_before_a_roll_begins():
    assert decide(replace(rolling(), budget=1), Memory()).action == act.SetBudget(0)


def test_a_restart_is_recorded_after_two_readings_and_consent():
    decisions = passes(rolling(), 5)
    assert kinds(decisions) == ["CheckRestart", "Record"]
    assert decisions[-1].action.recorded.disruption.broker == "c-2"
    assert decisions[0].status.waits[0].what == "GateReading"


def test_two_readings_are_at_least_two_seconds_apart():
    seen, memory = rolling(), Memory()
    first = decide(seen, memory)
    second = decide(later(seen, 1_000), first.memory)
    assert second.action is None


def test_a_reading_is_void_when_the_metadata_changed():
    seen = rolling()
    first = decide(seen, Memory())
    second = decide(later(with_partition(seen, partition_epoch=5), 3_000), first.memory)
    assert second.action is None


def test_recorded_restart_deletes_the_pod_as_it_was_seen_and_writes_the_template_with_it():
    action = passes(recorded(rolling()), 3)[-1].action
    assert isinstance(action, act.DeletePod)
    assert (action.name, action.uid, action.resource_version) == ("c-2", "uid-c-2", 9)
    assert not action.is_forced
    assert action.template.revision == "r2"
    assert action.template.good_revision == "r1"


def test_metadata_leader_is_last_and_gives_its_leadership_away_first():
    seen = rolling()
    assert [step.object for step in decide(seen, Memory()).status.plan.steps][-1] == "c-0"
    assert kinds(passes(last_one(), 4)) == ["CheckRestart", "TransferMetadataLeadership"]


def test_leaders_are_moved_away_before_the_record():
    seen = with_metadata(last_one(), leader="c-1")
    assert kinds(passes(seen, 4)) == ["CheckRestart", "TransferLeaders"]


def test_consent_for_another_pod_of_the_same_name_does_not_count():
    memory = passes(rolling(), 2)[-1].memory
    memory = replace(memory, token=Token("c-2", "former", "t", 99_000_000, 1))
    assert isinstance(decide(later(rolling(), 4_000), memory).action, act.CheckRestart)


def test_without_consent_nothing_goes_on_and_the_reason_is_told():
    memory = passes(rolling(), 2)[-1].memory
    memory = remember(
        replace(memory, token=None),
        act.CheckRestart("c-2", "uid-c-2", accepts_unavailable=False, needs_full_isr=True),
        TokenAnswer("", 0, 0, ("s/0 is not in sync",)),
    )
    decision = decide(later(rolling(), 4_000), memory)
    assert isinstance(decision.action, act.CheckRestart)
    assert decision.status.waits[0].ends_when == "s/0 is not in sync"


def other_partition(seen, **changes):
    two = Partition("t", 0, "c-0", 1, ("c-0", "c-1"), ("c-0", "c-1"), 1)
    return with_metadata(seen, partitions=(*seen.metadata.partitions, replace(two, **changes)))


CLOSED = {
    "MetadataUnknown": lambda seen: with_metadata(seen, leader=""),
    "AnotherDisruption": lambda seen: with_pod(seen, "c-1", is_ready=False, changed_ms=9_999_000),
    "AmbiguousIdentity": lambda seen: with_broker(seen, "c-2", start_id="somebody"),
    "BrokerDown": lambda seen: with_broker(seen, "c-1", is_stopping=True),
    "NatsUnreachable": lambda seen: with_report(seen, "c-1", is_nats_connected=False),
    "IsrNotFull": lambda seen: with_partition(seen, isr=("c-0", "c-2")),
    "MovingPartitions": lambda seen: with_partition(seen, target=("c-0", "c-1")),
    "MetadataQuorumAtRisk": lambda seen: with_member(seen, "c-1", match_index=10),
    "Unreplicated": lambda seen: with_partition(seen, replicas=("c-2",), isr=("c-2",)),
    "NodeCordoned": lambda seen: with_node(seen, "c-2", is_unschedulable=True),
}


def only_c2(**desired):
    """Only c-2, which leads nothing, is left to restart."""
    seen = with_set(rolling(**desired), revision="r2", good_revision="r2")
    return with_pod(with_pod(seen, "c-0", revision="r2"), "c-1", revision="r2")


def stays(what, change=None):
    """The gate stays closed for a reason: nothing is done but waiting."""
    decisions = passes((change or CLOSED[what])(only_c2()), 4)
    return what in waits(decisions) and {*kinds(decisions)} <= {"ElectPreferred"}


def test_gate_needs_a_leader_of_the_metadata():
    assert stays("MetadataUnknown")


def test_gate_needs_all_other_pods_ready():
    assert stays("AnotherDisruption")


def test_gate_needs_pod_and_broker_to_be_the_same_process():
    assert stays("AmbiguousIdentity")


def test_gate_needs_all_other_brokers_serving():
    assert stays("BrokerDown")


def test_gate_needs_the_links_of_the_others():
    assert stays("NatsUnreachable")


def test_gate_needs_all_other_replicas_in_sync():
    assert stays("IsrNotFull")


def test_gate_needs_partitions_at_rest():
    assert stays("MovingPartitions")


def test_gate_needs_a_majority_of_caught_up_voters():
    assert stays("MetadataQuorumAtRisk")


def test_gate_needs_consent_to_unavailable_partitions():
    assert stays("Unreplicated")


def test_gate_needs_a_node_that_takes_the_pod_back():
    assert stays("NodeCordoned")


def test_gate_needs_room_on_the_disk_of_the_broker():
    assert stays("VolumeFull", lambda seen: with_report(seen, "c-2", is_disk_full=True))


def test_gate_needs_room_on_the_disks_of_the_others():
    assert stays("VolumeFull", lambda seen: with_report(seen, "c-1", is_disk_full=True))


def test_a_lagging_broker_may_be_restarted_itself():
    seen = with_partition(only_c2(), isr=("c-0", "c-1"))
    assert kinds(passes(seen, 5)) == ["CheckRestart", "Record"]


def test_weaker_gate_goes_on_with_the_minimum_in_sync():
    seen = with_partition(only_c2(needs_full_isr=False), isr=("c-0", "c-2"), min_isr=1)
    assert kinds(passes(seen, 5)) == ["CheckRestart", "Record"]


def test_lone_broker_is_restarted_when_its_absence_is_accepted():
    refused = passes(healthy(1, revision="r2"), 5)
    assert kinds(refused) == []
    accepted = passes(healthy(1, revision="r2", allows_unavailable=True), 5)
    assert kinds(accepted) == ["CheckRestart", "Record"]


def test_no_restart_outside_of_the_window():
    assert waits(passes(rolling(is_window_open=False), 5)) == {"MaintenanceWindowClosed"}


def test_no_restart_without_approval_and_it_holds_for_the_whole_roll():
    seen = rolling(needs_approval=True)
    before = decide(seen, Memory()).status
    assert before.stalled == "ApprovalRequired"
    assert kinds(passes(seen, 5)) == []
    seen = with_desired(seen, approved_hash=before.plan.hash)
    assert kinds(passes(seen, 5)) == ["CheckRestart", "Record"]
    half = with_pod(with_set(seen, revision="r2"), "c-2", revision="r2")
    assert decide(half, Memory()).status.plan.hash == before.plan.hash
    assert decide(half, Memory()).status.plan.step_count == 2
    silent = replace(half, metadata=None, recorded=Recorded(risks=before.plan.risks))
    assert decide(silent, Memory()).status.plan.hash == before.plan.hash


def test_nothing_is_done_while_paused():
    decisions = passes(rolling(is_paused=True), 5)
    assert kinds(decisions) == []
    assert waits(decisions) == {"Paused"}
    assert decisions[0].status.plan.step_count == 3


def test_refused_configuration_rolls_nothing():
    decisions = passes(rolling(config_errors=("unknown key",)), 5)
    assert {*kinds(decisions)} <= {"SetBudget"}
    assert decisions[0].status.stalled == "InvalidSpec"


# -- the recorded restart ---------------------------------------------------------------------


def kept(seen, name="c-2"):
    """The pod of the recorded restart was written to, so that no former deletion takes it."""
    return with_pod(seen, name, kept=TOKEN)


def test_record_ends_when_the_gate_has_closed():
    seen = recorded(with_partition(rolling(), isr=("c-0", "c-2")))
    assert decide(seen, Memory()).action == act.KeepPod("c-2", "uid-c-2", 9, TOKEN)
    action = passes(kept(seen), 3)[-1].action
    assert isinstance(action, act.Record)
    assert action.recorded.disruption is None


def test_record_ends_when_the_consent_is_over():
    seen = recorded(rolling(), expires_ms=10_000_000)
    assert isinstance(decide(seen, Memory()).action, act.KeepPod)
    assert isinstance(decide(kept(seen), Memory()).action, act.Record)


def test_record_ends_when_another_process_answers_for_the_pod():
    seen = with_report(recorded(rolling()), "c-2", start_id="new")
    assert kinds(passes(seen, 4)) == ["KeepPod"]


def test_pod_that_was_kept_is_not_deleted_for_the_same_record():
    assert kinds(passes(kept(recorded(rolling())), 4)) == ["Record"]
    assert kinds(passes(with_pod(recorded(rolling()), "c-2", kept="former"), 4)) == ["DeletePod"]


def test_next_restart_waits_until_the_recorded_one_is_over():
    seen = came_back(rolling(), is_complete=False, blockers=("s/0 is behind",))
    decisions = passes(with_set(seen, revision="r2"), 5)
    assert {*kinds(decisions)} <= {"SetTemplate"}
    assert "CatchingUp" in waits(decisions)


def test_broker_is_called_back_only_by_the_answer_about_its_own_token():
    seen = came_back(rolling())
    seen = replace(seen, verification=replace(seen.verification, token="another"))
    assert kinds(passes(with_set(seen, revision="r2", good_revision="r2"), 5)) == []


def test_leaderships_are_given_back_then_the_record_ends():
    seen = with_set(came_back(rolling()), revision="r2", good_revision="r2")
    preferred = ("c-2", "c-0", "c-1")
    kept = passes(with_partition(seen, replicas=preferred), 1)
    assert kept[0].action == act.ElectPreferred((("s", 0),))
    action = decide(seen, Memory()).action
    assert isinstance(action, act.Record)
    assert action.recorded.disruption is None


def test_pod_that_is_just_back_settles_first():
    seen = with_pod(came_back(rolling()), "c-2", changed_ms=9_995_000)
    decision = decide(with_set(seen, revision="r2", good_revision="r2"), Memory())
    assert decision.action is None
    assert "Settling" in {one.what for one in decision.status.waits}


def test_wiped_volume_counts_as_back_when_all_is_copied():
    seen = came_back(rolling(), is_complete=False, is_other_directory=True)
    seen = with_set(seen, revision="r2", good_revision="r2")
    assert isinstance(decide(seen, Memory()).action, act.Record)
    behind = with_partition(seen, isr=("c-0", "c-1"))
    assert "CatchingUp" in waits([decide(behind, Memory())])


# -- stuck pods -------------------------------------------------------------------------------


def stuck(seen, name, cause=StuckCause.CRASH_LOOP, **changes):
    return with_pod(
        seen,
        name,
        **{
            "is_ready": False,
            "is_running": False,
            "stuck": cause,
            "stuck_since_ms": 1,
            **changes,
        },
    )


def test_stuck_pod_of_an_old_template_goes_first_and_needs_no_quorum():
    seen = stuck(replace(rolling(), metadata=None), "c-1")
    action = decide(seen, Memory()).action
    assert isinstance(action, act.DeletePod)
    assert action.name == "c-1"
    assert action.template.revision == "r2"


def test_stuck_pods_go_one_at_a_time():
    seen = stuck(stuck(rolling(), "c-1"), "c-2", revision="r2", created_ms=9_995_000)
    decision = decide(with_set(seen, revision="r2", good_revision="r2"), Memory())
    assert decision.action is None
    assert decision.status.waits[0].what == "AnotherDisruption"


def test_pod_that_runs_unready_goes_only_when_its_partitions_can_spare_it():
    seen = with_pod(rolling(), "c-1", is_ready=False, changed_ms=1)
    assert isinstance(decide(seen, Memory()).action, act.DeletePod)
    short = with_partition(seen, isr=("c-0", "c-1"))
    assert decide(short, Memory()).action is None


def test_pod_that_runs_unready_hands_over_what_it_leads_first():
    seen = with_pod(rolling(), "c-0", is_ready=False, changed_ms=1)
    assert decide(seen, Memory()).action == act.TransferLeaders("c-0")
    assert isinstance(decide(led_by(seen, "c-1"), Memory()).action, act.DeletePod)


def test_pod_that_runs_unready_stays_while_it_leads_the_only_replica_that_there_is():
    seen = with_pod(rolling(), "c-0", is_ready=False, changed_ms=1)
    alone = with_partition(seen, replicas=("c-0",), isr=("c-0",))
    decision = decide(alone, Memory())
    assert decision.action is None
    assert decision.status.waits[0].what == "Unreplicated"
    accepted = with_desired(alone, allows_unavailable=True)
    assert isinstance(decide(accepted, Memory()).action, act.DeletePod)
    assert isinstance(decide(led_by(alone, ""), Memory()).action, act.DeletePod)


def test_pod_that_runs_unready_stays_while_the_metadata_group_needs_it():
    seen = with_pod(rolling(), "c-1", is_ready=False, changed_ms=1)
    needed = with_member(seen, "c-2", is_alive=False)
    assert decide(needed, Memory()).action is None
    silent = with_member(needed, "c-1", is_alive=False)
    assert isinstance(decide(silent, Memory()).action, act.DeletePod)
    headless = replace(needed, metadata=None)
    assert isinstance(decide(headless, Memory()).action, act.DeletePod)


def test_template_with_which_a_pod_is_stuck_is_taken_back():
    seen = stuck(with_set(rolling(), revision="r2"), "c-2", revision="r2")
    action = decide(seen, Memory()).action
    assert action == act.SetTemplate("set", 5, "r1", "r1", "r2")
    back = with_set(seen, revision="r1", bad_revision="r2")
    decision = decide(back, Memory())
    assert isinstance(decision.action, act.DeletePod)
    assert decision.status.stalled == "BadRevision"
    healed = with_pod(back, "c-2", is_ready=True, is_running=True, stuck=None, revision="r1")
    assert kinds(passes(healed, 4)) in ([], ["SetBudget"])


def test_pod_of_a_lost_node_says_nothing_about_its_template():
    seen = stuck(with_set(rolling(), revision="r2"), "c-2", StuckCause.NODE_LOST, revision="r2")
    assert not isinstance(decide(seen, Memory()).action, act.SetTemplate)


def test_pod_without_a_place_says_nothing_while_nodes_take_none():
    seen = stuck(with_set(rolling(), revision="r2"), "c-2", StuckCause.UNSCHEDULABLE, revision="r2")
    assert isinstance(decide(seen, Memory()).action, act.SetTemplate)
    drained = with_node(seen, "c-1", is_unschedulable=True)
    assert not isinstance(decide(drained, Memory()).action, act.SetTemplate)
    away = with_node(seen, "c-1", is_ready=False)
    assert not isinstance(decide(away, Memory()).action, act.SetTemplate)


def test_first_boot_with_a_bad_template_stalls_and_a_new_one_heals():
    seen = with_set(replace(rolling(), metadata=None), revision="r1", good_revision="")
    seen = stuck(stuck(stuck(seen, "c-0"), "c-1"), "c-2")
    assert decide(with_desired(seen, revision="r1"), Memory()).status.stalled == "BadRevision"
    assert isinstance(decide(seen, Memory()).action, act.DeletePod)


# -- beside -----------------------------------------------------------------------------------


def test_leaderships_leave_a_cordoned_node_ahead_of_the_drain():
    seen = replace(with_node(healthy(), "c-0", is_unschedulable=True), budget=1)
    assert decide(seen, Memory()).action == act.TransferLeaders("c-0")
    every = replace(seen, nodes=tuple(Node(one.name, is_unschedulable=True) for one in seen.nodes))
    assert decide(every, Memory()).action is None


def test_first_replica_leads_again():
    assert decide(led_by(healthy(), "c-1"), Memory()).action == act.ElectPreferred((("s", 0),))


def test_template_is_known_as_good_once_a_pod_with_it_has_settled():
    seen = with_set(healthy(), good_revision="")
    assert decide(seen, Memory()).action == act.SetTemplate("set", 5, "r1", "r1", "")


def test_waits_keep_the_time_they_began():
    seen = with_partition(healthy(), isr=("c-0", "c-1"))
    first = decide(replace(seen, budget=0), Memory())
    second = decide(later(replace(seen, budget=0), 9_000), first.memory)
    assert [one.since_ms for one in second.status.waits] == [seen.now_ms]


@pytest.mark.parametrize("count", [12])
def test_ordinals_are_numbers_with_twelve_brokers(count):
    seen = healthy(count, replicas=11)
    assert decide(replace(seen, budget=0), Memory()).action == act.Cordon("c-11", is_draining=True)


def test_disruption_of_a_broker_beyond_the_set_is_forgotten():
    seen = replace(healthy(), recorded=Recorded(Disruption("c-7", "u", "t", 1, 1, 1)), budget=0)
    assert isinstance(decide(seen, Memory()).action, act.Record)


def test_pod_made_by_hand_is_no_candidate():
    seen = healthy()
    seen = replace(seen, pods=(*seen.pods, pod("c-9", revision="other")))
    assert decide(seen, Memory()).status.plan.steps == ()
