"""A replica whose disk refused a read is given up only if its log cannot be read, or is damaged."""

import pytest

from liftbridge_broker.adapters.memory.files import Fault
from liftbridge_broker.controller.commands import InitPublisher
from liftbridge_broker.controller.state import PublisherState
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import StreamName
from liftbridge_broker.replication.publishers import PublisherStamp
from liftbridge_testkit.cluster_world import ClusterWorld, Member

VALUE = b"v" * 100_000


@pytest.fixture
def world() -> ClusterWorld:
    found = ClusterWorld()
    found.create()
    for _ in range(8):
        found.commit(VALUE, VALUE)
    found.run(3_000)  # everything is synced
    return found


def member(world: ClusterWorld, *, is_leader: bool) -> Member:
    return next(one for one in world.alive if (one is world.leader()) == is_leader)


def refuse(one: Member, world: ClusterWorld, refusals: int, *, readers: int = 1) -> None:
    """Readers of this replica meet a disk that refuses the next reads."""
    one.files.is_cold = True
    one.files.fail(Fault("read", "*.log", count=refusals))
    partition = one.node.partitions[world.state().partition_id]

    def done(outcome: bytes | LiftbridgeError) -> None:
        assert isinstance(outcome, LiftbridgeError)
        partition.on_unreadable(outcome)

    for _ in range(readers):
        reader = partition.log.reader(partition.log.log_start_offset)
        need = reader.read(1_000, partition.log.high_watermark).need
        assert need is not None
        one.node.context.submit_read(need, done)


def log_of(one: Member, world: ClusterWorld) -> bytes:
    """What a replica holds, as the disk would give it."""
    is_cold, one.files.is_cold = one.files.is_cold, False
    try:
        return one.log_bytes(world.state().partition_id)
    finally:
        one.files.is_cold = is_cold


def trash(one: Member) -> list[str]:
    return [path for path in one.files.paths("trash") if path.endswith(".log")]


def is_whole(world: ClusterWorld) -> bool:
    return len(world.state().isr) == 3


@pytest.mark.parametrize("is_leader", [False, True])
@pytest.mark.parametrize("readers", [1, 3])
def test_replica_that_can_be_read_after_all_keeps_its_records(
    world: ClusterWorld, readers: int, *, is_leader: bool
) -> None:
    one = member(world, is_leader=is_leader)
    before = log_of(one, world)
    refuse(one, world, readers, readers=readers)
    world.until(lambda: one.told_count("partition_offline") == 1)
    world.until(lambda: one.told_count("partition_online") == 1)
    assert bool(log_of(one, world) == before)
    world.until(lambda: is_whole(world))
    assert trash(one) == []
    world.commit(b"more")
    world.run(1_000)
    assert bool(log_of(one, world) == log_of(member(world, is_leader=True), world))


@pytest.mark.parametrize("is_leader", [False, True])
@pytest.mark.parametrize("refusals", [2, 3])
def test_replica_that_cannot_be_read_is_copied_anew(
    world: ClusterWorld, refusals: int, *, is_leader: bool
) -> None:
    one = member(world, is_leader=is_leader)
    refuse(one, world, refusals)
    world.until(lambda: bool(trash(one)))
    world.until(lambda: is_whole(world))
    assert one.told_count("partition_online") == 0


def test_damage_is_found_and_noted(world: ClusterWorld) -> None:
    one = member(world, is_leader=False)
    refuse(one, world, 1)
    world.until(lambda: one.told_count("partition_offline") == 1)
    (path,) = (found for found in one.files.paths("streams") if found.endswith(".log"))
    one.files.flip_bit(path, 8 * len(one.files.content(path)) - 8)
    world.until(lambda: bool(trash(one)))
    assert (one.told_count("corruption_found"), one.told_count("partition_online")) == (1, 0)
    world.until(lambda: is_whole(world))


def test_leader_may_change_while_a_log_is_read(world: ClusterWorld) -> None:
    one = member(world, is_leader=False)
    before = log_of(one, world)
    refuse(one, world, 1)
    world.until(lambda: one.told_count("partition_offline") == 1)
    world.run(900)
    member(world, is_leader=True).kill()
    world.until(lambda: one.told_count("partition_online") == 1)
    assert log_of(one, world).startswith(before)
    assert trash(one) == []


def test_publishers_are_known_from_a_log_that_could_not_be_read_at_the_start() -> None:
    world = ClusterWorld()
    world.create()
    known = world.propose(InitPublisher(stream=StreamName("s"), publisher="p"))
    assert isinstance(known, PublisherState)
    publisher_id = known.publisher_id
    stamp = PublisherStamp(publisher_id, known.publisher_epoch, 0)
    sent = world.publish(VALUE, VALUE, publisher=stamp)
    world.until(lambda: sent.is_answered)
    world.run(3_000)
    one = member(world, is_leader=False)
    one.stop()
    (snapshot,) = (path for path in one.files.paths("streams") if "publishers" in path)
    one.files.remove(snapshot)
    one.files.fail(Fault("read", "*.log", skip=1))  # opening reads the last header
    one.restart()
    world.until(lambda: one.told_count("partition_online") == 1)
    world.until(lambda: is_whole(world))
    publishers = one.node.partitions[world.state().partition_id].writer.publishers
    assert publishers.next_sequence(publisher_id) == 2
