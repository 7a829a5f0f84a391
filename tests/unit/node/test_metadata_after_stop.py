"""Metadata go on between the end of the node and the end of its process; partitions do not."""

from liftbridge_broker.controller.commands import Command, CreateStream, FenceBroker
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import StreamName
from liftbridge_testkit.node_world import NodeWorld


def apply(world: NodeWorld, command: Command) -> None:
    """Have a command applied as one of another broker would be."""
    answers: list[object] = []
    world.node.context.metadata.propose(command, world.now, answers.append)
    world.settle()
    assert [isinstance(answer, LiftbridgeError) for answer in answers] == [False]


def test_nothing_is_opened_after_the_stop():
    world = NodeWorld()
    world.create()
    world.node.stop()
    epoch = world.node.state.brokers[world.node.broker].broker_epoch
    apply(world, CreateStream(name=StreamName("late"), subject="late", partitions=1))
    apply(world, FenceBroker(broker=world.node.broker, broker_epoch=epoch))
    assert world.node.partitions == {}


def test_a_snapshot_opens_nothing_after_the_stop():
    world = NodeWorld()
    world.create()
    world.node.stop()
    world.node.on_restored()
    assert world.node.partitions == {}


def test_what_came_after_the_stop_is_there_after_the_start():
    world = NodeWorld()
    world.create()
    world.node.stop()
    apply(world, CreateStream(name=StreamName("late"), subject="late", partitions=1))
    world.stop()
    world.start()
    assert world.partition("late").log.log_end_offset == 0
