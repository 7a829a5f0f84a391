"""What a broker passed on before the leader died: sent again where that is known, or refused."""

from dataclasses import replace

import pytest

from liftbridge_broker.adapters.memory.messaging import MemoryMessaging
from liftbridge_broker.controller.commands import CreateStream, DeleteStream, InitPublisher
from liftbridge_broker.errors import (
    NotAppendedError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)
from liftbridge_broker.model.ids import Instant, LeaderEpoch, StreamName
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.partition.pause import PARKED_BYTES_MAX
from liftbridge_broker.node.partition.runs import POLICY_ALL, POLICY_LEADER, PendingAck, PublishRun
from liftbridge_broker.node.publishing.forwarding import LOST_NS, SETTLE_NS, Forwarding
from liftbridge_broker.node.publishing.repeating import SENDS_MAX
from liftbridge_broker.node.publishing.subjects import ACK_WAIT_NS, SubjectPublisher
from liftbridge_broker.ports.messaging import Arrival
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.replication.publishers import (
    HEADER_EPOCH,
    HEADER_ID,
    HEADER_SEQUENCE,
    PublisherStamp,
)
from liftbridge_testkit.cluster_world import ClusterWorld
from liftbridge_testkit.node_world import Answers

FAILOVER_MS = 3_000
"""Longest time within which another broker leads."""

SETTLE_MS = SETTLE_NS // MILLISECOND_NS + 10


@pytest.fixture
def world():
    return ClusterWorld()


def create(world, name, subject, partitions=1, group=""):
    command = CreateStream(
        name=StreamName(name),
        subject=subject,
        group=group,
        partitions=partitions,
        replication_factor=3,
        creation_timestamp=world.wall_ns,
    )
    assert not isinstance(world.propose(command), Exception)
    world.until(lambda: all(world.leader(name, one) is not None for one in range(partitions)))


def begin(world, name="s"):
    """A stamp of a publisher of a stream, which is made where it is not there yet."""
    if world.alive[0].node.state.stream(name) is None:
        world.create(name)
    known = world.propose(InitPublisher(stream=StreamName(name), publisher="p"))
    return PublisherStamp(known.publisher_id, known.publisher_epoch, 0)


def stamped(stamp, number):
    """Fields of the message of a number, as the API makes them."""
    headers = {
        HEADER_ID: b"%d" % stamp.publisher_id,
        HEADER_EPOCH: b"%d" % stamp.publisher_epoch,
        HEADER_SEQUENCE: b"%d" % number,
    }
    return {"publisher": stamp._replace(first_sequence=number), "headers": [headers]}


def passing_on(world, place=0):
    """A broker that does not lead."""
    return [one for one in world.alive if one is not world.leader()][place]


def leader_known(world, at):
    """Who leads as far as a broker knows."""
    return at.node.state.stream("s").partitions[0].leader


def in_all(world, value):
    partition_id = world.state().partition_id
    return all(value in one.log_bytes(partition_id) for one in world.alive)


def stored(world, value, name="s"):
    """How often a value is stored where the partition is led."""
    world.until(lambda: world.leader(name) is not None)
    return world.leader(name).log_bytes(world.state(name).partition_id).count(value)


def carry(world, passing, leader):
    """Bring what a broker passed on to the leader alone, and give back its acks."""
    (sent,), passing.messaging.new = passing.messaging.new, []
    (subscription,) = leader.messaging.receivers(sent.subject, is_quiet=False)
    arrival = Arrival(sent.subject, sent.reply, sent.headers)
    leader.node.on_messages(subscription, [arrival], [sent.payload], world.now, world.wall_ns)
    acks, leader.messaging.new = leader.messaging.new, []
    return acks


def until_answered(world, *answers):
    return world.until(lambda: all(one.is_answered for one in answers))


@pytest.mark.parametrize("place", [0, 1])
def test_stamped_messages_are_sent_again_to_the_next_leader_in_order(world, place):
    """Also where the broker that passed them on leads next itself."""
    stamp = begin(world)
    passing = passing_on(world, place)
    world.leader().kill()
    answers = [world.publish(b"<%d>" % n, at=passing, **stamped(stamp, n)) for n in range(5)]
    assert until_answered(world, *answers) < FAILOVER_MS
    assert [one.offset for one in answers] == [0, 1, 2, 3, 4]
    following = world.publish(b"<5>", at=passing, **stamped(stamp, 5))
    until_answered(world, following)
    assert following.offset == 5


def test_stamped_message_that_the_dead_leader_stored_is_there_once(world):
    stamp = begin(world)
    passing, leader = passing_on(world), world.leader()
    answers = world.publish(b"<0>", at=passing, policy=POLICY_LEADER, **stamped(stamp, 0))
    assert carry(world, passing, leader)  # which is lost
    world.until(lambda: in_all(world, b"<0>"))
    leader.kill()
    until_answered(world, answers)
    assert answers.offset == 0
    assert stored(world, b"<0>") == 1


def test_message_without_a_stamp_is_refused_and_the_change_of_leader_named(world):
    world.create()
    passing, before = passing_on(world), world.state()
    world.leader().kill()
    answers = world.publish(b"<0>", at=passing)
    assert until_answered(world, answers) < FAILOVER_MS + SETTLE_MS
    assert isinstance(answers.error, OutcomeUnknownError)
    after = world.state()
    assert answers.error.text == (
        f"outcome unknown: broker {before.leader} led s/0 in leader epoch {before.leader_epoch} "
        f"when the message was forwarded to it, and broker {after.leader} leads in epoch "
        f"{after.leader_epoch}"
    )
    assert stored(world, b"<0>") == 0


def test_ack_that_is_under_way_when_another_broker_leads_is_taken(world):
    world.create()
    passing, leader = passing_on(world), world.leader()
    answers = world.publish(b"<0>", at=passing, policy=POLICY_LEADER)
    acks = carry(world, passing, leader)
    leader.kill()
    world.until(lambda: leader_known(world, passing) != leader.broker)
    assert not answers.is_answered
    for ack in acks:
        world.publish_nats(ack.subject, ack.payload)
    assert answers.offset == 0


@pytest.mark.parametrize("has_stamp", [False, True])
def test_message_that_the_next_leader_does_not_recognise_is_not_sent_again(world, has_stamp):
    """A stamp of another stream's publisher is none here."""
    world.create()
    fields = stamped(begin(world, "other"), 0) if has_stamp else {}
    passing, leader = passing_on(world), world.leader()
    answers = world.publish(b"<0>", at=passing, policy=POLICY_LEADER, **fields)
    assert carry(world, passing, leader)  # which is lost
    world.until(lambda: in_all(world, b"<0>"))
    leader.kill()
    until_answered(world, answers)
    assert isinstance(answers.error, OutcomeUnknownError)
    assert stored(world, b"<0>") == 1


@pytest.mark.parametrize(
    ("own", "beside", "partitions", "is_repeated"),
    [
        ("a.1", "a.1", 1, False),
        ("a.1", "a", 2, False),
        ("a.1", "a.*", 1, False),
        ("a.1", "*", 2, False),
        ("a.1", ">", 1, False),
        ("a.1", "a", 1, True),
        ("a.1", "a.1.*", 1, True),
    ],
)
def test_what_another_stream_stores_as_well_is_not_repeated(
    world, own, beside, partitions, is_repeated
):
    """For the other stream the stamp says nothing."""
    create(world, "s", own)
    create(world, "beside", beside, partitions)
    stamp, passing = begin(world), passing_on(world)
    world.leader().kill()
    answers = world.publish(b"<0>", at=passing, **stamped(stamp, 0))
    until_answered(world, answers)
    assert bool(answers.stored) == is_repeated
    assert is_repeated or isinstance(answers.error, OutcomeUnknownError)


def test_message_for_a_queue_group_may_be_stored_by_another_stream_of_it(world):
    """Also where the broker that passes it on leads neither."""
    create(world, "s", "s", group="g")
    create(world, "beside", "s", group="g")
    leader, beside = world.leader(), world.leader("beside")
    passing = next(one for one in world.alive if one not in (leader, beside))
    leader.kill()
    answers = world.publish(b"<0>", at=passing)
    assert until_answered(world, answers) < FAILOVER_MS
    assert answers.stored[0].acks is not None


def test_message_for_a_partition_without_a_leader_is_sent_when_there_is_one(world):
    world.create(factor=1)
    only = world.leader()
    passing = passing_on(world)
    only.kill()
    world.until(lambda: leader_known(world, passing) is None)
    answers = [world.publish(b"<%d>" % n, at=passing) for n in range(3)]
    world.run(100)
    only.restart()
    until_answered(world, *answers)
    assert [one.offset for one in answers] == [0, 1, 2]


def test_message_that_never_was_sent_is_refused_as_not_stored(world):
    world.create(factor=1)
    passing = passing_on(world)
    world.leader().kill()
    world.until(lambda: leader_known(world, passing) is None)
    half = bytes(PARKED_BYTES_MAX // 2)
    first, second = world.publish(half, at=passing), world.publish(half + b"x", at=passing)
    assert isinstance(second.error, NotAppendedError)
    world.until(lambda: first.is_answered, milliseconds=ACK_WAIT_NS // MILLISECOND_NS + 100)
    assert isinstance(first.error, NotAppendedError)
    last = world.publish(b"a", at=passing)
    passing.node.begin_stop(lambda: None)
    assert isinstance(last.error, UnavailableError)


def test_stream_that_is_deleted_ends_what_was_passed_on(world):
    world.create()
    passing = passing_on(world)
    answers = world.publish(b"<0>", at=passing)
    passing.messaging.new.clear()
    world.propose(DeleteStream(name=StreamName("s")), at=passing)
    assert isinstance(answers.error, NotFoundError)


class LeaderlessTalk:
    """A node whose metadata the test writes; leaders never answer."""

    def __init__(self, world):
        member = passing_on(world)
        self.now, self.wall_ns, self.state = Instant(0), 0, member.node.state
        self.find = member.node.find_for_publish
        self.messaging = MemoryMessaging()
        subjects = SubjectPublisher(self.messaging, member.node.context.options)
        self.remotes = Forwarding(self, self.find, subjects, None)

    def elect(self):
        """The leader is elected anew."""
        (partition,) = self.state.stream("s").partitions
        epoch = LeaderEpoch(partition.leader_epoch + 1)
        self.state.stream("s").partitions[0] = replace(partition, leader_epoch=epoch)
        self.remotes.on_change(self.now)

    def publish(self, stamp):
        """Pass on one message, which waits for all."""
        answers = Answers()
        fields = stamped(stamp, 0)
        run = PublishRun(
            [b"a"], "s", "grpc", (PendingAck(POLICY_ALL, answers),), policy=1, **fields
        )
        self.remotes.publish(self.find("s", 0), run, self.now)
        return answers


def test_message_is_sent_so_often_and_no_longer_than_its_first_time_allows(world):
    stamp = begin(world)
    talk = LeaderlessTalk(world)
    answers = talk.publish(stamp)
    for _ in range(SENDS_MAX - 1):
        talk.elect()
        assert talk.remotes.next_deadline() == ACK_WAIT_NS
    assert len(talk.messaging.new) == SENDS_MAX
    assert len({sent.payload for sent in talk.messaging.new}) == SENDS_MAX  # a token of its own
    talk.elect()
    assert len(talk.messaging.new) == SENDS_MAX
    assert talk.remotes.next_deadline() == SETTLE_NS
    talk.remotes.on_timer(Instant(SETTLE_NS))
    assert isinstance(answers.error, OutcomeUnknownError)
    assert talk.remotes.next_deadline() is None


def test_time_of_a_message_that_was_sent_again_is_over_with_its_first(world):
    stamp = begin(world)
    talk = LeaderlessTalk(world)
    answers = talk.publish(stamp)
    talk.now = Instant(ACK_WAIT_NS - 1)
    talk.elect()
    talk.remotes.on_timer(Instant(ACK_WAIT_NS))
    assert isinstance(answers.error, OutcomeUnknownError)


def test_refusal_of_a_repeat_proves_nothing(world):
    stamp = begin(world)
    talk = LeaderlessTalk(world)
    answers = talk.publish(stamp)
    talk.messaging.is_connected = False
    talk.elect()
    assert isinstance(answers.error, OutcomeUnknownError)


def lost_on_the_way(world, passing, **fields):
    """Publish a message that NATS drops before its leader gets it."""
    answers = world.publish(b"<0>", at=passing, **fields)
    assert [sent.subject for sent in passing.messaging.new] == ["s"]
    passing.messaging.new = []
    return answers


@pytest.mark.parametrize("loses", ["leader", "own"])
def test_message_lost_with_a_connection_is_refused_soon_and_the_reason_named(world, loses):
    world.create()
    passing, leader = passing_on(world), world.leader()
    answers = lost_on_the_way(world, passing)
    loser = leader if loses == "leader" else passing
    loser.node.cluster.on_reconnected(world.now)
    assert (
        LOST_NS // MILLISECOND_NS <= until_answered(world, answers) < LOST_NS // MILLISECOND_NS + 10
    )
    assert isinstance(answers.error, OutcomeUnknownError)
    assert answers.error.text == (
        f"outcome unknown: no ack within 5 s after broker {loser.broker} had lost a connection to "
        "NATS"
    )


def test_connection_of_a_broker_that_does_not_lead_changes_no_wait(world):
    world.create()
    passing, other = passing_on(world), passing_on(world, 1)
    answers = lost_on_the_way(world, passing)
    other.node.cluster.on_reconnected(world.now)
    world.run(LOST_NS // MILLISECOND_NS + 10)
    assert not answers.is_answered


def test_message_for_a_queue_group_that_any_member_may_have_lost_is_refused_soon(world):
    create(world, "s", "s", group="g")
    passing, other = passing_on(world), passing_on(world, 1)
    answers = lost_on_the_way(world, passing)
    other.node.cluster.on_reconnected(world.now)
    assert until_answered(world, answers) < LOST_NS // MILLISECOND_NS + 10
    assert isinstance(answers.error, OutcomeUnknownError)


def test_ack_that_comes_soon_after_a_lost_connection_is_taken(world):
    """The leader had the message, and waited for its followers."""
    world.create()
    passing, leader = passing_on(world), world.leader()
    world.deaf |= {(leader.broker, passing.broker, Channel.DATA)}
    answers = world.publish(b"<0>", at=passing)
    world.run(10)
    leader.node.cluster.on_reconnected(world.now)
    world.run(40)
    assert not answers.is_answered
    world.deaf.clear()
    until_answered(world, answers)
    assert answers.offset == 0


def test_lost_connection_shortens_no_wait_for_a_leader_and_later_messages_wait_longer(world):
    world.create()
    passing = passing_on(world)
    first = lost_on_the_way(world, passing)
    world.leader().node.cluster.on_reconnected(world.now)
    world.settle()
    later = lost_on_the_way(world, passing)
    until_answered(world, first)
    assert not later.is_answered
    assert world.until(lambda: later.is_answered, milliseconds=61_000) > 50_000
    assert "60 s" in later.error.text
