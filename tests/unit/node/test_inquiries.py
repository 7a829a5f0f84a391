"""How long the metadata leader waits before it recovers a partition uncleanly (C10)."""

import pytest

from liftbridge_broker.controller.commands import ReplicaAnswer
from liftbridge_broker.controller.recovery import ABSENT_NS, OTHERS_NS, conclude, inquiries
from liftbridge_broker.model.ids import Instant, Offset
from liftbridge_broker.model.streams import UncleanMode
from liftbridge_broker.node.inquiries import ASK_NS, Inquiries
from liftbridge_broker.wire.peer_bodies import LogInfo
from liftbridge_testkit.controller_world import ControllerWorld, brokers_of

A, B, C = brokers_of("abc")


def without_leader():
    """All replicas were fenced; of two nobody knows what they hold, the third is down."""
    world = ControllerWorld()
    world.start("abc")
    number = world.create(3)
    for name in "abc":
        world.fence(name)
    for name in "bc":
        world.restart(name, is_clean=False)
    return world, number


def elected_at(world, number, restarts):
    """When one of two empty replicas is elected, while the third begins to start at some times."""
    waiting = Inquiries()
    waiting.hurry(Instant(0))
    due = list(restarts)
    for now in range(0, 3 * ABSENT_NS, ASK_NS):
        if due and now >= due[0]:
            due.pop(0)
            world.register("a")
        asked = {}
        found = waiting.on_timer(world.state, asked.__setitem__, Instant(now))
        for one in asked:
            logs = [LogInfo(number, None, Offset(0))]
            found += waiting.on_answer(world.state, one, world.epoch(one), logs, Instant(now))
        if found:
            assert found[0].chosen in (B, C)
            return now
    raise AssertionError("nobody is elected")


def test_empty_replicas_wait_a_minute_for_one_that_is_down():
    assert elected_at(*without_leader(), restarts=()) == ABSENT_NS


def test_a_replica_that_starts_again_and_again_is_waited_for_no_longer():
    restarts = range(10 * OTHERS_NS // 3, 3 * ABSENT_NS, 10 * OTHERS_NS // 3)
    assert elected_at(*without_leader(), restarts=restarts) <= ABSENT_NS + OTHERS_NS


@pytest.mark.parametrize("leaderless_ns", [0, ABSENT_NS - 1, ABSENT_NS])
@pytest.mark.parametrize("mode", [UncleanMode.BALANCED, UncleanMode.PROACTIVE])
@pytest.mark.parametrize("is_absent", [True, False])
@pytest.mark.parametrize("end", [0, 1])
def test_only_balanced_waits_and_only_where_others_hold_nothing(
    end, mode, leaderless_ns, *, is_absent
):
    world, _ = without_leader()
    if not is_absent:
        world.restart("a", is_clean=False)
    (inquiry,) = inquiries(world.state)
    ends = {"b": end, "c": 0} | ({} if is_absent else {"a": 0})
    answers = [ReplicaAnswer(one, world.epoch(one), 7, Offset(at)) for one, at in ends.items()]

    found = conclude(
        inquiry._replace(mode=mode), answers, asked_ns=OTHERS_NS, leaderless_ns=leaderless_ns
    )

    may_come_back = is_absent and mode is UncleanMode.BALANCED and leaderless_ns < ABSENT_NS
    assert (found is None) == (end == 0 and may_come_back)
