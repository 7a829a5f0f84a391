"""What is refused waits by itself: everything that protects goes on."""

from dataclasses import MISSING, fields, replace
from typing import get_args

import pytest

from liftbridge_operator.cluster.planning import actions as act
from liftbridge_operator.cluster.planning import refusals
from liftbridge_operator.cluster.planning.decide import decide
from liftbridge_operator.cluster.planning.decision import Memory
from liftbridge_operator.cluster.planning.observation import DesiredVolume, Member
from liftbridge_operator.cluster.planning.refusals import Refusal
from liftbridge_testkit.operator_sim.samples import (
    NOW,
    healthy,
    later,
    passes,
    with_claim,
    with_desired,
    with_pod,
)

GROWING = with_desired(healthy(), data_volume=DesiredVolume(20))
NO = Refusal("VolumeCannotGrow", "the class does not support it")


ROLLING = replace(healthy(3, revision="r2"), budget=0)
ROLLED = (ROLLING, with_pod(ROLLING, "c-2", revision="r2"))
NONE = Memory()


def refused(*actions, memory=NONE, said=NO, now=NOW):
    for one in actions:
        memory = refusals.noted(
            memory, type(one).__name__, refusals.object_of(one), said, generation=1, now=now
        )
    return memory


def growths(seen):
    return [act.GrowClaim(one.name, one.uid, one.resource_version, 20) for one in seen.claims]


def about(name):
    """Every action that is about one broker, about this one."""
    member = Member(name, f"dir-{name}")
    values = {"name": name, "broker": name, "to": name, "member": member}
    for kind in get_args(act.Action):
        required = {one.name for one in fields(kind) if one.default is MISSING}
        named = next((one for one in values if one in required), None)
        if named is not None:
            yield kind(**dict.fromkeys(required, 1) | {named: values[named]})


def test_refusal_of_what_is_about_one_broker_is_none_of_what_is_about_another():
    one, other = list(about("c-1")), list(about("c-2"))
    assert len(one) >= 15
    memory = refused(*one)
    assert [type(action) for action in one if refusals.of(memory, action) is None] == []
    assert [type(action) for action in other if refusals.of(memory, action) is not None] == []
    assert {refusals.object_of(action) for action in one} == {"c-1"}


def test_record_of_a_restart_that_is_refused_is_that_of_its_broker():
    records = [decision.action for seen in ROLLED for decision in passes(seen, 3)]
    one, other = (action for action in records if isinstance(action, act.Record))
    assert refusals.of(refused(one), one) is not None
    assert refusals.of(refused(one), other) is None


def test_refused_growth_holds_nothing_else_up():
    memory = refused(*growths(GROWING))
    away = with_pod(GROWING, "c-1", is_ready=False)
    decision = decide(away, memory)
    assert decision.action == act.SetBudget(0)
    assert decision.status.stalled == "VolumeCannotGrow"
    assert {one.object for one in decision.status.waits if one.is_stalled} == {
        "c-0",
        "c-1",
        "c-2",
    }
    rolled = replace(with_desired(GROWING, revision="r2"), budget=0)
    waits = {one.what for one in decide(rolled, memory).status.waits}
    assert {"GateReading", "VolumeCannotGrow"} <= waits


def test_refused_growth_of_one_claim_does_not_keep_the_others_from_growing():
    first, second, _ = growths(GROWING)
    assert decide(GROWING, refused(first)).action == second


def test_refused_action_is_tried_again_after_a_while_and_at_once_when_something_else_is_asked_for():
    memory = refused(*growths(GROWING))
    assert not isinstance(decide(later(GROWING, 1_000), memory).action, act.GrowClaim)
    assert isinstance(decide(later(GROWING, refusals.BACKOFF_MS), memory).action, act.GrowClaim)
    other = with_desired(GROWING, generation=2)
    assert isinstance(decide(other, memory).action, act.GrowClaim)


def test_pauses_become_longer_up_to_a_bound():
    memory, pauses = Memory(), []
    for _ in range(15):
        memory = refused(growths(GROWING)[0], memory=memory)
        pauses.append(memory.refused[0].until_ms - NOW)
    assert pauses[:3] == [5_000, 10_000, 20_000]
    assert pauses[-1] == refusals.BACKOFF_MAX_MS


def test_what_was_not_sent_is_due_at_once_and_its_pauses_stay_what_they_were():
    unsent = Refusal("NoAnswer", "another one hung", is_tried=False)
    first = growths(GROWING)[0]
    memory = refused(first, memory=refused(first, said=unsent), said=unsent)
    assert decide(GROWING, memory).action == first
    assert decide(GROWING, memory).status.stalled == "NoAnswer"
    for pause in (5_000, 10_000):
        memory = refused(first, memory=refused(first, memory=memory, said=unsent))
        assert memory.refused[0].until_ms - NOW == pause


def test_refusals_are_remembered_up_to_a_bound():
    one = refused(growths(GROWING)[0]).refused[0]
    full = tuple(replace(one, object=f"x/{number}") for number in range(refusals.REFUSED_MAX))
    memory = refusals.noted(Memory(refused=full), refusals.KEEPING, "x", NO, generation=1, now=NOW)
    assert len(memory.refused) == refusals.REFUSED_MAX
    assert memory.refused[-1].object == "x"


@pytest.mark.parametrize("count", [3, 40, 400])
def test_however_many_volumes_cannot_grow_nothing_else_is_held_up(count):
    growing = with_desired(healthy(count), data_volume=DesiredVolume(20), replicas=count)
    memory = refused(*growths(growing))
    decision = decide(with_pod(growing, "c-1", is_ready=False), memory)
    assert decision.action == act.SetBudget(0)
    assert decision.status.stalled == "VolumeCannotGrow"


def test_size_may_go_back_to_what_the_claims_have():
    memory = decide(GROWING, refused(*growths(GROWING))).memory
    back = with_desired(GROWING, data_volume=DesiredVolume(10), generation=2)
    decision = decide(back, memory)
    assert decision.status.is_ready
    assert decision.memory.refused == ()


NO_LONGER_GROWN = {
    "grown by somebody else": {"requested_bytes": 20, "capacity_bytes": 20},
    "asked for by somebody else": {"requested_bytes": 20},
    "going": {"is_terminating": True},
    "made again": {"is_bound": False},
}


@pytest.mark.parametrize("way", NO_LONGER_GROWN)
def test_refusal_goes_with_the_need_of_what_was_refused(way):
    growing = growths(GROWING)
    memory = refused(*growing)
    left = {one.name for one in growing}
    seen = GROWING
    for one in growing:
        seen = with_claim(seen, one.name, **NO_LONGER_GROWN[way])
        left.remove(one.name)
        decision = decide(seen, memory)
        assert {kept.object for kept in decision.memory.refused} == left
        is_named = {wait.object for wait in decision.status.waits if wait.is_stalled}
        assert is_named == left
    assert isinstance(decision.action, act.Record)


def test_set_is_not_made_again_for_volumes_that_cannot_grow():
    memory = refused(*growths(GROWING))
    decision = decide(GROWING, memory)
    assert not isinstance(decision.action, act.Record | act.OrphanSet)


def test_no_broker_is_taken_away_behind_a_budget_that_is_refused():
    rolled = with_desired(healthy(4), revision="r2", replicas=3)
    memory = refused(act.SetBudget(0), said=Refusal("AdmissionDenied", "no"))
    decision = decide(rolled, memory)
    for _ in range(6):
        assert decision.action is None or not refusals.takes_away(decision.action)
        rolled = later(rolled, 500)
        decision = decide(rolled, decision.memory)
    assert decision.status.stalled == "AdmissionDenied"


def test_object_that_is_refused_is_told_until_it_is_taken():
    memory = refusals.noted(
        Memory(),
        refusals.KEEPING,
        "Service/c-x",
        Refusal("PortTaken", "30001"),
        generation=1,
        now=0,
    )
    decision = decide(healthy(), memory)
    assert (decision.status.stalled, decision.status.is_ready) == ("PortTaken", False)
    assert decide(healthy(), Memory()).status.is_ready


def test_claim_that_is_larger_than_asked_for_is_left_as_it_is():
    seen = with_claim(healthy(), "c-1", requested_bytes=20, capacity_bytes=20)
    assert decide(seen, Memory()).status.is_ready
