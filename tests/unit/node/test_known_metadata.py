"""A broker claims to have known of a change of a policy only when it had put it into force."""

import pytest

from liftbridge_broker.controller.commands import AlterStream
from liftbridge_broker.model.ids import StreamName
from liftbridge_broker.model.streams import FsyncPolicy, StreamOverrides
from liftbridge_testkit.cluster_world import ClusterWorld, Member

POLICIES = (FsyncPolicy.INTERVAL, FsyncPolicy.COMMIT)


def alter(world: ClusterWorld, at: Member) -> int:
    """Change the policy of the stream and back, then something else; the second change's index."""
    overrides = [StreamOverrides(fsync_policy=policy) for policy in POLICIES]
    for one in (*overrides, *(StreamOverrides(auto_pause_ms=n) for n in range(1, 4))):
        world.propose(AlterStream(name=StreamName("s"), overrides=one), at)
    (stream,) = at.node.state.streams.values()
    return stream.policy.fsync_index


@pytest.fixture
def world() -> ClusterWorld:
    """Three brokers with a stream under `commit`."""
    world = ClusterWorld()
    world.create(fsync_policy=FsyncPolicy.COMMIT)
    return world


def both(world: ClusterWorld) -> tuple[Member, Member]:
    """The leader of the metadata group, and another broker."""
    chief = next(one for one in world.alive if one.consensus.is_leader)
    return chief, next(one for one in world.alive if one is not chief)


@pytest.mark.parametrize("power_cut", [False, True])
def test_changes_of_a_policy_are_known_when_they_are_in_force(
    world: ClusterWorld, power_cut: bool
) -> None:
    chief, other = both(world)
    changed = alter(world, chief)
    world.until(lambda: other.node.state.applied_index == chief.node.state.applied_index)
    world.run(1_000)
    other.kill(power_cut=power_cut)
    other.restart()
    assert other.store.last_stop.known_index >= changed


@pytest.mark.parametrize("power_cut", [False, True])
def test_changes_that_are_committed_and_not_in_force_are_not_known(
    world: ClusterWorld, monkeypatch: pytest.MonkeyPatch, power_cut: bool
) -> None:
    chief, other = both(world)
    before = other.node.state.applied_index
    monkeypatch.setattr(other.node.context.metadata, "_drain", lambda: None)
    changed = alter(world, chief)
    world.until(lambda: other.consensus.core.log.delivered == chief.consensus.core.log.delivered)
    world.run(1_000)
    assert other.node.state.applied_index == before
    other.kill(power_cut=power_cut)
    other.restart()
    assert other.node.state.applied_index >= changed
    assert other.store.last_stop.known_index < changed
