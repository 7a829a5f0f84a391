"""Decisions about the activity stream, and the events that changes make (ADR 0022)."""

from typing import Final

from liftbridge_broker.controller.activity_queue import ActivityEvent, ActivityKind, ranges_of
from liftbridge_broker.controller.commands import ConfirmActivity, SetActivity
from liftbridge_broker.controller.records import (
    ActivityConfirmed,
    ActivitySet,
    Decision,
    Done,
    GroupCause,
    GroupChanged,
    GroupEnded,
    PartitionsPaused,
    PartitionsResumed,
    ReadonlySet,
    Record,
    StreamCreated,
    StreamDeleted,
)
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.errors import (
    FailedPreconditionError,
    FencedLeaderEpochError,
    NotFoundError,
    StaleBrokerEpochError,
)
from liftbridge_broker.model.ids import MetadataIndex
from liftbridge_broker.model.subjects import ACTIVITY_STREAM

ACTIVITY_LEVEL: Final = 4
"""Lowest feature level at which brokers know the commands below."""


_LEFT: Final = (GroupCause.LEFT, GroupCause.EXPIRED, GroupCause.EVICTED)


def set_activity(state: ClusterState, command: SetActivity) -> Decision:
    """Record whether a broker's settings turn the activity stream on; a repeat is no change.

    It is on while the settings of at least one broker say so. Brokers may differ while the setting
    is changed on one after the other: it then turns on with the first, and off with the last.
    """
    _check_level(state)
    known = state.brokers.get(command.broker)
    if known is None or known.removed:
        raise NotFoundError(f"broker {command.broker} is not registered")
    if known.broker_epoch != command.broker_epoch:  # guard Activity.session
        raise StaleBrokerEpochError(
            f"broker {command.broker} has epoch {known.broker_epoch}, not {command.broker_epoch}"
        )
    if (command.broker in state.activity.wanted_by) == command.is_wanted:
        return Decision((), Done())
    return Decision((ActivitySet(command.broker, command.is_wanted),), Done())


def confirm_activity(state: ClusterState, command: ConfirmActivity) -> Decision:
    """Remove events that the leader has stored, and count stored ones that were lost."""
    _check_level(state)
    stream = state.stream(ACTIVITY_STREAM)
    partition = None if stream is None else stream.partitions[0]
    if partition is None or partition.partition_id != command.partition_id:
        raise NotFoundError(f"partition {command.partition_id} keeps no activity")
    if partition.leader_epoch != command.leader_epoch:  # guard Activity.leader
        # Only the log of the present leader shows what is stored, and the next leader relies on
        # what this one removed.
        raise FencedLeaderEpochError(
            f"leader epoch of {ACTIVITY_STREAM} is {partition.leader_epoch}, "
            f"not {command.leader_epoch}"
        )
    queue = state.activity
    if command.start_offset != queue.end_offset:  # guard Activity.start
        raise FailedPreconditionError(
            f"the first pending event is at offset {queue.end_offset}, not {command.start_offset}"
        )
    count = queue.count_to(command.last_id)
    lost = max(0, queue.end_offset + count - command.end_offset)
    return Decision((ActivityConfirmed(count, command.end_offset, lost),), Done())


def _check_level(state: ClusterState) -> None:
    if state.feature_level < ACTIVITY_LEVEL:  # guard Activity.level
        raise FailedPreconditionError(
            f"the activity stream needs feature level {ACTIVITY_LEVEL}, "
            f"{state.feature_level} is in force: upgrade all brokers, then raise it"
        )


def event_of(index: MetadataIndex, record: Record) -> ActivityEvent | None:
    """Return the event that a record of the command at `index` makes, `None` for none.

    Elections, in-sync sets and settings make none, as in the original.
    """
    event: ActivityEvent | None = None
    match record:
        case StreamCreated(name=name, partitions=partitions):
            numbers = ranges_of(range(len(partitions)))
            event = ActivityEvent(index, ActivityKind.CREATE_STREAM, name, numbers)
        case StreamDeleted(name=name):
            event = ActivityEvent(index, ActivityKind.DELETE_STREAM, name)
        case PartitionsPaused(name=name, resume_all=flag):
            numbers = ranges_of((*record.explicit, *record.automatic))
            event = ActivityEvent(index, ActivityKind.PAUSE_STREAM, name, numbers, flag)
        case PartitionsResumed(name=name, partitions=resumed):
            event = ActivityEvent(index, ActivityKind.RESUME_STREAM, name, ranges_of(resumed))
        case ReadonlySet(name=name, readonly=flag):
            numbers = ranges_of(record.partitions)
            event = ActivityEvent(index, ActivityKind.SET_STREAM_READONLY, name, numbers, flag)
        case GroupChanged() | GroupEnded():
            event = _group_event(index, record)
        case _:
            pass
    return event


def _group_event(index: MetadataIndex, record: GroupChanged | GroupEnded) -> ActivityEvent | None:
    """Return the event of a member that joined or left; a new subscription is no event."""
    member_id, is_expired = record.member_id, record.cause is GroupCause.EXPIRED
    if isinstance(record, GroupChanged) and record.cause is GroupCause.JOINED:
        group = record.group
        member = group.member(member_id)
        assert member is not None
        return ActivityEvent(
            index,
            ActivityKind.JOIN_CONSUMER_GROUP,
            group.group_id,
            consumer=member_id,
            streams=member.streams,
        )
    if not member_id or record.cause not in _LEFT:
        return None
    group_id = record.group.group_id if isinstance(record, GroupChanged) else record.group_id
    return ActivityEvent(
        index,
        ActivityKind.LEAVE_CONSUMER_GROUP,
        group_id,
        flag=is_expired,
        consumer=member_id,
    )
