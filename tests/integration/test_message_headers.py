"""A message has at most so many headers, however it comes: one more is refused, with the number."""

from collections.abc import Callable, Iterator

import grpc
import pytest
from google.protobuf.message import Message

from liftbridge_broker.node.partition.intake import MESSAGE_HEADERS_MAX
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2
from liftbridge_testkit.data_calls import TIMEOUT, Data
from liftbridge_testkit.processes import Broker

TEXT = (
    f"message has {MESSAGE_HEADERS_MAX + 1} headers, at most {MESSAGE_HEADERS_MAX}: "
    "put the rest into its value"
)
MOST = {f"h{number}": b"" for number in range(MESSAGE_HEADERS_MAX)}
TOO_MANY = {**MOST, "one": b""}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker."""
    with Broker(tmp_path_factory.mktemp("headers")) as running:
        yield running


@pytest.fixture
def service(broker: Broker) -> Iterator[Data]:
    """The calls, about a stream of each test's own."""
    with broker.channel() as channel:
        made = Data(channel)
        made.create()
        yield made


def refusal(method: Callable[..., object], request: Message) -> str:
    """Text of an invalid argument, empty when the request was taken."""
    try:
        method(request, timeout=TIMEOUT)
    except grpc.RpcError as error:
        return str(error.details() if error.code() is grpc.StatusCode.INVALID_ARGUMENT else error)
    return ""


def publish(service: Data, headers: dict[str, bytes]) -> str:
    """`Publish`; the refusal as text."""
    request = api_pb2.PublishRequest(stream=service.name, headers=headers)
    return refusal(service.api.Publish, request)


def publish_to_subject(service: Data, headers: dict[str, bytes]) -> str:
    """`PublishToSubject`; the refusal as text."""
    request = api_pb2.PublishToSubjectRequest(subject=service.name, headers=headers)
    return refusal(service.api.PublishToSubject, request)


def publish_async(service: Data, headers: dict[str, bytes]) -> str:
    """`PublishAsync`, with a good message behind; the refusal as text."""
    answers = service.api.PublishAsync(
        iter(
            [
                api_pb2.PublishRequest(stream=service.name, headers=headers, correlationId="1"),
                api_pb2.PublishRequest(stream=service.name, headers={"h": b""}, correlationId="2"),
            ]
        ),
        timeout=TIMEOUT,
    )
    told = {one.correlationId or one.ack.correlationId: one.asyncError for one in answers}
    assert told["2"] == api_pb2.PublishAsyncError()
    is_refused = told["1"].code == api_pb2.PublishAsyncError.BAD_REQUEST
    return told["1"].message if is_refused else ""


def publish_batch(service: Data, headers: dict[str, bytes]) -> str:
    """`PublishBatch` of two records; the refusal as text."""
    entries = [data_pb2.RecordHeaders(), data_pb2.RecordHeaders(headers=headers)]
    answer = service.publish(b"a", b"b", headers=entries)
    assert answer.error in (answer.OK, answer.TOO_LARGE)
    return answer.message


@pytest.mark.parametrize("act", [publish, publish_to_subject, publish_async, publish_batch])
def test_message_with_too_many_headers_is_refused(
    service: Data, act: Callable[[Data, dict[str, bytes]], str]
) -> None:
    assert act(service, MOST) == ""
    stored = service.frames()
    assert max(len(frame.headers) for frame in stored) >= MESSAGE_HEADERS_MAX
    assert act(service, TOO_MANY) == TEXT
