"""Clients read the streams that brokers keep for themselves, and change nothing of them.

Every method that clients can call is called for such a stream, by its description: all that does
not read refuses, and nothing of the stream is another one afterwards.
"""

from collections.abc import Iterator
from typing import Final

import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from liftbridge_broker.api.grpc.health import Health
from liftbridge_broker.config.options import BrokerOptions
from liftbridge_broker.controller.commands import CreateStream
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import StreamName
from liftbridge_broker.model.subjects import RESERVED_STREAMS, internal_subject
from liftbridge_broker.server.services import make_api
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2, groups_pb2
from liftbridge_testkit.client_calls import WorldClock
from liftbridge_testkit.cluster_world import ClusterWorld
from liftbridge_testkit.served_calls import Served

READS: Final = {
    "FetchMetadata",
    "FetchPartitionMetadata",
    "ListStreams",
    "PartitionBounds",
    "AwaitNews",
    "Subscribe",
    "FetchBatches",
    "FetchCursor",
    "WhoAmI",
    "JoinConsumerGroup",  # a group may read them
    "LeaveConsumerGroup",
    "FetchConsumerGroupAssignments",
    "ReportConsumerGroupCoordinator",
    *(method.name for method in groups_pb2.DESCRIPTOR.services_by_name["Groups"].methods),
    "SetCursor",  # tells how far somebody reads a stream, and leaves the stream alone
}
METHODS: Final = [
    method
    for service in (
        api_pb2.DESCRIPTOR.services_by_name["API"],
        data_pb2.DESCRIPTOR.services_by_name["Data"],
        groups_pb2.DESCRIPTOR.services_by_name["Groups"],
    )
    for method in service.methods
]


@pytest.fixture(scope="module", params=RESERVED_STREAMS)
def stream(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def served(stream: str) -> Served:
    world = ClusterWorld(1)
    kind = stream.removeprefix("__")
    subject = internal_subject(world[1].node.context.options.namespace, kind)
    outcome = world.propose(
        CreateStream(
            name=StreamName(stream),
            subject=subject,
            partitions=1,
            replication_factor=1,
            creation_timestamp=world.wall_ns,
            is_internal=True,
        )
    )
    assert not isinstance(outcome, LiftbridgeError)
    world.until(lambda: world.leader(stream) is not None)
    api = make_api(BrokerOptions(), world[1].node, WorldClock(world), world[1], Health())
    api.context.turns = None
    return Served(world, api.server)


def _about(message: Message, stream: str, subject: str) -> Message:
    """The message with all names and texts that make it one about the stream."""
    for field in message.DESCRIPTOR.fields:
        if field.is_repeated:
            if field.name == "values":
                message.values.append(b"x")  # type: ignore[attr-defined]  # of `PublishBatchRequest`
            elif field.name == "streams" and field.message_type is not None:
                _about(message.streams.add(), stream, subject)  # type: ignore[attr-defined]  # of `AwaitNewsRequest`
        elif field.message_type is not None:
            _about(getattr(message, field.name), stream, subject)
        elif field.name in ("name", "stream"):
            setattr(message, field.name, stream)
        elif field.name == "subject":
            setattr(message, field.name, subject)
        elif field.name in ("publisher", "cursorId"):
            setattr(message, field.name, "x")
    return message


def _requests(method: MethodDescriptor, stream: str, subject: str) -> Iterator[Message]:
    """Requests with and without a subject, and with each of the optional numbers, as a restore."""
    kind = GetMessageClass(method.input_type)
    yield _about(kind(), stream, subject)
    yield _about(kind(), stream, "")
    for field in method.input_type.fields:
        if field.has_presence and field.message_type is None:
            more = _about(kind(), stream, subject)
            setattr(more, field.name, 7)
            yield more


def test_methods_that_read_exist() -> None:
    assert {method.name for method in METHODS} >= READS


@pytest.mark.parametrize("method", METHODS, ids=lambda one: one.full_name)
def test_clients_change_nothing_of_a_stream_that_brokers_keep(
    served: Served, stream: str, method: MethodDescriptor
) -> None:
    node = served.world[1].node
    partition = node.find_replica(stream, 0)
    path = f"/{method.containing_service.full_name}/{method.name}"
    told = ""
    for request in _requests(method, stream, partition.subject):
        before = partition.log.log_end_offset, repr(node.state.stream(stream))
        port = served.call(path, [request.SerializeToString()])
        told += f"{port.end} {port.sent.decode(errors='replace')}"
        after = partition.log.log_end_offset, repr(node.state.stream(stream))
        assert after == before or method.name == "SetCursor"
    assert ("reserved" in told) == (method.name not in READS)
