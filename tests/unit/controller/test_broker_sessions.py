"""Sessions of brokers: registration, fencing, stopping, leaving, feature levels."""

from dataclasses import replace

import pytest

from liftbridge_broker.controller.balance import may_stop
from liftbridge_broker.controller.brokers import BROKERS_MAX
from liftbridge_broker.controller.commands import (
    FEATURE_LEVEL,
    AlterStream,
    Bootstrap,
    Command,
    CordonBroker,
    FenceBroker,
    RegisterBroker,
    RemoveBroker,
    SetFeatureLevel,
    ShutDownBroker,
    StartReassignment,
    UnfenceBroker,
)
from liftbridge_broker.controller.records import BrokerChanged, Done
from liftbridge_broker.controller.state import RESTARTS_MAX, ClusterState, Restart
from liftbridge_broker.model.ids import BrokerId, MetadataIndex, StreamName
from liftbridge_broker.model.streams import FsyncPolicy, StreamOverrides
from liftbridge_testkit.controller_world import ControllerWorld, brokers_of

A, B, C = brokers_of("abc")


@pytest.fixture
def world() -> ControllerWorld:
    """Three brokers; they registered at 1 to 3."""
    found = ControllerWorld()
    found.start("abc")
    return found


def registration(name: str, **given: object) -> RegisterBroker:
    command = RegisterBroker(
        broker=BrokerId(name), incarnation_id="new", data_dir_id=f"disk-{name}", feature_level=1
    )
    return replace(command, **given)  # type: ignore[arg-type]  # names of fields


# C1.


def test_a_broker_is_fenced_until_it_has_caught_up() -> None:
    world = ControllerWorld()
    world.register("a")
    assert world.state.brokers[A].fenced

    world.unfence("a")
    assert not world.state.brokers[A].fenced


def test_a_registration_sent_twice_is_one_session(world: ControllerWorld) -> None:
    command = registration("a")
    first = world.ok(command)
    decision = world.apply(command)

    assert decision == ((), first)


def test_a_late_registration_of_a_former_process_takes_nothing_from_the_present_one(
    world: ControllerWorld,
) -> None:
    late = registration("a")
    world.ok(late)
    world.restart("a", is_clean=True)

    assert world.refused(late) == "FAILED_PRECONDITION"
    assert not world.state.brokers[BrokerId("a")].fenced


def test_a_live_broker_is_not_replaced_by_one_with_other_data(world: ControllerWorld) -> None:
    assert world.refused(registration("a", data_dir_id="other")) == "FAILED_PRECONDITION"


def test_a_fenced_broker_may_come_back_with_other_data_but_is_unclean(
    world: ControllerWorld,
) -> None:
    number = world.create(3)
    marker = world.epoch("c")
    world.fence("b")
    world.fence("c")
    world.register(
        "c", data_dir_id="other", previous_broker_epoch=marker, clean_partitions=(number,)
    )

    assert world.pools(number) == ("a", "", "c", "a")


def test_a_quick_restart_fences_the_former_process_in_the_same_command(
    world: ControllerWorld,
) -> None:
    number = world.create(3)
    world.register("a", previous_broker_epoch=world.epoch("a"))

    found = world.get(number)
    assert (found.leader, "".join(found.isr)) == ("b", "bc")
    assert found.leader_epoch == world.index


def test_s3_records_before_and_after_a_restart_never_share_a_leader_epoch() -> None:
    world = ControllerWorld()
    world.start("a")
    number = world.create(1)
    before = world.get(number).leader_epoch
    world.restart("a", is_clean=True)

    found = world.get(number)
    assert found.leader == "a"
    assert found.leader_epoch > before
    assert found.unclean_epoch == 0


def test_a_clean_restart_keeps_the_place_among_the_eligible(world: ControllerWorld) -> None:
    number = world.create(3)
    world.alter(number, "ab")
    world.fence("b")
    world.register("b", previous_broker_epoch=world.epoch("b"))

    assert world.pools(number) == ("a", "b", "", "a")


def test_a_crash_costs_the_place_among_the_eligible(world: ControllerWorld) -> None:
    number = world.create(3)
    world.alter(number, "ab")
    world.fence("b")
    world.register("b")

    assert world.pools(number) == ("a", "", "b", "a")


def test_s57_a_marker_of_an_older_session_is_no_clean_stop(world: ControllerWorld) -> None:
    number = world.create(3)
    old = world.epoch("b")
    world.alter(number, "ab")
    world.restart("b", is_clean=True)
    world.alter(number, "ab")
    world.fence("b")
    world.register("b", previous_broker_epoch=old)

    assert world.pools(number) == ("a", "", "b", "a")


def test_partitions_found_whole_are_clean_after_a_crash(world: ControllerWorld) -> None:
    number = world.create(3, fsync_policy=FsyncPolicy.COMMIT)
    world.alter(number, "ab")
    world.fence("b")
    world.register("b", clean_partitions=(number,))

    assert world.pools(number) == ("a", "b", "", "a")


@pytest.mark.parametrize("policy", [None, *FsyncPolicy])
def test_partitions_are_found_whole_under_the_policy_that_counts_alone(
    world: ControllerWorld, policy: FsyncPolicy | None
) -> None:
    """What a broker believes of its log is no evidence when records counted before its disk."""
    number = world.create(3, fsync_policy=policy)
    world.alter(number, "ab")
    world.fence("b")
    world.register("b", clean_partitions=(number,))

    is_whole = policy is FsyncPolicy.COMMIT
    assert world.pools(number) == (("a", "b", "", "a") if is_whole else ("a", "", "b", "a"))


@pytest.mark.parametrize("knows_change", [False, True])
def test_a_claim_older_than_the_last_change_of_the_policy_counts_for_nothing(
    world: ControllerWorld, *, knows_change: bool
) -> None:
    number = world.create(3, fsync_policy=FsyncPolicy.COMMIT)
    known = 0
    for policy in (FsyncPolicy.INTERVAL, FsyncPolicy.COMMIT):
        known = world.index
        overrides = StreamOverrides(fsync_policy=policy)
        world.ok(AlterStream(name=StreamName("foo"), overrides=overrides))
    world.alter(number, "ab")
    world.fence("b")
    index = world.index if knows_change else known
    world.register("b", clean_partitions=(number,), known_index=index)

    assert world.pools(number) == (("a", "b", "", "a") if knows_change else ("a", "", "b", "a"))


def test_damaged_partitions_are_unclean_after_a_clean_stop(world: ControllerWorld) -> None:
    number = world.create(3)
    world.alter(number, "ab")
    world.fence("b")
    world.register("b", previous_broker_epoch=world.epoch("b"), quarantined_partitions=(number,))

    assert world.pools(number) == ("a", "", "b", "a")


def test_a_registration_begins_a_session_of_every_replica(world: ControllerWorld) -> None:
    number = world.create(3)
    world.register("b", previous_broker_epoch=world.epoch("b"))

    index = world.index
    assert world.get(number).replica_epoch(B) == index
    assert world.get(number).partition_epoch == index


def test_a_removed_broker_does_not_come_back_with_its_data(world: ControllerWorld) -> None:
    world.fence("c")
    world.ok(RemoveBroker(broker=C, broker_epoch=world.epoch("c")))

    assert world.refused(registration("c")) == "FAILED_PRECONDITION"
    world.register("c", data_dir_id="another")
    assert not world.state.brokers[C].removed


def test_there_is_a_most_of_brokers(world: ControllerWorld) -> None:
    for number in range(BROKERS_MAX - 3):
        name = BrokerId(f"x{number}")
        world.state.brokers[name] = replace(world.state.brokers[A], broker=name)

    assert world.refused(registration("new")) == "LIMIT"


def test_what_operators_set_outlasts_a_restart(world: ControllerWorld) -> None:
    world.ok(CordonBroker(broker=A, draining=True))
    world.register("a")

    assert world.state.brokers[A].draining
    assert world.state.brokers[A].cordoned


# C2.


def unfencing(world: ControllerWorld, name: str, **given: object) -> UnfenceBroker:
    command = UnfenceBroker(
        broker=BrokerId(name),
        broker_epoch=world.epoch(name),
        applied_index=world.state.applied_index,
    )
    return replace(command, **given)  # type: ignore[arg-type]  # names of fields


def test_a_broker_is_unfenced_in_its_present_session_only(world: ControllerWorld) -> None:
    old = world.epoch("a")
    world.register("a")

    assert world.refused(unfencing(world, "a", broker_epoch=old)) == "STALE_BROKER_EPOCH"


def test_a_broker_is_not_unfenced_before_it_applied_its_registration(
    world: ControllerWorld,
) -> None:
    epoch = world.register("a")
    command = unfencing(world, "a", applied_index=epoch - 1)

    assert world.refused(command) == "FAILED_PRECONDITION"


def test_a_broker_that_wants_the_fence_keeps_it(world: ControllerWorld) -> None:
    world.register("a")

    assert world.refused(unfencing(world, "a", want_fence=True)) == "FAILED_PRECONDITION"


def test_unfencing_twice_is_answered_alike(world: ControllerWorld) -> None:
    assert world.apply(unfencing(world, "a")) == ((), Done())


def test_unfencing_keeps_the_session_and_gives_waiting_partitions_a_leader(
    world: ControllerWorld,
) -> None:
    number = world.create(3)
    for name in "abc":
        world.fence(name)
    epoch = world.epoch("c")
    world.unfence("c")

    assert world.get(number).leader == "c"
    assert world.epoch("c") == epoch


# C3.


def test_only_the_present_session_is_fenced(world: ControllerWorld) -> None:
    old = world.epoch("a")
    world.restart("a", is_clean=True)

    assert world.refused(FenceBroker(broker=A, broker_epoch=old)) == "STALE_BROKER_EPOCH"


def test_a_fenced_broker_is_not_fenced_again(world: ControllerWorld) -> None:
    world.fence("a")

    decision = world.apply(FenceBroker(broker=A, broker_epoch=world.epoch("a")))

    assert decision == ((), Done())


def test_a_fenced_broker_leads_nothing_and_is_in_sync_nowhere(world: ControllerWorld) -> None:
    number = world.create(3, partitions=3)
    world.fence("a")

    assert world.pools(number) == ("bc", "", "", "b")
    assert all("a" not in one.isr for _, one in world.state.partitions())


# C13.


def shutdown(world: ControllerWorld, name: str) -> ShutDownBroker:
    return ShutDownBroker(broker=BrokerId(name), broker_epoch=world.epoch(name))


def test_a_stopping_broker_hands_over_and_leaves_the_sets(world: ControllerWorld) -> None:
    number = world.create(3)
    world.ok(shutdown(world, "a"))

    assert world.pools(number) == ("bc", "", "", "b")
    assert world.state.brokers[A].controlled_shutdown_index == world.index


def test_s116_the_only_replica_in_sync_leads_until_the_end(world: ControllerWorld) -> None:
    number = world.create(3)
    world.alter(number, "ab")
    world.fence("b")
    before = world.get(number)
    world.ok(shutdown(world, "a"))

    assert world.get(number) == before
    world.fence("a")
    assert world.pools(number) == ("", "ab", "", "")


def test_those_in_sync_that_stop_as_well_are_no_successors(world: ControllerWorld) -> None:
    number = world.create(3)
    for name in "bca":
        world.ok(shutdown(world, name))

    assert world.pools(number)[0] == "a"
    assert world.get(number).leader == "a"


def test_only_the_present_session_is_shut_down(world: ControllerWorld) -> None:
    old = shutdown(world, "a")
    world.restart("a", is_clean=True)

    assert world.refused(old) == "STALE_BROKER_EPOCH"


def test_a_shutdown_asked_for_twice_begins_once(world: ControllerWorld) -> None:
    world.ok(shutdown(world, "a"))
    began = world.state.brokers[A].controlled_shutdown_index

    assert world.apply(shutdown(world, "a")) == ((), Done())
    assert world.state.brokers[A].controlled_shutdown_index == began


def test_a_broker_stops_when_it_leads_nothing_and_all_others_know(world: ControllerWorld) -> None:
    world.create(3)
    assert not may_stop(world.state, A, {})
    world.ok(shutdown(world, "a"))
    index = world.index
    late = {B: world.state.applied_index, C: MetadataIndex(index - 1)}

    assert not may_stop(world.state, A, late)
    assert may_stop(world.state, A, dict.fromkeys((B, C), world.state.applied_index))
    world.fence("c")
    assert may_stop(world.state, A, late)


def test_a_broker_that_still_leads_does_not_stop() -> None:
    world = ControllerWorld()
    world.start("a")
    world.create(1)
    world.ok(shutdown(world, "a"))

    assert not may_stop(world.state, A, {})


# C20, removal.


def test_a_cordoned_broker_gets_no_new_replicas(world: ControllerWorld) -> None:
    world.ok(CordonBroker(broker=A))
    number = world.create(2)
    assert world.get(number).replicas == ("b", "c")

    world.ok(CordonBroker(broker=A, cordoned=False))
    assert "a" in world.get(world.create(3, name="two")).replicas


def test_a_cordoned_broker_is_not_moved_to(world: ControllerWorld) -> None:
    number = world.create(2)
    world.ok(CordonBroker(broker=C))
    command = StartReassignment(partition_id=number, target=(A, C))

    assert world.refused(command) == "INVALID_REQUEST"


def test_cordoning_again_changes_nothing(world: ControllerWorld) -> None:
    world.ok(CordonBroker(broker=A))

    assert world.apply(CordonBroker(broker=A)) == ((), Done())
    assert world.refused(CordonBroker(broker=BrokerId("z"))) == "NOT_FOUND"


def removal(world: ControllerWorld, name: str) -> RemoveBroker:
    return RemoveBroker(broker=BrokerId(name), broker_epoch=world.epoch(name))


def test_a_live_broker_is_not_removed(world: ControllerWorld) -> None:
    assert world.refused(removal(world, "a")) == "FAILED_PRECONDITION"


def test_s119_a_broker_is_not_removed_before_its_replicas_are_moved(
    world: ControllerWorld,
) -> None:
    world.create(3)
    world.fence("c")

    assert world.refused(removal(world, "c")) == "FAILED_PRECONDITION"


def test_another_session_is_not_removed(world: ControllerWorld) -> None:
    old = removal(world, "c")
    world.register("c")

    assert world.refused(old) == "STALE_BROKER_EPOCH"


def test_a_removed_broker_has_no_session_any_more(world: ControllerWorld) -> None:
    world.fence("c")
    epoch = world.epoch("c")
    world.ok(removal(world, "c"))

    assert world.refused(UnfenceBroker(broker=C, broker_epoch=epoch, applied_index=99)) == (
        "STALE_BROKER_EPOCH"
    )
    assert world.refused(CordonBroker(broker=C)) == "NOT_FOUND"


# Bootstrap, C21.


def test_a_cluster_has_one_name_for_ever() -> None:
    world = ControllerWorld()
    world.ok(Bootstrap(cluster_id="one"))

    assert world.refused(Bootstrap(cluster_id="two")) == "FAILED_PRECONDITION"
    assert world.refused(Bootstrap(cluster_id="")) == "INVALID_REQUEST"
    assert world.apply(Bootstrap(cluster_id="one")) == ((), Done())
    assert (world.state.cluster_id, world.state.feature_level) == ("one", FEATURE_LEVEL)


def test_the_feature_level_waits_for_every_broker(world: ControllerWorld) -> None:
    later = FEATURE_LEVEL + 1
    world.register("a", feature_level=later)

    assert world.refused(SetFeatureLevel(feature_level=later)) == "FAILED_PRECONDITION"


def test_a_removed_broker_does_not_hold_the_feature_level_back(world: ControllerWorld) -> None:
    world.fence("c")
    world.ok(removal(world, "c"))
    for name in "ab":
        world.register(name, feature_level=FEATURE_LEVEL + 1)

    world.ok(SetFeatureLevel(feature_level=FEATURE_LEVEL + 1))
    assert world.state.feature_level == FEATURE_LEVEL + 1


def test_the_feature_level_never_goes_back(world: ControllerWorld) -> None:
    world.ok(SetFeatureLevel(feature_level=1))

    assert world.refused(SetFeatureLevel(feature_level=0)) == "FAILED_PRECONDITION"
    assert world.apply(SetFeatureLevel(feature_level=1)) == ((), Done())


def test_a_broker_below_the_feature_level_does_not_register(world: ControllerWorld) -> None:
    world.ok(SetFeatureLevel(feature_level=1))

    assert world.refused(registration("a", feature_level=0)) == "FAILED_PRECONDITION"


def test_a_version_without_clusters_is_not_fenced_first() -> None:
    world = ControllerWorld()
    world.register("a", feature_level=0)
    number = world.create(1)
    world.register("a", feature_level=0)

    found = world.get(number)
    assert (found.leader, found.leader_epoch) == ("a", world.index)
    assert found.unclean_epoch == world.index


def test_every_change_of_a_broker_is_one_record(world: ControllerWorld) -> None:
    commands: list[Command] = [
        CordonBroker(broker=A),
        shutdown(world, "a"),
        FenceBroker(broker=A, broker_epoch=world.epoch("a")),
        removal(world, "a"),
    ]
    causes = []
    for command in commands:
        (record,) = world.apply(command).records
        assert isinstance(record, BrokerChanged)
        causes.append(str(record.cause))

    assert causes == ["cordoned", "shutting_down", "fenced", "removed"]


def test_the_last_starts_of_a_broker_are_remembered(world: ControllerWorld) -> None:
    clean = registration(
        "a", incarnation_id="1", previous_broker_epoch=int(world.epoch("a")), started=7, version="v"
    )
    world.ok(clean)
    world.ok(registration("a", incarnation_id="2"))

    restarts = world.state.brokers[A].restarts
    assert restarts[1:] == (
        Restart("1", 7, is_clean=True, version="v"),
        Restart("2", 0, is_clean=False, version=""),
    )
    for number in range(RESTARTS_MAX):
        world.ok(registration("a", incarnation_id=f"more-{number}"))
    assert [one.incarnation_id for one in world.state.brokers[A].restarts] == [
        f"more-{number}" for number in range(RESTARTS_MAX)
    ]


def test_an_empty_state_has_no_sessions() -> None:
    world = ControllerWorld(ClusterState())

    assert world.refused(FenceBroker(broker=A, broker_epoch=0)) == "STALE_BROKER_EPOCH"
