"""Elections asked for: preferred, unclean, by reports, by the leader itself (C9 to C12, C19)."""

from dataclasses import replace

import pytest

from liftbridge_broker.controller.balance import preferred_elections
from liftbridge_broker.controller.commands import (
    ChangeLeader,
    CordonBroker,
    DeclareUnclean,
    ElectPreferred,
    LeaderChange,
    Leadership,
    RecoverUnclean,
    ReplicaAnswer,
    Resign,
    ShutDownBroker,
)
from liftbridge_broker.controller.partitions import LIST_MAX
from liftbridge_broker.controller.records import Outcomes, PartitionChanged
from liftbridge_broker.controller.recovery import (
    OTHERS_NS,
    best_answer,
    conclude,
    inquiries,
)
from liftbridge_broker.model.ids import BrokerId, PartitionId, StreamId
from liftbridge_broker.model.streams import UncleanMode
from liftbridge_testkit.controller_world import ControllerWorld, brokers_of

A, B, C = brokers_of("abc")
NOWHERE = PartitionId(9)


@pytest.fixture
def world() -> ControllerWorld:
    """Three brokers with a partition led by the first."""
    found = ControllerWorld()
    found.start("abc")
    found.create(3)
    return found


@pytest.fixture
def number(world: ControllerWorld) -> PartitionId:
    (found,) = [partition.partition_id for _, partition in world.state.partitions()]
    return found


def codes(answer: object) -> list[str]:
    assert isinstance(answer, Outcomes)
    return [outcome.code for outcome in answer.outcomes]


# C9.


def test_the_first_replica_leads_again_when_it_is_asked_for(
    world: ControllerWorld, number: PartitionId
) -> None:
    world.restart("a", is_clean=True)
    world.alter(number, "abc")
    assert world.get(number).leader == "b"
    answer = world.ok(ElectPreferred(partitions=(number, NOWHERE)))

    assert codes(answer) == ["", "UNKNOWN_PARTITION"]
    assert world.pools(number) == ("abc", "", "", "a")
    assert world.get(number).leader_epoch == world.index


def test_s115_a_preferred_replica_out_of_sync_is_not_elected(
    world: ControllerWorld, number: PartitionId
) -> None:
    world.restart("a", is_clean=True)

    answer = world.ok(ElectPreferred(partitions=(number,)))

    assert codes(answer) == ["FAILED_PRECONDITION"]
    assert world.get(number).leader == "b"


def test_a_preferred_replica_that_stops_is_not_elected() -> None:
    world = ControllerWorld()
    world.start("ab")
    number = world.create(2)
    world.ok(resignation(world, number, "a"))
    world.ok(ShutDownBroker(broker=B, broker_epoch=world.epoch("b")))
    world.ok(ShutDownBroker(broker=A, broker_epoch=world.epoch("a")))
    assert world.pools(number) == ("a", "", "", "a")
    world.state.streams[StreamId(number >> 24)].partitions[0] = replace(
        world.get(number), isr=(A, B), leader=B
    )

    assert codes(world.ok(ElectPreferred(partitions=(number,)))) == ["FAILED_PRECONDITION"]


def test_a_recovering_partition_is_left_alone(world: ControllerWorld, number: PartitionId) -> None:
    world.state.streams[StreamId(number >> 24)].partitions[0] = replace(
        world.get(number), isr=(A, B), leader=B, is_recovering=True
    )
    decision = world.decide(ElectPreferred(partitions=(number,)))

    assert codes(decision.answer) == ["FAILED_PRECONDITION"]


def test_where_the_first_leads_nothing_changes(world: ControllerWorld, number: PartitionId) -> None:
    assert world.apply(ElectPreferred(partitions=(number,))).records == ()


def test_a_list_has_a_most_of_partitions(world: ControllerWorld) -> None:
    command = ElectPreferred(partitions=(NOWHERE,) * (LIST_MAX + 1))
    assert world.refused(command) == "INVALID_REQUEST"


def test_the_balancer_asks_for_what_can_be_had_and_for_no_more_than_its_cap() -> None:
    world = ControllerWorld()
    world.start("abc")
    number = world.create(3, partitions=6)
    world.restart("a", is_clean=True)
    assert preferred_elections(world.state, 10) is None
    world.alter(number, "abc")
    world.alter(PartitionId(number + 3), "abc")

    found = preferred_elections(world.state, 10)
    assert found == ElectPreferred(partitions=(number, PartitionId(number + 3)))
    assert preferred_elections(world.state, 1) == ElectPreferred(partitions=(number,))


def test_the_balancer_gives_nothing_back_to_a_cordoned_broker() -> None:
    world = ControllerWorld()
    world.start("abc")
    number = world.create(3, partitions=3)
    world.restart("a", is_clean=True)
    world.alter(number, "abc")
    assert preferred_elections(world.state, 10) == ElectPreferred(partitions=(number,))

    world.apply(CordonBroker(broker=BrokerId("a")))
    assert preferred_elections(world.state, 10) is None


# C10.


def powerless(
    mode: UncleanMode | None = None, *, alive: str = "bc"
) -> tuple[ControllerWorld, PartitionId]:
    """All lost their power; those of `alive` are back, what they hold is in doubt."""
    world = ControllerWorld()
    world.start("abc")
    number = world.create(3, unclean_mode=mode)
    for name in "abc":
        world.fence(name)
    for name in alive:
        world.restart(name, is_clean=False)
    return world, number


def told(world: ControllerWorld, name: str, last_epoch: int, end: int) -> ReplicaAnswer:
    return ReplicaAnswer(BrokerId(name), world.epoch(name), last_epoch, end)


def recovery(
    world: ControllerWorld,
    number: PartitionId,
    chosen: str,
    *answers: ReplicaAnswer,
    **given: object,
) -> RecoverUnclean:
    command = RecoverUnclean(
        partition_id=number, chosen=BrokerId(chosen), answers=answers,
        partition_epoch=world.get(number).partition_epoch, mode=UncleanMode.BALANCED,
    )  # fmt: skip
    return replace(command, **given)  # type: ignore[arg-type]  # names of fields


def test_s51_the_replica_that_holds_most_leads_and_the_loss_is_told() -> None:
    world, number = powerless()
    answers = (told(world, "b", 7, 12), told(world, "c", 7, 10))
    decision = world.apply(recovery(world, number, "b", *answers))

    (record,) = decision.records
    assert isinstance(record, PartitionChanged)
    assert record.is_unclean
    assert world.pools(number) == ("b", "", "c", "b")
    assert world.get(number).is_recovering


def test_recovery_is_decided_on_the_present_state() -> None:
    world, number = powerless()
    command = recovery(world, number, "b", partition_epoch=1, mode=UncleanMode.MANUAL)
    assert world.refused(command) == "INVALID_PARTITION_EPOCH"


def test_a_partition_with_a_leader_is_not_recovered(
    world: ControllerWorld, number: PartitionId
) -> None:
    command = recovery(world, number, "b", mode=UncleanMode.MANUAL)
    assert world.refused(command) == "FAILED_PRECONDITION"


def test_only_a_replica_is_chosen() -> None:
    world, number = powerless()
    world.start("d")
    command = recovery(world, number, "d", mode=UncleanMode.MANUAL)
    assert world.refused(command) == "INVALID_REQUEST"


def test_only_a_live_replica_is_chosen() -> None:
    world, number = powerless()
    command = recovery(world, number, "a", mode=UncleanMode.MANUAL)
    assert world.refused(command) == "FAILED_PRECONDITION"


def test_s54_a_stream_in_manual_mode_waits_for_an_operator() -> None:
    world, number = powerless(UncleanMode.MANUAL)
    answers = (told(world, "b", 7, 12), told(world, "c", 7, 10))
    assert world.refused(recovery(world, number, "b", *answers)) == "FAILED_PRECONDITION"
    world.ok(recovery(world, number, "c", mode=UncleanMode.MANUAL))

    assert world.get(number).leader == "c"


def test_s52_balanced_recovery_waits_for_all_last_known_replicas() -> None:
    world, number = powerless()
    command = recovery(world, number, "b", told(world, "b", 7, 12))
    assert world.refused(command) == "FAILED_PRECONDITION"


def test_balanced_recovery_waits_for_a_complete_replica() -> None:
    world, number = powerless(alive="c")
    assert world.pools(number) == ("", "b", "c", "")
    command = recovery(world, number, "c", told(world, "c", 7, 10))
    assert world.refused(command) == "FAILED_PRECONDITION"


def test_s53_proactive_recovery_does_not_wait() -> None:
    world, number = powerless(UncleanMode.PROACTIVE, alive="c")
    command = recovery(world, number, "c", told(world, "c", 7, 10), mode=UncleanMode.PROACTIVE)
    world.ok(command)

    assert world.pools(number) == ("c", "", "b", "c")


def test_a_balanced_stream_is_not_recovered_proactively() -> None:
    world, number = powerless(alive="c")
    command = recovery(world, number, "c", told(world, "c", 7, 10), mode=UncleanMode.PROACTIVE)
    assert world.refused(command) == "FAILED_PRECONDITION"


def test_the_replica_that_holds_most_must_be_chosen() -> None:
    world, number = powerless()
    answers = (told(world, "b", 7, 12), told(world, "c", 8, 10))
    assert world.refused(recovery(world, number, "b", *answers)) == "INVALID_REQUEST"


def test_what_was_told_in_a_session_that_is_over_does_not_count() -> None:
    world, number = powerless()
    answers = (told(world, "b", 7, 12), told(world, "c", 7, 10))
    world.restart("c", is_clean=False)
    assert world.refused(recovery(world, number, "b", *answers)) == "STALE_BROKER_EPOCH"


def test_what_others_tell_does_not_count() -> None:
    world, number = powerless()
    world.start("d")
    answers = (told(world, "b", 7, 12), told(world, "c", 7, 10), told(world, "d", 1, 1))
    assert world.refused(recovery(world, number, "b", *answers)) == "INVALID_REQUEST"


def test_the_best_answer_is_the_latest_epoch_then_the_longest_log_then_the_first_replica() -> None:
    answers = [ReplicaAnswer(C, 1, 5, 9), ReplicaAnswer(B, 1, 5, 9), ReplicaAnswer(A, 1, 4, 99)]

    assert best_answer(answers, (A, B, C)) == "b"
    assert best_answer([*answers, ReplicaAnswer(BrokerId("z"), 1, 9, 9)], (A, B, C)) == "b"
    assert best_answer([], (A, B, C)) is None


def test_a_replica_with_a_damaged_log_is_not_the_best_however_much_it_holds() -> None:
    damaged = ReplicaAnswer(A, 1, 9, 99, is_damaged=True)

    assert best_answer([damaged, ReplicaAnswer(B, 1, 0, 0)], (A, B, C)) == "b"
    assert best_answer([damaged], (A, B, C)) is None


def test_a_damaged_replica_is_waited_for_but_not_elected() -> None:
    world, number = powerless()
    (inquiry,) = inquiries(world.state)
    damaged = told(world, "b", 7, 12)._replace(is_damaged=True)
    whole = told(world, "c", 7, 10)

    assert conclude(inquiry, [whole], asked_ns=OTHERS_NS, needed_ns=0) is None
    assert conclude(inquiry, [damaged, whole], asked_ns=0, needed_ns=0) == recovery(
        world, number, "c", damaged, whole
    )
    assert world.refused(recovery(world, number, "b", damaged, whole)) == "INVALID_REQUEST"
    assert (
        conclude(
            inquiry, [damaged, whole._replace(is_damaged=True)], asked_ns=OTHERS_NS, needed_ns=0
        )
        is None
    )


def test_a_balanced_inquiry_asks_all_last_known_and_waits_for_them() -> None:
    world, number = powerless()
    (inquiry,) = inquiries(world.state)
    assert (inquiry.required, inquiry.asked) == ((B, C), (B, C))
    answers = [told(world, "b", 7, 12), told(world, "c", 7, 10), told(world, "a", 9, 99)]

    assert conclude(inquiry, answers[:1], asked_ns=OTHERS_NS, needed_ns=0) is None
    found = conclude(inquiry, answers, asked_ns=0, needed_ns=0)

    assert found == recovery(world, number, "b", *answers[:2])


def test_s51_a_balanced_inquiry_asks_every_replica_that_is_alive() -> None:
    world, number = powerless()
    world.restart("a", is_clean=True)
    world.unfence("a")
    (inquiry,) = inquiries(world.state)
    assert (inquiry.required, inquiry.asked) == ((B, C), (A, B, C))
    answers = [told(world, "b", 0, 0), told(world, "c", 0, 0), told(world, "a", 7, 10)]

    found = conclude(inquiry, answers, asked_ns=0, needed_ns=0)

    assert found == recovery(world, number, "a", *answers)
    world.ok(found)
    assert world.get(number).leader == "a"


def test_a_balanced_inquiry_waits_for_others_for_its_time_only() -> None:
    world, number = powerless()
    world.restart("a", is_clean=True)
    world.unfence("a")
    (inquiry,) = inquiries(world.state)
    answers = [told(world, "b", 7, 12), told(world, "c", 7, 10)]

    assert conclude(inquiry, answers, asked_ns=0, needed_ns=0) is None
    assert conclude(inquiry, answers[:1], asked_ns=OTHERS_NS, needed_ns=0) is None
    found = conclude(inquiry, answers, asked_ns=OTHERS_NS, needed_ns=0)

    assert found == recovery(world, number, "b", *answers)


def test_a_proactive_inquiry_ends_with_its_time() -> None:
    world, number = powerless(UncleanMode.PROACTIVE)
    (inquiry,) = inquiries(world.state)
    answers = [told(world, "c", 7, 10)]
    assert inquiry.asked == (B, C)

    assert conclude(inquiry, answers, asked_ns=0, needed_ns=0) is None
    assert conclude(inquiry, [], asked_ns=OTHERS_NS, needed_ns=0) is None
    found = conclude(inquiry, answers, asked_ns=OTHERS_NS, needed_ns=0)

    assert found == recovery(world, number, "c", *answers, mode=UncleanMode.PROACTIVE)


@pytest.mark.parametrize("mode", [UncleanMode.MANUAL, None])
def test_nobody_is_asked_when_it_is_not_for_the_controller(mode: UncleanMode | None) -> None:
    world, _ = powerless(mode, alive="" if mode is None else "bc")

    assert list(inquiries(world.state)) == []


def test_a_proactive_inquiry_needs_somebody_to_ask() -> None:
    world, _ = powerless(UncleanMode.PROACTIVE, alive="")

    assert list(inquiries(world.state)) == []


# C11.


def change(world: ControllerWorld, number: PartitionId, **given: object) -> ChangeLeader:
    partition = world.get(number)
    assert partition.leader is not None
    one = LeaderChange(number, partition.leader_epoch, partition.partition_epoch, partition.leader)
    return ChangeLeader(changes=(one._replace(**given),))  # type: ignore[arg-type]  # names of fields


def test_s83_a_leader_nobody_hears_is_replaced_and_out_of_sync(
    world: ControllerWorld, number: PartitionId
) -> None:
    assert codes(world.ok(change(world, number))) == [""]
    assert world.pools(number) == ("bc", "", "", "b")


def test_a_leader_replaced_below_the_minimum_stays_eligible(
    world: ControllerWorld, number: PartitionId
) -> None:
    world.alter(number, "ab")
    world.ok(change(world, number))

    assert world.pools(number) == ("b", "a", "", "b")


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"leader_epoch": 1}, "FENCED_LEADER_EPOCH"),
        ({"partition_epoch": 1}, "INVALID_PARTITION_EPOCH"),
        ({"exclude": B}, "INVALID_REQUEST"),
        ({"partition_id": NOWHERE}, "UNKNOWN_PARTITION"),
    ],
)
def test_s71_a_leader_of_another_state_is_not_replaced(
    world: ControllerWorld, number: PartitionId, given: dict[str, object], code: str
) -> None:
    decision = world.apply(change(world, number, **given))

    assert codes(decision.answer) == [code]
    assert decision.records == ()


def test_a_leader_alone_in_sync_is_not_replaced() -> None:
    world = ControllerWorld()
    world.start("a")
    number = world.create(1)
    decision = world.apply(change(world, number))

    assert codes(decision.answer) == ["FAILED_PRECONDITION"]
    assert world.pools(number) == ("a", "", "", "a")


def test_a_partition_is_named_once_in_a_list(world: ControllerWorld, number: PartitionId) -> None:
    one = change(world, number).changes
    assert world.refused(ChangeLeader(changes=one + one)) == "INVALID_REQUEST"
    given_up = resignation(world, number, "a")
    twice = replace(given_up, partitions=given_up.partitions * 2)
    assert world.refused(twice) == "INVALID_REQUEST"


def test_a_list_does_what_it_can(world: ControllerWorld, number: PartitionId) -> None:
    good = change(world, number).changes[0]
    bad = LeaderChange(NOWHERE, 1, 1, A)

    answer = world.ok(ChangeLeader(changes=(bad, good)))

    assert codes(answer) == ["UNKNOWN_PARTITION", ""]
    assert world.get(number).leader == "b"


# C12.


def declaration(
    world: ControllerWorld, number: PartitionId, name: str, **given: object
) -> DeclareUnclean:
    epoch = world.get(number).replica_epoch(BrokerId(name))
    command = DeclareUnclean(
        broker=BrokerId(name), broker_epoch=world.epoch(name), partition_id=number,
        replica_epoch=epoch or 0,
    )  # fmt: skip
    return replace(command, **given)  # type: ignore[arg-type]  # names of fields


def test_a_damaged_follower_is_out_of_sync_in_a_new_session(
    world: ControllerWorld, number: PartitionId
) -> None:
    old = world.alteration(number, "abc")
    world.ok(declaration(world, number, "c"))

    assert world.pools(number) == ("ab", "", "", "a")
    assert world.get(number).replica_epoch(C) == world.index
    late = replace(
        old, partition_epoch=world.get(number).partition_epoch,
        isr=(*old.isr[:2], old.isr[2]._replace(replica_epoch=old.partition_epoch)),
    )  # fmt: skip
    assert world.refused(late) == "INELIGIBLE_REPLICA"


def test_a_damaged_leader_is_replaced(world: ControllerWorld, number: PartitionId) -> None:
    world.alter(number, "ab")
    world.ok(declaration(world, number, "a"))

    assert world.pools(number) == ("b", "", "a", "b")


def test_a_damaged_leader_alone_is_asked_like_the_others() -> None:
    world = ControllerWorld()
    world.start("ab")
    number = world.create(2, min_isr=1)
    world.fence("b")
    world.ok(declaration(world, number, "a"))

    assert world.pools(number) == ("", "", "a", "")
    (inquiry,) = inquiries(world.state)
    assert (inquiry.required, inquiry.asked) == ((A,), (A,))


def test_a_damaged_replica_that_is_the_only_one_leads_on_and_the_loss_is_told() -> None:
    world = ControllerWorld()
    world.start("a")
    number = world.create(1)
    world.ok(declaration(world, number, "a"))

    found = world.get(number)
    assert (found.leader, found.is_recovering) == ("a", True)
    assert found.leader_epoch == world.index


def test_a_replica_is_declared_in_its_present_session(
    world: ControllerWorld, number: PartitionId
) -> None:
    old = declaration(world, number, "c")
    world.ok(old)

    assert world.refused(old) == "STALE_BROKER_EPOCH"


def test_a_broker_declares_in_its_present_session(
    world: ControllerWorld, number: PartitionId
) -> None:
    command = declaration(world, number, "c", broker_epoch=world.epoch("c") + 1)
    assert world.refused(command) == "STALE_BROKER_EPOCH"


def test_a_broker_declares_its_own_replicas(world: ControllerWorld, number: PartitionId) -> None:
    world.start("d")
    assert world.refused(declaration(world, number, "d")) == "UNKNOWN_PARTITION"


# C19.


def resignation(world: ControllerWorld, number: PartitionId, name: str, **given: object) -> Resign:
    command = Resign(
        broker=BrokerId(name), broker_epoch=world.epoch(name),
        partitions=(Leadership(number, world.get(number).leader_epoch),),
    )  # fmt: skip
    return replace(command, **given)  # type: ignore[arg-type]  # names of fields


def test_a_leader_resigns_and_stays_in_sync(world: ControllerWorld, number: PartitionId) -> None:
    assert codes(world.ok(resignation(world, number, "a"))) == [""]
    assert world.pools(number) == ("abc", "", "", "b")


def test_a_leader_that_cannot_follow_leaves_the_set(
    world: ControllerWorld, number: PartitionId
) -> None:
    world.ok(resignation(world, number, "a", leaves_isr=True))

    assert world.pools(number) == ("bc", "", "", "b")


def test_a_leader_names_its_successor(world: ControllerWorld, number: PartitionId) -> None:
    world.ok(resignation(world, number, "a", successor=C))
    assert world.get(number).leader == "c"
    world.alter(number, "ac")
    answer = world.ok(resignation(world, number, "c", successor=B))
    assert codes(answer) == ["FAILED_PRECONDITION"]


def test_the_last_leader_does_not_resign(world: ControllerWorld, number: PartitionId) -> None:
    world.fence("b")
    world.fence("c")
    decision = world.apply(resignation(world, number, "a", leaves_isr=True))

    assert codes(decision.answer) == ["FAILED_PRECONDITION"]
    assert decision.records == ()


def test_only_who_leads_in_this_epoch_resigns(world: ControllerWorld, number: PartitionId) -> None:
    old = resignation(world, number, "a")
    assert codes(world.ok(resignation(world, number, "b"))) == ["INVALID_REQUEST"]
    world.ok(old)

    assert codes(world.ok(old)) == ["FENCED_LEADER_EPOCH"]


def test_a_broker_resigns_in_its_present_session(
    world: ControllerWorld, number: PartitionId
) -> None:
    command = resignation(world, number, "a", broker_epoch=99)
    assert world.refused(command) == "STALE_BROKER_EPOCH"
