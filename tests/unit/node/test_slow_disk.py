"""A leader whose disk does not keep up hands over, and not again and again (L8, S111)."""

import pytest

from liftbridge_broker.model.streams import FsyncPolicy
from liftbridge_testkit.cluster_world import ClusterWorld, Member


def changes(world: ClusterWorld, milliseconds: int) -> int:
    """How often another one leads within a time."""
    found = 0
    before = world.state().leader_epoch
    for _ in range(milliseconds // 100):
        world.run(100)
        found += world.state().leader_epoch != before
        before = world.state().leader_epoch
    return found


def stalled_leader(world: ClusterWorld, policy: FsyncPolicy) -> Member:
    world.create(fsync_policy=policy)
    world.commit(b"a")
    leader = world.leader()
    assert leader is not None
    leader.files.calls.is_stalled = True
    return leader


@pytest.mark.parametrize("policy", [FsyncPolicy.COMMIT, FsyncPolicy.INTERVAL])
def test_a_leader_whose_disk_stalls_hands_over(policy: FsyncPolicy) -> None:
    world = ClusterWorld()
    former = stalled_leader(world, policy)
    world.publish(b"b")
    took = world.until(lambda: world.leader() not in (None, former), milliseconds=5_000)
    assert took > 2_900
    assert world.commit(b"c") >= 1
    assert former.broker in world.state().replicas

    former.files.calls.is_stalled = False
    world.until(lambda: len(world.state().isr) == 3)
    assert world.leader() is not former


def test_a_short_stall_changes_nothing() -> None:
    world = ClusterWorld()
    leader = stalled_leader(world, FsyncPolicy.COMMIT)
    answers = world.publish(b"b")
    world.run(2_500)
    leader.files.calls.is_stalled = False
    world.until(lambda: answers.is_answered)
    assert changes(world, 3_000) == 0
    assert world.leader() is leader


def test_the_only_replica_in_sync_goes_on() -> None:
    world = ClusterWorld()
    world.create(factor=1, fsync_policy=FsyncPolicy.COMMIT)
    leader = world.leader()
    assert leader is not None
    leader.files.calls.is_stalled = True
    answers = world.publish(b"b")
    assert changes(world, 5_000) == 0
    leader.files.calls.is_stalled = False
    world.until(lambda: answers.is_answered)
    assert answers.offset == 0


def test_leaders_do_not_change_again_and_again_when_every_disk_is_slow_under_a_leader() -> None:
    world = ClusterWorld()
    world.create(fsync_policy=FsyncPolicy.INTERVAL)
    world.commit(b"a")
    found = 0
    for _ in range(50):
        leader = world.leader()
        for member in world.alive:
            member.files.calls.is_stalled = member is leader
        if leader is not None:
            world.publish(b"b")
        found += changes(world, 1_000)
    assert 3 <= found <= 6
