"""Leaders elsewhere hear the first message to a new stream, and to one that was paused."""

import pytest

from liftbridge_broker.controller.commands import CreateStream, PauseStream
from liftbridge_broker.errors import LiftbridgeError, NotAppendedError, UnavailableError
from liftbridge_broker.model.ids import StreamName
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.partition.pause import PARKED_BYTES_MAX
from liftbridge_broker.node.partition.runs import POLICY_ALL, PendingAck, PublishRun
from liftbridge_broker.ports.transport import Channel
from liftbridge_testkit.cluster_world import ClusterWorld
from liftbridge_testkit.node_world import Answers


@pytest.fixture
def world():
    return ClusterWorld()


def create(world, at, reply, *, name="s", partitions=3):
    command = CreateStream(
        name=StreamName(name),
        subject=name,
        partitions=partitions,
        replication_factor=3,
        creation_timestamp=world.wall_ns,
    )
    at.node.propose(command, world.now, reply)


def roles(world):
    """The metadata leader, the broker that is asked, and the one that has to be heard from."""
    chief = next(one for one in world.alive if one.node.cluster.control.is_leader)
    asked, other = (one for one in world.alive if one is not chief)
    return chief, asked, other


def hush(world, one, other):
    """Lose what two brokers say to each other besides records; both still hear the third."""
    world.deaf |= {
        (one.broker, other.broker, Channel.METADATA),
        (other.broker, one.broker, Channel.METADATA),
    }


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_first_message_at_any_broker_is_heard_by_every_leader(world, number):
    member = world[number]
    answers = [Answers() for _ in range(3)]

    def publish(outcome):
        assert not isinstance(outcome, LiftbridgeError)
        for partition_number, sink in enumerate(answers):
            partition = member.node.find_for_publish("s", partition_number)
            ack = PendingAck(POLICY_ALL, sink)
            run = PublishRun([b"first"], partition.subject, "grpc", (ack,), policy=POLICY_ALL)
            member.node.publish(partition, run, world.now, world.wall_ns)

    create(world, member, publish)
    took = world.until(lambda: all(one.is_answered for one in answers), milliseconds=5_000)
    assert [one.offset for one in answers] == [0, 0, 0]
    assert {world.state("s", one).leader for one in range(3)} == set(world.members)
    assert took < 100


def test_a_leader_is_asked_until_it_answers(world):
    _, asked, other = roles(world)
    outcomes = []
    hush(world, asked, other)
    create(world, asked, outcomes.append)
    world.run(300)
    assert outcomes == []
    world.heal()
    assert world.until(lambda: bool(outcomes)) <= 50
    assert not isinstance(outcomes[0], LiftbridgeError)


def test_a_leader_that_does_not_answer_is_waited_for_one_second_only(world):
    _, asked, other = roles(world)
    outcomes = []
    hush(world, asked, other)
    create(world, asked, outcomes.append)
    took = world.until(lambda: bool(outcomes))
    assert 1_000 <= took <= 1_050
    assert not isinstance(outcomes[0], LiftbridgeError)
    world.run(200)
    assert len(outcomes) == 1


def test_a_leader_answers_only_when_it_may_take_messages(world):
    _, asked, other = roles(world)
    outcomes = []
    other.is_stalled = True  # what it is told it applies; its disk does not answer
    create(world, asked, outcomes.append)
    world.run(200)
    assert outcomes == []
    other.is_stalled = False
    assert world.until(lambda: bool(outcomes)) <= 50


def test_a_leader_that_died_is_waited_for_one_second_only(world):
    _, asked, other = roles(world)
    outcomes = []
    other.kill()
    began = world.now
    create(world, asked, outcomes.append)
    world.until(lambda: bool(outcomes))
    assert world.now - began <= 1_050 * MILLISECOND_NS
    assert not isinstance(outcomes[0], LiftbridgeError)


def test_a_stopping_broker_lets_nobody_wait(world):
    _, asked, other = roles(world)
    outcomes = []
    hush(world, asked, other)
    create(world, asked, outcomes.append)
    world.run(100)
    assert outcomes == []
    asked.node.begin_stop(lambda: None)
    assert len(outcomes) == 1


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_publish_at_any_broker_resumes_what_was_paused(world, number):
    world.create()
    world.propose(PauseStream(name=StreamName("s")))
    world.run(50)
    answers = world.publish(b"a", at=world[number])
    assert world.until(lambda: answers.is_answered, milliseconds=5_000) < 100
    assert answers.offset == 0
    assert not world.state().paused


def not_leading(world):
    return next(one for one in world.alive if one is not world.leader())


def pause(world):
    world.create()
    world.propose(PauseStream(name=StreamName("s")))
    world.run(50)


def test_what_waits_for_a_resume_elsewhere_keeps_its_order(world):
    pause(world)
    member = not_leading(world)
    answers = [world.publish(b"%d" % one, at=member) for one in range(5)]
    assert not any(one.is_answered for one in answers)
    world.until(lambda: all(one.is_answered for one in answers))
    assert [one.offset for one in answers] == [0, 1, 2, 3, 4]


def test_what_waits_for_a_resume_elsewhere_is_bounded(world):
    pause(world)
    member = not_leading(world)
    half = bytes(PARKED_BYTES_MAX // 2)
    first = world.publish(half, at=member)
    second = world.publish(half + b"x", at=member)
    assert isinstance(second.error, NotAppendedError)
    assert not first.is_answered


def test_a_resume_elsewhere_that_fails_refuses_what_waits(world):
    pause(world)
    member = not_leading(world)
    member.node.begin_stop(lambda: None)
    answers = world.publish(b"a", at=member)
    assert isinstance(answers.error, UnavailableError)
