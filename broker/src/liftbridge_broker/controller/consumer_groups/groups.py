"""Decisions about consumer groups: who is a member, who coordinates, who reads which partition.

Groups exist from feature level `GROUPS_LEVEL` on: an older broker could not read the commands. The
coordinator of a group only watches its members; every decision is made here (rule R0). A member's
epoch fences what was requested for an earlier membership of the same name, and the coordinator's
epoch what an earlier coordinator concluded.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from liftbridge_broker.controller.consumer_groups.assignment import Place, Reader, assign
from liftbridge_broker.controller.consumer_groups.commands import (
    ChangeCoordinator,
    DeleteGroup,
    JoinGroup,
    LeaveGroup,
    ReleasePartitions,
)
from liftbridge_broker.controller.draft import Draft
from liftbridge_broker.controller.records import (
    Decision,
    Done,
    GroupCause,
    GroupChanged,
    GroupEnded,
    MemberAnswer,
    Record,
)
from liftbridge_broker.controller.state import BrokerState, ClusterState
from liftbridge_broker.errors import (
    FailedPreconditionError,
    LimitError,
    NotFoundError,
    StaleGroupEpochError,
    UnknownMemberError,
)
from liftbridge_broker.model.groups import (
    ALL_MEMBERS_MAX,
    ALL_SUBSCRIPTIONS_MAX,
    ASSIGNED_MAX,
    GROUP_PARTITIONS_MAX,
    GROUPS_MAX,
    MEMBERS_MAX,
    PATTERNS_MAX,
    SUBSCRIPTIONS_MAX,
    Group,
    Member,
    check_id,
    check_streams,
    matching,
    patterns_of,
)
from liftbridge_broker.model.ids import (
    BrokerId,
    MetadataIndex,
    PartitionId,
    PartitionNumber,
    StreamId,
    StreamName,
    partition_id,
    stream_of,
)
from liftbridge_broker.model.partitions import PartitionState

NO_GROUP: Final = "consumer group does not exist"
NO_MEMBER: Final = "consumer is not a member of the consumer group"

Streams = Mapping[StreamName, Sequence[PartitionState]]
"""Partitions of each stream."""


def join_group(state: ClusterState, index: MetadataIndex, command: JoinGroup) -> Decision:
    """Add a member, and found the group if it is the first.

    In an incremental group, a member that joins under a name or instance that is present takes
    over what the former one had, and fences it; with its epoch it changes its streams.
    """
    check_id("groupId", command.group_id)
    check_id("consumerId", command.member_id)
    check_streams(command.streams, may_match=command.is_incremental)
    for what, text in (("instanceId", command.instance_id), ("zone", command.zone)):
        if text:
            check_id(what, text)
    if not command.is_incremental and any(name not in state.stream_ids for name in command.streams):
        raise FailedPreconditionError("stream does not exist")
    group = state.groups.get(command.group_id)
    former = _former(group, command)
    if group is None:
        group = _founded(state, index, command)
    before = [one for one in group.members if one is not former]
    kept = former if former is not None else Member(member_id="", member_epoch=index, streams=())
    changes_streams = bool(command.member_epoch)
    member = Member(
        member_id=command.member_id,
        member_epoch=kept.member_epoch if changes_streams else index,
        streams=tuple(sorted(set(command.streams))),
        target=kept.target,
        held=kept.held,
        held_since=kept.held_since,
        instance_id=kept.instance_id if changes_streams else command.instance_id,
        zone=kept.zone if changes_streams else command.zone,
    )
    joined = _assigned(state, replace(group, group_epoch=index), [*before, member])
    _check_size(state, joined)
    cause = GroupCause.SUBSCRIBED if changes_streams else GroupCause.JOINED
    record = GroupChanged(joined, cause, command.member_id)
    return Decision((record,), _answer(joined, command.member_id))


def _former(group: Group | None, command: JoinGroup) -> Member | None:
    """Return the member that the joining one continues, `None` for a new member."""
    if group is None:
        if command.member_epoch:
            raise NotFoundError(NO_GROUP)
        return None
    if command.is_incremental != group.is_incremental:  # guard Group.kind
        kind, call = ("incremental", "Heartbeat of liftbridge.ext.v1.Groups")
        if not group.is_incremental:
            kind, call = ("classic", "JoinConsumerGroup")
        raise FailedPreconditionError(
            f"consumer group {group.group_id} is {kind}, its members join by {call}; "
            "use another group id"
        )
    named = group.member(command.member_id)
    if not group.is_incremental:
        if named is not None:  # guard Group.again
            raise FailedPreconditionError("consumer is already a member of the consumer group")
        return None
    if command.member_epoch:
        return _member(group, command.member_id, command.member_epoch)  # guard Group.subscription
    if named is not None or not command.instance_id:
        return named
    instances = (one for one in group.members if one.instance_id == command.instance_id)
    return next(instances, None)


def _founded(state: ClusterState, index: MetadataIndex, command: JoinGroup) -> Group:
    """Return a group without members, with the live broker that coordinates the fewest groups."""
    if len(state.groups) >= GROUPS_MAX:
        raise LimitError(f"{len(state.groups)} consumer groups exist, limit {GROUPS_MAX}")
    coordinator = _coordinator(state.brokers, _loads(state.groups.values()))
    if coordinator is None:
        raise FailedPreconditionError("no broker is available to coordinate the consumer group")
    return Group(
        group_id=command.group_id,
        group_epoch=index,
        coordinator=coordinator,
        coordinator_epoch=index,
        is_incremental=command.is_incremental,
        members=(),
    )


def _check_size(state: ClusterState, group: Group) -> None:
    """Refuse a member that makes its group, or all groups together, too large."""
    if len(group.members) > MEMBERS_MAX:
        raise LimitError(
            f"consumer group {group.group_id} has {len(group.members) - 1} members, "
            f"limit {MEMBERS_MAX}"
        )
    subscriptions = sum(len(member.streams) for member in group.members)
    if subscriptions > SUBSCRIPTIONS_MAX:
        raise LimitError(
            f"members of consumer group {group.group_id} would name {subscriptions} streams, "
            f"limit {SUBSCRIPTIONS_MAX}"
        )
    patterns = len(patterns_of(group.names))
    if patterns > PATTERNS_MAX:
        raise LimitError(
            f"members of consumer group {group.group_id} would name {patterns} different patterns, "
            f"limit {PATTERNS_MAX}"
        )
    count = _partition_count(group)
    if count > GROUP_PARTITIONS_MAX:
        raise LimitError(
            f"consumer group {group.group_id} would read {count} partitions, "
            f"limit {GROUP_PARTITIONS_MAX}"
        )
    others = [one for one in state.groups.values() if one.group_id != group.group_id]
    everyone = len(group.members) + sum(len(other.members) for other in others)
    if everyone > ALL_MEMBERS_MAX:
        raise LimitError(
            f"all consumer groups together have {everyone - 1} members, limit {ALL_MEMBERS_MAX}"
        )
    everything = subscriptions + sum(
        len(member.streams) for other in others for member in other.members
    )
    if everything > ALL_SUBSCRIPTIONS_MAX:
        raise LimitError(
            f"members of all consumer groups would name {everything} streams, "
            f"limit {ALL_SUBSCRIPTIONS_MAX}"
        )
    total = count + sum(_partition_count(other) for other in others)
    if total > ASSIGNED_MAX:
        raise LimitError(
            f"all consumer groups together would read {total} partitions, limit {ASSIGNED_MAX}"
        )


def _partition_count(group: Group) -> int:
    return sum(len(member.target) for member in group.members)


def leave_group(state: ClusterState, index: MetadataIndex, command: LeaveGroup) -> Decision:
    """Remove a member, on its own request, as expired or by an operator.

    An expiry counts only for the membership and the coordinator that it was concluded for.
    """
    group = _group(state, command.group_id)
    cause = GroupCause.LEFT
    if command.is_expired:
        cause = GroupCause.EXPIRED
        if not _coordinates(group, command):  # guard Group.expiry_coordinator
            raise FailedPreconditionError(
                f"broker {command.coordinator} no longer coordinates consumer group "
                f"{group.group_id}"
            )
    elif command.is_evicted:
        cause = GroupCause.EVICTED
    epoch = command.member_epoch
    leaver = _member(group, command.member_id, epoch)  # guard Group.expiry_member
    rest = [member for member in group.members if member is not leaver]
    if not rest:
        return Decision((GroupEnded(group.group_id, cause, command.member_id),), Done())
    left = _assigned(state, replace(group, group_epoch=index), rest)
    return Decision((GroupChanged(left, cause, command.member_id),), Done())


def delete_group(state: ClusterState, command: DeleteGroup) -> Decision:
    """End a group with all its members."""
    group = _group(state, command.group_id)
    return Decision((GroupEnded(group.group_id, GroupCause.EVICTED, ""),), Done())


def change_coordinator(
    state: ClusterState, index: MetadataIndex, command: ChangeCoordinator
) -> Decision:
    """Replace a coordinator that most members cannot reach."""
    group = _group(state, command.group_id)
    if not _coordinates(group, command):  # guard Group.report_epoch
        raise FailedPreconditionError(
            f"broker {group.coordinator} coordinates consumer group {group.group_id} by now"
        )
    others = {name: one for name, one in state.brokers.items() if name != group.coordinator}
    successor = _coordinator(others, _loads(state.groups.values()))
    if successor is None:
        raise FailedPreconditionError(
            f"no other broker can coordinate consumer group {group.group_id}"
        )
    changed = _moved(group, successor, index)
    return Decision((GroupChanged(changed, GroupCause.COORDINATOR, ""),), Done())


def release_partitions(state: ClusterState, command: ReleasePartitions) -> Decision:
    """Take partitions from a member that has let go of them, for those that wait for them."""
    group = _group(state, command.group_id)
    member = _member(group, command.member_id, command.member_epoch)  # guard Group.release
    if command.group_epoch != group.group_epoch:  # guard Group.release_epoch
        # The partition may have been the member's again since, so that it reads it now.
        raise StaleGroupEpochError(
            f"consumer group {group.group_id} is at group epoch {group.group_epoch}, not "
            f"{command.group_epoch}"
        )
    released = set(command.partition_ids) - set(member.target)
    if released.isdisjoint(member.held):
        return Decision((), _answer(group, command.member_id))
    rest = member.holding({one: at for one, at in member.holds.items() if one not in released})
    members = [rest if one is member else one for one in group.members]
    # The targets stay, and with them the group epoch, by which others release at the same time.
    changed = replace(group, members=_granted(members, group.group_epoch))
    record = GroupChanged(changed, GroupCause.RELEASED, command.member_id)
    return Decision((record,), _answer(changed, command.member_id))


# -- what else changes groups ---------------------------------------------------------------------


def hand_over_groups(draft: Draft, *, returned: BrokerId | None = None) -> None:
    """Give groups whose coordinator cannot serve them to brokers that can.

    Without such a broker they stay, and members wait for one.

    Args:
        draft: Changes of brokers.
        returned: Broker that is unfenced: it coordinates anew, with a new coordinator epoch.
    """
    loads = _loads(draft.state.groups.values())
    for group in draft.state.groups.values():
        known = draft.brokers.get(group.coordinator)
        if known is not None and known.can_lead:
            if group.coordinator == returned:  # guard Group.returned
                changed = _moved(group, group.coordinator, draft.index)
                draft.records.append(GroupChanged(changed, GroupCause.COORDINATOR, ""))
            continue
        successor = _coordinator(draft.brokers, loads)
        if successor is None:
            return
        loads[successor] += 1
        changed = _moved(group, successor, draft.index)
        draft.records.append(GroupChanged(changed, GroupCause.COORDINATOR, ""))


def on_stream_created(
    state: ClusterState,
    index: MetadataIndex,
    name: StreamName,
    partitions: Sequence[PartitionState],
) -> tuple[Record, ...]:
    """Return the changes of incremental groups that subscribe to a new stream."""
    affected = [
        group for group in state.groups.values() if group.is_incremental and group.subscribes(name)
    ]
    return _reassigned(state, affected, index, {name: partitions})


def on_stream_deleted(
    state: ClusterState, index: MetadataIndex, name: StreamName
) -> tuple[Record, ...]:
    """Return the changes of groups that subscribe to a stream to be deleted, or still read it.

    Members of a classic group no longer subscribe to it, even if it is created again.
    """
    stream_id = state.stream_ids[name]
    affected = [
        group
        if group.is_incremental
        else replace(
            group,
            members=tuple(
                replace(member, streams=tuple(one for one in member.streams if one != name))
                for member in group.members
            ),
        )
        for group in state.groups.values()
        if group.subscribes(name) or any(_holds(member, stream_id) for member in group.members)
    ]
    return _reassigned(state, affected, index, {name: ()})


def _holds(member: Member, stream_id: StreamId) -> bool:
    """Return whether a member holds a partition of a stream."""
    at = bisect_left(member.held, partition_id(stream_id, PartitionNumber(0)))
    return at < len(member.held) and stream_of(member.held[at]) == stream_id


def _reassigned(
    state: ClusterState, groups: Iterable[Group], index: MetadataIndex, changed: Streams
) -> tuple[Record, ...]:
    return tuple(
        GroupChanged(
            _assigned(state, replace(group, group_epoch=index), group.members, changed),
            GroupCause.REASSIGNED,
            "",
        )
        for group in groups
    )


# -- parts of decisions ---------------------------------------------------------------------------


def _group(state: ClusterState, group_id: str) -> Group:
    group = state.groups.get(group_id)
    if group is None:
        raise NotFoundError(NO_GROUP)
    return group


def _member(group: Group, member_id: str, member_epoch: int) -> Member:
    """Return a member in the membership meant; 0 means any."""
    member = group.member(member_id)
    if member is None or member_epoch not in (0, member.member_epoch):
        raise UnknownMemberError(NO_MEMBER)
    return member


def _coordinates(group: Group, command: LeaveGroup | ChangeCoordinator) -> bool:
    """Return whether a command is about the present coordinator, in its present epoch."""
    meant = command.coordinator, command.coordinator_epoch
    return meant == (group.coordinator, group.coordinator_epoch)


def _answer(group: Group, member_id: str) -> MemberAnswer:
    member = group.member(member_id)
    assert member is not None
    return MemberAnswer(group, member)


def _moved(group: Group, coordinator: BrokerId, index: MetadataIndex) -> Group:
    return replace(group, coordinator=coordinator, coordinator_epoch=index, group_epoch=index)


def _loads(groups: Iterable[Group]) -> Counter[BrokerId]:
    return Counter(group.coordinator for group in groups)


def _coordinator(
    brokers: Mapping[BrokerId, BrokerState], loads: Mapping[BrokerId, int]
) -> BrokerId | None:
    """Return the live broker with the fewest groups, the first registered of equals."""
    able = [name for name, broker in brokers.items() if broker.can_lead]
    return min(able, key=lambda name: loads[name], default=None)


def _assigned(
    state: ClusterState, group: Group, members: Sequence[Member], changed: Streams | None = None
) -> Group:
    """Return the group with these members and a new assignment.

    Args:
        state: Streams and brokers.
        group: The group, with former members.
        members: Members with what they have.
        changed: Streams that differ from the state; without partitions if about to be deleted.
    """
    members = sorted(members, key=lambda member: member.member_id)
    streams = _streams_of(state, members, changed or {})
    resolved = _resolved(members, streams)
    readers = [
        Reader(member.member_id, names, member.zone)
        for member, names in zip(members, resolved, strict=True)
    ]
    before = {
        partition: reader
        for member, reader in zip(members, readers, strict=True)
        for partition in member.target
    }
    owners = assign(readers, streams, before)
    targets: dict[str, list[PartitionId]] = {member.member_id: [] for member in members}
    for partition in sorted(owners):
        targets[owners[partition].member_id].append(partition)
    members = [replace(member, target=tuple(targets[member.member_id])) for member in members]
    if not group.is_incremental:
        members = [replace(member, held=member.target) for member in members]
        return replace(group, members=tuple(members))
    gone = {state.stream_ids[name] for name in changed or () if name in state.stream_ids}
    if gone:
        members = [
            member.holding(
                {one: at for one, at in member.holds.items() if stream_of(one) not in gone}
            )
            for member in members
        ]
    return replace(group, members=_granted(members, group.group_epoch))


def _granted(members: Sequence[Member], group_epoch: MetadataIndex) -> tuple[Member, ...]:
    """Grant members of an incremental group what they are to read and nobody holds."""
    held = {partition for member in members for partition in member.held}
    return tuple(
        member.holding({**member.holds, **dict.fromkeys(free, group_epoch)}) if free else member
        for member in members
        for free in ([one for one in member.target if one not in held],)  # guard Group.owner
    )


def _streams_of(
    state: ClusterState, members: Sequence[Member], changed: Streams
) -> dict[str, list[Place]]:
    """Return the partitions of the existing streams that members name or match."""
    named = {one for member in members for one in member.streams}
    matched = matching(patterns_of(named), (*state.stream_ids, *changed))
    streams: dict[str, list[Place]] = {}
    for name in sorted({*named, *matched}):
        stream = state.stream(name)
        present = () if stream is None else stream.partitions
        partitions = changed.get(StreamName(name), present)
        if partitions:
            streams[name] = [_place(state, partition) for partition in partitions]
    return streams


def _place(state: ClusterState, partition: PartitionState) -> Place:
    leader = None if partition.leader is None else state.brokers.get(partition.leader)
    return Place(partition.partition_id, "" if leader is None else leader.zone)


def _resolved(
    members: Sequence[Member], streams: Mapping[str, Sequence[Place]]
) -> list[frozenset[str]]:
    """Return the existing streams that each member subscribes to."""
    patterns = patterns_of({one for member in members for one in member.streams})
    matched = {pattern: matching((pattern,), streams) for pattern in patterns}
    return [
        frozenset(name for one in member.streams for name in matched.get(one, (one,)))
        for member in members
    ]
