"""Lists in requests: an entry given again and again costs nothing, and the answer stays small.

Generated from the messages: each list of names or numbers in each call with one answer.
"""

from collections.abc import Iterator
from typing import NamedTuple

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2
from liftbridge_testkit.load import api
from liftbridge_testkit.processes import Broker

STREAM, PARTITIONS = "s", 100
TIMES = 500_000
ANSWER_BYTES_MAX = 64 * 1024


class Case(NamedTuple):
    """A list in a request."""

    method: MethodDescriptor
    field: FieldDescriptor

    @property
    def name(self) -> str:
        """Its place."""
        return f"{self.method.name}.{self.field.name}"


SERVICES = (
    api_pb2.DESCRIPTOR.services_by_name["API"],
    data_pb2.DESCRIPTOR.services_by_name["Data"],
)
CASES = [
    Case(method, field)
    for service in SERVICES
    for method in service.methods
    for field in method.input_type.fields
    if field.is_repeated and field.message_type is None
    if not (method.client_streaming or method.server_streaming)
]


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[grpc.Channel]:
    """To a broker that takes the requests, with a stream."""
    config = {"grpc.max.message.bytes": 16 << 20}
    with (
        Broker(tmp_path_factory.mktemp("lists"), config=config) as broker,
        broker.channel() as made,
    ):
        api(made).CreateStream(
            api_pb2.CreateStreamRequest(name=STREAM, subject=STREAM, partitions=PARTITIONS),
            timeout=10,
        )
        yield made


def test_there_are_lists() -> None:
    assert {"FetchMetadata.streams", "PartitionBounds.partitions"} <= {one.name for one in CASES}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_entry_that_is_given_again_and_again_counts_once(channel: grpc.Channel, case: Case) -> None:
    request = GetMessageClass(case.method.input_type)()
    for field in case.method.input_type.fields:
        if field.name in ("name", "stream"):
            setattr(request, field.name, STREAM)
    entry = STREAM if case.field.type == FieldDescriptor.TYPE_STRING else 0
    getattr(request, case.field.name).extend([entry] * TIMES)
    code, answer = call(channel, case.method, request)
    assert code in (
        grpc.StatusCode.OK,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.UNIMPLEMENTED,
    )
    assert len(answer) < ANSWER_BYTES_MAX


def call(
    channel: grpc.Channel, method: MethodDescriptor, request: Message
) -> tuple[grpc.StatusCode, bytes]:
    """Status of a request, and its answer as bytes."""
    stub = channel.unary_unary(
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=bytes,
    )
    try:
        answer: bytes = stub(request, timeout=20)
    except grpc.RpcError as error:
        return error.code(), b""
    return grpc.StatusCode.OK, answer
