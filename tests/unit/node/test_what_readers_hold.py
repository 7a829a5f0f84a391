"""What readers of clients keep in memory while their clients do not read, and while disks do."""

import gc
import tracemalloc
from collections.abc import Callable
from itertools import product

import pytest

from liftbridge_broker.model.ids import BrokerId, Offset
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.reading import client_reads
from liftbridge_broker.node.reading.bulk import BulkRange, BulkRead
from liftbridge_broker.node.reading.subscription import Position, StartPosition, Subscription
from liftbridge_testkit.cluster_world import ClusterWorld
from liftbridge_testkit.node_world import EARLIEST, NEVER, NodeWorld, at_offset

READER_COUNT = 12
OBJECTS_BYTES = 4 << 10
"""A reader itself."""
INTERPRETER_BYTES = 160 << 10
"""Freed tuples that the interpreter keeps for reuse."""

LATEST = Position(StartPosition.LATEST, 0, 0)

SHAPES = {
    "small records": [[b"v" * 100]] * 1_000,
    "small records in large batches": [[b"v" * 100] * 1_500] * 2,
    "large records": [[b"v" * 900_000]] * 2,
    "small records behind a large one": [[b"v" * 900_000], *[[b"v"]] * 500],
    "small records before a large one": [*[[b"v"]] * 500, [b"v" * 900_000]],
}
PULLS = (1, 4 << 10, 64 << 10, 256 << 10)


def nobody() -> None:
    """A client that reads nothing needs no waking."""


def forward(world: NodeWorld, partition: Partition, start: Position) -> Subscription:
    return Subscription.open(
        partition, world.node.client_reads, nobody, start=start, stop=NEVER, is_reverse=False
    )


def reverse(world: NodeWorld, partition: Partition, start: Position) -> Subscription:
    return Subscription.open(
        partition, world.node.client_reads, nobody, start=start, stop=NEVER, is_reverse=True
    )


def bulk(world: NodeWorld, partition: Partition, start: Position) -> BulkRead:
    newest = max(partition.log.high_watermark - 1, 0)
    first = newest if start.kind == StartPosition.LATEST else start.offset
    wanted = BulkRange(Offset(first), Offset(0), 0, follows=True)
    return BulkRead(partition, world.node.client_reads, nobody, wanted)


READERS: dict[str, Callable[[NodeWorld, Partition, Position], Subscription | BulkRead]] = {
    "forward": forward,
    "reverse": reverse,
    "bulk": bulk,
}
STARTS = {"first": EARLIEST, "second": at_offset(1), "latest": LATEST}


def taken(reader: Subscription | BulkRead, size: int) -> list[bytes | memoryview]:
    """One pull, as of a client that then accepts nothing more."""
    if isinstance(reader, Subscription):
        slices = reader.pull(size).slices
    else:
        chunk = reader.pull(size)
        slices = [chunk.data] if chunk is not None else []
    reader.release()
    return slices


@pytest.mark.parametrize(("shape", "reader"), list(product(SHAPES, READERS)))
def test_readers_hold_little_more_than_what_they_gave_out(
    world: NodeWorld, shape: str, reader: str
) -> None:
    partition = world.create()
    for values in SHAPES[shape]:
        world.publish(partition, *values)
    world.settle()
    for start, size in product(STARTS.values(), PULLS):
        readers = [READERS[reader](world, partition, start) for _ in range(READER_COUNT)]
        taken(readers.pop(), size)  # what is remembered of the log
        gc.collect()
        tracemalloc.start()
        kept = [taken(one, size) for one in readers]
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        given = sum(len(piece) for slices in kept for piece in slices)
        assert given >= len(readers)
        bound = 3 * given + len(readers) * OBJECTS_BYTES + INTERPRETER_BYTES
        assert held <= bound, (start, size)
        for one in readers:
            one.close(world.now)


@pytest.mark.parametrize("reader", READERS)
def test_client_that_was_slow_gets_everything(world: NodeWorld, reader: str) -> None:
    partition = world.create()
    for _ in range(3):
        world.publish(partition, *[b"v" * 100] * 400)
    world.settle()
    whole = READERS[reader](world, partition, LATEST if reader == "reverse" else EARLIEST)
    slow = READERS[reader](world, partition, LATEST if reader == "reverse" else EARLIEST)
    expected, got = [], []
    while slices := taken(whole, 1 << 20):
        expected += slices
    while slices := taken(slow, 3_000):
        got += slices
    assert b"".join(got) == b"".join(expected)


@pytest.mark.parametrize("reader", READERS)
def test_reads_from_the_disk_are_bounded_and_everyone_has_a_turn(
    world: NodeWorld, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = world.create()
    for _ in range(40):
        world.publish(partition, *[b"v" * 100] * 100)
    world.settle()
    monkeypatch.setattr(client_reads, "READING_BYTES_MAX", 100_000)
    world.files.is_cold = True
    start = LATEST if reader == "reverse" else EARLIEST
    waiting = [READERS[reader](world, partition, start) for _ in range(READER_COUNT)]
    assert not any(taken(one, 64 << 10) for one in waiting)
    for gone in waiting[::3]:  # some wait for the disk, others in line
        gone.close(world.now)
    waiting = [one for one in waiting if one not in waiting[::3]]
    while waiting:
        events = world.files.calls.pump()
        assert events, f"{len(waiting)} wait for ever"
        assert sum(len(event.data) for event in events) <= 100_000 or len(events) == 1
        for event in events:
            world.node.on_file_event(event, world.now, world.wall_ns)
        waiting = [one for one in waiting if not taken(one, 64 << 10)]


def test_leader_holds_nothing_for_followers_between_their_fetches() -> None:
    world = ClusterWorld()
    names = [f"s{number}" for number in range(6)]
    for name in names:
        world.create(name)
        world.publish(*[b"v" * 100] * 1_500, name=name)
    world.run(1_000)
    roles = []
    for name in names:
        leader = world.leader(name)
        assert leader is not None
        assert leader.node.cluster is not None
        roles.append(leader.node.cluster.replicas.leading[world.state(name).partition_id])
    gc.collect()
    tracemalloc.start()
    for role, follower in product(roles, ("b4", "b5")):
        assert role.read(BrokerId(follower), Offset(0), 1)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held <= INTERPRETER_BYTES
