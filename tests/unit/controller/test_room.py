"""A broker gets no more replicas than it told to have room for, by whichever command."""

from liftbridge_broker.controller.balance import drain_moves
from liftbridge_broker.controller.commands import (
    ROOM_LEVEL,
    AlterStream,
    CordonBroker,
    CreateStream,
    DeleteStream,
    SetFeatureLevel,
    StartReassignment,
)
from liftbridge_broker.errors import LimitError
from liftbridge_broker.model.ids import BrokerId, StreamName
from liftbridge_broker.model.streams import StreamOverrides
from liftbridge_testkit.controller_world import ControllerWorld, brokers_of


def world_of(room: dict[str, int], *, level: int = ROOM_LEVEL) -> ControllerWorld:
    """Brokers that registered when the level was in force, with room for so many replicas."""
    world = ControllerWorld()
    world.start("".join(room))
    if level:
        world.ok(SetFeatureLevel(feature_level=level))
    for name, count in room.items():
        world.register(name, replicas_max=count)
    for name in room:
        world.unfence(name)
    return world


def creation(partitions: int, factor: int = 1) -> CreateStream:
    return CreateStream(
        name=StreamName("new"), subject="s", partitions=partitions, replication_factor=factor
    )


def test_stream_is_refused_whole_when_one_of_its_partitions_has_no_place() -> None:
    world = world_of({"a": 3, "b": 3})

    assert world.refused(creation(7)) == LimitError.code
    answer = world.decide(creation(4, factor=2)).answer
    assert isinstance(answer, LimitError)
    assert "0 of 2 brokers needed have room for another replica: a has 3, b has 3" in str(answer)
    world.ok(creation(3, factor=2))
    assert world.state.replica_counts == {BrokerId("a"): 3, BrokerId("b"): 3}


def test_broker_without_room_is_passed_over() -> None:
    world = world_of({"a": 1, "b": 0, "c": 2})

    world.ok(creation(6))

    assert world.state.replica_counts == {BrokerId("a"): 1, BrokerId("b"): 3, BrokerId("c"): 2}


def test_replicas_of_a_stream_that_goes_make_room() -> None:
    world = world_of({"a": 3})
    world.create(1, partitions=3)
    assert world.refused(creation(1)) == LimitError.code

    world.ok(DeleteStream(name=StreamName("foo")))

    world.ok(creation(3))


def test_factor_grows_only_where_there_is_room() -> None:
    world = world_of({"a": 2, "b": 1, "c": 1})
    world.create(1, partitions=2)
    grown = AlterStream(name=StreamName("foo"), overrides=StreamOverrides(), replication_factor=2)

    world.ok(grown)
    # Each of them has its only place taken by a replica that is being added.
    assert world.refused(creation(1, factor=2)) == LimitError.code


def test_partition_does_not_move_to_a_broker_without_room() -> None:
    world = world_of({"a": 0, "b": 1})
    world.ok(CordonBroker(broker=BrokerId("b")))
    first, second = world.create(1), world.create(1, name="bar")
    world.ok(CordonBroker(broker=BrokerId("b"), cordoned=False))

    world.ok(StartReassignment(partition_id=first, target=brokers_of("b")))
    refused = StartReassignment(partition_id=second, target=brokers_of("b"))
    assert world.refused(refused) == LimitError.code


def test_drained_broker_keeps_what_has_no_other_place() -> None:
    world = world_of({"a": 0, "b": 1})
    world.ok(CordonBroker(broker=BrokerId("b")))
    world.create(1, partitions=2)
    world.ok(CordonBroker(broker=BrokerId("b"), cordoned=False))
    world.ok(CordonBroker(broker=BrokerId("a"), draining=True))

    assert len(drain_moves(world.state, (), 10)) == 1


def test_what_grows_by_itself_refuses_no_broker() -> None:
    world = world_of({"a": 0})
    world.ok(
        CreateStream(
            name=StreamName("__cursors"),
            subject="c",
            partitions=2,
            replication_factor=-1,
            is_internal=True,
        )
    )

    world.register("b", replicas_max=1)
    world.unfence("b")

    assert world.state.replica_counts == {BrokerId("a"): 2}


def test_room_counts_only_when_every_broker_knows_of_it() -> None:
    world = world_of({"a": 1}, level=ROOM_LEVEL - 1)

    world.ok(creation(5))

    assert world.state.replica_counts == {BrokerId("a"): 5}
