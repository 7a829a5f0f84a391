"""Publishing to a stream: whether it accepts batches, and an idempotent publisher's identity."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from liftbridge_client import methods
from liftbridge_client.errors import FailedPreconditionError, UnimplementedError
from liftbridge_proto.ext.v1 import data_pb2

if TYPE_CHECKING:
    from liftbridge_client.aio.session import Session


@dataclass(frozen=True, slots=True)
class PublisherIdentity:
    """Identity of an idempotent publisher, as assigned by the server."""

    publisher_id: int
    publisher_epoch: int


class Registration(NamedTuple):
    """Identity of a publisher, and the next sequence of each partition; 0 if not reported."""

    identity: PublisherIdentity
    next_sequences: Mapping[int, int]


async def takes_single(client: "Session", stream: str) -> bool:
    """Return whether a stream accepts only single messages, not batches.

    Within a queue group another stream may get the message, and with optimistic concurrency
    control each offset is compared: one base offset cannot answer for a batch.
    """
    if not client.has_data:
        return True
    request = data_pb2.ListStreamsRequest(prefix=stream, page_size=1)
    streams = (await client.call(methods.LIST_STREAMS, request)).streams
    if not streams or streams[0].settings.name != stream:
        return False  # just deleted; the first publish fails with that error
    settings = streams[0].settings
    return bool(settings.group) or settings.optimisticConcurrencyControl.value


async def register(client: "Session", stream: str, name: str, *, is_single: bool) -> Registration:
    """Register a publisher and get its identity; the previous publisher of that name is fenced.

    Args:
        client: The session.
        stream: Name of the stream.
        name: Name of the publisher.
        is_single: Whether the stream accepts only single messages.

    Raises:
        UnimplementedError: The server offers no idempotent publishing.
        FailedPreconditionError: The stream accepts no idempotent publisher.
    """
    if not client.has_data:
        raise UnimplementedError("this server does not support idempotent publishing")
    if is_single:
        raise FailedPreconditionError(
            f"stream {stream} accepts no idempotent publisher, because it has a queue "
            "group or optimistic concurrency control"
        )
    response = await client.call(
        methods.INIT_PUBLISHER, data_pb2.InitPublisherRequest(stream=stream, publisher=name)
    )
    identity = PublisherIdentity(response.publisher_id, response.publisher_epoch)
    return Registration(identity, dict(response.next_sequence))
