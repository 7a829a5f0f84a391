"""Messages from NATS with a reply subject, on a stream that acknowledges to it."""

import json
from typing import Any

import pytest

from liftbridge_broker.controller.commands import AlterStream, DeleteStream, SetReadonly
from liftbridge_broker.model.ids import StreamName
from liftbridge_broker.model.streams import StreamOverrides
from liftbridge_broker.model.subjects import SUBJECT_BYTES_MAX
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.partition.runs import POLICY_ALL
from liftbridge_broker.ports.messaging import Arrival, SubscriptionId
from liftbridge_broker.replication.publishers import HEADER_EPOCH, HEADER_ID, HEADER_SEQUENCE
from liftbridge_broker.wire.envelope import decode_ack
from liftbridge_broker.wire.nats import header_block
from liftbridge_proto import api_pb2
from liftbridge_testkit.cluster_world import ClusterWorld, Member
from liftbridge_testkit.node_world import NAMESPACE, NodeWorld, envelope

INBOX = "_INBOX.a.1"
FORBIDDEN = {
    "internal": "_LIFTBRIDGE.other.b.b1.data",
    "own acks": f"_LIFTBRIDGE.{NAMESPACE}.ack.1",
    "own namespace": f"{NAMESPACE}.x",
    "nats": "$SYS.x",
    "jetstream": "$JS.ACK.s.c.1.2.3.4.5",
    "one": "answers.*",
    "rest": "answers.>",
    "blank": "an swers",
    "line end": "answers\r\nPUB x 0",
    "empty token": "answers..x",
    "long": "a" * (SUBJECT_BYTES_MAX + 1),
    "own subject": "s",
    "own partition": "s.1",
    "subject of another stream": "other.x.y",
    "partition of another stream": "parts.2",
}


def answers(world: NodeWorld, reply: str = INBOX) -> list[dict[str, Any]]:
    """What was sent to a reply subject."""
    return [json.loads(one.payload) for one in world.messaging.sent if one.subject == reply]


def created(world: NodeWorld, name: str = "s", subject: str = "", **more: Any) -> Partition:
    return world.create(name, subject, ack_reply=True, **more)


@pytest.mark.parametrize("reply", ["", INBOX, "answers"])
def test_stream_without_the_setting_sends_nothing(world: NodeWorld, reply: str) -> None:
    partition = world.create()
    world.deliver("s", b"a", envelope(b"b"), b"v" * (1 << 21), reply=reply)
    assert world.values(partition) == {0: b"a", 1: b"b"}
    assert world.messaging.sent == []


def test_message_without_a_reply_subject_is_not_answered(world: NodeWorld) -> None:
    partition = created(world)
    world.deliver("s", b"a", envelope(b"b"))
    assert partition.log.log_end_offset == 2
    assert world.messaging.sent == []


def test_plain_messages_are_answered_as_by_jetstream(world: NodeWorld) -> None:
    partition = created(world, "sé", "s.*")
    world.deliver("s.x", b"a", b"b", reply=INBOX)
    world.deliver("s.x", b"c", reply="answers")
    told = [{"stream": "sé", "seq": n + 1, "partition": 0, "offset": n} for n in range(3)]
    assert answers(world) == told[:2]
    assert answers(world, "answers") == told[2:]
    assert all(one.reply == "" and not one.is_quiet for one in world.messaging.sent)
    frames = world.subscribe(partition).frames
    assert [frame.reply_subject for frame in frames] == [INBOX, INBOX, "answers"]
    assert sum(world.node.context.ack_times[POLICY_ALL].counts) == 3


def test_partition_is_told_by_its_number(world: NodeWorld) -> None:
    created(world, partitions=3)
    world.deliver("s.2", b"a", reply=INBOX)
    assert answers(world) == [{"stream": "s", "seq": 1, "partition": 2, "offset": 0}]


def test_every_stream_with_the_setting_answers(world: NodeWorld) -> None:
    created(world, "one", "s")
    world.create("two", "s")
    created(world, "three", ">")
    world.deliver("s", b"a", reply=INBOX)
    assert sorted(one["stream"] for one in answers(world)) == ["one", "three"]


def test_envelope_without_an_inbox_is_answered_by_an_envelope(world: NodeWorld) -> None:
    created(world)
    asked = envelope(b"b", correlationId="c", ackPolicy=api_pb2.ALL)
    named = envelope(b"c", ackInbox="i")
    refused = envelope(b"d", ackInbox="$SYS.x")
    silent = envelope(b"e", ackPolicy=api_pb2.NONE)
    world.deliver("s", b"a", asked, named, refused, silent, b"f", reply=INBOX)
    to_inbox = [one.payload for one in world.messaging.sent if one.subject == INBOX]
    (ack,) = [ack for one in to_inbox if (ack := decode_ack(one)) is not None]
    assert (ack.offset, ack.correlationId, ack.ackPolicy) == (1, "c", api_pb2.ALL)
    assert ack.ackInbox == INBOX
    assert [one.offset for one in world.messaging.acks("i")] == [2]
    plain = [one.payload for one in world.messaging.sent if one.payload.startswith(b"{")]
    assert [json.loads(one)["offset"] for one in plain] == [0, 5]
    assert len(world.messaging.sent) == 4


def test_refused_messages_are_told_why(world: NodeWorld) -> None:
    created(world)
    world.propose(SetReadonly(name=StreamName("s"), partitions=(), readonly=True))
    world.deliver("s", b"a", b"b", reply=INBOX)
    error = {"code": 503, "err_code": 10077, "description": "readonly partition: 0"}
    assert answers(world) == [{"error": error, "stream": "s", "partition": 0}] * 2


def test_message_at_fault_is_told_by_the_code_of_jetstream() -> None:
    world = NodeWorld(record_bytes_max=64)
    partition = created(world, optimistic_concurrency=True)
    world.deliver("s", b"a", reply=INBOX)
    world.deliver("s", b"b", reply=INBOX)
    world.deliver("s", b"v" * 65, reply=INBOX)
    world.deliver("s", envelope(b"v" * 65, correlationId="c"), reply="answers")
    assert world.values(partition) == {0: b"a"}
    codes = [(one["error"]["code"], one["error"]["err_code"]) for one in answers(world)[1:]]
    assert codes == [(400, 10071), (400, 10054)]
    (ack,) = world.messaging.acks("answers")
    assert (ack.correlationId, ack.ackError) == ("c", api_pb2.Ack.TOO_LARGE)


def test_message_that_was_stored_before_is_a_duplicate(world: NodeWorld) -> None:
    created(world)
    known = world.init_publisher()
    stamp = {
        HEADER_ID: known.publisher_id,
        HEADER_EPOCH: known.publisher_epoch,
        HEADER_SEQUENCE: 0,
    }
    headers = header_block([(name, f"{value}") for name, value in stamp.items()])
    for _ in range(2):
        world.deliver("s", b"a", reply=INBOX, headers=headers)
    first = {"stream": "s", "seq": 1, "partition": 0, "offset": 0}
    assert answers(world) == [first, {**first, "duplicate": True}]


@pytest.mark.parametrize("kind", FORBIDDEN)
def test_forbidden_reply_subject_gets_nothing_and_the_message_is_stored(
    world: NodeWorld, kind: str
) -> None:
    partition = created(world, partitions=2)
    world.create("other", "other.>")
    world.create("parts", partitions=3)
    world.deliver("s", b"a", envelope(b"b"), reply=FORBIDDEN[kind])
    world.deliver("s", b"v" * (1 << 21), reply=FORBIDDEN[kind])
    assert world.values(partition) == {0: b"a", 1: b"b"}
    assert world.messaging.sent == []


@pytest.mark.parametrize("reply", ["s.2", "s.01", "s.x", "parts.0", "parts.x.1", "other", "x.s"])
def test_subject_beside_those_of_streams_is_answered(world: NodeWorld, reply: str) -> None:
    created(world, partitions=2)
    world.create("other", "other.>")
    world.create("parts", partitions=3)
    world.deliver("s", b"a", reply=reply)
    assert len(answers(world, reply)) == 1


def test_inbox_is_answered_also_where_a_stream_takes_every_subject(world: NodeWorld) -> None:
    created(world)
    every = world.create("all", ">")
    world.deliver("s", b"a", reply=INBOX)
    world.deliver("s", b"b", reply="answers")
    world.settle()
    assert (len(answers(world)), len(answers(world, "answers"))) == (1, 0)
    assert every.log.log_end_offset == 2


def test_streams_that_come_and_go_are_known(world: NodeWorld) -> None:
    created(world)
    for count in (1, 2):
        world.deliver("s", b"a", reply="late")
        assert len(answers(world, "late")) == count
        world.create("late")
        world.create("later")
        world.deliver("s", b"a", reply="late")
        world.deliver("s", b"a", reply="later")
        assert len(answers(world, "late")) == count
        for name in ("late", "later"):
            world.propose(DeleteStream(name=StreamName(name)))


def test_subjects_of_streams_are_known_before_the_first_reply(world: NodeWorld) -> None:
    world.create("other", "other")
    assert not world.node.held.stream_subjects._known
    created(world)
    assert len(world.node.held.stream_subjects._known) == len(world.node.state.streams)


def test_setting_takes_effect_on_a_stream_that_exists(world: NodeWorld) -> None:
    world.create()
    for value, count in ((True, 1), (False, 1), (True, 2)):
        change = StreamOverrides(ack_reply=value)
        world.propose(AlterStream(name=StreamName("s"), overrides=change))
        world.deliver("s", b"a", reply=INBOX)
        assert len(answers(world)) == count
    world.kill()
    world.deliver("s", b"a", reply=INBOX)
    assert answers(world)[-1]["offset"] == 3


def sent_by(member: Member) -> list[dict[str, Any]]:
    sent = member.messaging.sent
    return [json.loads(one.payload) for one in sent if one.subject == INBOX]


def test_ack_waits_until_every_replica_in_sync_has_the_message() -> None:
    world = ClusterWorld()
    world.create(ack_reply=True)
    world.commit(b"a")
    leader = world.leader()
    assert leader is not None
    others = [one for one in world.alive if one is not leader]
    partition = leader.node.find_partition("s", 0)
    subscription = SubscriptionId(partition.partition_id)
    arrivals = [Arrival("s", INBOX, b"")]
    leader.node.on_messages(subscription, arrivals, [b"b"], world.now, world.wall_ns)
    assert (partition.log.log_end_offset, sent_by(leader)) == (2, [])
    world.settle()
    assert sent_by(leader) == [{"stream": "s", "seq": 2, "partition": 0, "offset": 1}]
    assert [sent_by(one) for one in others] == [[], []]


def test_too_few_replicas_in_sync_refuse_a_message_that_asks_for_an_ack() -> None:
    world = ClusterWorld()
    world.create(ack_reply=True, min_isr=3)
    world.commit(b"a")
    next(one for one in world.alive if one is not world.leader()).kill()
    world.until(lambda: len(world.state().isr) == 2 and world.leader() is not None)
    leader = world.leader()
    assert leader is not None
    partition = leader.node.find_partition("s", 0)
    world.publish_nats("s", b"b", reply=INBOX)
    (told,) = sent_by(leader)
    assert told["error"]["description"] == "not appended: 2 replicas in sync, 3 needed"
    assert partition.log.log_end_offset == 1
    subscription = SubscriptionId(partition.partition_id)
    arrivals = [Arrival("s", INBOX, b"")] * 3
    leader.node.on_messages(subscription, arrivals, [b"b"] * 3, world.now, world.wall_ns)
    assert ["error" in answer for answer in sent_by(leader)] == [True] * 4
    assert partition.log.log_end_offset == 1
    world.publish_nats("s", b"b", reply="$forbidden")
    world.publish_nats("s", b"c")
    assert partition.log.log_end_offset == 3
