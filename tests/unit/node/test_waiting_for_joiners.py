"""Who is about to come into sync holds commits up for a moment, and no longer when it goes away."""

import pytest

from liftbridge_testkit.cluster_world import ClusterWorld

LAG_MS = 700
ANSWERED_MS_MAX = 50


@pytest.fixture
def world():
    world = ClusterWorld()
    world.create()
    world.until(lambda: len(world.state().isr) == 3)
    world.commit(b"a")
    return world


def follower_of(world):
    return next(one for one in world.alive if one is not world.leader())


def test_commits_do_not_wait_for_a_follower_that_stopped_in_order(world):
    follower = follower_of(world)
    follower.node.cluster.session.want_shutdown = True
    world.until(lambda: len(world.state().isr) == 2)
    # It fetches to its end, and has everything, as one that is about to join.
    world.publish(b"b")
    world.run(1)
    owed = world.publish(b"c")
    follower.stop()
    assert world.until(lambda: owed.is_answered) < ANSWERED_MS_MAX


def test_commits_wait_no_longer_for_a_follower_that_vanished_before_it_joined(world):
    # Led by another broker than the metadata, which goes on to hear of the follower.
    name = next(name for name in ("s", "t", "u") if is_led_elsewhere(world, name))
    leader = world.leader(name)
    core = next(one for one in leader.node.cluster.replicas.leading.values()).core
    follower = next(one for one in world.alive if one not in (leader, metadata_leader(world)))
    world.cut(follower, leader)
    world.publish(b"b", name=name)
    world.until(lambda: len(world.state(name).isr) == 2)
    # As if it had fetched while another change of the set was under way.
    away = core._followers[follower.node.broker]
    away.caught_up_at, away.barred_until = world.now, world.now
    core._joining.append(away)
    owed = world.publish(b"c", name=name)
    world.run(1)
    assert not owed.is_answered
    # Nothing more is appended: only the leader itself can notice.
    assert world.until(lambda: owed.is_answered) < 2 * LAG_MS


def is_led_elsewhere(world, name):
    """Make sure that a stream exists; whether its leader does not lead the metadata."""
    if name != "s":
        world.create(name)
        world.until(lambda: len(world.state(name).isr) == 3)
    return world.leader(name) is not metadata_leader(world)


def metadata_leader(world):
    return next(one for one in world.alive if one.consensus.is_leader)
