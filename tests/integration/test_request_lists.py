"""Lists in requests: an entry given again and again costs nothing, and none is without an end.

Generated from the messages: each list and each map in each call with one answer.
"""

from collections.abc import Iterator
from typing import NamedTuple

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import admin_pb2, data_pb2
from liftbridge_testkit.load import api
from liftbridge_testkit.processes import Broker

STREAM, PARTITIONS = "s", 100
TIMES = 200_000
TAKEN = 100_000
"""Entries of the longest lists that are taken."""
ANSWER_BYTES_MAX = 64 * 1024


REFUSED = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED}


class Case(NamedTuple):
    """A list or a map in a request.

    Attributes:
        method: The call.
        path: Fields that lead to it, the last one is it.
    """

    method: MethodDescriptor
    path: tuple[FieldDescriptor, ...]

    @property
    def name(self) -> str:
        """Its place."""
        return ".".join((self.method.name, *(field.name for field in self.path)))

    @property
    def is_map(self) -> bool:
        """Whether its entries have keys."""
        kind = self.path[-1].message_type
        return kind is not None and kind.GetOptions().map_entry

    def request(self, *, distinct: bool, times: int = TIMES) -> Message:
        """One with so many entries, all of the stream or each of another."""
        request = named(GetMessageClass(self.method.input_type)())
        place = request
        for field in self.path[:-1]:
            place = named(getattr(place, field.name).add())
        fill(place, self.path[-1], distinct=distinct, times=times)
        return request


def named(message: Message, name: str = STREAM) -> Message:
    """The message, of a stream or a partition where it has one."""
    for field in message.DESCRIPTOR.fields:
        if field.name in ("name", "stream", "cluster_id"):
            setattr(message, field.name, name)
        elif field.name == "partition" and field.message_type is not None:
            named(getattr(message, field.name), name)
    return message


def fill(place: Message, field: FieldDescriptor, *, distinct: bool, times: int) -> None:
    """Give a list or a map so many entries; those of a map are always distinct."""
    entries = getattr(place, field.name)
    kind = field.message_type
    numbers = range(times) if distinct else [0] * times
    if kind is None:
        is_text = field.type == FieldDescriptor.TYPE_STRING
        entries.extend([f"{STREAM}{n or ''}" if is_text else n for n in numbers])
    elif kind.GetOptions().map_entry:
        is_text = kind.fields_by_name["key"].type == FieldDescriptor.TYPE_STRING
        is_bytes = kind.fields_by_name["value"].type == FieldDescriptor.TYPE_BYTES
        entries.update({str(n) if is_text else n: b"" if is_bytes else 0 for n in range(times)})
    else:
        for n in numbers:
            named(entries.add(), f"{STREAM}{n or ''}")


def lists_of(
    method: MethodDescriptor, message: Descriptor, path: tuple[FieldDescriptor, ...] = ()
) -> Iterator[Case]:
    """Lists and maps below a message, those in entries of lists too."""
    for field in message.fields:
        whole = (*path, field)
        if field.is_repeated:
            yield Case(method, whole)
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            yield from lists_of(method, field.message_type, whole)


ADMIN = admin_pb2.DESCRIPTOR.services_by_name["Admin"]
SERVICES = (
    api_pb2.DESCRIPTOR.services_by_name["API"],
    data_pb2.DESCRIPTOR.services_by_name["Data"],
    ADMIN,
)
CASES = [
    case
    for service in SERVICES
    for method in service.methods
    if not (method.client_streaming or method.server_streaming)
    for case in lists_of(method, method.input_type)
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One that takes the requests, with a stream."""
    config = {"grpc.max.message.bytes": 16 << 20}
    with Broker(tmp_path_factory.mktemp("lists"), config=config) as made:
        with made.channel() as channel:
            api(channel).CreateStream(
                api_pb2.CreateStreamRequest(name=STREAM, subject=STREAM, partitions=PARTITIONS),
                timeout=10,
            )
        yield made


def test_there_are_lists() -> None:
    assert {
        "FetchMetadata.streams", "PartitionBounds.partitions", "AwaitNews.streams",
        "AwaitNews.streams.high_watermarks", "Bootstrap.members",
    } <= {one.name for one in CASES}  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_entry_that_is_given_again_and_again_counts_once(broker: Broker, case: Case) -> None:
    code, answer = call(broker, case.method, case.request(distinct=False, times=TAKEN))
    assert code in {grpc.StatusCode.OK, *REFUSED}
    assert len(answer) < ANSWER_BYTES_MAX


@pytest.mark.parametrize("case", [one for one in CASES if not one.is_map], ids=lambda one: one.name)
def test_list_of_more_than_there_is_is_refused(broker: Broker, case: Case) -> None:
    code, answer = call(broker, case.method, case.request(distinct=True))
    assert code in {grpc.StatusCode.NOT_FOUND, *REFUSED}
    assert not answer


@pytest.mark.parametrize("case", [one for one in CASES if not one.is_map], ids=lambda one: one.name)
def test_list_without_an_end_is_refused_although_its_entries_are_one(
    broker: Broker, case: Case
) -> None:
    code, answer = call(broker, case.method, case.request(distinct=False))
    assert code in REFUSED
    assert not answer


def call(
    broker: Broker, method: MethodDescriptor, request: Message
) -> tuple[grpc.StatusCode, bytes]:
    """Status of a request, and its answer as bytes."""
    is_admin = method.containing_service == ADMIN
    with grpc.insecure_channel(broker.admin_address if is_admin else broker.address) as channel:
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
