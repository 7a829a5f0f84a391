"""A publisher that registers is told where it stands by the leaders of its partitions."""

import pytest

from liftbridge_broker.controller.commands import DeleteStream, InitPublisher
from liftbridge_broker.errors import NotFoundError, UnavailableError
from liftbridge_broker.model.ids import PublisherId
from liftbridge_broker.node.partition.runs import POLICY_LEADER
from liftbridge_broker.node.publishing.publisher_sequences import ASK_NS, WAIT_NS, WAITS_MAX
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.replication.publishers import PublisherStamp
from liftbridge_testkit.cluster_world import ClusterWorld


@pytest.fixture
def world():
    return ClusterWorld()


def init(world, name="p"):
    return world.propose(InitPublisher(stream="s", publisher=name))


def begin(world, values=(b"one", b"two")):
    """A stream of one replica, and a publisher that stored something there."""
    world.create(factor=1)
    known = init(world)
    answers = world.publish(*values, publisher=PublisherStamp(*known, 0))
    world.until(lambda: answers.is_answered)
    assert answers.offset == 0


def elsewhere(world):
    """A broker that holds no replica of the partition."""
    return next(member for member in world.alive if member is not world.leader())


def ask(world, known, at):
    told = []
    at.node.cluster.sequences.find("s", known, told.append, world.now)
    at.node._arm()  # as whatever brought the request does
    return told


def test_a_broker_without_replica_asks_the_leader(world):
    begin(world)
    told = ask(world, init(world), elsewhere(world))
    world.until(lambda: bool(told), milliseconds=200)
    assert told == [{0: 2}]


def test_a_leader_knows_by_itself(world):
    begin(world)
    told = ask(world, init(world), world.leader())
    assert told == [{0: 2}]


def test_a_lost_question_is_asked_again(world):
    begin(world)
    known, asking = init(world), elsewhere(world)
    world.deaf |= {(asking.broker, world.leader().broker, Channel.METADATA)}
    told = ask(world, known, asking)
    world.run(3 * ASK_NS // 1_000_000)
    assert told == []
    world.deaf.clear()
    world.until(lambda: bool(told), milliseconds=200)
    assert told == [{0: 2}]


def test_a_silent_leader_is_named_after_a_while(world):
    begin(world)
    known, asking = init(world), elsewhere(world)
    leader = world.leader().broker
    world.deaf |= {(asking.broker, leader, Channel.METADATA)}
    told = ask(world, known, asking)
    assert world.until(lambda: bool(told)) <= WAIT_NS // 1_000_000 + 1
    assert isinstance(told[0], UnavailableError)
    assert told[0].text == (
        f"partition 0 of stream s waits for its leader, {leader}: it does not answer, or "
        "messages of the publisher are not committed yet"
    )


def test_a_partition_without_leader_is_named(world):
    begin(world)
    known, asking = init(world), elsewhere(world)
    world.leader().kill()
    world.until(lambda: world.leader() is None and world.state().leader is None)
    told = ask(world, known, asking)
    world.until(lambda: bool(told))
    assert told[0].text == "partition 0 of stream s has no leader"


def test_a_leader_that_does_not_know_the_registration_does_not_answer(world):
    """It would still take what the former life of the publisher has under way."""
    begin(world)
    known = init(world)
    told = ask(world, known._replace(publisher_epoch=known.publisher_epoch + 1), world.leader())
    world.run(3 * ASK_NS // 1_000_000)
    assert told == []
    again = init(world)
    assert again.publisher_epoch == known.publisher_epoch + 1
    world.until(lambda: bool(told), milliseconds=200)
    assert told == [{0: 2}]


def test_a_damaged_partition_does_not_answer(world):
    begin(world)
    world.leader().node.partitions[world.state().partition_id].go_offline("a bit flipped")
    told = ask(world, init(world), elsewhere(world))
    world.run(3 * ASK_NS // 1_000_000)
    assert told == []


def test_a_leader_does_not_tell_of_what_is_not_committed(world):
    """The next leader lacks it, and the publisher would not have sent it again."""
    world.create()
    known, leader = init(world), world.leader()
    others = [one for one in world.alive if one is not leader]
    world.deaf |= {(leader.broker, other.broker, Channel.DATA) for other in others}
    stamp = PublisherStamp(*known, 0)
    answers = world.publish(b"one", publisher=stamp, policy=POLICY_LEADER)
    world.until(lambda: answers.is_answered)
    told = ask(world, known, leader)
    world.run(3 * ASK_NS // 1_000_000)
    assert told == []
    world.until(lambda: bool(told))
    assert world.leader() is not leader
    assert told == [{0: 0}]


def test_a_stream_that_goes_meanwhile_is_told_of(world):
    begin(world)
    known, asking = init(world), elsewhere(world)
    world.deaf |= {(asking.broker, world.leader().broker, Channel.METADATA)}
    told = ask(world, known, asking)
    third = next(one for one in world.alive if one not in (asking, world.leader()))
    world.propose(DeleteStream(name="s"), at=third)
    world.until(lambda: bool(told), milliseconds=200)
    assert isinstance(told[0], NotFoundError)
    assert isinstance(ask(world, known, asking)[0], NotFoundError)


def test_a_broker_that_stops_answers_those_who_wait(world):
    begin(world)
    known, asking = init(world), elsewhere(world)
    world.deaf |= {(asking.broker, world.leader().broker, Channel.METADATA)}
    told = ask(world, known, asking)
    asking.node.begin_stop(lambda: None)
    assert [type(one) for one in told] == [UnavailableError]


def test_an_unknown_publisher_is_known_by_nobody(world):
    begin(world)
    known = init(world)._replace(publisher_id=PublisherId(1 << 40))
    told = ask(world, known, elsewhere(world))
    world.until(lambda: bool(told))
    assert isinstance(told[0], UnavailableError)


def test_more_than_may_wait_are_refused_at_once(world):
    begin(world)
    known, asking = init(world), elsewhere(world)
    world.deaf |= {(asking.broker, world.leader().broker, Channel.METADATA)}
    waiting = [ask(world, known, asking) for _ in range(WAITS_MAX)]
    refused = ask(world, known, asking)
    assert not any(waiting)
    assert isinstance(refused[0], UnavailableError)
    assert refused[0].text == f"{WAITS_MAX} publishers already wait for their next sequences"
    world.heal()
    world.until(lambda: all(waiting))
    assert all(told == [{0: 2}] for told in waiting)
