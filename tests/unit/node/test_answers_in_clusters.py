"""What publishers and readers are told by a leader that may lead no longer."""

import pytest

from liftbridge_broker.controller.commands import InitPublisher
from liftbridge_broker.errors import NotEnoughReplicasError, UnavailableError
from liftbridge_broker.node.partition.runs import (
    POLICY_ALL,
    POLICY_LEADER,
    POLICY_NONE,
    PendingAck,
    PublishRun,
)
from liftbridge_broker.node.reading.bulk import BulkRange, BulkRead
from liftbridge_broker.node.reading.subscription import Subscription
from liftbridge_broker.replication.publishers import PublisherStamp
from liftbridge_testkit.cluster_world import ClusterWorld
from liftbridge_testkit.node_world import EARLIEST, NEVER, Answers


@pytest.fixture
def world():
    return ClusterWorld()


def cut_off(world):
    """A leader that fenced itself, and does not know yet of the one that follows it."""
    leader = world.leader()
    world.cut(leader)
    world.run(2_600)
    assert leader.node.cluster.is_self_fenced(world.now)
    return leader


def subscribe(member, *, reads_replica=False):
    """A subscription from the beginning, and what it was told."""
    partition = member.node.find_replica("s", 0)
    told = []

    def pull():
        told.append(subscription.pull(1 << 20).end)

    subscription = Subscription.open(
        partition,
        member.node.client_reads,
        pull,
        start=EARLIEST,
        stop=NEVER,
        is_reverse=False,
        reads_replica=reads_replica,
    )
    while not subscription.pull(1 << 20).waits:
        pass
    return told


def test_readers_of_a_leader_that_fenced_itself_look_for_another(world):
    world.create()
    world.commit(b"a")
    leader = world.leader()
    told = subscribe(leader)
    of_any_replica = subscribe(leader, reads_replica=True)
    cut_off(world)
    assert [(type(end), end.text) for end in told] == [(UnavailableError, "leader changed")]
    assert of_any_replica == []
    with pytest.raises(UnavailableError, match="leader changed"):
        subscribe(leader)
    wanted, reads = BulkRange(0, 0, 0, follows=False), leader.node.client_reads
    with pytest.raises(UnavailableError, match="leader changed"):
        BulkRead(leader.node.find_replica("s", 0), reads, lambda: None, wanted)
    assert subscribe(leader, reads_replica=True) == []


def test_an_only_replica_serves_its_readers_while_it_is_cut_off(world):
    world.create(factor=1)
    answers = world.publish(b"a")
    world.until(lambda: answers.is_answered)
    leader = world.leader()
    told = subscribe(leader)
    cut_off(world)
    assert told == []
    assert subscribe(leader) == []


@pytest.mark.parametrize("policy", [POLICY_LEADER, POLICY_NONE])
def test_a_leader_that_fenced_itself_appends_nothing_that_only_it_would_vouch_for(world, policy):
    world.create()
    leader = cut_off(world)
    refused = world.publish(b"a", at=leader, policy=policy)
    assert refused.error.text == "not appended: cut off from the metadata leader"
    assert leader.node.find_replica("s", 0).log.log_end_offset == 0


def test_nobody_in_a_mixed_run_is_acked_by_a_leader_that_fenced_itself(world):
    world.create()
    leader = cut_off(world)
    partition = leader.node.find_partition("s", 0)
    everybody, alone = Answers(), Answers()
    pending_acks = (PendingAck(POLICY_ALL, everybody), PendingAck(POLICY_LEADER, alone))
    partition.take_copy(
        PublishRun([b"a"], partition.subject, "nats", pending_acks), world.now, world.wall_ns
    )
    assert partition.log.log_end_offset == 1
    assert not everybody.is_answered
    assert not alone.is_answered


def test_a_duplicate_is_acked_when_the_original_is_committed_whatever_the_policy(world):
    world.create()
    known = world.propose(InitPublisher(stream="s", publisher="p"))
    stamp = PublisherStamp(*known, 0)
    world.commit(b"before")
    leader = world.leader()
    world.cut(leader)
    first = world.publish(b"a", publisher=stamp, policy=POLICY_LEADER, at=leader)
    again = world.publish(b"a", publisher=stamp, policy=POLICY_LEADER, at=leader)
    assert first.offset == 1
    assert not again.is_answered
    world.heal()
    world.until(lambda: again.is_answered)
    assert (again.offset, again.stored[0].is_duplicate) == (1, True)


def test_a_duplicate_of_what_is_committed_is_acked_though_too_few_are_in_sync(world):
    world.create(min_isr=3)
    known = world.propose(InitPublisher(stream="s", publisher="p"))
    stamp = PublisherStamp(*known, 0)
    first = world.publish(b"a", publisher=stamp)
    world.until(lambda: first.is_answered)
    next(member for member in world.alive if member is not world.leader()).kill()
    world.until(lambda: len(world.state().isr) == 2 and world.leader() is not None)
    again = world.publish(b"a", publisher=stamp)
    assert (again.offset, again.stored[0].is_duplicate) == (0, True)
    refused = world.publish(b"b", publisher=stamp._replace(first_sequence=1))
    assert isinstance(refused.error, NotEnoughReplicasError)
