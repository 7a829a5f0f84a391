"""Damage that nobody reads is found by the scrubber, and mended like any other."""

import pytest

from liftbridge_broker.adapters.memory.files import Fault
from liftbridge_broker.node.upkeep.scrubbing import PAUSE_NS_MAX, PAUSE_NS_MIN, STEP_BYTES, Scrubber
from liftbridge_testkit.cluster_world import ClusterWorld, Member

DAY_NS = 24 * 3600 * 1_000_000_000
VALUE = b"v" * 1_000
STEPS_MAX = 100


@pytest.fixture
def world() -> ClusterWorld:
    found = ClusterWorld()
    found.create()
    for _ in range(4):
        found.commit(VALUE, VALUE)
    found.run(3_000)  # everything is synced
    return found


def scrubber_of(member: Member, first: int = 0) -> Scrubber:
    node = member.node
    return Scrubber(node.partitions, node.context, DAY_NS, first=first)


def complete(world: ClusterWorld, scrubber: Scrubber) -> None:
    """Do one pass."""
    wanted = max(scrubber.pass_count, 1) + 1
    for _ in range(STEPS_MAX):
        scrubber.step()
        if scrubber.pass_count == wanted:
            return
        world.run(5)
    raise AssertionError(f"no pass in {STEPS_MAX} steps")


def rot(member: Member, batch: int) -> None:
    """Turn over a bit in one of eight batches of equal size."""
    (path,) = (found for found in member.files.paths("streams") if found.endswith(".log"))
    size = len(member.files.content(path))
    member.files.flip_bit(path, (size * batch // 8 + 200) * 8)


def leader_of(world: ClusterWorld) -> Member:
    found = world.leader()
    assert found is not None
    return found


def follower_of(world: ClusterWorld) -> Member:
    return next(member for member in world.alive if member is not world.leader())


def is_whole(world: ClusterWorld) -> bool:
    return len(world.state().isr) == 3


@pytest.mark.parametrize("is_cold", [False, True])
def test_rot_on_a_follower_is_found_and_copied_anew(world: ClusterWorld, *, is_cold: bool) -> None:
    leader, partition = leader_of(world), world.state().partition_id
    follower = follower_of(world)
    follower.files.is_cold = is_cold
    rot(follower, 2)
    world.run(1_000)
    assert follower.told_count("corruption_found") == 0
    complete(world, scrubber_of(follower))
    assert follower.told_count("corruption_found") == 1
    world.until(lambda: is_whole(world))
    assert follower.log_bytes(partition) == leader.log_bytes(partition)


def test_rot_on_the_leader_is_found_although_its_batches_were_good_once(
    world: ClusterWorld,
) -> None:
    leader, partition = leader_of(world), world.state().partition_id
    complete(world, scrubber := scrubber_of(leader))
    assert scrubber.scrubbed_bytes == len(leader.log_bytes(partition))
    rot(leader, 0)
    complete(world, scrubber)
    world.until(lambda: world.leader() not in (None, leader))
    world.until(lambda: is_whole(world))
    assert leader.log_bytes(partition) == leader_of(world).log_bytes(partition)


def test_disk_that_refuses_a_read_takes_the_replica_out(world: ClusterWorld) -> None:
    leader = leader_of(world)
    leader.files.is_cold = True
    leader.files.fail(Fault("read", "*.log"))
    complete(world, scrubber_of(leader))
    assert leader.told_count("partition_offline") == 1


def test_log_that_goes_away_during_a_read_is_left(world: ClusterWorld) -> None:
    follower = follower_of(world)
    follower.files.is_cold = True
    scrubber = scrubber_of(follower)
    scrubber.step()
    follower.node.partitions[world.state().partition_id].go_offline("a bit flipped")
    world.until(lambda: follower.node.partitions[world.state().partition_id].offline_reason == "")
    world.until(lambda: is_whole(world))
    complete(world, scrubber)
    complete(world, scrubber)
    assert follower.told_count("corruption_found") == 0
    assert scrubber.scrubbed_bytes >= len(follower.log_bytes(world.state().partition_id))


def test_every_log_is_read_in_a_pass_wherever_it_begins(world: ClusterWorld) -> None:
    world.create("other")
    world.commit(VALUE, name="other")
    leader = leader_of(world)
    sizes = [partition.log.size_bytes for partition in leader.node.partitions.values()]
    for first in range(3):
        complete(world, scrubber := scrubber_of(leader, first))
        assert scrubber.scrubbed_bytes == sum(sizes)


def test_steps_are_spread_over_the_interval(world: ClusterWorld) -> None:
    node = leader_of(world).node
    count = sum(1 + each.log.size_bytes // STEP_BYTES for each in node.partitions.values())

    def pause_ns(interval_ns: int) -> int:
        return Scrubber(node.partitions, node.context, interval_ns, first=0).step()

    assert pause_ns(PAUSE_NS_MAX) == PAUSE_NS_MAX // count
    assert pause_ns(1) == PAUSE_NS_MIN
    assert pause_ns(100 * DAY_NS) == PAUSE_NS_MAX
