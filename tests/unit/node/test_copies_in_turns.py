"""However many streams share a subject, a turn copies so many records and no more, in order."""

from liftbridge_broker.errors import NotAppendedError
from liftbridge_broker.node.partition.listening import COPY_WEIGHT, WAITING_BYTES_MAX
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.scheduling.chores import SLICE_WEIGHT, TURN_WEIGHT_MAX
from liftbridge_testkit.node_world import Answers, NodeWorld

NEIGHBOURS = 30
RUN = [b"%d" % number for number in range(2_000)]
RECORDS_PER_TURN = 2 * (TURN_WEIGHT_MAX + SLICE_WEIGHT) + len(RUN)
COPIES_PER_TURN = (TURN_WEIGHT_MAX + SLICE_WEIGHT) // COPY_WEIGHT + 1


def crowd(world: NodeWorld, *, are_optimistic: bool = False) -> list[Partition]:
    """Streams on one subject; all but the first may decide on each message."""
    first = world.create("s0", "x")
    names = [f"s{number}" for number in range(1, NEIGHBOURS)]
    others = [world.create(name, "x", optimistic_concurrency=are_optimistic) for name in names]
    return [first, *others]


def copied_by_turns(world: NodeWorld, partitions: list[Partition], *values: bytes) -> list[int]:
    """Publish to the first one; records that the others got in each turn."""
    copied, before = [], sum(one.log.log_end_offset for one in partitions)
    world.publish(partitions[0], *values, expected_offsets=list(range(len(values))))
    while True:
        now = sum(one.log.log_end_offset for one in partitions)
        copied.append(now - before)
        before = now
        if not world.node.context.chores.is_waiting:
            return copied
        assert world.armed is not None
        assert world.armed <= world.now
        world.node.on_timer(world.now, world.wall_ns)


def test_long_run_is_copied_in_several_turns(world: NodeWorld) -> None:
    partitions = crowd(world)
    copied = copied_by_turns(world, partitions, *RUN)
    assert max(copied) <= RECORDS_PER_TURN
    assert [one.log.log_end_offset for one in partitions] == [len(RUN)] * NEIGHBOURS


def test_copies_one_by_one_are_made_in_several_turns(world: NodeWorld) -> None:
    partitions = crowd(world, are_optimistic=True)
    copied = copied_by_turns(world, partitions, *RUN[:100])
    assert max(copied) <= COPIES_PER_TURN + 100
    assert [one.log.log_end_offset for one in partitions] == [100] * NEIGHBOURS


def test_copies_keep_the_order_of_what_was_published(world: NodeWorld) -> None:
    partitions = crowd(world)
    for start in range(0, len(RUN), 50):
        world.publish(partitions[start % 3], *RUN[start : start + 50])
    assert world.node.context.chores.is_waiting
    world.settle()
    assert list(world.values(partitions[-1]).values()) == RUN


def test_stream_deleted_meanwhile_gets_nothing(world: NodeWorld) -> None:
    partitions = crowd(world)
    world.publish(partitions[0], *RUN)
    last = partitions[-1]
    world.node.held.close(last.partition_id, NotAppendedError("gone"))
    world.settle()
    assert last.log.log_end_offset == 0
    assert partitions[-2].log.log_end_offset == len(RUN)


def test_runs_that_wait_for_copies_are_bounded(world: NodeWorld) -> None:
    partitions = crowd(world)
    value = bytes(1 << 19)
    answers: list[Answers] = []
    while not answers or answers[-1].stored:
        answers.append(world.publish(partitions[0], value, value))
        assert len(answers) <= WAITING_BYTES_MAX // len(value)
    assert isinstance(answers[-1].error, NotAppendedError)
    assert world.node.is_congested
    world.settle()
    assert not world.node.is_congested
    assert partitions[-1].log.log_end_offset == 2 * (len(answers) - 1)


def neighbour_on(world: NodeWorld, subject: str) -> tuple[Partition, Partition]:
    """Two streams on a subject of their own."""
    return world.create(f"{subject}0", subject), world.create(f"{subject}1", subject)


def test_busy_subject_does_not_hold_up_the_copies_of_another_one(world: NodeWorld) -> None:
    busy, (first, second) = crowd(world), neighbour_on(world, "y")
    for _ in range(5):
        world.publish(busy[0], *RUN)
    world.publish(first, b"v")
    turns = 0
    while not second.log.log_end_offset:
        world.node.on_timer(world.now, world.wall_ns)
        turns += 1
    assert turns <= 2
    assert busy[-1].log.log_end_offset == 0
    assert world.node.context.chores.is_waiting
    world.settle()
    assert busy[-1].log.log_end_offset == 5 * len(RUN)


def test_subject_that_waits_for_copies_leaves_room_for_others_within_one_bound(
    world: NodeWorld,
) -> None:
    busy, *others = [neighbour_on(world, f"x{number}")[0] for number in range(9)]
    value = bytes(1 << 19)
    at_once = 4 * len(value)
    waiting: list[int] = []
    for partition in (busy, *others):
        waiting.append(0)
        while world.publish(partition, value, value).stored:
            waiting[-1] += 2 * len(value)
            assert sum(waiting) <= WAITING_BYTES_MAX + at_once
    assert 0 not in waiting[:4]
    assert max(waiting) <= WAITING_BYTES_MAX // 2 + at_once
    world.settle()
    assert world.publish(busy, value).stored
