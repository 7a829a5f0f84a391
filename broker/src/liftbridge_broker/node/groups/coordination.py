"""Consumer groups on one broker: heartbeats of members, their sessions and the seats of readers.

Every broker takes requests to join and leave, as commands. The coordinator of a group answers the
heartbeats of its members, and proposes to remove silent ones. The leader of a partition seats the
consumers that read it.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final

from liftbridge_broker.controller.consumer_groups.commands import ReleasePartitions
from liftbridge_broker.controller.consumer_groups.groups import NO_GROUP, NO_MEMBER
from liftbridge_broker.controller.records import GroupChanged, GroupEnded, MemberAnswer, Record
from liftbridge_broker.errors import (
    FailedPreconditionError,
    LiftbridgeError,
    NotAssignedError,
    NotCoordinatorError,
    NotFoundError,
    StaleGroupEpochError,
    UnavailableError,
    UnknownMemberError,
)
from liftbridge_broker.model.groups import Group
from liftbridge_broker.model.ids import Instant, PartitionId, number_of, stream_of
from liftbridge_broker.node.context import NodeContext
from liftbridge_broker.node.groups.seats import NOT_ASSIGNED, Seats
from liftbridge_broker.node.groups.sessions import MemberSessions
from liftbridge_broker.node.groups.turnover import Turnover
from liftbridge_broker.wire.peer.bodies import CoordinatorReport

WAITS_MAX: Final = 10_000
"""Requests that wait for metadata that may have arrived elsewhere first."""

Done = Callable[[LiftbridgeError | None], None]
Report = Callable[[CoordinatorReport, Instant], None]


def nobody_to_tell(report: CoordinatorReport, now: Instant) -> None:
    """Ignore a report: a sole broker has no other that could coordinate."""
    del report, now


class GroupCoordination:
    """Consumer groups on one broker.

    Attributes:
        seats: Consumers that read partitions led here.
    """

    def __init__(
        self, context: NodeContext, is_fenced: Callable[[Instant], bool], report: Report
    ) -> None:
        """Start without sessions.

        Args:
            context: State and ports that the parts of the node share.
            is_fenced: Returns whether the metadata of this broker may be outdated.
            report: Passes a consumer's report on to the metadata leader.
        """
        self._context = context
        self._is_fenced = is_fenced
        self._report = report
        self._sessions = MemberSessions(context.broker)
        self._waits_count = 0
        self._turnover = Turnover()
        self.seats = Seats(lambda: context.state)

    @property
    def watched_count(self) -> int:
        """Members whose sessions this broker keeps."""
        return len(self._sessions)

    # -- requests -----------------------------------------------------------------------------

    def confirm(self, done: Done) -> None:
        """Call `done` once the metadata here hold every outcome announced before this call.

        A consumer may know a change of its group from another broker.
        """
        if self._waits_count >= WAITS_MAX:
            done(UnavailableError(f"{WAITS_MAX} requests already wait for metadata here"))
            return
        self._waits_count += 1

        def confirmed(error: LiftbridgeError | None) -> None:
            self._waits_count -= 1
            if error is not None:
                error = UnavailableError(f"the metadata group does not answer: {error.text}")
            done(error)

        self._context.metadata.read(confirmed)  # guard Group.confirm
        self._context.wake_soon()

    def knows(self, group_id: str, epoch: int) -> bool:
        """Return whether this broker coordinates a group, and has applied an epoch of it."""
        group = self._context.state.groups.get(group_id)
        return (
            group is not None
            and group.coordinator == self._context.broker
            and epoch <= group.group_epoch
        )

    def heartbeat(self, group_id: str, member_id: str, epoch: int, now: Instant) -> MemberAnswer:
        """Take a heartbeat of a member of a classic group; return the group and the member.

        A member that knows an earlier epoch of its membership learns of the change by the answer.

        Raises:
            NotFoundError: The group does not exist.
            NotCoordinatorError: Another broker coordinates it, or may do so.
            StaleGroupEpochError: The member does not know the epoch of its membership.
            UnknownMemberError: It is no member.
        """
        group = self.coordinated(group_id, now)
        check_kind(group, is_incremental=False)
        member = group.member(member_id)
        since = group.group_epoch if member is None else member.member_epoch
        if not since <= epoch <= group.group_epoch:  # guard Group.heartbeat
            raise StaleGroupEpochError(
                "client-provided group epoch differs from broker group epoch"
            )
        if member is None:
            raise UnknownMemberError(NO_MEMBER)
        self._sessions.on_heartbeat(group, member_id, now)
        return MemberAnswer(group, member)

    def heartbeat_holding(
        self,
        group_id: str,
        member_id: str,
        member_epoch: int,
        group_epoch: int,
        held: Collection[PartitionId],
        now: Instant,
    ) -> MemberAnswer:
        """Take a heartbeat of a member of an incremental group; return the group and the member.

        What the member gave up is released for others: it has acted on the latest assignment, and
        no longer reads it.

        Args:
            group_id: The group.
            member_id: The member.
            member_epoch: Its membership.
            group_epoch: Group epoch of the last answer that it has acted on.
            held: Partitions that it reads.
            now: Time of the heartbeat.

        Raises:
            NotFoundError: The group does not exist.
            NotCoordinatorError: Another broker coordinates it, or may do so.
            UnknownMemberError: It is no member, or another membership is meant.
        """
        group = self.coordinated(group_id, now)
        check_kind(group, is_incremental=True)
        member = group.member(member_id)
        if member is None or member_epoch != member.member_epoch:  # guard Group.member_epoch
            raise UnknownMemberError(NO_MEMBER)
        self._sessions.on_heartbeat(group, member_id, now)
        kept = {*member.target, *held}
        released = tuple(one for one in member.held if one not in kept)  # guard Group.held
        if released and group_epoch == group.group_epoch:
            command = ReleasePartitions(
                group_id=group_id,
                member_id=member_id,
                member_epoch=member_epoch,
                partition_ids=released,
                group_epoch=group_epoch,
            )
            self._context.propose(command, now, _ignore_outcome)
            # Applied at once where this broker leads the metadata alone.
            group = self.coordinated(group_id, now)
            member = group.member(member_id) or member
        return MemberAnswer(group, member)

    def may_commit(
        self,
        group_id: str,
        member_id: str,
        member_epoch: int,
        group_epoch: int,
        partitions: Sequence[PartitionId],
    ) -> None:
        """Refuse positions of a member that lost its membership or a partition since it took them.

        The caller has confirmed the metadata, and stores the positions in this turn: the broker
        that stores those of the next owner has applied that it owns the partition.

        Args:
            group_id: The group.
            member_id: The member.
            member_epoch: Its membership.
            group_epoch: Group epoch that it had acted on. When it let a partition go it had acted
                on one before that of the assignment that gave the partition back.
            partitions: Partitions of the positions.

        Raises:
            NotFoundError: The group does not exist.
            UnknownMemberError: It is no member, or another membership is meant.
            NotAssignedError: It does not hold a partition, or holds it again.
        """
        group = self._context.state.groups.get(group_id)
        if group is None:
            raise NotFoundError(NO_GROUP)
        check_kind(group, is_incremental=True)
        member = group.member(member_id)
        if member is None or member_epoch != member.member_epoch:  # guard Group.commit_member
            raise UnknownMemberError(NO_MEMBER)
        holds = member.holds
        if any(one not in holds for one in partitions):  # guard Group.commit
            raise NotAssignedError(NOT_ASSIGNED)
        if any(holds.get(one, 0) > group_epoch for one in partitions):  # guard Group.commit_epoch
            raise NotAssignedError(NOT_ASSIGNED)

    def may_reset(self, group_id: str, partitions: Sequence[PartitionId]) -> None:
        """Refuse to reset positions that a member reads, or is to read.

        It would go on from the former position, and overwrite the new one.

        Raises:
            FailedPreconditionError: The text names the member and a partition.
        """
        group = self._context.state.groups.get(group_id)
        wanted = frozenset(partitions)
        for member in () if group is None else group.members:
            taken = wanted.intersection(member.target) or wanted.intersection(member.held)
            if taken:  # guard Group.reset
                partition_id = min(taken)
                stream = self._context.state.streams.get(stream_of(partition_id))
                name = "" if stream is None else stream.name
                raise FailedPreconditionError(
                    f"member {member.member_id} of consumer group {group_id} reads "
                    f"{name}/{number_of(partition_id)}: stop it, then reset the position"
                )

    def check_unchanged(self, group_id: str, since: int) -> None:
        """Refuse if a group may have had other members since an index was applied here.

        Raises:
            FailedPreconditionError: It changed, or ended, or this broker does not know.
        """
        if self._turnover.changed_at(group_id) > since:  # guard Group.reset_turnover
            raise FailedPreconditionError(
                f"consumer group {group_id} changed while its position was stored: a member may "
                "have gone on from the former one; look at the lag, then reset the position again"
            )

    def coordinated(self, group_id: str, now: Instant) -> Group:
        """Return a group that this broker coordinates.

        Raises:
            NotFoundError: The group does not exist.
            NotCoordinatorError: Another broker coordinates it, or may do so.
        """
        group = self._context.state.groups.get(group_id)
        if group is None:
            raise NotFoundError(NO_GROUP)
        is_other = group.coordinator != self._context.broker
        if is_other or self._is_fenced(now):  # guard Group.coordinator
            raise NotCoordinatorError("broker is not the consumer group coordinator")
        return group

    def report(
        self, group_id: str, member_id: str, coordinator: str, epoch: int, now: Instant
    ) -> None:
        """Count a member's report that it cannot reach the coordinator; texts of the original.

        Raises:
            FailedPreconditionError: The report does not fit the group, or no other broker could
                coordinate it.
            NoMetadataLeaderError: No metadata leader is known.
        """
        state = self._context.state
        group = state.groups.get(group_id)
        if group is None:
            raise FailedPreconditionError(f"No such consumer group {group_id}")
        if (coordinator, epoch) != (group.coordinator, group.group_epoch):
            raise FailedPreconditionError(
                "Coordinator generation mismatch, current coordinator: "
                f"{group.coordinator} epoch: {group.group_epoch}, got coordinator: "
                f"{coordinator} epoch: {epoch}"
            )
        if group.member(member_id) is None:
            raise FailedPreconditionError(
                f"Consumer {member_id} is not a member of consumer group {group_id}"
            )
        brokers = state.brokers.values()
        if not any(one.can_lead and one.broker != group.coordinator for one in brokers):
            raise FailedPreconditionError("No coordinator candidates")
        report = CoordinatorReport(group_id, member_id, group.coordinator, group.coordinator_epoch)
        self._report(report, now)

    # -- events -------------------------------------------------------------------------------

    def on_applied(self, records: Sequence[Record], now: Instant) -> None:
        """Handle applied records."""
        changed: dict[str, None] = {}
        for record in records:
            match record:
                case GroupChanged(group):
                    changed[group.group_id] = None
                    self._note(record.cause, record.member_id, group.group_id, group)
                case GroupEnded(group_id):
                    changed[group_id] = None
                    self._note(record.cause, record.member_id, group_id, None)
                case _:
                    pass
        for group_id in changed:
            self._turnover.note(group_id, self._context.state.applied_index)
        if changed:
            self._sessions.on_groups(self._context.state, changed, now)
            self.seats.on_groups(changed)

    def _note(self, cause: str, member_id: str, group_id: str, group: Group | None) -> None:
        fields: dict[str, object] = {
            "group": group_id,
            "cause": str(cause),
            "consumer": member_id,
            "consumers": 0 if group is None else len(group.members),
            "coordinator": "" if group is None else group.coordinator,
            "group_epoch": 0 if group is None else group.group_epoch,
            "changes": 1,
        }
        self._context.transition("consumer_group_changed", fields)

    def on_state(self, now: Instant) -> None:
        """Handle a state that replaced the former one, as at the start and from a snapshot."""
        self._turnover.forget(self._context.state.applied_index)
        self._sessions.on_state(self._context.state, now)
        self.seats.on_state()

    def on_timer(self, now: Instant) -> None:
        """Propose to remove members that were silent for too long."""
        timeout_ns = self._context.options.consumer_timeout_ns
        for command in self._sessions.expired(timeout_ns, now):
            self._context.propose(command, now, _ignore_outcome)

    def next_deadline(self) -> Instant | None:
        """Time of the next `on_timer` call, `None` for never."""
        return self._sessions.next_deadline(self._context.options.consumer_timeout_ns)


def check_kind(group: Group, *, is_incremental: bool) -> None:
    """Refuse a call that is for groups of the other kind.

    Raises:
        FailedPreconditionError: The text names the calls for the kind of the group.
    """
    if group.is_incremental == is_incremental:
        return
    kind, service = ("classic", "proto.API")
    if group.is_incremental:
        kind, service = ("incremental", "liftbridge.ext.v1.Groups")
    raise FailedPreconditionError(
        f"consumer group {group.group_id} is {kind}, its members call {service}"
    )


def _ignore_outcome(_outcome: object) -> None:
    """Ignore the outcome: the state shows it at the next check."""
