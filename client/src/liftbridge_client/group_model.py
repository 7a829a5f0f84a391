"""Consumer groups, as the client library shows them to people who look after them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal, NamedTuple

from liftbridge_client.admin_model import PartitionName
from liftbridge_client.model import to_ns
from liftbridge_proto.ext.v1 import groups_pb2 as pb

GroupKind = Literal["classic", "incremental"]
"""Whether partitions move at once, or one by one after their reader let go of them."""

RetentionLimit = Literal["", "age", "messages", "bytes"]
"""Limit of retention of a stream; empty for none."""

_LIMITS: Final[dict[int, RetentionLimit]] = {
    pb.RETENTION_LIMIT_AGE: "age",
    pb.RETENTION_LIMIT_MESSAGES: "messages",
    pb.RETENTION_LIMIT_BYTES: "bytes",
}
_MILLISECOND: Final = timedelta(milliseconds=1)


class ConsumerGroup(NamedTuple):
    """A consumer group.

    Attributes:
        group: Name of the group.
        kind: `classic` or `incremental`.
        coordinator: Id of the broker that members report to.
        group_epoch: Epoch of the last change.
        members: Number of members.
        partitions: Number of partitions that they are to read.
    """

    group: str
    kind: GroupKind
    coordinator: str
    group_epoch: int
    members: int
    partitions: int


class GroupMember(NamedTuple):
    """A member of a consumer group.

    Attributes:
        member: Name of the member.
        member_epoch: Its membership.
        streams: Names and patterns that it subscribes to.
        instance: Name that it keeps when it restarts; empty for none.
        zone: Its zone; empty when unknown.
        target: Partitions that it is to read.
        held: Partitions that it may read now, or has not let go of yet.
    """

    member: str
    member_epoch: int
    streams: tuple[str, ...]
    instance: str
    zone: str
    target: tuple[PartitionName, ...]
    held: tuple[PartitionName, ...]


class GroupDescription(NamedTuple):
    """A consumer group with its members; see `ConsumerGroup`."""

    group: str
    kind: GroupKind
    coordinator: str
    group_epoch: int
    members: tuple[GroupMember, ...]

    @property
    def readers(self) -> dict[PartitionName, str]:
        """Member that is to read each partition, or still holds it."""
        readers = {place: one.member for one in self.members for place in one.held}
        return readers | {place: one.member for one in self.members for place in one.target}


class PartitionLag(NamedTuple):
    """How far a group is behind in a partition.

    Attributes:
        stream: Name of the stream.
        partition: Number of the partition.
        member: Member that is to read it; empty for none.
        position: Offset of the last message that the group has processed; `None` if none is stored.
        log_start: First offset kept.
        high_watermark: First offset not committed.
        messages: Offsets that the group has not processed; all of the log without a position.
        behind: Age of the first of these messages.
        lost: Offsets after the position that retention has removed already.
        overtaken_in: Time until retention removes the next message of the group, if things go on as
            they did; `None` for never.
        overtaken_by: Limit that removes it.
        stream_id: As in `PartitionBounds`.
        unclean_epoch: As in `PartitionBounds`.
    """

    stream: str
    partition: int
    member: str
    position: int | None
    log_start: int
    high_watermark: int
    messages: int
    behind: timedelta
    lost: int
    overtaken_in: timedelta | None
    overtaken_by: RetentionLimit
    stream_id: int
    unclean_epoch: int

    @property
    def next_offset(self) -> int:
        """Offset of the next message that the group gets; the log start without a position."""
        return self.high_watermark - self.messages


class ResetTo(NamedTuple):
    """Target of a reset; created by the class methods."""

    kind: Literal["earliest", "latest", "offset", "time", "shift"]
    number: int = 0

    @classmethod
    def earliest(cls) -> "ResetTo":
        """Continue at the first message in the log."""
        return cls("earliest")

    @classmethod
    def latest(cls) -> "ResetTo":
        """Continue with messages that are new."""
        return cls("latest")

    @classmethod
    def offset(cls, offset: int) -> "ResetTo":
        """Continue at an offset, which the log must hold, or at its end."""
        return cls("offset", offset)

    @classmethod
    def time(cls, time: datetime) -> "ResetTo":
        """Continue at the first message stored at or after an aware time."""
        return cls("time", to_ns(time))

    @classmethod
    def shift(cls, count: int) -> "ResetTo":
        """Skip `count` messages, or go back when it is negative; within the log."""
        return cls("shift", count)


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionChange:
    """A position to be reset.

    Attributes:
        lag: The present state.
        next_offset: Offset of the message at which the group is to continue.
    """

    lag: PartitionLag
    next_offset: int

    @property
    def position(self) -> int | None:
        """Position to be stored; `None` for none: the group then begins as a new one."""
        return self.next_offset - 1 if self.next_offset else None


def groups_of(found: Iterable[pb.ListGroupsResponse.Group]) -> Iterator[ConsumerGroup]:
    """Convert the API messages of groups."""
    for one in found:
        yield ConsumerGroup(
            one.group_id,
            _kind(is_incremental=one.is_incremental),
            one.coordinator,
            one.group_epoch,
            one.member_count,
            one.partition_count,
        )


def group_of(found: pb.DescribeGroupResponse) -> GroupDescription:
    """Convert the API message of a group with its members."""
    members = tuple(
        GroupMember(
            one.member_id,
            one.member_epoch,
            tuple(one.streams),
            one.instance_id,
            one.zone,
            tuple(_places(one.target)),
            tuple(_places(one.held)),
        )
        for one in found.members
    )
    kind = _kind(is_incremental=found.is_incremental)
    return GroupDescription(found.group_id, kind, found.coordinator, found.group_epoch, members)


def lag_of(stream: str, member: str, found: pb.PartitionLag) -> PartitionLag:
    """Convert the API message of the lag in a partition."""
    overtaken_in = None
    if found.HasField("overtaken_ms"):
        overtaken_in = _time(found.overtaken_ms)
    return PartitionLag(
        stream,
        found.partition,
        member,
        found.position if found.HasField("position") else None,
        found.log_start,
        found.high_watermark,
        found.lag_messages,
        _time(found.lag_ms),
        found.lost_messages,
        overtaken_in,
        _LIMITS.get(found.overtaken_by, ""),
        found.stream_id,
        found.unclean_epoch,
    )


def _time(milliseconds: int) -> timedelta:
    """Convert a time; a forecast of more than a `timedelta` can hold is its largest."""
    return min(milliseconds, timedelta.max // _MILLISECOND) * _MILLISECOND


def _kind(*, is_incremental: bool) -> GroupKind:
    return "incremental" if is_incremental else "classic"


def _places(found: Iterable[pb.StreamPartitions]) -> Iterator[PartitionName]:
    for one in found:
        for number in one.partitions:
            yield PartitionName(one.stream, number)
