"""The public API as clients in the field know it (API v2.0.0), typed in by hand.

Nothing here is derived from `api.proto`: the tables say what the wire must be, and a small encoder
of this file builds the bytes that the generated classes must produce and accept.
"""

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from liftbridge_proto import api_pb2

FILE = api_pb2.DESCRIPTOR

RPCS = """
CreateStream CreateStreamRequest CreateStreamResponse
DeleteStream DeleteStreamRequest DeleteStreamResponse
PauseStream PauseStreamRequest PauseStreamResponse
SetStreamReadonly SetStreamReadonlyRequest SetStreamReadonlyResponse
Subscribe SubscribeRequest stream/Message
FetchMetadata FetchMetadataRequest FetchMetadataResponse
FetchPartitionMetadata FetchPartitionMetadataRequest FetchPartitionMetadataResponse
Publish PublishRequest PublishResponse
PublishAsync stream/PublishRequest stream/PublishResponse
PublishToSubject PublishToSubjectRequest PublishToSubjectResponse
SetCursor SetCursorRequest SetCursorResponse
FetchCursor FetchCursorRequest FetchCursorResponse
JoinConsumerGroup JoinConsumerGroupRequest JoinConsumerGroupResponse
LeaveConsumerGroup LeaveConsumerGroupRequest LeaveConsumerGroupResponse
FetchConsumerGroupAssignments FetchConsumerGroupAssignmentsRequest FetchConsumerGroupAssignmentsResponse
ReportConsumerGroupCoordinator ReportConsumerGroupCoordinatorRequest ReportConsumerGroupCoordinatorResponse
"""  # noqa: E501 - one row, one line

# Message, then `name=number type`; `*` repeated, `{k,v}` map, capitalised: a message or an enum.
MESSAGES = """
NullableInt64: value=1 int64
NullableInt32: value=1 int32
NullableBool: value=1 bool
CreateStreamRequest: subject=1 string; name=2 string; group=3 string; replicationFactor=4 int32; partitions=5 int32; retentionMaxBytes=6 NullableInt64; retentionMaxMessages=7 NullableInt64; retentionMaxAge=8 NullableInt64; cleanerInterval=9 NullableInt64; segmentMaxBytes=10 NullableInt64; segmentMaxAge=11 NullableInt64; compactMaxGoroutines=12 NullableInt32; compactEnabled=13 NullableBool; autoPauseTime=14 NullableInt64; autoPauseDisableIfSubscribers=15 NullableBool; minIsr=16 NullableInt32; optimisticConcurrencyControl=17 NullableBool; encryption=18 NullableBool
CreateStreamResponse:
DeleteStreamRequest: name=1 string
DeleteStreamResponse:
PauseStreamRequest: name=1 string; partitions=2 *int32; resumeAll=3 bool
PauseStreamResponse:
SetStreamReadonlyRequest: name=1 string; partitions=2 *int32; readonly=3 bool
SetStreamReadonlyResponse:
Consumer: groupId=1 string; groupEpoch=2 uint64; consumerId=3 string
SubscribeRequest: stream=1 string; partition=2 int32; startPosition=3 StartPosition; startOffset=4 int64; startTimestamp=5 int64; readISRReplica=6 bool; resume=7 bool; stopPosition=8 StopPosition; stopOffset=9 int64; stopTimestamp=10 int64; consumer=11 Consumer; reverse=12 bool
FetchMetadataRequest: streams=1 *string; groups=2 *string
FetchMetadataResponse: brokers=1 *Broker; streamMetadata=2 *StreamMetadata; groupMetadata=3 *ConsumerGroupMetadata
FetchPartitionMetadataRequest: stream=1 string; partition=2 int32
FetchPartitionMetadataResponse: metadata=1 PartitionMetadata
PublishRequest: key=1 bytes; value=2 bytes; stream=3 string; partition=4 int32; headers=5 {string,bytes}; ackInbox=6 string; correlationId=7 string; ackPolicy=8 AckPolicy; expectedOffset=9 int64
PublishAsyncError: code=1 PublishAsyncError.Code; message=2 string
PublishResponse: ack=1 Ack; asyncError=2 PublishAsyncError; correlationId=3 string
PublishToSubjectRequest: key=1 bytes; value=2 bytes; subject=3 string; headers=4 {string,bytes}; ackInbox=5 string; correlationId=6 string; ackPolicy=7 AckPolicy
PublishToSubjectResponse: ack=1 Ack
SetCursorRequest: stream=1 string; partition=2 int32; cursorId=3 string; offset=4 int64
SetCursorResponse:
FetchCursorRequest: stream=1 string; partition=2 int32; cursorId=3 string
FetchCursorResponse: offset=1 int64
JoinConsumerGroupRequest: groupId=1 string; consumerId=2 string; streams=3 *string
JoinConsumerGroupResponse: coordinator=1 string; epoch=2 uint64; consumerTimeout=3 int64; coordinatorTimeout=4 int64
LeaveConsumerGroupRequest: groupId=1 string; consumerId=2 string
LeaveConsumerGroupResponse:
FetchConsumerGroupAssignmentsRequest: groupId=1 string; consumerId=2 string; epoch=3 uint64
PartitionAssignment: stream=1 string; partitions=2 *int32
FetchConsumerGroupAssignmentsResponse: epoch=1 uint64; assignments=2 *PartitionAssignment
ReportConsumerGroupCoordinatorRequest: groupId=1 string; consumerId=2 string; coordinator=3 string; epoch=4 uint64
ReportConsumerGroupCoordinatorResponse:
Broker: id=1 string; host=2 string; port=3 int32; partitionCount=4 int32; leaderCount=5 int32
StreamMetadata: name=1 string; subject=2 string; error=3 StreamMetadata.Error; partitions=4 {int32,PartitionMetadata}; creationTimestamp=5 int64
ConsumerGroupMetadata: groupId=1 string; error=2 ConsumerGroupMetadata.Error; coordinator=3 string; epoch=4 uint64
PartitionEventTimestamps: firstTimestamp=1 int64; latestTimestamp=2 int64
PartitionMetadata: id=1 int32; leader=2 string; replicas=3 *string; isr=4 *string; highWatermark=5 int64; newestOffset=6 int64; paused=7 bool; readonly=8 bool; messagesReceivedTimestamps=9 PartitionEventTimestamps; pauseTimestamps=10 PartitionEventTimestamps; readonlyTimestamps=11 PartitionEventTimestamps
Message: offset=1 int64; key=2 bytes; value=3 bytes; timestamp=4 int64; stream=5 string; partition=6 int32; subject=7 string; replySubject=8 string; headers=9 {string,bytes}; ackInbox=10 string; correlationId=11 string; ackPolicy=12 AckPolicy
Ack: stream=1 string; partitionSubject=2 string; msgSubject=3 string; offset=4 int64; ackInbox=5 string; correlationId=6 string; ackPolicy=7 AckPolicy; receptionTimestamp=8 int64; commitTimestamp=9 int64; ackError=10 Ack.Error
CreateStreamOp: stream=1 string; partitions=2 *int32
DeleteStreamOp: stream=1 string
PauseStreamOp: stream=1 string; partitions=2 *int32; resumeAll=3 bool
ResumeStreamOp: stream=1 string; partitions=2 *int32
SetStreamReadonlyOp: stream=1 string; partitions=2 *int32; readonly=3 bool
JoinConsumerGroupOp: groupId=1 string; consumerId=2 string; streams=3 *string
LeaveConsumerGroupOp: groupId=1 string; consumerId=2 string; expired=3 bool
ActivityStreamEvent: id=1 uint64; op=2 ActivityStreamOp; createStreamOp=3 CreateStreamOp; deleteStreamOp=4 DeleteStreamOp; pauseStreamOp=5 PauseStreamOp; resumeStreamOp=6 ResumeStreamOp; setStreamReadonlyOp=7 SetStreamReadonlyOp; joinConsumerGroupOp=8 JoinConsumerGroupOp; leaveConsumerGroupOp=9 LeaveConsumerGroupOp
"""  # noqa: E501 - one row, one line

# Values are numbered from 0 in the order given.
ENUMS = """
StartPosition: NEW_ONLY OFFSET EARLIEST LATEST TIMESTAMP
StopPosition: STOP_ON_CANCEL STOP_OFFSET STOP_LATEST STOP_TIMESTAMP
AckPolicy: LEADER ALL NONE
PublishAsyncError.Code: UNKNOWN BAD_REQUEST NOT_FOUND INTERNAL READONLY INCORRECT_OFFSET ENCRYPTION_FAILED PERMISSION_DENIED
Ack.Error: OK UNKNOWN INCORRECT_OFFSET TOO_LARGE ENCRYPTION
StreamMetadata.Error: OK UNKNOWN_STREAM
ConsumerGroupMetadata.Error: OK UNKNOWN_GROUP
ActivityStreamOp: CREATE_STREAM DELETE_STREAM PAUSE_STREAM RESUME_STREAM SET_STREAM_READONLY JOIN_CONSUMER_GROUP LEAVE_CONSUMER_GROUP
"""  # noqa: E501 - one row, one line


def rows(table: str) -> list[tuple[str, str]]:
    pairs = (line.partition(":") for line in table.strip().splitlines())
    return [(name, rest.strip()) for name, _, rest in pairs]


MESSAGE_FIELDS = {
    name: [
        (field.partition("=")[0], int(number), kind)
        for field, _, kind in (part.strip().partition(" ") for part in text.split(";") if part)
        for number in [field.partition("=")[2]]
    ]
    for name, text in rows(MESSAGES)
}
ENUM_VALUES = {name: text.split() for name, text in rows(ENUMS)}
# Fields that the original does not have; their numbers keep clear of those it may still give out.
OWN_FIELDS = {
    "Ack": [("leaderEpoch", 1_000, "uint64"), ("refusal", 1_001, "string")],
    "Broker": [("zone", 1_000, "string")],
}


def described(field: FieldDescriptor) -> str:
    """Type of a field in the notation of `MESSAGES`."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entry = field.message_type.fields_by_name
        return f"{{{described(entry['key'])},{described(entry['value'])}}}"
    star = "*" if field.is_repeated else ""
    kind = field.message_type or field.enum_type
    if kind is not None:
        return star + kind.full_name.removeprefix("proto.")
    names = {
        FieldDescriptor.TYPE_INT32: "int32",
        FieldDescriptor.TYPE_INT64: "int64",
        FieldDescriptor.TYPE_UINT64: "uint64",
        FieldDescriptor.TYPE_BOOL: "bool",
        FieldDescriptor.TYPE_STRING: "string",
        FieldDescriptor.TYPE_BYTES: "bytes",
    }
    return star + names[field.type]


def varint(value: int) -> bytes:
    """Base-128 encoding, negative numbers as 64-bit two's complement."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def tagged(number: int, payload: bytes | int) -> bytes:
    """A field on the wire: wire type 0 for integers, 2 for everything with a length."""
    if isinstance(payload, int):
        return varint(number << 3) + varint(payload)
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def example(kind: str, salt: int) -> bytes | int:
    """Payload of one value of a type, encoded by the rules of the protobuf wire format."""
    if kind in {"int32", "int64"}:
        return -salt
    if kind == "uint64":
        return (1 << 63) + salt
    if kind == "bool":
        return 1
    if kind in {"string", "bytes"}:
        return f"text {salt}".encode()
    if kind in ENUM_VALUES:
        return len(ENUM_VALUES[kind]) - 1
    return encoded(kind)


def encoded(message: str) -> bytes:
    """Bytes of a message with every field of `MESSAGES` set, in the order of the numbers."""
    out = bytearray()
    for _, number, kind in MESSAGE_FIELDS[message]:
        if kind.startswith("{"):
            key, _, value = kind.strip("{}").partition(",")
            out += tagged(number, tagged(1, example(key, 1)) + tagged(2, example(value, 2)))
        elif kind == "*int32":
            out += tagged(number, varint(3) + varint(300))
        elif kind.startswith("*"):
            out += tagged(number, example(kind[1:], 1)) + tagged(number, example(kind[1:], 2))
        else:
            out += tagged(number, example(kind, number))
    return bytes(out)


def test_service_has_the_sixteen_calls():
    service = FILE.services_by_name["API"]
    assert service.full_name == "proto.API"
    actual = [
        " ".join(
            (
                method.name,
                "stream/" * method.client_streaming + method.input_type.name,
                "stream/" * method.server_streaming + method.output_type.name,
            )
        )
        for method in service.methods
    ]
    assert actual == RPCS.strip().splitlines()


def test_file_has_the_package_and_options_of_the_original():
    assert FILE.package == "proto"
    assert FILE.GetOptions().java_package == "io.liftbridge.proto"


def test_messages_are_exactly_those_of_the_table():
    assert sorted(FILE.message_types_by_name) == sorted(MESSAGE_FIELDS)


@pytest.mark.parametrize("name", MESSAGE_FIELDS)
def test_message_has_the_fields_of_the_table(name):
    descriptor = FILE.message_types_by_name[name]
    actual = [(field.name, field.number, described(field)) for field in descriptor.fields]
    assert actual == MESSAGE_FIELDS[name] + OWN_FIELDS.get(name, [])


def enums_of(descriptor: Descriptor) -> list[str]:
    return [f"{descriptor.name}.{nested.name}" for nested in descriptor.enum_types]


def test_enums_are_exactly_those_of_the_table():
    nested = [name for d in FILE.message_types_by_name.values() for name in enums_of(d)]
    assert sorted([*FILE.enum_types_by_name, *nested]) == sorted(ENUM_VALUES)


@pytest.mark.parametrize("name", ENUM_VALUES)
def test_enum_has_the_values_of_the_table(name):
    outer, _, inner = name.partition(".")
    if inner:
        enum = FILE.message_types_by_name[outer].enum_types_by_name[inner]
    else:
        enum = FILE.enum_types_by_name[outer]
    expected = [(value, number) for number, value in enumerate(ENUM_VALUES[name])]
    assert [(value.name, value.number) for value in enum.values] == expected


@pytest.mark.parametrize("name", MESSAGE_FIELDS)
def test_bytes_built_by_hand_are_read_and_written_alike(name):
    expected = encoded(name)
    message = GetMessageClass(FILE.message_types_by_name[name]).FromString(expected)
    assert {field.name for field, _ in message.ListFields()} == {
        f for f, _, _ in MESSAGE_FIELDS[name]
    }
    assert message.SerializeToString(deterministic=True).hex() == expected.hex()


def test_offsets_and_times_are_strings_in_javascript():
    """`jstype` has no effect on the wire, but clients generated from this file need it."""
    strings = {
        f"{descriptor.name}.{field.name}"
        for descriptor in FILE.message_types_by_name.values()
        for field in descriptor.fields
        if field.GetOptions().jstype == 1
    }
    wide = {
        f"{name}.{field}"
        for name, fields in MESSAGE_FIELDS.items()
        for field, _, kind in fields
        if kind in {"int64", "uint64"}
    }
    assert strings == wide - {"Consumer.groupEpoch"}
