"""A tombstone goes when no replica holds anything that it hides."""

from liftbridge_broker.controller.commands import StartReassignment
from liftbridge_broker.node.partition.runs import POLICY_ALL, POLICY_LEADER
from liftbridge_broker.ports.transport import Channel
from liftbridge_testkit.cluster_world import ClusterWorld, Member
from liftbridge_testkit.stores import values_in


def publish(world: ClusterWorld, key: bytes, value: bytes, policy: int = POLICY_ALL) -> None:
    """Publish one record with a key, and wait for its ack."""
    answers = world.publish(value, keys=[key], policy=policy)
    world.until(lambda: answers.is_answered)
    assert not answers.errors


def held(member: Member) -> dict[int, bytes]:
    """Values that a replica holds, by offset."""
    return values_in(member.node.find_replica("s", 0).log)


def compacted(world: ClusterWorld) -> ClusterWorld:
    """A stream that is compacted soon and drops tombstones at once, with one hidden record."""
    world.create(
        compact_enabled=True,
        tombstone_retention_ms=1,
        segment_bytes_max=150,
        cleaner_interval_ms=500,
    )
    publish(world, b"a", b"hidden")
    world.run(100)
    return world


def fill(world: ClusterWorld, count: int) -> None:
    for number in range(count):
        publish(world, b"k%d" % number, b"v" * 50)


def test_a_tombstone_waits_for_the_replica_that_was_not_compacted() -> None:
    world = compacted(ClusterWorld())
    away = next(member for member in world.alive if member is not world.leader())
    away.kill()
    world.until(lambda: len(world.state().isr) == 2)
    publish(world, b"a", b"")
    fill(world, 4)
    world.run(5_000)
    for member in world.alive:
        assert 0 not in held(member)
        assert held(member)[1] == b""
        assert member.node.find_replica("s", 0).log.compacted_offset > 1

    away.restart()
    world.until(lambda: len(world.state().isr) == 3)
    fill(world, 4)
    world.until(lambda: all(1 not in held(member) for member in world.alive))
    assert all(member.is_alive and 0 not in held(member) for member in world.members.values())


def test_the_only_replica_waits_for_nobody() -> None:
    world = ClusterWorld(size=1)
    world.create(
        factor=1,
        compact_enabled=True,
        tombstone_retention_ms=1,
        segment_bytes_max=150,
        cleaner_interval_ms=500,
    )
    publish(world, b"a", b"hidden", POLICY_LEADER)
    publish(world, b"a", b"", POLICY_LEADER)
    fill(world, 4)
    leader = world.leader()
    assert leader is not None
    world.run(2_000)
    fill(world, 4)
    world.until(lambda: not {0, 1} & held(leader).keys())


def test_a_new_leader_knows_of_nobody_until_it_is_told() -> None:
    world = compacted(ClusterWorld())
    publish(world, b"a", b"")
    fill(world, 4)
    former = world.leader()
    assert former is not None
    world.until(lambda: former.node.find_replica("s", 0).log.compacted_everywhere > 1)
    followers = [member for member in world.alive if member is not former]
    world.until(
        lambda: all(
            member.node.find_replica("s", 0).log.compacted_everywhere > 1 for member in followers
        )
    )
    one, other = (member.broker for member in followers)
    world.deaf |= {(one, other, Channel.DATA), (other, one, Channel.DATA)}
    former.kill()
    world.until(lambda: world.leader() is not None)
    leader = world.leader()
    assert leader is not None
    assert leader.node.find_replica("s", 0).log.compacted_everywhere == 0


def test_a_replica_that_is_added_counts_before_it_fetches() -> None:
    """It may be back with what it held when it was taken out."""
    world = compacted(ClusterWorld(size=4))
    publish(world, b"a", b"")
    fill(world, 4)
    leader = world.leader()
    assert leader is not None
    log = leader.node.find_replica("s", 0).log
    world.until(lambda: log.compacted_everywhere > 1)
    before = world.state()
    (added,) = world.members.keys() - set(before.replicas)
    world.deaf |= {(added, leader.broker, Channel.DATA)}
    target = (*before.replicas, added)
    world.propose(StartReassignment(partition_id=before.partition_id, target=target))
    world.until(lambda: added in world.state().replicas)
    assert log.compacted_everywhere == 0
