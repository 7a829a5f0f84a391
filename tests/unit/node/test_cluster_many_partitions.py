"""Several nodes with many partitions: what has to change for all of them is done in pieces."""

from collections import defaultdict
from itertools import pairwise

import pytest

from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.metadata.driver import MetadataDriver
from liftbridge_broker.node.replicas import leading
from liftbridge_broker.node.replicas.proposal_window import PROPOSALS_MAX
from liftbridge_broker.node.replicas.replicas import MOVE_NS
from liftbridge_broker.node.replicas.role_context import LOOK_NS
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.replication.follower import FollowerCore
from liftbridge_testkit.cluster_world import ClusterWorld

PARTITIONS = 3 * 3 * PROPOSALS_MAX
"""Each broker leads three times what it may propose at once."""


@pytest.fixture
def world():
    world = ClusterWorld()
    world.create(partitions=PARTITIONS)
    return world


def states(world):
    newest = max(world.alive, key=lambda member: member.node.state.applied_index)
    return newest.node.state.stream("s").partitions


def are_in_sync(world, count):
    return all(len(state.isr) == count for state in states(world))


def rejoin(world):
    """Kill a broker and start it again, so that it has to join all in-sync sets."""
    world[3].kill()
    world.until(lambda: are_in_sync(world, 2))
    world[3].restart()


def test_in_sync_sets_of_many_partitions_are_proposed_a_few_at_a_time(world, monkeypatch):
    pending = []
    propose = MetadataDriver.propose

    def counted(self, command, now, reply):
        propose(self, command, now, reply)
        pending.append(self.pending_count)

    monkeypatch.setattr(MetadataDriver, "propose", counted)
    rejoin(world)
    world.until(lambda: are_in_sync(world, 3))
    assert PROPOSALS_MAX <= max(pending) <= PROPOSALS_MAX + 1  # one more may be for its session


def test_late_answers_make_room_for_other_proposals(world, monkeypatch):
    monkeypatch.setattr(leading, "ANSWER_NS", 20 * MILLISECOND_NS)
    rejoin(world)
    world.until(lambda: any(len(state.isr) == 3 for state in states(world)))
    leader = next(member for member in world.alive if member.consensus.is_leader)
    for member in world.alive:
        world.deaf.add((leader.broker, member.broker, Channel.METADATA))
    world.run(200)
    world.heal()
    assert not are_in_sync(world, 3)
    assert world.until(lambda: are_in_sync(world, 3)) < 4_000


def test_the_partitions_of_a_silent_leader_are_looked_at_now_and_then(world, monkeypatch):
    looks = defaultdict(list)
    suspicion = FollowerCore.suspicion

    def noted(self, heard_at, now):
        looks[self].append(now)
        return suspicion(self, heard_at, now)

    monkeypatch.setattr(FollowerCore, "suspicion", noted)
    former = world.leader()
    led = sum(state.leader == former.broker for state in states(world))
    for member in world.alive:
        world.deaf.add((former.broker, member.broker, Channel.DATA))
    world.until(lambda: not any(state.leader == former.broker for state in states(world)))
    gaps = [after - before for one in looks.values() for before, after in pairwise(one)]
    assert len(gaps) >= led
    assert min(gaps) >= max(LOOK_NS, led * MOVE_NS)
