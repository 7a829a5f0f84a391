"""Idempotent publishers in a cluster: whoever leads knows what is stored of each."""

import pytest

from liftbridge_broker.controller.commands import InitPublisher
from liftbridge_broker.model.ids import LeaderEpoch, Offset
from liftbridge_broker.node.partition.publishers import history_of
from liftbridge_broker.node.partition.runs import POLICY_LEADER
from liftbridge_broker.replication.publishers import PublisherStamp, PublisherTable
from liftbridge_testkit.cluster_world import ClusterWorld


@pytest.fixture
def world():
    return ClusterWorld()


def begin(world):
    """A stream and the first stamp of a publisher of it."""
    world.create()
    known = world.propose(InitPublisher(stream="s", publisher="p"))
    return PublisherStamp(known.publisher_id, known.publisher_epoch, 0)


def send(world, stamp, *values, **options):
    answers = world.publish(*values, publisher=stamp, **options)
    world.until(lambda: answers.is_answered)
    return answers


def table(world, member):
    return member.node.partitions[world.state().partition_id].writer.publishers


def in_sync(world, count):
    return lambda: len(world.state().isr) == count and world.leader() is not None


def restart(world, power_cut=False):
    """Stop everybody at once, at a moment when no disk knows that the last command is committed."""
    members = list(world.alive)
    for member in members:
        member.kill(power_cut=power_cut)
    for member in members:
        member.restart()
    world.until(in_sync(world, 3))


def test_brokers_that_start_anew_know_what_is_stored_of_a_publisher(world):
    stamp = begin(world)
    send(world, stamp, b"one", b"two")
    restart(world)
    for member in world.alive:
        assert table(world, member).next_sequence(stamp.publisher_id) == 2
    again = send(world, stamp, b"one", b"two")
    assert (again.offset, again.stored[0].is_duplicate) == (0, True)
    assert send(world, stamp._replace(first_sequence=2), b"three").offset == 2


def test_a_publisher_registered_while_a_broker_was_away_is_known_when_it_is_back(world):
    """Its metadata come with the log of a leader, after its partitions were opened."""
    world.create()
    away = next(member for member in world.alive if member is not world.leader())
    away.kill()
    known = world.propose(InitPublisher(stream="s", publisher="p"))
    stamp = PublisherStamp(known.publisher_id, known.publisher_epoch, 0)
    send(world, stamp, b"one", b"two")
    away.restart()
    world.until(in_sync(world, 3))
    assert table(world, away).next_sequence(stamp.publisher_id) == 2
    away.stop()
    away.restart()
    world.until(lambda: away.node.context.is_caught_up)
    assert table(world, away).next_sequence(stamp.publisher_id) == 2


def test_state_is_taken_back_with_the_records_that_are_cut(world):
    stamp = begin(world)
    send(world, stamp, b"one")
    former = world.leader()
    world.cut(former)
    send(world, stamp._replace(first_sequence=1), b"lost", policy=POLICY_LEADER, at=former)
    assert table(world, former).next_sequence(stamp.publisher_id) == 2
    world.until(lambda: world.leader() not in (None, former))
    world.heal()
    world.until(in_sync(world, 3))
    assert table(world, former).next_sequence(stamp.publisher_id) == 1
    assert send(world, stamp._replace(first_sequence=1), b"two").offset == 1


def test_a_snapshot_of_another_branch_is_left_aside(world):
    stamp = begin(world)
    send(world, stamp, b"one")
    partition = world.replica(1)
    partition.writer.publishers.settle()
    good = partition.writer.publishers.snapshot()
    taken_up = history_of(PublisherTable, partition.log)
    taken_up.take_up(good)
    assert taken_up.snapshot() == good
    other = PublisherTable()
    other.note_end(Offset(1), LeaderEpoch(world.state().leader_epoch + 1))
    taken_up.take_up(other.snapshot())
    assert taken_up.next_sequence(stamp.publisher_id) == 1
