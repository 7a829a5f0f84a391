"""AlterPartition: every check, in Kafka's order (C5, KIP-497, KIP-841, KIP-903)."""

from dataclasses import replace

import pytest

from liftbridge_broker.controller.commands import (
    MEMBER_ALREADY,
    AlterPartition,
    IsrMember,
    RecoverUnclean,
    ShutDownBroker,
    StartReassignment,
)
from liftbridge_broker.controller.records import PartitionAnswer, PartitionChanged
from liftbridge_broker.model.ids import BrokerId, MetadataIndex, PartitionId
from liftbridge_testkit.controller_world import ControllerWorld, brokers_of

A, B, C, D = brokers_of("abcd")


@pytest.fixture
def world() -> ControllerWorld:
    """Three brokers with a partition led by the first, of which the third is out of sync."""
    found = ControllerWorld()
    found.start("abc")
    found.alter(found.create(3), "ab")
    return found


@pytest.fixture
def number(world: ControllerWorld) -> PartitionId:
    (found,) = [partition.partition_id for _, partition in world.state.partitions()]
    return found


def test_the_leader_changes_the_set_and_its_epoch(
    world: ControllerWorld, number: PartitionId
) -> None:
    before = world.get(number)
    answer = world.alter(number, "abc")

    index = world.state.applied_index
    assert answer == PartitionAnswer(A, before.leader_epoch, index, is_new_leader=False)
    assert world.get(number).isr == (A, B, C)
    assert world.get(number).leader_epoch == before.leader_epoch


def test_1_a_leader_of_another_session_is_stale(
    world: ControllerWorld, number: PartitionId
) -> None:
    command = world.alteration(number, "abc", broker_epoch=world.epoch("a") + 1)
    assert world.refused(command) == "STALE_BROKER_EPOCH"


def test_1_a_broker_never_registered_is_stale(world: ControllerWorld, number: PartitionId) -> None:
    command = world.alteration(number, "abc", broker=BrokerId("zzz"), partition_id=PartitionId(9))
    assert world.refused(command) == "STALE_BROKER_EPOCH"


def test_2_a_partition_that_does_not_exist_is_unknown(
    world: ControllerWorld, number: PartitionId
) -> None:
    command = world.alteration(number, "abc", partition_id=PartitionId(9), leader_epoch=99)
    assert world.refused(command) == "UNKNOWN_PARTITION"


@pytest.mark.parametrize("ahead", [{"leader_epoch": 99}, {"partition_epoch": 99}])
def test_3_a_request_from_the_future_tells_that_this_state_is_behind(
    world: ControllerWorld, number: PartitionId, ahead: dict[str, int]
) -> None:
    assert world.refused(world.alteration(number, "abc", **ahead)) == "NOT_CONTROLLER"


def test_3_comes_before_4(world: ControllerWorld, number: PartitionId) -> None:
    command = world.alteration(number, "abc", leader_epoch=1, partition_epoch=99)
    assert world.refused(command) == "NOT_CONTROLLER"


def test_4_a_leader_of_the_past_is_fenced(world: ControllerWorld, number: PartitionId) -> None:
    command = world.alteration(
        number, "abc", leader_epoch=world.get(number).leader_epoch - 1, broker=B,
        broker_epoch=world.epoch("b"),
    )  # fmt: skip
    assert world.refused(command) == "FENCED_LEADER_EPOCH"


def test_5_only_the_leader_asks(world: ControllerWorld, number: PartitionId) -> None:
    command = world.alteration(
        number, "abc", broker=B, broker_epoch=world.epoch("b"), partition_epoch=1
    )
    assert world.refused(command) == "INVALID_REQUEST"


def test_6_s35_a_request_decided_on_another_state_is_refused(
    world: ControllerWorld, number: PartitionId
) -> None:
    command = world.alteration(number, "abc")
    world.fence("b")

    assert world.refused(command) == "INVALID_PARTITION_EPOCH"


def test_6_s38_a_request_sent_twice_is_applied_once(
    world: ControllerWorld, number: PartitionId
) -> None:
    command = world.alteration(number, "abc")
    world.ok(command)

    assert world.refused(command) == "INVALID_PARTITION_EPOCH"


def test_7_a_member_must_be_a_replica(world: ControllerWorld, number: PartitionId) -> None:
    world.start("d")
    command = world.alteration(number, "ab")
    members = (*command.isr, IsrMember(D, world.epoch("d")))

    assert world.refused(replace(command, isr=members)) == "INVALID_REQUEST"


def test_7_a_member_is_named_once(world: ControllerWorld, number: PartitionId) -> None:
    assert world.refused(world.alteration(number, "abb")) == "INVALID_REQUEST"


def test_7_the_leader_is_in_sync_with_itself(world: ControllerWorld, number: PartitionId) -> None:
    assert world.refused(world.alteration(number, "b")) == "INVALID_REQUEST"


def recovering(world: ControllerWorld, number: PartitionId) -> None:
    """Let the first broker lead after all lost what they had."""
    for name in "abc":
        world.fence(name)
    world.restart("b", is_clean=False)
    world.restart("a", is_clean=False)
    world.fence("b")
    assert world.pools(number) == ("", "", "ab", "")


def lone_world() -> tuple[ControllerWorld, PartitionId]:
    """A partition of two that its last leader leads again after a crash."""
    world = ControllerWorld()
    world.start("ab")
    number = world.create(2, min_isr=1)
    world.fence("b")
    world.restart("a", is_clean=False)
    world.unfence("b")
    world.ok(
        RecoverUnclean(
            partition_id=number,
            chosen=A,
            partition_epoch=world.get(number).partition_epoch,
        )
    )
    assert world.get(number).is_recovering
    return world, number


def test_8_nobody_is_in_sync_with_a_leader_that_is_recovering() -> None:
    world, number = lone_world()
    command = world.alteration(number, "ab", is_recovering=True)

    assert world.refused(command) == "INVALID_REQUEST"


def test_8_a_leader_does_not_begin_to_recover(world: ControllerWorld, number: PartitionId) -> None:
    assert world.refused(world.alteration(number, "a", is_recovering=True)) == "INVALID_REQUEST"


def test_8_s55_a_leader_tells_that_it_has_recovered() -> None:
    world, number = lone_world()
    before = world.get(number)
    world.alter(number, "a")

    after = world.get(number)
    assert not after.is_recovering
    assert after.unclean_epoch == after.leader_epoch == before.leader_epoch
    assert after.partition_epoch == world.index
    world.alter(number, "ab")
    assert world.get(number).isr == (A, B)


def test_9_s40_a_fenced_broker_is_not_in_sync(world: ControllerWorld, number: PartitionId) -> None:
    world.fence("c")
    assert world.refused(world.alteration(number, "abc")) == "INELIGIBLE_REPLICA"


def test_9_s40_a_stopping_broker_is_not_in_sync(
    world: ControllerWorld, number: PartitionId
) -> None:
    world.ok(ShutDownBroker(broker=C, broker_epoch=world.epoch("c")))
    assert world.refused(world.alteration(number, "abc")) == "INELIGIBLE_REPLICA"


def test_9_s39_a_session_that_is_over_is_not_in_sync(
    world: ControllerWorld, number: PartitionId
) -> None:
    old = world.alteration(number, "abc")
    world.restart("c", is_clean=False)
    command = replace(old, partition_epoch=world.get(number).partition_epoch)

    assert world.refused(command) == "INELIGIBLE_REPLICA"


def test_9_who_was_not_in_sync_needs_a_session(world: ControllerWorld, number: PartitionId) -> None:
    command = world.alteration(number, "ab")
    members = (*command.isr, IsrMember(C, MEMBER_ALREADY))

    assert world.refused(replace(command, isr=members)) == "INELIGIBLE_REPLICA"


def test_a_full_set_empties_the_pools_in_the_same_command() -> None:
    world = ControllerWorld()
    world.start("abc")
    number = world.create(3)
    world.fence("b")
    world.fence("c")
    assert world.pools(number) == ("a", "c", "", "a")
    world.unfence("b")
    world.alter(number, "ab")

    assert world.pools(number) == ("ab", "", "", "a")


def test_10_s65_the_request_that_completes_a_move_tells_of_the_new_leader() -> None:
    world = ControllerWorld()
    world.start("abcd")
    number = world.create(1)
    (leader,) = world.get(number).replicas
    world.ok(StartReassignment(partition_id=number, target=(D,)))
    decision = world.apply(world.alteration(number, f"{leader}d"))

    index = MetadataIndex(world.state.applied_index)
    assert decision.answer == PartitionAnswer(D, index, index, is_new_leader=True)  # type: ignore[arg-type]  # one number
    (record,) = decision.records
    assert isinstance(record, PartitionChanged)
    assert world.pools(number) == ("d", "", "", "d")


def test_no_request_whatever_its_numbers_stops_the_controller(
    world: ControllerWorld, number: PartitionId
) -> None:
    extreme = AlterPartition(
        broker=A, broker_epoch=world.epoch("a"), partition_id=PartitionId(2**64 - 1),
        leader_epoch=2**64 - 1, partition_epoch=2**64 - 1, isr=(),
    )  # fmt: skip
    assert world.refused(extreme) == "UNKNOWN_PARTITION"
    assert world.refused(replace(extreme, partition_id=number)) == "NOT_CONTROLLER"
    assert world.refused(world.alteration(number, "")) == "INVALID_REQUEST"
