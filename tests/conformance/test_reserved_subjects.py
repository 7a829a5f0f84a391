"""No call of a client can name a subject of brokers or of NATS.

Every field of every request that is a subject or an inbox, found by walking the messages, beside
every class of reserved subjects.
"""

import itertools
from collections.abc import Iterator

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from liftbridge_broker.config.options import NAMESPACE_DEFAULT
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import admin_pb2, data_pb2
from liftbridge_testkit.processes import Broker
from liftbridge_testkit.world import DEADLINE_SECONDS, World

SUBJECTS = {"subject": "subject", "subjects": "subject", "ackInbox": "inbox"}
"""Names of fields that are subjects, and of which kind."""

OTHERS = frozenset(
    [
        "broker",
        "cluster_id",
        "consumerId",
        "coordinator",
        "correlationId",
        "cursorId",
        "data_dir_id",
        "expected",
        "from",
        "group",
        "groupId",
        "groups",
        "key",
        "master_key",
        "keys",
        "name",
        "owner",
        "page_token",
        "prefix",
        "publisher",
        "reply_subjects",  # of records that are put back: nothing is sent there
        "retention_cursor",
        "stream",
        "streams",
        "target",
        "to",
        "token",
        "value",
        "values",
    ]
)
"""Names of all other fields that hold text or bytes: a new one must join one of the two."""

RESERVED = {
    "root": "_LIFTBRIDGE.x",
    "other cluster": "_LIFTBRIDGE.other.b.b1.meta",
    "acks of brokers": f"_LIFTBRIDGE.{NAMESPACE_DEFAULT}.ack.x",
    "cursors": f"_LIFTBRIDGE.{NAMESPACE_DEFAULT}.cursors",
    "former subjects": f"{NAMESPACE_DEFAULT}.b.b1.meta",
    "system": "$SYS.REQ.SERVER.PING",
    "JetStream": "$JS.API.STREAM.CREATE.x",
}
INBOX = {"inbox": "_INBOX.abc"}
"""Reserved as a subject; the place for acks of clients."""

PATTERNS = {
    "whole root": "_LIFTBRIDGE.>",
    "other cluster's all": "_LIFTBRIDGE.other.>",
    "any cluster's data": "_LIFTBRIDGE.*.b.*.data",
    "own former subjects": f"{NAMESPACE_DEFAULT}.*",
    "JetStream's all": "$JS.>",
    "inboxes": "_INBOX.*",
}
METHODS = {
    f"/{service.full_name}/{method.name}": method
    for file in (api_pb2, data_pb2, admin_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
IGNORED = {("/proto.API/PublishAsync", "ackInbox")}
"""Acks of this call go to the call alone."""


def fields(message: Descriptor, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of all fields that hold text or bytes; no message of the API holds itself."""
    for field in message.fields:
        here = (*path, field.name)
        if field.message_type is not None:
            yield from fields(field.message_type, here)
        elif field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
            yield here


def cases() -> Iterator[object]:
    for name, method in METHODS.items():
        for path in fields(method.input_type):
            kind = SUBJECTS.get(path[-1])
            if kind is None:
                continue
            reserved = RESERVED | PATTERNS | (INBOX if kind == "subject" else {})
            for label, subject in reserved.items():
                yield pytest.param(name, path, subject, id=f"{name} {'.'.join(path)} {label}")


def requested(name: str, path: tuple[str, ...], subject: str, stream: str) -> Message:
    """A request that is sound but for one field."""
    request = GetMessageClass(METHODS[name].input_type)()
    place: Message = request
    for part in path[:-1]:
        place = getattr(place, part)
    for holder, field in itertools.product((request, place), ("name", "stream", "subject")):
        described = holder.DESCRIPTOR.fields_by_name.get(field)
        if described is not None and described.type == FieldDescriptor.TYPE_STRING:
            setattr(holder, field, stream)
    if place.DESCRIPTOR.fields_by_name[path[-1]].is_repeated:
        assert isinstance(request, data_pb2.PublishBatchRequest)
        request.MergeFrom(data_pb2.PublishBatchRequest(values=[b"v"], offsets=[0]))
        getattr(place, path[-1]).append(subject)
    else:
        setattr(place, path[-1], subject)
    return request


def test_every_text_of_every_request_is_known_to_be_a_subject_or_not() -> None:
    names = {path[-1] for method in METHODS.values() for path in fields(method.input_type)}
    assert names == set(SUBJECTS) | OTHERS


@pytest.mark.parametrize(("name", "path", "subject"), list(cases()))
def test_client_cannot_name_a_reserved_subject(
    world: World, broker: Broker, name: str, path: tuple[str, ...], subject: str
) -> None:
    stream = world.create()
    if name == "/proto.API/CreateStream":
        stream = f"{stream}-other"
    request = requested(name, path, subject, stream)
    with broker.channel() as channel:
        if (name, path[-1]) in IGNORED:
            call = channel.stream_stream(
                name, type(request).SerializeToString, api_pb2.PublishResponse.FromString
            )
            (answer,) = call(iter([request]), timeout=DEADLINE_SECONDS)
            assert (answer.ack.offset, answer.ack.ackInbox) == (0, "")
            return
        if METHODS[name].client_streaming:
            call = channel.stream_stream(
                name,
                type(request).SerializeToString,
                data_pb2.PublishBatchResponse.FromString,
            )
            (answer,) = call(iter([request]), timeout=DEADLINE_SECONDS)
            assert answer.error == data_pb2.PublishBatchResponse.BAD_REQUEST
            assert answer.message == f"subjects: {subject!r} is reserved: no stream takes it"
            return
        ask = channel.unary_unary(name, type(request).SerializeToString, bytes)
        with pytest.raises(grpc.RpcError) as refused:
            ask(request, timeout=DEADLINE_SECONDS)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    details = refused.value.details() or ""
    assert "Subject is invalid" in details or path[-1] in details, details


@pytest.mark.parametrize("subject", ["_LIFTBRIDGE", NAMESPACE_DEFAULT, "_INBOX"])
def test_partitions_cannot_come_to_lie_on_reserved_subjects(world: World, subject: str) -> None:
    request = api_pb2.CreateStreamRequest(name=f"cut-{subject}", subject=subject, partitions=2)
    with pytest.raises(grpc.RpcError) as refused:
        world.api.CreateStream(request, timeout=DEADLINE_SECONDS)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("subject", [">", "*.b", "_INBOXES.a", "a._INBOX.b", "_LIFTBRIDGER.x"])
def test_wider_patterns_and_similar_names_are_free(world: World, subject: str) -> None:
    name = f"wide-{''.join(str(ord(one)) for one in subject)}"
    made = world.api.CreateStream(
        api_pb2.CreateStreamRequest(name=name, subject=subject), timeout=DEADLINE_SECONDS
    )
    assert made == api_pb2.CreateStreamResponse()
    world.api.DeleteStream(api_pb2.DeleteStreamRequest(name=name), timeout=DEADLINE_SECONDS)


def test_acks_may_go_to_inboxes_of_clients(world: World) -> None:
    world.create()
    assert world.publish(ackInbox="_INBOX.mine").ackInbox == "_INBOX.mine"
