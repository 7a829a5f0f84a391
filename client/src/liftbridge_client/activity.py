"""Events of the stream `__activity`: what changed about the streams of a cluster."""

from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from liftbridge_client.errors import CodecError
from liftbridge_client.model import Message
from liftbridge_proto import api_pb2 as pb

ACTIVITY_STREAM: Final = "__activity"
LOST_HEADER: Final = "lost"


class ActivityEvent(NamedTuple):
    """A change of a stream or of a consumer group.

    Attributes:
        event_id: Identifies the event in its cluster; ids increase, with gaps.
        operation: `CREATE_STREAM`, `DELETE_STREAM`, `PAUSE_STREAM`, `RESUME_STREAM`,
            `SET_STREAM_READONLY`, `JOIN_CONSUMER_GROUP` or `LEAVE_CONSUMER_GROUP`; the number of
            one that this version does not know.
        stream: Stream that changed; empty for groups.
        partitions: Partitions that it concerns; empty if there are too many for one message.
        resume_all: Of a pause: whether the next publish to one partition resumes all.
        readonly: Of `SET_STREAM_READONLY`: whether publishes are refused from now on.
        group: Consumer group; empty for streams.
        consumer: Its member that joined or left.
        streams: Streams that the member subscribed to.
        expired: Whether the member left because it was silent.
    """

    event_id: int
    operation: str
    stream: str = ""
    partitions: tuple[int, ...] = ()
    resume_all: bool = False
    readonly: bool = False
    group: str = ""
    consumer: str = ""
    streams: tuple[str, ...] = ()
    expired: bool = False


class ActivityCodec:
    """Decodes events; only brokers write them."""

    def encode(self, value: ActivityEvent, /) -> bytes:
        """Refuse.

        Raises:
            CodecError: Always.
        """
        raise CodecError(
            f"event {value.event_id} is not encoded: only brokers write {ACTIVITY_STREAM}"
        )

    def decode(self, data: bytes, /) -> ActivityEvent:
        """Decode an event.

        Raises:
            ValueError: The bytes are no event.
        """
        try:
            event = pb.ActivityStreamEvent.FromString(data)
        except DecodeError as error:
            raise ValueError(f"not an event of {ACTIVITY_STREAM}: {error}") from error
        # Each operation has a message of its own, with some of these fields.
        of = next((value for field, value in event.ListFields() if field.message_type), None)
        return ActivityEvent(
            event.id,
            _name(event.op),
            stream=getattr(of, "stream", ""),
            partitions=tuple(getattr(of, "partitions", ())),
            resume_all=getattr(of, "resumeAll", False),
            readonly=getattr(of, "readonly", False),
            group=getattr(of, "groupId", ""),
            consumer=getattr(of, "consumerId", ""),
            streams=tuple(getattr(of, "streams", ())),
            expired=getattr(of, "expired", False),
        )


def _name(operation: int) -> str:
    known = pb.ActivityStreamOp.DESCRIPTOR.values_by_number.get(operation)
    return str(operation) if known is None else known.name


def lost_before(message: Message[ActivityEvent]) -> int:
    """Return how many events were lost between the previous event and this one."""
    return int(message.headers.get(LOST_HEADER, b"0"))
