"""Moving partitions, and streams that get another number of replicas (C6 to C8, C16)."""

import pytest

from liftbridge_broker.controller.commands import (
    AlterStream,
    BrokerLoad,
    CancelReassignment,
    CreateStream,
    RemoveBroker,
    ShutDownBroker,
    StartReassignment,
)
from liftbridge_broker.controller.records import PartitionAnswer, StreamAltered
from liftbridge_broker.controller.state import effective_min_isr, is_commit_mode
from liftbridge_broker.model.ids import PartitionId, StreamName, stream_of
from liftbridge_broker.model.streams import FsyncPolicy, StreamOverrides, UncleanMode
from liftbridge_testkit.controller_world import ControllerWorld, brokers_of

A, B, C, D, E = brokers_of("abcde")
FOO = StreamName("foo")


@pytest.fixture
def world() -> ControllerWorld:
    """Five brokers, of which the first three hold a partition."""
    found = ControllerWorld()
    found.start("abcde")
    found.create(3)
    return found


@pytest.fixture
def number(world: ControllerWorld) -> PartitionId:
    (found,) = [partition.partition_id for _, partition in world.state.partitions()]
    return found


def move(number: PartitionId, target: str, **given: int) -> StartReassignment:
    return StartReassignment(partition_id=number, target=brokers_of(target), **given)


def test_a_move_grows_first(world: ControllerWorld, number: PartitionId) -> None:
    before = world.get(number)
    world.ok(move(number, "cde"))

    after = world.get(number)
    index = world.index
    assert after.replicas == (A, B, C, D, E)
    assert (after.adding, after.removing, after.target) == ((D, E), (A, B), (C, D, E))
    assert after.isr == before.isr
    assert after.replica_epochs[3:] == (index, index)
    assert (after.leader_epoch, after.partition_epoch) == (before.leader_epoch, index)
    assert effective_min_isr(world.state.streams[stream_of(number)], after) == 2


def test_s62_a_move_ends_when_what_was_added_is_in_sync(
    world: ControllerWorld, number: PartitionId
) -> None:
    world.ok(move(number, "abe"))
    started = world.get(number)
    world.alter(number, "abce")

    after = world.get(number)
    assert (after.replicas, after.isr, after.leader) == ((A, B, E), (A, B, E), A)
    assert not after.is_reassigning
    assert (after.leader_epoch, after.partition_epoch) == (world.index, world.index)
    assert after.leader_epoch > started.leader_epoch
    assert after.replica_epoch(E) == started.replica_epoch(E)


def test_s63_a_move_to_fewer_waits_for_enough_of_them() -> None:
    world = ControllerWorld()
    world.start("abcde")
    number = world.create(5)
    world.alter(number, "ade")
    world.ok(ShutDownBroker(broker=A, broker_epoch=world.epoch("a")))
    assert world.pools(number)[0] == "de"
    world.restart("a", is_clean=True)
    world.ok(move(number, "abc"))
    world.alter(number, "bde")
    assert world.get(number).is_reassigning
    world.alter(number, "abde")

    assert world.pools(number) == ("ab", "", "", "a")
    assert world.get(number).replicas == (A, B, C)


def test_a_move_that_needs_no_catching_up_ends_at_once(
    world: ControllerWorld, number: PartitionId
) -> None:
    answer = world.ok(move(number, "cb"))

    after = world.get(number)
    assert isinstance(answer, PartitionAnswer)
    assert answer.is_new_leader
    assert (after.replicas, after.isr, after.leader) == ((C, B), (C, B), C)
    assert after.leader_epoch == world.index


def test_a_move_to_where_it_is_changes_nothing(world: ControllerWorld, number: PartitionId) -> None:
    assert world.apply(move(number, "abc")).records == ()


def test_another_order_is_a_move(world: ControllerWorld, number: PartitionId) -> None:
    world.ok(move(number, "bac"))

    assert world.get(number).replicas == (B, A, C)
    assert world.get(number).leader == "a"


def test_one_move_at_a_time(world: ControllerWorld, number: PartitionId) -> None:
    world.ok(move(number, "cde"))

    assert world.refused(move(number, "abc")) == "FAILED_PRECONDITION"


def test_a_target_has_as_many_as_a_commit_needs(
    world: ControllerWorld, number: PartitionId
) -> None:
    assert world.refused(move(number, "d")) == "INVALID_REQUEST"


def test_a_target_names_a_broker_once(world: ControllerWorld, number: PartitionId) -> None:
    assert world.refused(move(number, "add")) == "INVALID_REQUEST"


def test_a_target_names_brokers_that_exist(world: ControllerWorld, number: PartitionId) -> None:
    assert world.refused(move(number, "abz")) == "INVALID_REQUEST"
    world.fence("e")
    world.ok(RemoveBroker(broker=E, broker_epoch=world.epoch("e")))
    assert world.refused(move(number, "abe")) == "INVALID_REQUEST"


def test_a_move_decided_on_another_state_is_refused(
    world: ControllerWorld, number: PartitionId
) -> None:
    command = move(number, "abe", partition_epoch=world.get(number).partition_epoch)
    world.fence("c")

    assert world.refused(command) == "INVALID_PARTITION_EPOCH"
    assert world.refused(move(PartitionId(9), "abc")) == "UNKNOWN_PARTITION"


def test_a_move_ends_no_earlier_than_all_added_are_in_sync(
    world: ControllerWorld, number: PartitionId
) -> None:
    world.ok(move(number, "bcde"))
    world.alter(number, "abcd")

    assert world.get(number).is_reassigning


def test_s68_a_move_does_not_end_with_too_few_in_sync() -> None:
    world = ControllerWorld()
    world.start("abcd")
    number = world.create(3)
    world.ok(move(number, "bcd"))
    world.fence("b")
    world.fence("c")
    assert world.pools(number)[0] == "a"
    world.alter(number, "ad")
    assert world.get(number).is_reassigning
    world.unfence("b")
    world.alter(number, "bad")

    assert world.pools(number) == ("bd", "", "", "b")


def test_s64_a_replica_taken_off_and_put_back_has_another_session(
    world: ControllerWorld, number: PartitionId
) -> None:
    before = world.get(number).replica_epoch(C)
    world.ok(move(number, "ab"))
    world.ok(move(number, "abc"))

    after = world.get(number).replica_epoch(C)
    assert before is not None
    assert after is not None
    assert after > before


# C8.


def test_s67_a_move_given_up_goes_back(world: ControllerWorld, number: PartitionId) -> None:
    world.ok(move(number, "cde"))
    world.alter(number, "abcd")
    world.ok(CancelReassignment(partition_id=number))

    after = world.get(number)
    assert (after.replicas, after.isr, after.leader) == ((A, B, C), (A, B, C), A)
    assert after.replica_epochs == world.get(number).replica_epochs[:3]
    assert after.leader_epoch == world.index


def adrift(world: ControllerWorld, number: PartitionId) -> None:
    """Leave only what is being added in sync."""
    world.start("f")
    world.ok(move(number, "def"))
    world.alter(number, "abcde")
    for name in "abc":
        world.restart(name, is_clean=False)
    assert world.pools(number) == ("de", "", "", "d")


def test_s66_a_move_is_not_given_up_when_too_few_are_in_sync(
    world: ControllerWorld, number: PartitionId
) -> None:
    adrift(world, number)

    assert world.refused(CancelReassignment(partition_id=number)) == "FAILED_PRECONDITION"


def test_s66_an_operator_may_give_it_up_all_the_same(
    world: ControllerWorld, number: PartitionId
) -> None:
    adrift(world, number)
    world.ok(CancelReassignment(partition_id=number, is_unclean=True))

    after = world.get(number)
    assert (after.replicas, after.isr, after.is_recovering) == ((A, B, C), (A,), True)
    assert after.unclean_epoch == world.index


def test_who_comes_back_first_leads_after_a_move_was_given_up_without_anybody() -> None:
    world = ControllerWorld()
    world.start("abc")
    number = world.create(1)
    world.ok(move(number, "bc"))
    world.alter(number, "ab")
    world.restart("a", is_clean=False)
    world.fence("a")
    world.fence("b")
    assert world.pools(number) == ("", "b", "", "")
    world.ok(CancelReassignment(partition_id=number, is_unclean=True))
    assert world.pools(number) == ("", "", "a", "")
    world.unfence("a")

    assert world.pools(number) == ("a", "", "", "a")
    assert world.get(number).is_recovering


def test_there_must_be_a_move_to_give_up(world: ControllerWorld, number: PartitionId) -> None:
    assert world.refused(CancelReassignment(partition_id=number)) == "FAILED_PRECONDITION"
    stale = CancelReassignment(partition_id=number, partition_epoch=1)
    assert world.refused(stale) == "INVALID_PARTITION_EPOCH"


# C16.


def alteration(**given: object) -> AlterStream:
    factor = given.pop("factor", 0)
    assert isinstance(factor, int)
    overrides = StreamOverrides(**given)  # type: ignore[arg-type]  # names of fields
    return AlterStream(name=FOO, overrides=overrides, replication_factor=factor)


def test_s61_a_lower_minimum_empties_the_pools_in_the_same_command(
    world: ControllerWorld, number: PartitionId
) -> None:
    world.fence("b")
    world.fence("c")
    assert world.pools(number) == ("a", "c", "", "a")
    world.ok(alteration(min_isr=1))

    assert world.pools(number) == ("a", "", "", "a")


def test_s61_a_higher_minimum_freezes_from_the_same_command_on(
    world: ControllerWorld, number: PartitionId
) -> None:
    world.ok(alteration(min_isr=3))
    world.fence("c")

    assert world.pools(number) == ("ab", "c", "", "a")


def test_a_lower_minimum_ends_a_move_that_waited_for_it(
    world: ControllerWorld, number: PartitionId
) -> None:
    world.alter(number, "ab")
    world.ok(move(number, "bc"))
    assert world.get(number).is_reassigning
    world.ok(alteration(min_isr=1))

    assert world.get(number).replicas == (B, C)


def test_a_stream_gets_more_replicas_by_moving(world: ControllerWorld, number: PartitionId) -> None:
    world.ok(alteration(factor=5))
    assert world.get(number).adding == (D, E)
    assert world.state.streams[stream_of(number)].replication_factor == 5
    world.alter(number, "abcde")

    assert world.get(number).replicas == (A, B, C, D, E)


def test_a_stream_gets_fewer_replicas_and_its_default_minimum_follows(
    world: ControllerWorld, number: PartitionId
) -> None:
    world.alter(number, "ac")
    world.ok(alteration(factor=2))

    assert world.get(number).replicas == (A, C)
    assert world.state.streams[stream_of(number)].min_isr == 1


def test_the_minimum_cannot_exceed_the_new_factor(world: ControllerWorld) -> None:
    world.ok(alteration(min_isr=3))

    assert world.refused(alteration(factor=2)) == "INVALID_REQUEST"
    assert world.refused(alteration(factor=6)) == "INVALID_REQUEST"
    assert world.refused(alteration(factor=-1)) == "INVALID_REQUEST"


def test_a_stream_on_the_move_keeps_its_factor(world: ControllerWorld, number: PartitionId) -> None:
    world.ok(move(number, "cde"))

    assert world.refused(alteration(factor=2)) == "FAILED_PRECONDITION"


def test_growth_refuses_nobody_until_it_is_done() -> None:
    world = ControllerWorld()
    world.start("abc")
    number = world.create(1)
    world.ok(alteration(factor=3))
    stream = world.state.streams[stream_of(number)]
    assert (stream.min_isr, effective_min_isr(stream, world.get(number))) == (2, 1)
    world.alter(number, "abc")

    assert effective_min_isr(stream, world.get(number)) == 2


def test_policies_of_a_stream_travel_with_its_creation_and_can_be_changed() -> None:
    world = ControllerWorld()
    world.start("abc")
    world.ok(
        CreateStream(
            name=FOO, subject="s", replication_factor=3, min_isr_default=3,
            fsync_policy_default=FsyncPolicy.AUTO, unclean_mode_default=UncleanMode.MANUAL,
        )
    )  # fmt: skip
    stream = world.state.stream("foo")
    assert stream is not None
    assert (stream.min_isr, stream.fsync_policy, stream.unclean_mode) == (3, "auto", "manual")
    world.ok(alteration(fsync_policy=FsyncPolicy.NEVER, unclean_mode=UncleanMode.PROACTIVE))

    assert (stream.fsync_policy, stream.unclean_mode) == ("never", "proactive")


@pytest.mark.parametrize(("factor", "min_isr"), [(1, 1), (2, 1), (3, 2), (4, 2)])
def test_the_minimum_follows_the_factor_by_default(factor: int, min_isr: int) -> None:
    world = ControllerWorld()
    world.start("abcd")
    number = world.create(factor)

    assert world.state.streams[stream_of(number)].min_isr == min_isr


@pytest.mark.parametrize(
    ("policy", "full", "minimal"),
    [
        (FsyncPolicy.AUTO, False, True),
        (FsyncPolicy.COMMIT, True, True),
        (FsyncPolicy.INTERVAL, False, False),
    ],
)
def test_auto_waits_for_the_disk_while_no_member_is_spare(
    policy: FsyncPolicy, *, full: bool, minimal: bool
) -> None:
    world = ControllerWorld()
    world.start("abc")
    number = world.create(3, fsync_policy=policy)
    stream = world.state.streams[stream_of(number)]
    assert is_commit_mode(stream, world.get(number)) is full
    world.alter(number, "ab")

    assert is_commit_mode(stream, world.get(number)) is minimal


# Reserved streams.


def cursors(world: ControllerWorld) -> PartitionId:
    world.ok(
        CreateStream(
            name=StreamName("__cursors"), subject="c", replication_factor=-1, is_internal=True
        )
    )
    stream = world.state.stream("__cursors")
    assert stream is not None
    return stream.partitions[0].partition_id


def test_reserved_streams_grow_with_the_brokers_up_to_three() -> None:
    world = ControllerWorld()
    world.start("a")
    number = cursors(world)
    world.start("b")
    assert world.get(number).adding == (B,)
    world.start("c")
    assert world.get(number).adding == (B,)
    world.alter(number, "ab")
    assert world.get(number).adding == (C,)
    world.alter(number, "abc")
    world.start("d")

    assert world.get(number).replicas == (A, B, C)
    assert not world.get(number).is_reassigning
    assert world.state.streams[stream_of(number)].min_isr == 2


def test_reserved_streams_begin_with_three_at_most() -> None:
    world = ControllerWorld()
    world.start("abcd")

    assert len(world.get(cursors(world)).replicas) == 3


def test_a_stream_of_a_client_does_not_grow() -> None:
    world = ControllerWorld()
    world.start("a")
    number = world.create(-1)
    world.start("b")

    assert world.get(number).replicas == (A,)


def test_a_factor_given_by_hand_ends_growth() -> None:
    world = ControllerWorld()
    world.start("ab")
    number = cursors(world)
    world.ok(
        AlterStream(
            name=StreamName("__cursors"), overrides=StreamOverrides(), is_internal=True,
            replication_factor=1, load=(BrokerLoad(A, 1),),
        )
    )  # fmt: skip
    world.start("c")

    assert world.get(number).replicas == (A,)


def test_a_growing_stream_tells_its_new_factor() -> None:
    world = ControllerWorld()
    world.start("a")
    cursors(world)
    world.register("b")
    decision = world.apply_unfencing("b")

    assert [type(one).__name__ for one in decision.records] == [
        "BrokerChanged", "StreamAltered", "PartitionChanged"
    ]  # fmt: skip
    altered = decision.records[1]
    assert isinstance(altered, StreamAltered)
    assert altered.policy.replication_factor == 2
