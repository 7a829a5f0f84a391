"""A stream of many partitions is opened by and by, and is told of when all of them are."""

from liftbridge_broker.controller.commands import CreateStream, DeleteStream, PauseStream
from liftbridge_broker.errors import LiftbridgeError, NotAppendedError, NotFoundError
from liftbridge_broker.model.ids import StreamName
from liftbridge_broker.node.scheduling.opening_queue import CLOSINGS_PER_TURN, OPENINGS_PER_TURN
from liftbridge_testkit.cluster_world import ClusterWorld
from liftbridge_testkit.memory_files import Fault
from liftbridge_testkit.node_world import NodeWorld

S = StreamName("s")
MANY = 5 * OPENINGS_PER_TURN


def create(partitions: int, name: StreamName = S) -> CreateStream:
    """A command that creates a stream."""
    return CreateStream(name=name, subject=name, partitions=partitions)


def begin(world: NodeWorld, partitions: int = MANY) -> list[object]:
    """Create a stream, and let no turn pass after the one that applies it."""
    outcomes: list[object] = []
    world.node.propose(create(partitions), world.now, outcomes.append)
    world.settle()
    return outcomes


def turn(world: NodeWorld) -> None:
    """Let the timer have one turn."""
    assert world.armed == world.now
    world.armed = None
    world.node.on_timer(world.now, world.wall_ns)


def test_a_turn_opens_so_many_replicas_and_the_stream_is_told_of_when_all_are_open(
    world: NodeWorld,
) -> None:
    outcomes = begin(world)
    opened = [len(world.node.partitions)]
    while not outcomes:
        turn(world)
        opened.append(len(world.node.partitions))
        world.settle()
    assert opened == [OPENINGS_PER_TURN * (number + 1) for number in range(5)]
    assert not isinstance(outcomes[0], LiftbridgeError)
    assert all(world.node.listening.is_listening(one) for one in world.node.partitions)
    assert not world.node.context.openings.is_waiting


def test_streams_of_one_turn_share_what_it_opens(world: NodeWorld) -> None:
    outcomes: list[object] = []
    for number in range(OPENINGS_PER_TURN):
        command = create(3, StreamName(f"s{number}"))
        world.node.propose(command, world.now, outcomes.append)
    world.settle()
    assert len(world.node.partitions) == OPENINGS_PER_TURN
    world.advance(1)
    assert len(world.node.partitions) == 3 * OPENINGS_PER_TURN
    assert len(outcomes) == OPENINGS_PER_TURN


def test_what_is_deleted_while_it_waits_is_never_opened(world: NodeWorld) -> None:
    outcomes = begin(world)
    world.propose(DeleteStream(name=S))
    world.advance(1)
    assert outcomes
    assert not world.node.partitions
    assert world.files.list("streams") == []
    assert world.create(partitions=1).number == 0


def test_what_is_paused_while_it_waits_is_opened_as_paused(world: NodeWorld) -> None:
    begin(world)
    world.propose(PauseStream(name=S))
    world.advance(1)
    assert len(world.node.partitions) == MANY
    assert all(one.is_paused for one in world.node.partitions.values())


def test_a_stop_opens_nothing_more_and_the_next_start_opens_the_rest(world: NodeWorld) -> None:
    outcomes = begin(world)
    world.stop()
    assert outcomes
    assert len(world.node.partitions) == 0
    world.start()
    assert len(world.node.partitions) == MANY


def test_a_kill_between_the_turns_loses_nothing(world: NodeWorld) -> None:
    for end in (world.kill, world.crash):
        begin(world)
        end()
        assert len(world.node.partitions) == MANY
        assert world.store.unknown_count == 0
        world.propose(DeleteStream(name=S))


def test_directories_that_cannot_be_made_take_their_partitions_offline(world: NodeWorld) -> None:
    world.files.fail(Fault("make_directory", "streams/*", count=2 * MANY))
    outcomes = begin(world, partitions=3)
    world.advance(1)
    assert outcomes
    assert [told["partition"] for told in world.told("partition_offline")] == [0, 1, 2]


def test_leaders_and_followers_of_a_cluster_open_all_before_it_is_told_of() -> None:
    world = ClusterWorld()
    outcomes: list[object] = []
    command = CreateStream(name=S, subject="s", partitions=MANY, replication_factor=3)
    world[1].node.propose(command, world.now, outcomes.append)
    world.until(lambda: bool(outcomes))
    assert not isinstance(outcomes[0], LiftbridgeError)
    found = [one for member in world.alive for one in member.node.partitions.values()]
    assert sum(one.is_led for one in found) == MANY
    world.run(100)
    assert [len(member.node.partitions) for member in world.alive] == [MANY] * 3


def test_a_stream_of_many_partitions_is_deleted_by_and_by(world: NodeWorld) -> None:
    count = 2 * CLOSINGS_PER_TURN + 1
    begin(world, count)
    world.advance(1)
    last = world.partition("s", count - 1)
    world.propose(DeleteStream(name=S))
    left = [len(world.node.partitions)]
    answers = world.publish(last, b"too late")
    assert isinstance(answers.error, NotAppendedError | NotFoundError)
    while world.node.context.openings.is_waiting:
        turn(world)
        left.append(len(world.node.partitions))
        world.settle()
    assert left == [count - CLOSINGS_PER_TURN, 1, 0]
    assert world.files.list("streams") == []


def test_a_stop_leaves_what_waits_to_be_deleted_to_the_next_start(world: NodeWorld) -> None:
    begin(world, CLOSINGS_PER_TURN + 1)
    world.advance(1)
    world.propose(DeleteStream(name=S))
    assert world.files.list("streams") != []
    world.stop()
    world.start()
    assert world.files.list("streams") == []
