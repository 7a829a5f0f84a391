"""Messages that brokers pass on, and their acks, where anybody can listen and speak.

The cases are made from the bytes and the fields of both messages, and from all pairs of files of
keys that brokers have while keys are exchanged.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from liftbridge_broker.model.ids import Instant, LeaderEpoch, Offset, PartitionId, PartitionNumber
from liftbridge_broker.model.streams import StreamOptions
from liftbridge_broker.model.subjects import internal_subject
from liftbridge_broker.node.partition.ack_inboxes import AckInboxes
from liftbridge_broker.node.partition.intake import Intake
from liftbridge_broker.node.partition.runs import PublishRun, Stored
from liftbridge_broker.node.publishing.subjects import (
    AckInbox,
    SubjectPublish,
    SubjectPublisher,
    Waiter,
    subject_frames,
)
from liftbridge_broker.ports.messaging import Arrival
from liftbridge_broker.replication.publishers import HEADER_EPOCH, HEADER_ID, HEADER_SEQUENCE
from liftbridge_broker.wire.acks import AckEncoder
from liftbridge_broker.wire.envelope import EnvelopeType, decode_publish, encode, encode_publish
from liftbridge_broker.wire.nats import header_block
from liftbridge_broker.wire.peer.keys import Keyring, parse_keys
from liftbridge_broker.wire.publish_acks import PublishAckEncoder
from liftbridge_broker.wire.signed_message import SIGNATURE_BYTES, Purpose, signer_of
from liftbridge_proto import api_pb2
from liftbridge_testkit.node_world import NodeWorld

NAMESPACE = "orders-ns"
INBOX = internal_subject(NAMESPACE, "ack", "b1")
FIRST, SECOND = "a" * 32, "b" * 32
FILES = {
    text: parse_keys(text, "keys")
    for text in (
        "open",
        f"open\n{FIRST}",
        f"{FIRST}\nopen",
        FIRST,
        f"{FIRST}\n{SECOND}",
        f"{SECOND}\n{FIRST}",
        SECOND,
    )
}
KEYED, OPEN = FILES[FIRST], FILES["open"]
STAMPED = {HEADER_ID: b"7", HEADER_EPOCH: b"0", HEADER_SEQUENCE: b"0"}
NO_HEADERS: Mapping[str, bytes] = {}
SIGNER = signer_of(KEYED)
DATA = b"any message"


@pytest.mark.parametrize("purpose", Purpose)
def test_message_with_any_bit_changed_or_cut_anywhere_is_not_believed(purpose: Purpose) -> None:
    signed = SIGNER.signed(DATA, purpose)
    assert SIGNER.is_believed(signed, purpose)
    for bit in range(8 * len(signed)):
        changed = bytearray(signed)
        changed[bit // 8] ^= 1 << bit % 8
        assert not SIGNER.is_believed(bytes(changed), purpose)
    for end in range(len(signed)):
        assert not SIGNER.is_believed(signed[:end], purpose)
    assert not SIGNER.is_believed(signed + b"\0", purpose)
    (other,) = set(Purpose) - {purpose}
    assert not SIGNER.is_believed(signed, other)


@pytest.mark.parametrize(("sender", "receiver"), [*product(FILES, FILES)])
def test_message_is_believed_as_its_frames_are(sender: str, receiver: str) -> None:
    keys = FILES[receiver]
    signed = signer_of(FILES[sender]).signed(DATA, Purpose.ACK)
    is_known = FILES[sender].signer in keys.entries
    assert signer_of(keys).is_believed(signed, Purpose.ACK) == (is_known or keys.accepts_unsigned)


def every_field(message: api_pb2.Message | api_pb2.Ack) -> list[Callable[[], None]]:
    """A change of each field of a message, by its kind."""

    def change(field: Any) -> None:
        if field.message_type is not None:
            message.headers["more"] = b"x"  # type: ignore[union-attr] # the only map
        elif field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            more = b"x" if field.type == FieldDescriptor.TYPE_BYTES else "x"
            setattr(message, field.name, getattr(message, field.name) + more)
        else:
            setattr(message, field.name, getattr(message, field.name) ^ 1)

    return [partial(change, field) for field in message.DESCRIPTOR.fields]


# -- asking for an ack ----------------------------------------------------------------------------


def intake(keys: Keyring, sent: list[bytes]) -> Intake:
    return Intake(
        AckEncoder("orders", "orders"),
        sent.extend,
        partition_id=PartitionId(1),
        record_bytes_max=1_000,
        options=StreamOptions(),
        inboxes=AckInboxes(NAMESPACE, lambda: keys),
        ack_times={},
        replies=PublishAckEncoder("orders", PartitionNumber(0)),
    )


def runs_of(keys: Keyring, payload: bytes, sent: list[bytes]) -> list[PublishRun]:
    return intake(keys, sent).runs_of([Arrival("orders", "", b"")], [payload])


def passed_on(value: bytes = b"value", headers: Mapping[str, bytes] = NO_HEADERS) -> bytes:
    """A message as a broker passes it on."""
    publish = SubjectPublish(subject="orders", value=value, key=b"key", policy=1, headers=headers)
    frames = subject_frames(publish, inbox=INBOX, correlation_id="token", signer=SIGNER)
    return frames[1]


def answers_of(payload: bytes) -> list[bytes]:
    """Frames that a leader sends for a message that it stored."""
    sent: list[bytes] = []
    for run in runs_of(KEYED, payload, sent):
        for ack in run.pending_acks:
            ack.sink.acked(Stored(Offset(7), 1, 2, LeaderEpoch(3), is_duplicate=False))
    return sent


def test_leader_acks_to_the_inbox_of_a_broker_only_what_a_broker_passed_on() -> None:
    signed = passed_on()
    assert len(answers_of(signed)) == 1
    plain = signed[:-SIGNATURE_BYTES]
    assert answers_of(plain) == []
    count = len(every_field(api_pb2.Message()))
    for number in range(count):
        message = decode_publish(plain)
        assert message is not None
        every_field(message)[number]()
        forged = encode_publish(message) + signed[-SIGNATURE_BYTES:]
        assert answers_of(forged) == []


def test_message_is_stored_whether_or_not_its_ack_may_be_sent() -> None:
    signed = passed_on()
    for payload in (signed, signed[:-SIGNATURE_BYTES]):
        (run,) = runs_of(KEYED, payload, [])
        assert (run.values, run.keys) == ([b"value"], [b"key"])


def test_only_what_a_broker_passed_on_speaks_for_an_idempotent_publisher() -> None:
    """Else anybody could take the next number of another publisher."""
    signed = passed_on(headers=STAMPED)
    plain = signed[:-SIGNATURE_BYTES]
    for keys, payload, is_taken in (
        (KEYED, signed, True),
        (KEYED, plain, False),
        (OPEN, plain, True),
    ):
        (run,) = runs_of(keys, payload, [])
        assert (run.publisher is not None) == is_taken
        assert run.values == [b"value"]


def test_stamp_in_nats_headers_proves_nothing() -> None:
    block = header_block([(name, value.decode()) for name, value in STAMPED.items()])
    for keys, is_taken in ((KEYED, False), (OPEN, True)):
        (run,) = intake(keys, []).runs_of([Arrival("orders", "", block)], [b"value"])
        assert (run.publisher is not None) == is_taken


@pytest.mark.parametrize(("headers", "is_signed"), [(STAMPED, True), ({"a": b"b"}, False)])
def test_stamped_message_for_a_client_s_own_inbox_is_signed(
    headers: Mapping[str, bytes], is_signed: bool
) -> None:
    world = NodeWorld()
    options = replace(world.node.context.options, keyring=lambda: KEYED)
    publish = SubjectPublish(subject="orders", value=b"v", headers=headers, ack_inbox="mine")
    SubjectPublisher(world.messaging, options).publish(publish, world.now, None)
    payload = world.messaging.sent[-1].payload
    assert SIGNER.is_believed(payload, Purpose.PUBLISH) == is_signed


def test_too_large_message_is_answered_to_a_broker_only_if_it_passed_it_on() -> None:
    signed = passed_on(b"v" * 2_000)
    for payload, count in ((signed, 1), (signed[:-SIGNATURE_BYTES], 0)):
        sent: list[bytes] = []
        assert runs_of(KEYED, payload, sent) == []
        assert len(sent) == count


# -- giving an ack --------------------------------------------------------------------------------


def waiting(acks: list[api_pb2.Ack]) -> tuple[AckInbox, str]:
    inbox = AckInbox(INBOX, b"secret", lambda: KEYED)
    return inbox, inbox.wait(Waiter(acks.append), "orders", Instant(0))


def test_ack_of_a_leader_settles_the_wait_and_nobody_elses_does() -> None:
    acks: list[api_pb2.Ack] = []
    inbox, token = waiting(acks)
    publish = SubjectPublish(subject="orders", value=b"value", policy=1)
    frames = subject_frames(publish, inbox=INBOX, correlation_id=token, signer=SIGNER)
    (frame,) = answers_of(frames[1])
    payload = frame.split(b"\r\n", 1)[1].removesuffix(b"\r\n")
    ack = api_pb2.Ack.FromString(payload[8:])
    ack.DiscardUnknownFields()

    inbox.on_message(encode(EnvelopeType.ACK, ack.SerializeToString()))
    assert acks == []
    for number in range(len(every_field(ack))):
        forged = api_pb2.Ack()
        forged.CopyFrom(ack)
        every_field(forged)[number]()
        body = forged.SerializeToString()
        for end in (b"", payload[-SIGNATURE_BYTES:]):
            inbox.on_message(encode(EnvelopeType.ACK, body + end))
        assert acks == []
    inbox.on_message(payload)
    assert [one.offset for one in acks] == [7]


def test_refusal_is_signed_as_well() -> None:
    sent: list[bytes] = []
    assert runs_of(KEYED, passed_on(b"v" * 2_000), sent) == []
    payload = sent[0].split(b"\r\n", 1)[1].removesuffix(b"\r\n")
    assert SIGNER.is_believed(payload[8:], Purpose.ACK)


def test_acks_to_clients_are_not_signed() -> None:
    message = api_pb2.Message(value=b"v", ackInbox="mine", correlationId="c")
    frame = b"".join(answers_of(encode_publish(message)))
    assert not SIGNER.is_believed(frame.removesuffix(b"\r\n"), Purpose.ACK)
    assert b"mine" in frame
