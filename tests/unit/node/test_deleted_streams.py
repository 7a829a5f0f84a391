"""Logs of deleted streams that a crash left, and logs that nobody knows."""

import pytest

from liftbridge_broker.controller.commands import DeleteStream
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import StreamName
from liftbridge_testkit.memory_files import Fault
from liftbridge_testkit.node_world import NodeWorld

S = StreamName("s")


def logs(world: NodeWorld, place: str) -> list[str]:
    """Log files below a directory."""
    return [path for path in world.files.paths(place) if path.endswith(".log")]


@pytest.mark.parametrize("moved", [0, 1, 2])
def test_deletion_that_a_kill_interrupted_is_completed_at_the_start(
    world: NodeWorld, moved: int
) -> None:
    world.create(partitions=3)
    for number in range(3):
        world.publish(world.partition("s", number), b"v")
    world.settle()
    world.files.fail(Fault("rename", "streams/*", skip=moved))
    assert not isinstance(world.propose(DeleteStream(name=S)), LiftbridgeError)
    assert world.failures
    assert len(logs(world, "streams")) == 3 - moved
    world.kill()
    assert world.node.state.stream("s") is None
    assert logs(world, "streams") == []
    assert len(logs(world, "trash")) == 3
    assert len(world.told("deletion_completed")) == 3 - moved
    assert world.told("unknown_directory_kept") == []
    assert world.store.unknown_count == 0
    world.kill()
    assert len(world.told("deletion_completed")) == 3 - moved


def test_log_that_nobody_knows_is_kept_and_told(world: NodeWorld) -> None:
    world.create()
    path = "streams/0000000001-lost/0"
    world.files.put(f"{path}/00000000000000000000.log", b"somebody's")
    world.kill()
    assert logs(world, path)
    assert world.told("unknown_directory_kept") == [{"path": path}]
    assert world.store.unknown_count == 1
    assert world.told("deletion_completed") == []


def test_stream_of_the_same_name_keeps_its_log(world: NodeWorld) -> None:
    world.create()
    world.publish(world.partition(), b"old")
    world.files.fail(Fault("rename", "streams/*"))
    world.propose(DeleteStream(name=S))
    world.kill()
    world.create()
    world.publish(world.partition(), b"new")
    world.kill()
    assert world.values(world.partition()) == {0: b"new"}
