"""Where replicas go: turns, load, zones, brokers that take some; drained brokers."""

from dataclasses import replace

from liftbridge_broker.controller.balance import drain_moves
from liftbridge_broker.controller.commands import (
    BrokerLoad,
    CordonBroker,
    CreateStream,
    ShutDownBroker,
    StartReassignment,
)
from liftbridge_broker.controller.placement import Placement
from liftbridge_broker.controller.state import BrokerState
from liftbridge_broker.model.ids import BrokerId, MetadataIndex, StreamName
from liftbridge_testkit.controller_world import ControllerWorld, brokers_of

A, B, C, D = brokers_of("abcd")


def brokers(zones: dict[str, str]) -> dict[BrokerId, BrokerState]:
    return {
        BrokerId(name): BrokerState(
            broker=BrokerId(name), broker_epoch=MetadataIndex(1), incarnation_id="i",
            data_dir_id="d", host="", port=0, zone=zone, fenced=False,
        )
        for name, zone in zones.items()
    }  # fmt: skip


def placed(placement: Placement, count: int, times: int) -> list[str]:
    return ["".join(placement.place(count)) for _ in range(times)]


def test_brokers_take_turns() -> None:
    placement = Placement(brokers(dict.fromkeys("abc", "")), (), {}, 0)

    assert placed(placement, 2, 4) == ["ab", "bc", "ca", "ab"]


def test_the_turn_goes_on_where_it_was() -> None:
    placement = Placement(brokers(dict.fromkeys("abc", "")), (), {}, 4)

    assert placed(placement, 1, 2) == ["b", "c"]


def test_who_carries_less_goes_first() -> None:
    load = (BrokerLoad(A, 5), BrokerLoad(B, 1), BrokerLoad(BrokerId("z"), 0))
    placement = Placement(brokers(dict.fromkeys("abc", "")), load, {}, 0)

    assert placed(placement, 2, 3) == ["cb", "bc", "cb"]


def test_replicas_stand_in_different_zones() -> None:
    zones = {"a": "x", "b": "x", "c": "y", "d": "y"}
    placement = Placement(brokers(zones), (), {}, 0)

    assert placed(placement, 2, 4) == ["ac", "bd", "ca", "db"]


def test_zones_are_shared_when_there_are_too_few() -> None:
    placement = Placement(brokers({"a": "x", "b": "x", "c": "y"}), (), {}, 0)

    assert placed(placement, 3, 1) == ["acb"]


def test_replicas_are_added_where_none_is() -> None:
    zones = {"a": "x", "b": "x", "c": "y", "d": "z"}
    placement = Placement(brokers(zones), (), {}, 0)

    assert placement.extend((A,), 3) == (A, C, D)
    assert placement.extend((A, B), 9) == (A, B, C, D)


def test_without_a_broker_nothing_is_added() -> None:
    fenced = {name: replace(one, fenced=True) for name, one in brokers({"a": "", "b": ""}).items()}

    assert Placement(fenced, (), {}, 0).extend((A,), 3) == (A,)


def test_only_brokers_that_take_replicas_count() -> None:
    world = ControllerWorld()
    world.start("abcde")
    world.register("f")
    world.fence("a")
    world.ok(CordonBroker(broker=B))
    world.ok(ShutDownBroker(broker=C, broker_epoch=world.epoch("c")))
    number = world.create(-1)

    assert sorted(world.get(number).replicas) == ["d", "e"]


def test_a_stream_waits_for_brokers_that_are_away() -> None:
    world = ControllerWorld()
    world.start("abc")
    world.fence("c")
    command = CreateStream(name=StreamName("foo"), subject="s", replication_factor=3)

    assert world.refused(command) == "UNAVAILABLE"
    assert world.refused(replace(command, replication_factor=4)) == "INVALID_REQUEST"


def test_the_load_of_a_command_decides() -> None:
    world = ControllerWorld()
    world.start("abc")
    world.ok(
        CreateStream(name=StreamName("foo"), subject="s", load=(BrokerLoad(A, 9), BrokerLoad(B, 9)))
    )

    (partition,) = (one for _, one in world.state.partitions())
    assert partition.replicas == (C,)


# Drained brokers.


def test_what_a_drained_broker_holds_is_moved_within_the_cap() -> None:
    world = ControllerWorld()
    world.start("abcd")
    world.create(3, partitions=4)
    world.ok(CordonBroker(broker=A, draining=True))
    every = drain_moves(world.state, (), 10)
    held = sum("a" in one.replicas for _, one in world.state.partitions())
    assert len(every) == held == 3
    assert all("a" not in move.target and len(move.target) == 3 for move in every)

    (first,) = drain_moves(world.state, (), 1)
    world.ok(first)

    assert drain_moves(world.state, (), 1) == ()
    assert len(drain_moves(world.state, (), 9)) == 2


def test_what_has_no_other_place_stays() -> None:
    world = ControllerWorld()
    world.start("abc")
    world.create(3)
    assert drain_moves(world.state, (), 9) == ()
    world.ok(CordonBroker(broker=A, draining=True))

    assert drain_moves(world.state, (), 9) == ()


def test_a_move_off_a_drained_broker_is_decided_on_the_present_state() -> None:
    world = ControllerWorld()
    world.start("abcd")
    number = world.create(3)
    world.ok(CordonBroker(broker=A, draining=True))
    (move,) = drain_moves(world.state, (), 9)

    assert move == StartReassignment(
        partition_id=number, target=(B, C, D),
        partition_epoch=world.get(number).partition_epoch,
    )  # fmt: skip
