"""What arrives over NATS becomes runs; what is published reaches every other listener once."""

from functools import partial

import pytest

from liftbridge_broker.controller.commands import DeleteStream, SetReadonly
from liftbridge_broker.errors import (
    IncorrectOffsetError,
    InternalError,
    LiftbridgeError,
    OutcomeUnknownError,
    TooLargeError,
)
from liftbridge_broker.model.ids import Instant, PublisherId, StreamName
from liftbridge_broker.model.subjects import RESERVED_STREAMS
from liftbridge_broker.node.partition.intake import MESSAGE_HEADERS_MAX, error_of_ack, stamp_of
from liftbridge_broker.node.partition.runs import POLICY_NONE, PublishRun
from liftbridge_broker.node.publishing.subjects import (
    ACK_WAIT_NS,
    WAITING_COUNT_MAX,
    AckInbox,
    SubjectPublish,
    Waiter,
)
from liftbridge_broker.ports.messaging import Arrival, SubscriptionId
from liftbridge_broker.replication.publishers import (
    HEADER_EPOCH,
    HEADER_ID,
    HEADER_SEQUENCE,
    PublisherStamp,
)
from liftbridge_broker.wire.acks import AckError
from liftbridge_broker.wire.envelope import EnvelopeType, decode_publish, encode, encode_with_crc
from liftbridge_broker.wire.nats import appended_header_block, header_block
from liftbridge_proto import api_pb2
from liftbridge_testkit.node_world import NAMESPACE, NodeWorld, envelope


def _drop(_ack: api_pb2.Ack) -> None:
    """Take no notice of an ack."""


SILENT = Waiter(_drop)


def stamp_headers(publisher: int, epoch: int, sequence: int) -> dict[str, bytes]:
    return {
        HEADER_ID: b"%d" % publisher,
        HEADER_EPOCH: b"%d" % epoch,
        HEADER_SEQUENCE: b"%d" % sequence,
    }


# -- intake -------------------------------------------------------------------------------------


def test_plain_messages_are_stored_whole_with_subject_and_reply(world: NodeWorld) -> None:
    partition = world.create()
    world.deliver("s", b"a", b"b", reply="r")
    frames = world.subscribe(partition).frames
    assert [frame.value for frame in frames] == [b"a", b"b"]
    assert [(frame.subject, frame.reply_subject) for frame in frames] == [("s", "r")] * 2


def test_envelope_gives_key_value_and_headers(world: NodeWorld) -> None:
    partition = world.create()
    world.deliver("s", envelope(b"a", key=b"k", headers={"h": b"1"}))
    frame = world.subscribe(partition).frames[0]
    assert (frame.value, frame.key, dict(frame.headers)["h"]) == (b"a", b"k", b"1")


def test_mixed_messages_of_one_chunk_keep_their_order(world: NodeWorld) -> None:
    partition = world.create()
    world.deliver("s", b"a", envelope(b"b", ackInbox="i"), b"c", envelope(b"d", ackInbox="i"))
    assert world.values(partition) == {0: b"a", 1: b"b", 2: b"c", 3: b"d"}
    assert [ack.offset for ack in world.messaging.acks("i")] == [1, 3]


def test_ack_tells_what_the_original_tells(world: NodeWorld) -> None:
    world.create("s", "foo.*")
    world.deliver("foo.x", envelope(b"a", ackInbox="i", correlationId="c", ackPolicy=api_pb2.ALL))
    ack = world.messaging.acks("i")[0]
    assert (ack.stream, ack.partitionSubject, ack.msgSubject) == ("s", "foo.*", "foo.x")
    assert (ack.ackInbox, ack.correlationId, ack.ackPolicy) == ("i", "c", api_pb2.ALL)
    assert (ack.receptionTimestamp, ack.commitTimestamp) == (world.wall_ns, world.wall_ns)
    assert ack.ackError == api_pb2.Ack.OK


def test_policy_none_is_silent_on_success_and_tells_a_refusal(world: NodeWorld) -> None:
    world.create()
    none = envelope(b"a", ackInbox="i", ackPolicy=api_pb2.NONE, correlationId="c")
    world.deliver("s", none)
    assert world.messaging.acks("i") == []
    world.propose(SetReadonly(name=StreamName("s"), partitions=(), readonly=True))
    world.deliver("s", none)
    assert [ack.ackError for ack in world.messaging.acks("i")] == [api_pb2.Ack.UNKNOWN]


def test_sound_checksum_is_taken_and_a_wrong_one_makes_a_plain_message(world: NodeWorld) -> None:
    partition = world.create()
    sound = encode_with_crc(EnvelopeType.PUBLISH, api_pb2.Message(value=b"a").SerializeToString())
    world.deliver("s", sound, sound[:-1] + b"?")
    assert world.values(partition) == {0: b"a", 1: sound[:-1] + b"?"}


@pytest.mark.parametrize(
    "payload",
    [bytes.fromhex("b90e43b400ff0000"), encode(EnvelopeType.PUBLISH, b"\xff"), envelope(b"a")[:6]],
)
def test_broken_envelope_is_a_plain_message(world: NodeWorld, payload: bytes) -> None:
    partition = world.create()
    world.deliver("s", payload)
    assert world.values(partition) == {0: payload}


def test_too_large_message_is_left_out_and_answered_when_it_can_be() -> None:
    world = NodeWorld(record_bytes_max=64)
    partition = world.create()
    large = b"v" * 65
    world.deliver("s", b"a", large, envelope(large, ackInbox="i", correlationId="c"), b"b")
    assert world.values(partition) == {0: b"a", 1: b"b"}
    ack = world.messaging.acks("i")[0]
    assert (ack.ackError, ack.correlationId) == (api_pb2.Ack.TOO_LARGE, "c")


def test_message_with_too_many_headers_is_left_out_and_answered_when_it_can_be(
    world: NodeWorld,
) -> None:
    partition = world.create()
    most = {f"h{number}": b"" for number in range(MESSAGE_HEADERS_MAX)}
    more = {**most, "one": b""}
    world.deliver(
        "s",
        envelope(b"a", headers=most),
        envelope(b"b", headers=more),
        envelope(b"c", headers=more, ackInbox="i", correlationId="c"),
        b"d",
    )
    assert world.values(partition) == {0: b"a", 1: b"d"}
    (ack,) = world.messaging.acks("i")
    assert (ack.ackError, ack.correlationId) == (api_pb2.Ack.TOO_LARGE, "c")
    text = "message has 1001 headers, at most 1000: put the rest into its value"
    assert ack.refusal == text


def test_reserved_subjects_are_dropped_and_counted(world: NodeWorld) -> None:
    partition = world.create("all", ">")
    world.deliver("$SYS.x", b"a")
    world.deliver("_INBOX.x", b"b", b"c")
    world.deliver(f"{NAMESPACE}.x", b"d")
    world.deliver("x", b"e")
    assert world.values(partition) == {0: b"e"}
    assert partition.intake.reserved_count == 4


@pytest.mark.parametrize("name", RESERVED_STREAMS)
def test_streams_of_the_broker_take_nothing_from_nats(world: NodeWorld, name: str) -> None:
    """Only their leader writes to them: a cursor that anybody sends says nothing."""
    subject = f"{NAMESPACE}.{name.strip('_')}"
    partition = world.create(name, subject, is_internal=True)
    assert SubscriptionId(partition.partition_id) not in world.messaging.subscriptions
    world.deliver(subject, b"a", envelope(b"b", key=b"cursor"))
    assert world.values(partition) == {}
    world.publish(partition, b"c")
    world.settle()
    assert world.values(partition) == {0: b"c"}


@pytest.mark.parametrize("name", RESERVED_STREAMS)
def test_streams_of_any_subject_store_no_records_of_brokers(world: NodeWorld, name: str) -> None:
    own = world.create(name, f"{NAMESPACE}.{name.strip('_')}", is_internal=True)
    wide = world.create("all", ">")
    world.publish(own, b"cursor")
    world.settle()
    assert world.values(own) == {0: b"cursor"}
    assert world.values(wide) == {}


def test_message_this_broker_appended_itself_is_dropped(world: NodeWorld) -> None:
    partition = world.create()
    other = world.create("t", "s")
    world.deliver("s", b"a", headers=appended_header_block(partition.partition_id))
    assert (partition.log.log_end_offset, other.log.log_end_offset) == (0, 1)


def test_acks_to_reserved_or_impossible_inboxes_are_not_sent(world: NodeWorld) -> None:
    partition = world.create()
    for inbox in (f"{NAMESPACE}.internal", "a b", "x.*", "a\r\nPUB b 0"):
        world.deliver("s", envelope(b"a", ackInbox=inbox))
    assert partition.log.log_end_offset == 4
    assert world.messaging.sent == []


def test_messages_after_a_delete_are_ignored(world: NodeWorld) -> None:
    partition = world.create()
    subscription = SubscriptionId(partition.partition_id)
    assert subscription in world.messaging.subscriptions
    world.propose(DeleteStream(name=StreamName("s")))
    assert subscription not in world.messaging.subscriptions
    arrivals = [Arrival("s", "", b"")]
    world.node.on_messages(subscription, arrivals, [b"a"], world.now, world.wall_ns)
    assert partition.log.log_end_offset == 0


def test_lost_link_loses_acks_and_counts_them(world: NodeWorld) -> None:
    world.create()
    world.messaging.is_connected = False
    world.deliver("s", envelope(b"a", ackInbox="i"))
    assert world.node.context.lost_ack_count == 1


# -- stamps of idempotent publishers ------------------------------------------------------------


def test_stamp_comes_from_message_headers_and_from_nats_headers(world: NodeWorld) -> None:
    partition = world.create()
    known = world.init_publisher()
    own = stamp_headers(known.publisher_id, known.publisher_epoch, 0)
    world.deliver("s", envelope(b"a", headers=own, ackInbox="i"))
    world.deliver("s", envelope(b"a", headers=own, ackInbox="i"))
    block = header_block(
        [
            (name, value.decode())
            for name, value in stamp_headers(known.publisher_id, known.publisher_epoch, 1).items()
        ]
    )
    world.deliver("s", b"b", headers=block)
    world.deliver("s", b"b", headers=block)
    assert world.values(partition) == {0: b"a", 1: b"b"}
    assert [ack.offset for ack in world.messaging.acks("i")] == [0, 0]


def test_stamp_of_a_publisher_of_another_stream_on_the_subject_is_ignored(
    world: NodeWorld,
) -> None:
    world.create()
    known = world.init_publisher()
    late = world.create("late", "s")
    headers = stamp_headers(known.publisher_id, known.publisher_epoch, 5)
    world.deliver("s", envelope(b"a", headers=headers))
    assert world.values(late) == {0: b"a"}


def test_stamp_of_nobody_is_refused(world: NodeWorld) -> None:
    partition = world.create()
    world.deliver("s", envelope(b"a", headers=stamp_headers(77, 0, 0), ackInbox="i"))
    assert partition.log.log_end_offset == 0
    assert world.messaging.acks("i")[0].ackError == api_pb2.Ack.UNKNOWN


def test_malformed_stamp_over_nats_counts_as_none_and_over_grpc_is_told(world: NodeWorld) -> None:
    partition = world.create()
    world.deliver("s", envelope(b"a", headers={HEADER_ID: b"x"}))
    assert world.values(partition) == {0: b"a"}
    with pytest.raises(LiftbridgeError, match=HEADER_ID):
        stamp_of({HEADER_ID: b"x"})
    assert stamp_of({"other": b"x"}) is None
    assert stamp_of(stamp_headers(1, 2, 3)) == PublisherStamp(PublisherId(1), 2, 3)


# -- fan-out ------------------------------------------------------------------------------------


def test_published_message_goes_out_once_and_is_stored_once(world: NodeWorld) -> None:
    partition = world.create()
    world.publish(partition, b"a", b"b", correlation_ids=[b"1", b"2"])
    world.settle()
    assert partition.log.log_end_offset == 2
    assert [message.subject for message in world.messaging.sent] == ["s", "s"]
    message = decode_publish(world.messaging.sent[0].payload)
    assert message is not None
    assert (message.value, message.stream, message.correlationId) == (b"a", "s", "1")
    assert message.ackInbox == ""
    assert world.messaging.sent[0].is_quiet


def test_neighbours_on_the_subject_get_a_copy_wildcards_included(world: NodeWorld) -> None:
    partition = world.create("one", "foo.bar")
    subjects = {"two": "foo.bar", "star": "foo.*", "all": ">"}
    beside = [world.create(name, subject) for name, subject in subjects.items()]
    other = world.create("other", "foo.baz")
    world.publish(partition, b"a", keys=[b"k"], headers=[{"h": b"1"}])
    world.settle()
    for neighbour in beside:
        frame = world.subscribe(neighbour).frames[0]
        assert (frame.value, frame.key, frame.subject) == (b"a", b"k", "foo.bar")
        assert neighbour.log.log_end_offset == 1
    assert other.log.log_end_offset == 0


def test_acks_to_the_callers_inbox_come_from_all_streams(world: NodeWorld) -> None:
    partition = world.create("one", "s")
    world.create("two", "s")
    world.publish(partition, b"a", b"b", correlation_ids=[b"1", b"2"], ack_inbox="i")
    acks = [(ack.stream, ack.offset, ack.correlationId) for ack in world.messaging.acks("i")]
    assert acks == [("two", 0, "1"), ("two", 1, "2")]


def test_copies_under_policy_none_are_not_acked(world: NodeWorld) -> None:
    partition = world.create("one", "s")
    beside = world.create("two", "s")
    world.publish(partition, b"a", policy=POLICY_NONE, correlation_ids=[b"1"], ack_inbox="i")
    assert beside.log.log_end_offset == 1
    assert world.messaging.acks("i") == []


def test_neighbour_with_optimistic_concurrency_decides_on_each_copy(world: NodeWorld) -> None:
    partition = world.create("one", "s")
    beside = world.create("two", "s", optimistic_concurrency=True)
    world.publish(
        partition,
        b"a",
        b"b",
        correlation_ids=[b"1", b"2"],
        ack_inbox="i",
        expected_offsets=[0, 7],
    )
    assert world.values(beside) == {0: b"a"}
    assert [(ack.correlationId, ack.ackError) for ack in world.messaging.acks("i")] == [
        ("1", api_pb2.Ack.OK),
        ("2", api_pb2.Ack.INCORRECT_OFFSET),
    ]


def test_copy_lost_on_the_way_out_is_counted(world: NodeWorld) -> None:
    partition = world.create()
    beside = world.create("two", "s")
    run_before = world.messaging.sent[:]
    world.messaging.is_connected = False
    # The link goes down between the check and the write.
    run = PublishRun([b"a"], partition.subject, "grpc")
    world.node.listening.fan_out(partition, run)
    assert world.node.listening.lost_copy_count == 1
    assert beside.log.log_end_offset == 1
    assert world.messaging.sent == run_before


# -- queue groups -------------------------------------------------------------------------------


def test_queue_group_stores_each_message_in_one_stream(world: NodeWorld) -> None:
    one, two = world.create("one", "s", group="g"), world.create("two", "s", group="g")
    lone = world.create("lone", "s")
    answers = [world.publish(one, b"%d" % number) for number in range(4)]
    world.settle()
    assert [answer.offset for answer in answers] == [0, 0, 1, 1]
    assert one.log.log_end_offset + two.log.log_end_offset == 4
    assert lone.log.log_end_offset == 4


def test_copies_are_not_given_to_queue_groups_directly(world: NodeWorld) -> None:
    lone = world.create("lone", "s")
    member = world.create("member", "s", group="g")
    world.publish(lone, b"a")
    assert member.log.log_end_offset == 0
    world.settle()
    assert world.values(member) == {0: b"a"}


def test_refusal_by_the_member_that_got_it_reaches_the_publisher(world: NodeWorld) -> None:
    partition = world.create(group="g", optimistic_concurrency=True)
    world.publish(partition, b"a", expected_offsets=[0])
    refused = world.publish(partition, b"b", expected_offsets=[0])
    world.settle()
    assert isinstance(refused.error, IncorrectOffsetError)


def test_policy_none_into_a_group_is_settled_at_once(world: NodeWorld) -> None:
    partition = world.create(group="g")
    assert world.publish(partition, b"a", policy=POLICY_NONE).is_answered
    world.settle()
    assert world.values(partition) == {0: b"a"}
    assert len(world.messaging.sent) == 1


def test_group_publish_without_nats_is_refused_and_waits_for_nothing(world: NodeWorld) -> None:
    partition = world.create(group="g")
    world.messaging.is_connected = False
    answers = world.publish(partition, b"a")
    assert answers.error.text == "NATS is not connected"
    assert world.node.next_deadline() != world.now + ACK_WAIT_NS


def test_ack_of_a_group_that_never_comes_is_an_unknown_outcome(world: NodeWorld) -> None:
    partition = world.create(group="g")
    answers = world.publish(partition, b"a")
    world.messaging.new.clear()  # NATS lost it
    world.advance(ACK_WAIT_NS - 1)
    assert not answers.is_answered
    world.advance(1)
    assert isinstance(answers.error, OutcomeUnknownError)


# -- acks this broker waits for -----------------------------------------------------------------


def test_first_ack_answers_a_publish_to_a_subject(world: NodeWorld) -> None:
    world.create("one", "s")
    world.create("two", "s")
    acks: list[api_pb2.Ack] = []
    publish = SubjectPublish(subject="s", value=b"a", correlation_id="mine")
    world.node.publish_to_subject(publish, world.now, Waiter(acks.append))
    world.settle()
    assert [(ack.stream, ack.offset) for ack in acks] == [("one", 0)]


def test_unknown_ack_policies_travel_as_they_are(world: NodeWorld) -> None:
    partition = world.create()
    publish = SubjectPublish(subject="s", value=b"a", policy=9)
    world.node.publish_to_subject(publish, world.now, None)
    world.settle()
    assert world.values(partition) == {0: b"a"}


def test_caller_that_gave_up_is_not_called(world: NodeWorld) -> None:
    world.create()
    acks: list[api_pb2.Ack] = []
    forget = world.node.publish_to_subject(
        SubjectPublish(subject="s", value=b"a"), world.now, Waiter(acks.append)
    )
    forget()
    world.settle()
    assert acks == []


def test_inbox_is_bounded_and_a_forgotten_wait_makes_room() -> None:
    inbox = AckInbox("i", b"secret")
    tokens = [inbox.wait(SILENT, "s", Instant(0)) for _ in range(WAITING_COUNT_MAX)]
    with pytest.raises(LiftbridgeError, match="65536 acks are pending"):
        inbox.wait(SILENT, "s", Instant(0))
    inbox.forget(tokens[0])
    assert inbox.wait(SILENT, "s", Instant(0)) not in tokens


def test_inbox_expires_the_oldest_first() -> None:
    inbox = AckInbox("i", b"secret")
    expired: list[str] = []
    for name, now in (("a", 0), ("b", 5)):
        inbox.wait(Waiter(_drop, partial(expired.append, name)), "s", Instant(now))
    assert inbox.next_deadline() == ACK_WAIT_NS
    inbox.expire(Instant(ACK_WAIT_NS + 4))
    assert expired == ["a"]
    inbox.expire(Instant(ACK_WAIT_NS + 5))
    assert (expired, inbox.next_deadline()) == (["a", "b"], None)


@pytest.mark.parametrize(
    "payload", [b"", b"plain", encode(EnvelopeType.ACK, b"\xff"), envelope(b"a")]
)
def test_inbox_drops_what_is_no_ack_of_its_own(payload: bytes) -> None:
    inbox = AckInbox("i", b"secret")
    acks: list[api_pb2.Ack] = []
    inbox.wait(Waiter(acks.append), "s", Instant(0))
    inbox.on_message(payload)
    inbox.on_message(encode(EnvelopeType.ACK, api_pb2.Ack(correlationId="?").SerializeToString()))
    assert acks == []


def test_only_the_ack_of_the_very_message_settles_a_wait() -> None:
    """Whatever of it somebody else can know or choose, the token and the subject must be right."""
    good = api_pb2.Ack(stream="s", msgSubject="s", ackInbox="i", offset=7)
    wrong = {"msgSubject": "t", "ackInbox": "j", "correlationId": "1"}
    inbox, other = AckInbox("i", b"secret"), AckInbox("i", b"another")
    acks: list[api_pb2.Ack] = []
    token = inbox.wait(Waiter(acks.append), "s", Instant(0))
    assert len(bytes.fromhex(token)) == 16
    assert token != other.wait(SILENT, "s", Instant(0))
    for name, value in wrong.items():
        ack = api_pb2.Ack(correlationId=token)
        ack.MergeFrom(good)
        setattr(ack, name, value)
        inbox.on_message(encode(EnvelopeType.ACK, ack.SerializeToString()))
        assert acks == []

    ack = api_pb2.Ack(correlationId=token)
    ack.MergeFrom(good)
    inbox.on_message(encode(EnvelopeType.ACK, ack.SerializeToString()))
    inbox.on_message(encode(EnvelopeType.ACK, ack.SerializeToString()))
    assert acks == [ack]


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        (AckError.INCORRECT_OFFSET, IncorrectOffsetError, "incorrect expected offset"),
        (AckError.TOO_LARGE, TooLargeError, "message exceeds max replication size"),
        (AckError.ENCRYPTION, InternalError, "encryption failed on partition"),
        (AckError.UNKNOWN, OutcomeUnknownError, "outcome unknown: unknown error"),
    ],
)
def test_error_acks_have_the_texts_of_the_original(
    code: AckError, kind: type[LiftbridgeError], text: str
) -> None:
    error = error_of_ack(api_pb2.Ack(ackError=api_pb2.Ack.Error.Name(code)))
    assert (type(error), error.text) == (kind, text)
    told = error_of_ack(
        api_pb2.Ack(ackError=api_pb2.Ack.Error.Name(code), refusal="the disk is full" * 1_000)
    )
    assert type(told) is kind
    assert "the disk is full" in told.text
    assert len(told.text) < 1_000


def test_reason_of_a_lost_outcome_is_passed_on_as_it_is() -> None:
    reason = "outcome unknown: leader changed"
    assert (
        error_of_ack(
            api_pb2.Ack(ackError=api_pb2.Ack.Error.Name(AckError.UNKNOWN), refusal=reason)
        ).text
        == reason
    )
