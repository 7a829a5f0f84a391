"""Events of the activity stream as clients get them, and as the command prints them."""

from datetime import UTC, datetime

import pytest

from liftbridge_client import ActivityEvent, Message, lost_before
from liftbridge_client.activity import ActivityCodec
from liftbridge_client.cli.subscribe import activity_line, activity_row, numbers
from liftbridge_client.errors import CodecError
from liftbridge_proto import api_pb2 as pb

PAUSED = pb.ActivityStreamEvent(
    id=9,
    op=pb.PAUSE_STREAM,
    pauseStreamOp=pb.PauseStreamOp(stream="s", partitions=[0, 1, 2, 5], resumeAll=True),
)
CASES = [
    (
        pb.ActivityStreamEvent(
            id=7, createStreamOp=pb.CreateStreamOp(stream="s", partitions=[0, 1])
        ),
        ActivityEvent(7, "CREATE_STREAM", "s", (0, 1)),
        "create stream s partitions 0-1",
    ),
    (
        pb.ActivityStreamEvent(
            id=8, op=pb.DELETE_STREAM, deleteStreamOp=pb.DeleteStreamOp(stream="s")
        ),
        ActivityEvent(8, "DELETE_STREAM", "s"),
        "delete stream s",
    ),
    (
        PAUSED,
        ActivityEvent(9, "PAUSE_STREAM", "s", (0, 1, 2, 5), resume_all=True),
        "pause stream s partitions 0-2,5 resume all",
    ),
    (
        pb.ActivityStreamEvent(
            id=10,
            op=pb.SET_STREAM_READONLY,
            setStreamReadonlyOp=pb.SetStreamReadonlyOp(stream="s", partitions=[3], readonly=True),
        ),
        ActivityEvent(10, "SET_STREAM_READONLY", "s", (3,), readonly=True),
        "set stream readonly s partitions 3 on",
    ),
    (
        pb.ActivityStreamEvent(
            id=11,
            op=pb.JOIN_CONSUMER_GROUP,
            joinConsumerGroupOp=pb.JoinConsumerGroupOp(
                groupId="g", consumerId="c", streams=["s", "t"]
            ),
        ),
        ActivityEvent(11, "JOIN_CONSUMER_GROUP", group="g", consumer="c", streams=("s", "t")),
        "join consumer group g consumer c streams s,t",
    ),
    (
        pb.ActivityStreamEvent(
            id=12,
            op=pb.LEAVE_CONSUMER_GROUP,
            leaveConsumerGroupOp=pb.LeaveConsumerGroupOp(groupId="g", consumerId="c", expired=True),
        ),
        ActivityEvent(12, "LEAVE_CONSUMER_GROUP", group="g", consumer="c", expired=True),
        "leave consumer group g consumer c expired",
    ),
    (
        pb.ActivityStreamEvent.FromString(b"\x08\x0d\x10\x63\x9a\x06\x00"),  # of a newer version
        ActivityEvent(13, "99"),
        "99 ",
    ),
]


def message(event: ActivityEvent, **headers: bytes) -> Message[ActivityEvent]:
    return Message(4, b"", event, 1_000_000, "__activity", 0, "a", "", headers)


@pytest.mark.parametrize(("stored", "event", "text"), CASES)
def test_events_are_decoded_and_printed(
    stored: pb.ActivityStreamEvent, event: ActivityEvent, text: str
) -> None:
    assert ActivityCodec().decode(stored.SerializeToString()) == event
    shown = activity_row(message(event))
    assert shown.time == datetime(1970, 1, 1, microsecond=1_000, tzinfo=UTC)
    assert activity_line(shown) == f"4  1970-01-01 00:00:00.001+00:00  {text}"


def test_lost_events_are_told() -> None:
    event = ActivityEvent(8, "DELETE_STREAM", "s")
    assert lost_before(message(event)) == 0
    lost = message(event, lost=b"3")
    assert lost_before(lost) == 3
    assert activity_line(activity_row(lost)).endswith(
        "delete stream s (3 events before it were lost)"
    )


def test_bytes_that_are_no_event_are_refused() -> None:
    with pytest.raises(ValueError, match="not an event of __activity"):
        ActivityCodec().decode(b"\xff")
    with pytest.raises(CodecError, match="only brokers write"):
        ActivityCodec().encode(ActivityEvent(1, "DELETE_STREAM"))


def test_numbers_are_shortened() -> None:
    assert numbers([0]) == "0"
    assert numbers([0, 1, 2, 4, 6, 7]) == "0-2,4,6-7"
