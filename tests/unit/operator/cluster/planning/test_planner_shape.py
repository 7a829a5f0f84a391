"""First boot, more and fewer brokers, other volumes, larger ones, no pods at all."""

from dataclasses import replace
from itertools import product

from liftbridge_operator.cluster.planning import actions as act
from liftbridge_operator.cluster.planning.decide import decide
from liftbridge_operator.cluster.planning.decision import Memory
from liftbridge_operator.cluster.planning.observation import (
    DesiredState,
    DesiredVolume,
    Member,
    MemberReport,
    Observation,
    Replacement,
    SetShape,
    StuckCause,
)
from liftbridge_testkit.operator_sim.samples import (
    healthy,
    kinds,
    passes,
    waits,
    with_broker,
    with_claim,
    with_desired,
    with_member,
    with_metadata,
    with_node,
    with_partition,
    with_pod,
    with_report,
    with_set,
)


def action_of(seen):
    return decide(seen, Memory()).action


def nothing(**desired):
    """A resource that was just created."""
    wish = {"replicas": 3, "revision": "r1", "data_volume": DesiredVolume(10), **desired}
    return Observation(1, 1, "fresh", DesiredState("c", 1, **wish))


def newborn():
    """All pods run and wait for a cluster."""
    seen = replace(healthy(), metadata=None, budget=0)
    seen = replace(seen, identity=replace(seen.identity, founders=(), is_started=False))
    return replace(
        seen,
        reports=tuple(replace(one, cluster_id="", has_metadata=False) for one in seen.reports),
    )


# -- first boot -------------------------------------------------------------------------------


def test_identity_is_written_before_anything_else():
    assert action_of(nothing()) == act.CreateIdentity("fresh", is_started=False)


def test_lost_identity_is_rebuilt_from_the_volumes_and_never_founds_again():
    seen = replace(healthy(), identity=None, metadata=None)
    assert action_of(seen) == act.CreateIdentity("id", is_started=True)


def test_volumes_of_two_clusters_start_nothing():
    seen = replace(with_claim(healthy(), "c-1", cluster_id="foreign"), brokers=None, pods=())
    decision = decide(seen, Memory())
    assert decision.action is None
    assert decision.status.stalled == "Conflict"
    assert decision.status.waits[0].object == "c-1"


def test_adoption_starts_every_broker_with_a_volume_in_use():
    seen = replace(healthy(5, replicas=3), brokers=None, pods=(), metadata=None)
    assert action_of(seen).replicas == 5
    kept = with_claim(with_claim(seen, "c-3", is_retired=True), "c-4", is_retired=True)
    assert action_of(kept).replicas == 3


def test_founders_are_written_before_one_is_told():
    action = action_of(newborn())
    assert isinstance(action, act.WriteFounders)
    assert [one.broker for one in action.founders] == ["c-0", "c-1", "c-2"]


def test_founders_are_not_written_over_metadata():
    seen = with_report(newborn(), "c-1", has_metadata=True, cluster_id="id")
    decision = decide(seen, Memory())
    assert decision.action is None
    assert decision.status.stalled == "QuorumLost"


def test_listed_founders_are_told_the_whole_list():
    seen = newborn()
    seen = replace(seen, identity=healthy().identity)
    action = action_of(seen)
    assert isinstance(action, act.Bootstrap)
    assert action.founders == action.brokers == healthy().identity.founders


def test_two_of_three_wiped_volumes_found_nothing_new():
    seen = replace(healthy(), metadata=None, budget=0)
    for name in ("c-1", "c-2"):
        seen = with_report(seen, name, data_dir_id=f"new-{name}", has_metadata=False, cluster_id="")
    decisions = passes(seen, 4)
    assert kinds(decisions) == []
    assert decisions[-1].status.stalled == "QuorumLost"


# -- membership -------------------------------------------------------------------------------


def test_member_on_a_directory_that_is_gone_is_removed():
    seen = with_member(healthy(), "c-2", member=Member("c-2", "old"), is_alive=False)
    assert action_of(seen) == act.RemoveMember(Member("c-2", "old"))


def test_member_that_is_alive_is_no_ghost():
    seen = with_member(healthy(), "c-2", member=Member("c-2", "old"))
    assert not isinstance(action_of(seen), act.RemoveMember)


def test_no_member_is_removed_when_too_few_are_left():
    seen = with_member(healthy(), "c-2", member=Member("c-2", "old"), is_alive=False)
    seen = with_member(seen, "c-1", is_alive=False)
    assert not isinstance(action_of(seen), act.RemoveMember)


def without_member(name):
    seen = healthy()
    left = tuple(one for one in seen.metadata.members if one.member.broker != name)
    return with_metadata(seen, members=left)


def test_broker_that_is_no_member_becomes_a_learner():
    assert action_of(without_member("c-2")) == act.AddLearner(Member("c-2", "dir-c-2"))


def test_learner_that_caught_up_gets_a_vote():
    seen = with_member(healthy(), "c-2", is_voter=False)
    assert action_of(seen) == act.PromoteLearner(Member("c-2", "dir-c-2"))


def test_learner_that_is_behind_gets_no_vote():
    seen = with_member(healthy(), "c-2", is_voter=False, match_index=1)
    assert not isinstance(action_of(seen), act.PromoteLearner)


def test_retired_directory_gets_no_vote():
    learner = replace(with_member(healthy(), "c-2", is_voter=False), budget=0)
    assert isinstance(action_of(learner), act.PromoteLearner)
    seen = with_report(learner, "c-2", is_retired=True)
    assert isinstance(action_of(seen), act.MarkClaim)


def test_four_brokers_have_three_voters():
    seen = with_member(healthy(4), "c-3", is_voter=True)
    assert action_of(seen) == act.RemoveMember(Member("c-3", "dir-c-3"))


# -- more brokers -----------------------------------------------------------------------------


def test_set_grows_by_one():
    assert action_of(healthy(replicas=5)) == act.SetReplicas("set", 5, 4)


def test_set_grows_only_when_everybody_is_ready():
    seen = replace(with_pod(healthy(replicas=5), "c-1", is_ready=False), budget=0)
    assert not isinstance(action_of(seen), act.SetReplicas)


def test_kept_volume_is_in_use_again_before_its_pod():
    seen = healthy(replicas=4)
    kept = replace(seen.claims[0], name="c-3", ordinal=3, uid="claim-c-3", is_retired=True)
    seen = replace(seen, claims=(*seen.claims, kept))
    assert action_of(seen) == act.MarkClaim("c-3", "claim-c-3", 3, is_retired=False)


def test_broker_that_has_replicas_is_started_again_though_the_set_is_smaller():
    seen = replace(with_partition(healthy(), replicas=("c-0", "c-3")), budget=0)
    assert action_of(seen) == act.SetReplicas("set", 5, 4)


# -- fewer brokers ----------------------------------------------------------------------------


def leaving(**changes):
    """The fourth of four brokers is to go; nothing is on it any more."""
    seen = replace(healthy(4, replicas=3), budget=0)
    return with_broker(seen, "c-3", is_cordoned=True, is_draining=True, **changes)


def test_highest_broker_is_cordoned_and_drained_first():
    seen = replace(healthy(4, replicas=3), budget=0)
    assert action_of(seen) == act.Cordon("c-3", is_draining=True)


def test_broker_with_replicas_stays():
    seen = with_partition(leaving(), replicas=("c-1", "c-3"), isr=("c-1", "c-3"), leader="c-1")
    decisions = passes(seen, 5)
    assert kinds(decisions) == []
    assert "MovingPartitions" in waits(decisions)


def test_empty_broker_is_seen_twice_then_retired():
    decisions = passes(leaving(), 3)
    assert decisions[0].action is None
    assert decisions[1].action == act.Retire(Member("c-3", "dir-c-3"))


def test_vote_is_taken_before_the_directory_is_retired():
    seen = replace(healthy(5, replicas=4), budget=0)
    seen = with_broker(seen, "c-4", is_cordoned=True, is_draining=True)
    assert kinds(passes(seen, 3)) == ["RemoveMember"]


def test_claim_is_marked_before_the_set_becomes_smaller():
    seen = with_report(leaving(), "c-3", is_retired=True)
    assert action_of(seen) == act.MarkClaim("c-3", "claim-c-3", 3, is_retired=True)
    marked = with_claim(seen, "c-3", is_retired=True)
    assert action_of(marked) == act.SetReplicas("set", 5, 3)


def test_stream_with_a_fixed_factor_holds_the_scale_in():
    decision = decide(replace(healthy(replicas=2), budget=0), Memory())
    assert decision.action is None
    assert decision.status.stalled == "ScaleDownBlocked"
    assert decision.status.waits[0].object == "s/0"


def test_stream_with_an_automatic_factor_gets_fewer_replicas():
    seen = replace(healthy(replicas=2, automatic_factor=("s",)), budget=0)
    seen = with_broker(seen, "c-2", is_cordoned=True, is_draining=True)
    action = action_of(seen)
    assert isinstance(action, act.Reassign)
    assert action.moves[0].target == ("c-0", "c-1")
    behind = with_partition(seen, isr=("c-0", "c-2"))
    assert not isinstance(action_of(behind), act.Reassign)


def test_reverted_scale_in_ends_the_cordon():
    seen = with_broker(healthy(4), "c-3", is_cordoned=True, is_draining=True)
    assert action_of(seen) == act.Uncordon("c-3")
    asked = with_desired(seen, drained=("c-3",))
    assert action_of(asked) == act.Cordon("c-3", is_draining=False)
    assert action_of(with_broker(asked, "c-3", is_draining=False)) is None


def test_scale_in_past_the_mark_is_finished_though_reverted():
    seen = with_report(leaving(), "c-3", is_retired=True)
    seen = with_claim(with_desired(seen, replicas=4), "c-3", is_retired=True)
    assert action_of(seen) == act.SetReplicas("set", 5, 3)


def test_removed_broker_is_forgotten():
    seen = healthy(4)
    seen = with_desired(with_set(replace(seen, pods=seen.pods[:3]), replicas=3), replicas=3)
    seen = with_broker(seen, "c-3", is_fenced=True)
    assert action_of(seen) == act.RemoveMember(Member("c-3", "dir-c-3"))
    members = seen.metadata.members[:3]
    assert action_of(with_metadata(seen, members=members)) == act.RemoveBroker("c-3", 1)


# -- replacement ------------------------------------------------------------------------------


def replaced(*, is_forced=False, count=3, node_is_gone=True):
    """The volume of c-2 is to be replaced; its process has been dead for a while."""
    name = f"c-{count - 1}"
    wish = Replacement(name, f"claim-{name}", is_forced)
    seen = replace(healthy(count, replace=(wish,)), budget=0)
    seen = with_pod(seen, name, is_ready=False)
    seen = with_broker(with_member(seen, name, is_alive=False), name, is_fenced=True)
    isr = tuple(one for one in seen.metadata.partitions[0].isr if one != name)
    seen = with_partition(seen, isr=isr)
    return with_node(seen, name, is_gone=True, is_ready=False) if node_is_gone else seen


def test_replacement_takes_vote_then_volume_then_pod():
    seen = replaced()
    assert action_of(seen) == act.RemoveMember(Member("c-2", "dir-c-2"))
    seen = with_metadata(seen, members=seen.metadata.members[:2])
    assert action_of(seen) == act.DeleteClaim("c-2", "claim-c-2", 3)
    seen = with_claim(seen, "c-2", is_terminating=True)
    assert action_of(seen) == act.DeletePod("c-2", "uid-c-2", 9, is_forced=True)


def test_replacement_is_done_when_the_claim_is_another():
    seen = with_claim(replaced(), "c-2", uid="new")
    assert not isinstance(action_of(seen), act.RemoveMember | act.DeleteClaim | act.DeletePod)


def replacing(seen):
    actions = {type(one.action) for one in passes(seen, 4)}
    return actions & {act.RemoveMember, act.DeleteClaim, act.DeletePod}


def test_volume_that_is_needed_is_not_replaced():
    assert not replacing(with_partition(replaced(), isr=("c-0",)))


def test_volume_of_a_needed_voter_is_not_replaced():
    seen = replaced(count=2)
    assert not replacing(with_partition(seen, replicas=("c-0",)))


def test_volume_is_not_replaced_without_proof():
    assert not replacing(replaced(node_is_gone=False))


def test_volume_is_not_replaced_while_its_broker_is_alive():
    seen = with_broker(replaced(node_is_gone=False), "c-2", is_fenced=False)
    assert not replacing(with_pod(seen, "c-2", is_running=False))


def test_nothing_runs_in_a_pod_that_never_came_to_a_node():
    seen = with_pod(replaced(node_is_gone=False), "c-2", node="", stuck=StuckCause.NODE_LOST)
    assert replacing(seen)
    assert not replacing(with_broker(seen, "c-2", is_fenced=False))


def test_a_person_may_vouch_for_it():
    seen = replaced(is_forced=True, node_is_gone=False)
    assert action_of(seen) == act.RemoveMember(Member("c-2", "dir-c-2"))


# -- volumes and suspension -------------------------------------------------------------------


def test_claims_grow_before_any_gate():
    seen = with_pod(healthy(data_volume=DesiredVolume(20), revision="r2"), "c-1", is_ready=False)
    assert action_of(seen) == act.GrowClaim("c-0", "claim-c-0", 3, 20)


def grown(**desired):
    seen = healthy(data_volume=DesiredVolume(20), **desired)
    return replace(seen, claims=tuple(replace(one, requested_bytes=20) for one in seen.claims))


def test_set_is_recorded_before_it_is_made_again():
    seen = grown()
    shape = SetShape(3, "r1", "r1", "")
    action = action_of(seen)
    assert isinstance(action, act.Record)
    assert action.recorded.shape == shape
    noted = replace(seen, recorded=replace(seen.recorded, shape=shape))
    again = act.CreateSet("id", 3, "r1", "r1", "", 20)
    assert action_of(noted) == act.OrphanSet("set", 5, again)
    gone = replace(noted, brokers=None)
    assert action_of(gone) == again
    # Its pods run and serve meanwhile, and nothing is founded.
    said = decide(gone, Memory()).status
    assert (said.replicas, said.ready_replicas, said.is_available) == (3, 3, True)
    assert said.progressing == "ExpandingVolumes"
    assert said.plan == decide(noted, Memory()).status.plan
    made = with_set(noted, claim_bytes=20)
    assert action_of(made).recorded.shape is None


def test_set_that_somebody_deleted_is_made_again_and_nothing_is_founded():
    found = decide(replace(healthy(), brokers=None), Memory())
    assert isinstance(found.action, act.CreateSet)
    assert found.status.progressing == "Reconciling"


def test_suspension_stops_all_and_resumes_all():
    assert action_of(replace(healthy(is_suspended=True), budget=0)) == act.SetReplicas("set", 5, 0)
    asleep = replace(with_set(healthy(5, replicas=3), replicas=0), pods=(), metadata=None)
    assert action_of(replace(asleep, budget=0)) == act.SetReplicas("set", 5, 5)


def test_load_is_evened_out_when_asked_for():
    seen = healthy(4, is_rebalanced=True)
    more = tuple(
        replace(seen.metadata.partitions[0], stream=f"s{one}", number=0) for one in range(3)
    )
    action = action_of(with_metadata(seen, partitions=more))
    assert isinstance(action, act.Reassign)
    assert "c-3" in action.moves[0].target


def test_learner_report_of_a_stranger_changes_nothing():
    seen = healthy()
    stranger = MemberReport(Member("z", "d"), is_voter=False, is_alive=False, match_index=None)
    seen = with_metadata(seen, members=(*seen.metadata.members, stranger))
    assert action_of(seen) is None


def test_cluster_is_ready_only_after_who_left_is_forgotten():
    seen = healthy(4, replicas=3)
    seen = replace(with_set(seen, replicas=3), pods=seen.pods[:3])
    forgotten = with_metadata(
        seen, brokers=seen.metadata.brokers[:3], members=seen.metadata.members[:3]
    )
    forgotten = replace(forgotten, reports=seen.reports[:3])
    held = with_partition(seen, replicas=("c-0", "c-1", "c-2"), isr=("c-0", "c-1", "c-2"))
    assert not passes(held)[0].status.is_ready
    assert {("PodStopping", "c-3")} <= {
        (one.what, one.object) for one in decide(held, Memory()).status.waits
    }
    assert decide(
        with_partition(forgotten, replicas=("c-0", "c-1", "c-2")), Memory()
    ).status.is_ready


def test_cluster_stays_ready_while_its_budget_is_given_back():
    decision = decide(replace(healthy(), budget=0), Memory())
    assert decision.action == act.SetBudget(1)
    assert decision.status.is_ready


def sized(seen, size):
    return replace(seen, recorded=replace(seen.recorded, size=size))


def test_set_that_somebody_made_smaller_is_restored():
    for left, knows in product((2, 1, 0), (True, False)):
        gone = ("c-0", "c-1", "c-2")[left:]
        seen = sized(with_set(healthy(), replicas=left), 3)
        seen = replace(
            seen,
            pods=tuple(one for one in seen.pods if one.name not in gone),
            reports=tuple(one for one in seen.reports if one.broker not in gone),
            metadata=seen.metadata if knows else None,
            budget=0,
        )
        action = action_of(seen)
        assert action == act.SetReplicas("set", 5, left + 1 if left else 3)
        assert action_of(with_desired(seen, is_suspended=True)) != action


def test_nobody_says_that_a_majority_is_lost_before_everybody_was_heard():
    seen = sized(with_set(healthy(), replicas=1), 3)
    identity = replace(seen.identity, founders=())
    seen = replace(seen, identity=identity, metadata=None, reports=(), budget=0)
    assert decide(seen, Memory()).status.stalled != "QuorumLost"


def test_claim_of_another_class_is_made_again_while_it_has_no_volume():
    seen = with_desired(healthy(), data_volume=DesiredVolume(10, "fast"))
    seen = replace(seen, claims=tuple(replace(one, class_name="fast") for one in seen.claims))
    assert decide(seen, Memory()).status.is_ready
    bound = with_claim(seen, "c-1", class_name="fsat")
    assert decide(bound, Memory()).action is None
    waiting = with_claim(bound, "c-1", is_bound=False, capacity_bytes=0)
    waiting = replace(with_pod(waiting, "c-1", node="", is_ready=False, is_running=False), budget=0)
    assert isinstance(decide(with_set(waiting, odd=("selector",)), Memory()).action, act.Record)
    newer = with_claim(waiting, "c-1", created_ms=1)
    assert not isinstance(decide(newer, Memory()).action, act.DeleteClaim)
    first = decide(waiting, Memory()).action
    assert first == act.DeleteClaim("c-1", "claim-c-1", 3, is_alone=True)
    going = with_claim(waiting, "c-1", is_terminating=True)
    assert decide(going, Memory()).action == act.DeletePod("c-1", "uid-c-1", 9)
    placed = with_pod(going, "c-1", node="node-c-1")
    assert decide(placed, Memory()).action != act.DeletePod("c-1", "uid-c-1", 9)
