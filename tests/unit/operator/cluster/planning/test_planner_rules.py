"""Rules of decision, bounds of moves, volumes for metadata, and what plans say of all changes."""

from dataclasses import replace

import pytest

from liftbridge_operator.cluster.planning import actions as act
from liftbridge_operator.cluster.planning.decide import decide
from liftbridge_operator.cluster.planning.decision import Memory
from liftbridge_operator.cluster.planning.observation import (
    Claim,
    DesiredVolume,
    Recorded,
    Replacement,
)
from liftbridge_testkit.operator_sim.samples import (
    NOW,
    came_back,
    healthy,
    passes,
    waits,
    with_claim,
    with_desired,
    with_metadata,
    with_partition,
    with_pod,
    with_report,
    with_set,
)


def decided(seen):
    return decide(replace(seen, budget=0), Memory())


def action_of(seen):
    return decide(seen, Memory()).action


def steps(seen):
    plan = decided(seen).status.plan
    return [(one.what, one.object) for one in plan.steps]


def at_level(level, known, desired):
    return with_desired(
        with_metadata(healthy(), feature_level=level, known_level=known), feature_level=desired
    )


# -- rules --------------------------------------------------------------------------------------


def test_level_is_raised_when_every_broker_knows_it():
    assert action_of(at_level(1, 2, 2)) == act.SetFeatureLevel(2)
    assert action_of(at_level(1, 3, 2)) == act.SetFeatureLevel(2)


@pytest.mark.parametrize("desired", [0, 1, 2])
def test_level_is_never_lowered_and_not_asked_for_again(desired):
    assert action_of(at_level(2, 3, desired)) is None
    assert decide(at_level(2, 3, desired), Memory()).status.is_ready


def test_level_that_a_broker_does_not_know_is_waited_for():
    seen = at_level(1, 1, 2)
    assert action_of(seen) is None
    assert waits(passes(seen)) == {"FeatureLevelUnknown"}
    assert not decide(seen, Memory()).status.is_ready


@pytest.mark.parametrize("besides", [{"budget": 0}, {"brokers": {"good_revision": ""}}])
def test_what_is_done_besides_hides_nothing_that_is_waited_for(besides):
    seen = growing()
    seen = with_set(replace(seen, budget=besides.get("budget", 1)), **besides.get("brokers", {}))
    found = decide(seen, Memory())
    assert isinstance(found.action, act.SetBudget | act.SetTemplate)
    assert {one.what for one in found.status.waits} == {"VolumeResizing"}
    assert not found.status.is_ready
    # Nothing goes away by it, so that others may drain nodes meanwhile.
    assert decide(seen, Memory()).status.plan.steps == ()


def test_level_waits_for_the_template_that_brings_it():
    seen = with_desired(at_level(1, 2, 2), revision="r2")
    kinds = {type(one.action) for one in passes(replace(seen, budget=0))}
    assert act.SetFeatureLevel not in kinds
    assert steps(seen)[-1] == ("RaiseFeatureLevel", "c")
    assert "FeatureLevelUnknown" not in waits(passes(seen))


def test_moves_are_bounded_before_any_is_made():
    seen = with_desired(replace(healthy(4), budget=0), replicas=3, catch_up_rate=1_000)
    assert action_of(seen) == act.SetCatchUpRate(1_000)
    bounded = with_metadata(seen, catch_up_rate=1_000)
    assert isinstance(action_of(bounded), act.Cordon)


def test_bound_that_nobody_wants_any_more_is_taken_away():
    assert action_of(with_metadata(healthy(), catch_up_rate=5)) == act.SetCatchUpRate(0)
    assert action_of(replace(healthy(), metadata=None)) == act.SetBudget(0)


# -- volumes ------------------------------------------------------------------------------------


def with_raft(**changes):
    """A cluster whose metadata have volumes of their own, of size 5."""
    seen = with_set(with_desired(healthy(), raft_volume=DesiredVolume(5)), raft_bytes=5)
    claims = tuple(
        Claim(f"raft-{at}", at, f"raft-uid-{at}", 3, "id", 5, 5) for at in range(len(seen.claims))
    )
    return with_desired(replace(seen, raft_claims=claims), **changes)


def test_volumes_for_metadata_grow_and_the_set_is_made_again():
    assert action_of(with_raft()) is None
    seen = with_raft(raft_volume=DesiredVolume(7))
    assert action_of(seen) == act.GrowClaim("raft-0", "raft-uid-0", 3, 7)
    assert steps(seen) == [("GrowVolume", f"raft-{at}") for at in range(3)]
    grown = tuple(replace(one, requested_bytes=7) for one in seen.raft_claims)
    remade = replace(seen, raft_claims=grown)
    assert isinstance(action_of(remade), act.Record)
    assert waits(passes(with_set(remade, raft_bytes=7))) == {"VolumeResizing"}


def test_volume_for_metadata_of_a_broker_that_left_does_not_grow():
    seen = with_claim(with_raft(raft_volume=DesiredVolume(7)), "c-2", is_retired=True)
    assert ("GrowVolume", "raft-2") not in steps(seen)


def test_attributes_that_a_volume_does_not_have_are_waited_for():
    seen = with_desired(healthy(), data_volume=DesiredVolume(10, attributes_class="fast"))
    assert waits(passes(seen)) == {"VolumeModifying"}
    changed = replace(seen, claims=tuple(with_fast(one) for one in seen.claims))
    assert decide(changed, Memory()).status.is_ready


def with_fast(claim):
    return replace(claim, attributes_class="fast", attributes_in_force="fast")


def growing(**changes):
    """All claims ask for more, and one volume is not as large yet."""
    seen = with_set(healthy(data_volume=DesiredVolume(20)), claim_bytes=20)
    grown = tuple(replace(one, requested_bytes=20, capacity_bytes=20) for one in seen.claims)
    return with_claim(replace(seen, claims=grown), "c-1", capacity_bytes=10, **changes)


def test_volume_that_grows_is_waited_for():
    seen = growing()
    assert waits(passes(seen)) == {"VolumeResizing"}
    assert not decide(seen, Memory()).status.is_ready


def test_volume_that_grows_though_nobody_asks_for_it_any_more_is_not_waited_for():
    assert decide(with_desired(growing(), data_volume=DesiredVolume(10)), Memory()).status.is_ready


@pytest.mark.parametrize(("desired", "least"), [(15, 15), (10, 11)])
def test_size_that_no_driver_makes_is_taken_back_as_far_as_can_be(desired, least):
    seen = growing(infeasible="no")
    assert decide(seen, Memory()).status.stalled == "VolumeCannotGrow"
    back = with_set(with_desired(seen, data_volume=DesiredVolume(desired)), claim_bytes=desired)
    assert decide(back, Memory()).action == act.GrowClaim("c-1", "claim-c-1", 3, least)
    lowered = with_claim(back, "c-1", requested_bytes=least)
    assert decide(lowered, Memory()).action is None
    assert decide(lowered, Memory()).status.is_ready == (desired == 10)


def test_cluster_is_not_ready_before_a_broker_that_came_has_its_share():
    seen = healthy(4, is_rebalanced=True)
    (one,) = seen.metadata.partitions
    many = with_metadata(seen, partitions=tuple(replace(one, number=n) for n in range(4)))
    fresh = with_pod(many, "c-3", changed_ms=NOW - 1_000)
    assert waits(passes(replace(fresh, budget=0), 2)) == {"MovingPartitions"}
    assert not decide(replace(fresh, budget=0), Memory()).status.is_ready
    assert isinstance(action_of(many), act.Reassign)
    even = with_desired(many, is_rebalanced=False)
    assert decide(even, Memory()).status.is_ready


def with_routes(seen, count, *names):
    """The same, with NATS servers beside brokers that know so many of them."""
    seen = with_desired(seen, has_own_nats=True)
    for name in names:
        seen = with_report(seen, name, nats_servers=count)
    return seen


@pytest.mark.parametrize(("count", "what"), [(2, "RoutesMissing"), (3, "GateReading")])
def test_no_restart_while_servers_of_nats_are_apart(count, what):
    rolling = with_desired(replace(healthy(), budget=0), revision="r2")
    seen = with_routes(rolling, count, "c-0", "c-1", "c-2")
    assert what in waits(passes(seen, 1))
    # Servers of somebody else are as many as they are.
    assert "RoutesMissing" not in waits(passes(with_desired(seen, has_own_nats=False), 1))
    # What they do not tell is not held against them.
    assert "RoutesMissing" not in waits(passes(with_routes(rolling, 0, "c-0"), 1))


def test_restarted_broker_is_back_when_servers_of_nats_know_one_another():
    back = came_back(with_desired(healthy(), revision="r2"))
    apart = with_routes(back, 2, "c-2")
    assert "CatchingUp" in waits(passes(apart, 1))
    assert action_of(apart) is None
    assert isinstance(action_of(with_routes(back, 3, "c-2")), act.Record)


# -- plans --------------------------------------------------------------------------------------

STOPPED = replace(with_set(healthy(), replicas=0), pods=(), reports=(), metadata=None)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (healthy(), []),
        (with_desired(healthy(), replicas=5), [("AddBroker", "c-3"), ("AddBroker", "c-4")]),
        (with_desired(healthy(), replicas=2), [("RemoveBroker", "c-2")]),
        (
            with_desired(healthy(), data_volume=DesiredVolume(20)),
            [("GrowVolume", f"c-{at}") for at in range(3)],
        ),
        (with_desired(healthy(), is_suspended=True), [("Stop", f"c-{at}") for at in range(3)]),
        (STOPPED, [("Start", f"c-{at}") for at in range(3)]),
        (replace(STOPPED, claims=()), [("Start", f"c-{at}") for at in range(3)]),
        (replace(STOPPED, claims=STOPPED.claims[2:]), [("Start", f"c-{at}") for at in range(3)]),
        (at_level(1, 2, 2), [("RaiseFeatureLevel", "c")]),
        (
            with_desired(healthy(), replace=(Replacement("c-1", "claim-c-1"),)),
            [("ReplaceVolume", "c-1")],
        ),
        (
            replace(with_desired(healthy(), replace=(Replacement("c-0", "lost"),)), claims=()),
            [("ReplaceVolume", "c-0")],
        ),
        (
            with_report(healthy(), "c-2", is_retired=True),
            [("RemoveBroker", "c-2"), ("AddBroker", "c-2")],
        ),
        (
            with_partition(healthy(), replicas=("c-0", "c-3")),
            [("AddBroker", "c-3"), ("RemoveBroker", "c-3")],
        ),
    ],
)
def test_plan_lists_every_kind_of_change(seen, expected):
    assert steps(seen) == expected
    plan = decided(seen).status.plan
    assert (plan.hash != "") == bool(expected)


def test_only_restarts_and_departures_wait_for_consent():
    asked = {
        "replicas": 2,
        "data_volume": DesiredVolume(20),
        "is_suspended": True,
        "revision": "r2",
    }
    found = {
        field: decided(with_desired(healthy(), **{field: value})).status.plan.needs_consent
        for field, value in asked.items()
    }
    assert found == {
        "replicas": True,
        "data_volume": False,
        "is_suspended": False,
        "revision": True,
    }


def risks(seen):
    return set(decided(seen).status.plan.risks)


def test_risks_are_those_of_what_is_done():
    rolling = with_desired(healthy(), revision="r2")
    alone = {"replicas": ("c-0",), "isr": ("c-0",), "leader": "c-0"}
    assert risks(rolling) == set()
    assert risks(with_desired(healthy(2), revision="r2")) == {"MetadataUnavailableDuringRestart"}
    assert risks(with_partition(rolling, **alone)) == {"PartitionsWithOneReplica"}
    assert risks(with_desired(rolling, needs_full_isr=False)) == {"MinISRGate"}
    replaced = with_desired(healthy(), replace=(Replacement("c-1", "claim-c-1"),))
    assert risks(replaced) == {"VolumeDeleted"}


def test_risks_of_a_smaller_cluster_stay_while_it_shrinks():
    smaller = with_desired(healthy(5), replicas=4, deletes_volumes=True)
    assert risks(smaller) == {"VolumeDeleted"}
    every = {"replicas": tuple(f"c-{at}" for at in range(5))}
    lowered = with_desired(with_partition(smaller, **every), automatic_factor=("s",))
    assert risks(lowered) == {"VolumeDeleted", "ReplicationFactorLowered"}
    # The factor has been lowered meanwhile, and the broker is still there.
    kept = Recorded(risks=("ReplicationFactorLowered", "VolumeDeleted"))
    assert risks(replace(smaller, recorded=kept)) == risks(lowered)
    before = decided(lowered).status.plan.hash
    assert decided(replace(smaller, recorded=kept)).status.plan.hash == before
