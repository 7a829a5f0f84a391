"""A greater replication factor is promised only where every partition can reach it (C16)."""

from liftbridge_broker.controller.commands import AlterStream, CordonBroker
from liftbridge_broker.model.ids import BrokerId, StreamName
from liftbridge_broker.model.streams import StreamOverrides
from liftbridge_testkit.controller_world import ControllerWorld, brokers_of


def grow_to(factor: int, **overrides: int) -> AlterStream:
    given = StreamOverrides(**overrides)  # type: ignore[arg-type]  # names of fields
    return AlterStream(name=StreamName("foo"), overrides=given, replication_factor=factor)


def test_replicas_of_one_partition_do_not_help_another_one():
    world = ControllerWorld()
    world.start("abc")
    world.create(1, partitions=2)
    for name in "ab":
        world.ok(CordonBroker(broker=BrokerId(name)))

    assert world.refused(grow_to(3)) == "INVALID_REQUEST"


def test_partition_grows_to_brokers_that_take_replicas_beside_its_own():
    world = ControllerWorld()
    world.start("abc")
    number = world.create(1)
    world.ok(CordonBroker(broker=BrokerId("a")))

    world.ok(grow_to(3))

    assert set(world.get(number).target) == set(brokers_of("abc"))


def test_replica_that_a_shrink_under_way_takes_off_does_not_count():
    world = ControllerWorld()
    world.start("abc")
    number = world.create(3, min_isr=2)
    world.fence("b")
    world.fence("c")
    world.ok(grow_to(2))
    assert world.get(number).is_reassigning
    world.ok(CordonBroker(broker=BrokerId("b")))
    world.ok(CordonBroker(broker=BrokerId("c")))

    assert world.refused(grow_to(3, min_isr=1)) == "INVALID_REQUEST"
