"""Records of the stream `__activity`: `ActivityStreamEvent` of the original, and a header of ours.

The value is what clients of the original expect. An event before which others were lost has the
header `lost`, with their number as decimal digits; the original has no headers there.
"""

from collections.abc import Mapping
from itertools import chain
from typing import Final

from liftbridge_broker.controller.activity_queue import ActivityEvent, ActivityKind
from liftbridge_proto import api_pb2 as pb

LOST_HEADER: Final = "lost"

NUMBER_BYTES_MAX: Final = 3
"""Most bytes of a partition number; there are fewer than 2**21."""


def encode_event(event: ActivityEvent, bytes_max: int) -> bytes:
    """Encode an event as the value of its record.

    Args:
        event: The event.
        bytes_max: Largest value. A list of partitions that might not fit is left empty, which means
            all partitions of the stream in a request, and here that the metadata show which.
    """
    number_count = sum(length for _, length in event.partitions)
    fits = number_count * NUMBER_BYTES_MAX <= bytes_max // 2
    numbers = chain.from_iterable(
        range(first, first + length) for first, length in (event.partitions if fits else ())
    )
    message = pb.ActivityStreamEvent(id=event.event_id, op=_OPS[event.kind])
    match event.kind:
        case ActivityKind.CREATE_STREAM:
            message.createStreamOp.stream = event.name
            message.createStreamOp.partitions.extend(numbers)
        case ActivityKind.DELETE_STREAM:
            message.deleteStreamOp.stream = event.name
        case ActivityKind.PAUSE_STREAM:
            message.pauseStreamOp.stream = event.name
            message.pauseStreamOp.partitions.extend(numbers)
            message.pauseStreamOp.resumeAll = event.flag
        case ActivityKind.RESUME_STREAM:
            message.resumeStreamOp.stream = event.name
            message.resumeStreamOp.partitions.extend(numbers)
        case ActivityKind.SET_STREAM_READONLY:
            message.setStreamReadonlyOp.stream = event.name
            message.setStreamReadonlyOp.partitions.extend(numbers)
            message.setStreamReadonlyOp.readonly = event.flag
        case ActivityKind.JOIN_CONSUMER_GROUP:
            message.joinConsumerGroupOp.groupId = event.name
            message.joinConsumerGroupOp.consumerId = event.consumer
            message.joinConsumerGroupOp.streams.extend(event.streams)
        case ActivityKind.LEAVE_CONSUMER_GROUP:
            message.leaveConsumerGroupOp.groupId = event.name
            message.leaveConsumerGroupOp.consumerId = event.consumer
            message.leaveConsumerGroupOp.expired = event.flag
    return message.SerializeToString(deterministic=True)


_OPS: Final[Mapping[ActivityKind, pb.ActivityStreamOp]] = {
    ActivityKind.CREATE_STREAM: pb.CREATE_STREAM,
    ActivityKind.DELETE_STREAM: pb.DELETE_STREAM,
    ActivityKind.PAUSE_STREAM: pb.PAUSE_STREAM,
    ActivityKind.RESUME_STREAM: pb.RESUME_STREAM,
    ActivityKind.SET_STREAM_READONLY: pb.SET_STREAM_READONLY,
    ActivityKind.JOIN_CONSUMER_GROUP: pb.JOIN_CONSUMER_GROUP,
    ActivityKind.LEAVE_CONSUMER_GROUP: pb.LEAVE_CONSUMER_GROUP,
}


def headers_of(event: ActivityEvent) -> Mapping[str, bytes] | None:
    """Return the headers of an event's record, `None` for none."""
    return {LOST_HEADER: str(event.lost_before).encode()} if event.lost_before else None
