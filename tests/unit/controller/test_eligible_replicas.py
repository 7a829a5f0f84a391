"""Rule E and elections: who stays complete, who may lead (C4, KIP-966)."""

from dataclasses import replace

import pytest

from liftbridge_broker.controller.commands import DeclareUnclean, ReplicaAnswer, ShutDownBroker
from liftbridge_broker.controller.elections import (
    elect,
    led,
    led_uncleanly,
    maintain_eligible,
    with_isr,
    with_session,
)
from liftbridge_broker.controller.recovery import OTHERS_NS, conclude, inquiries
from liftbridge_broker.controller.state import BrokerState
from liftbridge_broker.model.ids import BrokerId, LeaderEpoch, MetadataIndex, Offset, PartitionId
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.streams import UncleanMode
from liftbridge_testkit.controller_world import ControllerWorld, brokers_of

INDEX = MetadataIndex(50)


def partition(
    isr: str, *, elr: str = "", known: str = "", leader: str = "", replicas: str = "abc"
) -> PartitionState:
    return PartitionState(
        partition_id=PartitionId(1 << 24),
        replicas=brokers_of(replicas),
        isr=brokers_of(isr),
        elr=brokers_of(elr),
        last_known_elr=brokers_of(known),
        leader=BrokerId(leader) if leader else None,
        leader_epoch=LeaderEpoch(7),
        partition_epoch=MetadataIndex(8),
        replica_epochs=(MetadataIndex(1),) * len(replicas),
    )


def brokers(
    *, alive: str = "", stopping: str = "", fenced: str = ""
) -> dict[BrokerId, BrokerState]:
    states = {}
    for name in sorted(alive + stopping + fenced):
        states[BrokerId(name)] = BrokerState(
            broker=BrokerId(name), broker_epoch=MetadataIndex(1), incarnation_id="i",
            data_dir_id="d", host="", port=0, fenced=name in fenced,
            in_controlled_shutdown=name in stopping,
        )  # fmt: skip
    return states


def eligible(
    before: PartitionState, isr: str, min_isr: int = 2, *, unclean: str = "", replicas: str = "abc"
) -> tuple[str, str]:
    found = maintain_eligible(
        before,
        brokers_of(isr),
        min_isr,
        replicas=brokers_of(replicas),
        unclean=brokers_of(unclean),
    )
    return "".join(found.elr), "".join(found.last_known_elr)


def recover(
    world: ControllerWorld,
    number: PartitionId,
    ends: dict[str, int],
    mode: UncleanMode = UncleanMode.BALANCED,
) -> None:
    """Let the controller recover a partition by what replicas told of their logs' ends."""
    found = next(one for one in inquiries(world.state) if one.partition_id == number)
    told = [
        ReplicaAnswer(BrokerId(name), world.epoch(name), LeaderEpoch(3), Offset(end))
        for name, end in ends.items()
    ]
    assert found.mode is mode
    command = conclude(found, told, asked_ns=OTHERS_NS, needed_ns=0)
    assert command is not None
    world.ok(command)


# Cases A to G.


def test_case_a_a_follower_fenced_below_the_minimum_stays_eligible() -> None:
    assert eligible(partition("ab", leader="a"), "a") == ("b", "")


def test_case_b_an_eligible_replica_that_is_elected_is_no_longer_merely_eligible() -> None:
    assert eligible(partition("", elr="bc"), "b") == ("c", "")


def test_case_c_a_leader_fenced_below_the_minimum_stays_eligible() -> None:
    assert eligible(partition("ab", leader="a"), "b") == ("a", "")


def test_case_d_a_leader_fenced_above_the_minimum_is_no_longer_complete() -> None:
    assert eligible(partition("abc", leader="a"), "bc") == ("", "")


def test_case_e_a_follower_that_caught_up_changes_no_pool() -> None:
    assert eligible(partition("a", elr="b", leader="a"), "ac", min_isr=3) == ("b", "")


def test_case_f_a_follower_lagging_above_the_minimum_is_no_longer_complete() -> None:
    assert eligible(partition("abc", leader="a"), "ab") == ("", "")


def test_case_g_a_full_set_empties_both_pools() -> None:
    assert eligible(partition("a", elr="b", known="c", leader="a"), "ab") == ("", "")


def test_an_unclean_replica_is_only_known_to_have_been_complete() -> None:
    assert eligible(partition("", elr="bc", known="a"), "", unclean="b") == ("c", "ab")


def test_a_member_that_leaves_uncleanly_is_known_as_well() -> None:
    assert eligible(partition("ab", leader="a"), "a", unclean="b") == ("", "b")


def test_a_known_replica_back_in_sync_is_not_listed_twice() -> None:
    assert eligible(partition("a", known="bc", leader="a"), "ab", min_isr=3) == ("", "c")


def test_what_is_no_replica_any_more_is_in_no_pool() -> None:
    before = partition("ab", elr="c", leader="a")
    assert eligible(before, "a", min_isr=2, replicas="a") == ("", "")


# Elections.


def test_a_valid_leader_stays_and_nothing_changes() -> None:
    before = partition("abc", leader="b")
    assert elect(before, brokers(alive="abc"), INDEX, 2) is before


def test_the_first_in_sync_replica_that_is_alive_and_stays_leads() -> None:
    found = elect(partition("bc", leader=""), brokers(alive="ac", stopping="b"), INDEX, 2)
    assert (found.leader, found.leader_epoch, found.partition_epoch) == ("c", 50, 50)


def test_a_leader_to_be_avoided_does_not_go_on() -> None:
    found = elect(partition("ab", leader="a"), brokers(alive="ab"), INDEX, 2, avoid=BrokerId("a"))
    assert found.leader == "b"


def test_an_eligible_replica_leads_when_nobody_is_in_sync() -> None:
    found = elect(partition("", elr="bc"), brokers(alive="c", fenced="ab"), INDEX, 2)
    assert (found.leader, found.isr, found.elr) == ("c", ("c",), ("b",))
    assert found.unclean_epoch == 0
    assert not found.is_recovering


def test_an_eligible_replica_alone_is_enough_for_a_minimum_of_one() -> None:
    found = elect(partition("", elr="bc"), brokers(alive="bc", fenced="a"), INDEX, 1)
    assert (found.isr, found.elr) == (("b",), ())


def test_eligible_replicas_do_not_lead_beside_one_in_sync() -> None:
    before = partition("a", elr="b", leader="a")
    found = elect(before, brokers(alive="b", stopping="a", fenced="c"), INDEX, 2)
    assert found is before


def test_the_last_in_sync_replica_leads_though_it_is_about_to_stop() -> None:
    found = elect(partition("a", elr="b"), brokers(alive="b", stopping="a", fenced="c"), INDEX, 2)
    assert (found.leader, found.isr) == ("a", ("a",))


def test_nobody_leads_when_nobody_can_and_the_epoch_tells() -> None:
    found = elect(partition("", elr="a", leader="a"), brokers(fenced="abc"), INDEX, 2)
    assert (found.leader, found.leader_epoch, found.partition_epoch) == (None, 50, 50)


def test_a_partition_without_a_leader_gets_no_new_epoch_by_staying_so() -> None:
    before = partition("", elr="a")
    assert elect(before, brokers(fenced="abc"), INDEX, 2) is before


def test_the_only_replica_leads_again_and_the_loss_is_told() -> None:
    found = elect(partition("", known="a", replicas="a"), brokers(alive="a"), INDEX, 1)
    assert (found.leader, found.isr, found.last_known_elr) == ("a", ("a",), ())
    assert (found.unclean_epoch, found.is_recovering) == (50, True)


@pytest.mark.parametrize("known", ["a", "ab"])
def test_a_last_known_replica_does_not_lead_unasked_while_others_may_hold_more(known: str) -> None:
    before = partition("", known=known)
    assert elect(before, brokers(alive="abc"), INDEX, 2) is before


def test_the_only_replica_does_not_lead_before_it_is_back() -> None:
    before = partition("", known="a", replicas="a")
    assert elect(before, brokers(fenced="a"), INDEX, 1) is before


def test_a_last_known_replica_does_not_lead_while_a_complete_one_may_come_back() -> None:
    before = partition("", elr="b", known="a")
    assert elect(before, brokers(alive="ac", fenced="b"), INDEX, 2) is before


def test_a_change_of_the_set_moves_the_leader_with_it() -> None:
    found = with_isr(partition("abc", leader="a"), brokers_of("cb"), brokers(alive="abc"), INDEX, 2)
    assert (found.isr, found.leader, found.leader_epoch) == (("b", "c"), "b", 50)


def test_the_same_set_is_no_change() -> None:
    before = partition("abc", leader="a")
    assert with_isr(before, brokers_of("cba"), brokers(alive="abc"), INDEX, 2) is before


def test_an_unclean_leader_is_alone_and_recovering() -> None:
    found = led_uncleanly(partition("", elr="a", known="bc"), BrokerId("c"), INDEX, 2)
    assert (found.isr, found.elr, found.is_recovering) == (("c",), (), True)
    assert (found.unclean_epoch, found.leader_epoch, found.partition_epoch) == (50, 50, 50)


def test_who_was_complete_before_an_unclean_election_is_remembered_below_the_minimum() -> None:
    found = led_uncleanly(partition("", elr="a", known="bc"), BrokerId("c"), INDEX, 2)
    assert (found.elr, found.last_known_elr) == ((), ("a", "b"))


def test_nobody_need_be_remembered_when_one_in_sync_is_enough() -> None:
    found = led_uncleanly(partition("", elr="a", known="bc"), BrokerId("c"), INDEX, 1)
    assert (found.elr, found.last_known_elr) == ((), ())


def test_a_new_session_belongs_to_one_replica() -> None:
    found = with_session(partition("abc", leader="a"), BrokerId("b"), INDEX)
    assert found.replica_epochs == (1, 50, 1)
    assert found.partition_epoch == 50


def test_a_leader_named_gets_a_new_epoch() -> None:
    found = led(partition("abc", leader="a"), BrokerId("b"), INDEX)
    assert found == replace(
        partition("abc", leader="b"), leader_epoch=LeaderEpoch(50), partition_epoch=INDEX
    )


# Stories of the protocol.


def test_s31_the_last_complete_replicas_are_frozen_and_the_first_back_leads() -> None:
    world = ControllerWorld()
    world.start("abc")
    number = world.create(3)
    for name in "abc":
        world.fence(name)
    assert world.pools(number) == ("", "bc", "", "")

    world.unfence("b")

    assert world.pools(number) == ("b", "c", "", "b")
    assert world.get(number).unclean_epoch == 0


def test_s49_an_unclean_restart_of_the_last_leader_loses_nothing_of_the_others() -> None:
    world = ControllerWorld()
    world.start("abc")
    number = world.create(3)
    world.alter(number, "ac")
    world.fence("c")
    world.restart("a", is_clean=False)
    assert world.pools(number) == ("", "c", "a", "")

    world.unfence("c")

    assert world.pools(number) == ("c", "", "a", "c")


def test_s51_all_lose_power_and_the_last_known_are_waited_for() -> None:
    world = ControllerWorld()
    world.start("abc")
    number = world.create(3)
    for name in "abc":
        world.fence(name)
    for name in "bc":
        world.restart(name, is_clean=False)

    assert world.pools(number) == ("", "", "bc", "")


def test_all_lose_power_twice_and_who_led_in_between_does_not_lead_unasked() -> None:
    world = ControllerWorld()
    world.start("abc")
    number = world.create(3)
    for name in "abc":
        world.fence(name)
    for name in "bc":
        world.restart(name, is_clean=False)
    recover(world, number, {"b": 4, "c": 6})
    assert world.pools(number) == ("c", "", "b", "c")

    world.restart("c", is_clean=False)
    assert world.pools(number) == ("", "", "bc", "")

    recover(world, number, {"b": 4, "c": 3})
    assert world.pools(number) == ("b", "", "c", "b")


def test_an_eligible_replica_that_was_passed_over_is_asked_when_the_chosen_one_is_lost() -> None:
    world = ControllerWorld()
    world.start("abc")
    number = world.create(3, unclean_mode=UncleanMode.PROACTIVE)
    for name in "abc":
        world.fence(name)
    world.unfence("a")
    recover(world, number, {"a": 3}, mode=UncleanMode.PROACTIVE)
    assert world.pools(number) == ("a", "", "bc", "a")

    world.restart("a", is_clean=False)

    assert world.pools(number) == ("", "", "abc", "")


def test_s60_a_follower_that_crashed_within_its_session_cannot_be_elected() -> None:
    world = ControllerWorld()
    world.start("ab")
    number = world.create(2, min_isr=1)
    world.restart("b", is_clean=False)
    world.ok(ShutDownBroker(broker=BrokerId("a"), broker_epoch=world.epoch("a")))

    assert world.pools(number) == ("a", "", "", "a")


def test_factor_one_comes_back_by_itself_and_tells_the_loss() -> None:
    world = ControllerWorld()
    world.start("a")
    number = world.create(1)
    world.restart("a", is_clean=False)

    found = world.get(number)
    assert (found.leader, found.is_recovering) == ("a", True)
    assert found.unclean_epoch == found.leader_epoch


def test_a_declared_replica_is_known_and_the_pool_stays_large_enough() -> None:
    world = ControllerWorld()
    world.start("ab")
    number = world.create(2, min_isr=2)
    epoch = world.get(number).replica_epoch(BrokerId("b"))
    assert epoch is not None
    world.ok(
        DeclareUnclean(
            broker=BrokerId("b"), broker_epoch=world.epoch("b"), partition_id=number,
            replica_epoch=epoch,
        )
    )  # fmt: skip

    assert world.pools(number) == ("a", "", "b", "a")
    assert world.get(number).replica_epochs == (3 + 2, world.state.applied_index)
