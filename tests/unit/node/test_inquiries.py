"""How long the metadata leader waits before it recovers a partition uncleanly (C10)."""

from itertools import product

import pytest

from liftbridge_broker.controller.commands import ReplicaAnswer
from liftbridge_broker.controller.recovery import ABSENT_NS, OTHERS_NS, Inquiry, conclude
from liftbridge_broker.model.ids import Instant, MetadataIndex, Offset, PartitionId
from liftbridge_broker.model.streams import UncleanMode
from liftbridge_broker.node.metadata.inquiries import ASK_NS, Inquiries
from liftbridge_broker.wire.peer.bodies import LogInfo
from liftbridge_testkit.controller_world import ControllerWorld, brokers_of

A, B, C = brokers_of("abc")
PARTITION = PartitionId(7)


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


@pytest.mark.parametrize("needed_ns", [0, ABSENT_NS - 1, ABSENT_NS])
@pytest.mark.parametrize("mode", [UncleanMode.BALANCED, UncleanMode.PROACTIVE])
@pytest.mark.parametrize("absent", [(), (A,)])
@pytest.mark.parametrize("complete_last", [(B,), (C,), (B, C)])
@pytest.mark.parametrize("damaged", [(), (B,), (C,)])
@pytest.mark.parametrize("ends", list(product([0, 3, 5], repeat=2)))
def test_only_balanced_waits_and_only_where_those_complete_last_have_lost_records(
    ends, damaged, complete_last, absent, mode, needed_ns
):
    alive = {B: ends[0], C: ends[1]} | {one: 0 for one in (A,) if one not in absent}
    inquiry = Inquiry(PARTITION, MetadataIndex(9), mode, complete_last, tuple(alive), (A, B, C))
    answers = [
        ReplicaAnswer(one, 8, 7, Offset(end), is_damaged=one in damaged)
        for one, end in alive.items()
    ]

    found = conclude(inquiry, answers, asked_ns=OTHERS_NS, needed_ns=needed_ns)

    whole = {one: end for one, end in alive.items() if one not in damaged}
    longest = max(whole.values())
    is_kept = longest > 0 and any(whole.get(one) == longest for one in complete_last)
    is_time_left = mode is UncleanMode.BALANCED and needed_ns < ABSENT_NS
    assert (found is None) == (bool(absent) and is_time_left and not is_kept)
    if found is not None:
        assert whole[found.chosen] == longest


@pytest.mark.parametrize("mode", [UncleanMode.BALANCED, UncleanMode.PROACTIVE])
@pytest.mark.parametrize("complete", list(product([0, 4, 7], [0, 3, 5])))
@pytest.mark.parametrize("other", list(product([0, 4, 7], [0, 3, 5])))
def test_only_a_replica_that_holds_more_in_no_earlier_epoch_replaces_one_complete_last(
    other, complete, mode
):
    inquiry = Inquiry(PARTITION, MetadataIndex(9), mode, (B,), (A, B), (B, A))
    answers = [
        ReplicaAnswer(A, 8, other[0], Offset(other[1])),
        ReplicaAnswer(B, 8, complete[0], Offset(complete[1])),
    ]
    found = conclude(inquiry, answers, asked_ns=0, needed_ns=0)
    assert found is not None
    assert (found.chosen == A) == (other[0] >= complete[0] and other[1] > complete[1])
