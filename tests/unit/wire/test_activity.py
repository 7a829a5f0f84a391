"""Events of the activity stream as bytes: of the original's message, and in snapshots."""

from collections.abc import Callable

import pytest

from liftbridge_broker.controller.activity_queue import (
    PENDING_MAX,
    ActivityEvent,
    ActivityKind,
    NumberRange,
)
from liftbridge_broker.controller.state import BrokerState, ClusterState
from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.model.ids import BrokerId, MetadataIndex
from liftbridge_broker.wire.activity import encode_event, headers_of
from liftbridge_broker.wire.snapshots import decode_state, encode_state
from liftbridge_proto import api_pb2 as pb
from liftbridge_proto.internal.v1 import metadata_pb2

ALL = (NumberRange(0, 2), NumberRange(4, 1))
INDEX = MetadataIndex(7)
BYTES_MAX = 1 << 20

WANTED = {
    ActivityKind.CREATE_STREAM: pb.ActivityStreamEvent(
        createStreamOp=pb.CreateStreamOp(stream="s", partitions=[0, 1, 4])
    ),
    ActivityKind.DELETE_STREAM: pb.ActivityStreamEvent(
        deleteStreamOp=pb.DeleteStreamOp(stream="s")
    ),
    ActivityKind.PAUSE_STREAM: pb.ActivityStreamEvent(
        pauseStreamOp=pb.PauseStreamOp(stream="s", partitions=[0, 1, 4], resumeAll=True)
    ),
    ActivityKind.RESUME_STREAM: pb.ActivityStreamEvent(
        resumeStreamOp=pb.ResumeStreamOp(stream="s", partitions=[0, 1, 4])
    ),
    ActivityKind.SET_STREAM_READONLY: pb.ActivityStreamEvent(
        setStreamReadonlyOp=pb.SetStreamReadonlyOp(stream="s", partitions=[0, 1, 4], readonly=True)
    ),
    ActivityKind.JOIN_CONSUMER_GROUP: pb.ActivityStreamEvent(
        joinConsumerGroupOp=pb.JoinConsumerGroupOp(groupId="s", consumerId="c", streams=["t", "u"])
    ),
    ActivityKind.LEAVE_CONSUMER_GROUP: pb.ActivityStreamEvent(
        leaveConsumerGroupOp=pb.LeaveConsumerGroupOp(groupId="s", consumerId="c", expired=True)
    ),
}


@pytest.mark.parametrize("kind", ActivityKind)
def test_events_have_the_message_of_the_original(kind: ActivityKind) -> None:
    event = ActivityEvent(INDEX, kind, "s", ALL, flag=True, consumer="c", streams=("t", "u"))
    wanted = WANTED[kind]
    wanted.id = INDEX
    wanted.op = getattr(pb, kind.name)
    assert pb.ActivityStreamEvent.FromString(encode_event(event, BYTES_MAX)) == wanted
    assert headers_of(event) is None


def test_event_that_could_be_too_long_names_no_partitions() -> None:
    event = ActivityEvent(INDEX, ActivityKind.CREATE_STREAM, "s", (NumberRange(0, 1_000_000),))
    value = encode_event(event, BYTES_MAX)
    assert pb.ActivityStreamEvent.FromString(value).createStreamOp == pb.CreateStreamOp(stream="s")
    wide = event._replace(partitions=(NumberRange(0, BYTES_MAX // 6),))
    assert BYTES_MAX // 4 < len(encode_event(wide, BYTES_MAX)) < BYTES_MAX


def test_lost_events_are_in_a_header() -> None:
    event = ActivityEvent(INDEX, ActivityKind.DELETE_STREAM, "s", lost_before=12)
    assert headers_of(event) == {"lost": b"12"}


def sample_state() -> ClusterState:
    state = ClusterState(applied_index=MetadataIndex(9))
    for name, is_removed in (("a", False), ("b", True)):
        broker = BrokerState(
            broker=BrokerId(name),
            broker_epoch=MetadataIndex(1),
            incarnation_id="i",
            data_dir_id="d",
            host="h",
            port=1,
            removed=is_removed,
        )
        state.brokers[broker.broker] = broker
    queue = state.activity
    queue.set_wanted(BrokerId("a"), is_wanted=True)
    queue.end_offset, queue.lost_count, queue.gap = 3, 5, 2
    for index, kind in enumerate(ActivityKind, 1):
        queue.add(ActivityEvent(MetadataIndex(index), kind, "s", ALL, consumer="c", streams=("t",)))
    queue.gap = 1
    return state


def test_snapshot_gives_the_events_back() -> None:
    state = sample_state()
    data = encode_state(state)
    assert decode_state(data) == state
    assert encode_state(decode_state(data)) == data


Damage = Callable[[metadata_pb2.Activity], object]

DAMAGES: list[tuple[str, Damage]] = [
    ("wanted by x", lambda one: one.wanted_by.append("x")),
    ("wanted by b", lambda one: one.wanted_by.append("b")),
    ("wanted by a", lambda one: one.wanted_by.append("a")),
    ("event 7 out of order", lambda one: one.events.add(event_id=7)),
    ("event 10 out of order", lambda one: one.events.add(event_id=10)),
    ("of kind 9", lambda one: one.events.add(event_id=8, kind=9)),
    (
        f"{PENDING_MAX + 29} pending",
        lambda one: one.events.add(event_id=8, streams=[""] * PENDING_MAX),
    ),
]


@pytest.mark.parametrize(("fault", "damage"), DAMAGES)
def test_snapshot_that_contradicts_itself_is_refused(fault: str, damage: Damage) -> None:
    message = metadata_pb2.Snapshot.FromString(encode_state(sample_state()))
    damage(message.activity)
    with pytest.raises(CorruptionError, match=fault):
        decode_state(message.SerializeToString(deterministic=True))
