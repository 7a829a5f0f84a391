"""Lists in requests: an entry given again and again costs nothing, and none is without an end.

Generated from the messages: each list and each map in each call with one answer.
"""

from collections.abc import Iterator

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from liftbridge_proto import api_pb2
from liftbridge_testkit.load import api
from liftbridge_testkit.processes import Broker
from liftbridge_testkit.request_lists import ADMIN, CASES, STREAM, Case

PARTITIONS = 100
TIMES = 200_000
TAKEN = 100_000
"""Entries of the longest lists that are taken."""
ANSWER_BYTES_MAX = 64 * 1024


REFUSED = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED}


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
    code, answer = call(broker, case.method, case.request(distinct=True, times=TIMES))
    assert code in {grpc.StatusCode.NOT_FOUND, *REFUSED}
    assert not answer


@pytest.mark.parametrize("case", [one for one in CASES if not one.is_map], ids=lambda one: one.name)
def test_list_without_an_end_is_refused_although_its_entries_are_one(
    broker: Broker, case: Case
) -> None:
    code, answer = call(broker, case.method, case.request(distinct=False, times=TIMES))
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
