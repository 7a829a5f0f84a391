"""Sessions of the members of the groups that this broker coordinates.

Soft state: heartbeats are no commands. A broker that becomes coordinator, or starts, gives each
member a whole session. Members of classic groups may be silent for longer while they look for their
coordinator, or act on a change. It only proposes that a silent member has expired; the command
names the membership and the coordinator epoch that it is about, and is refused when either has
changed.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from liftbridge_broker.controller.consumer_groups.commands import LeaveGroup
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.model.groups import Group, Member
from liftbridge_broker.model.ids import BrokerId, Instant, MetadataIndex
from liftbridge_broker.model.units import SECOND_NS

RETRY_NS: Final = SECOND_NS
"""Time after which an expiry that was not applied is proposed again."""

BUSY_NS: Final = 10 * SECOND_NS
"""Silence of the original's client that is no sign of its end. It pauses for 2 s after each call
that fails, also after the one that shows who coordinates, and calls to a broker that was away fail
for some seconds more, until gRPC connects again. When its group has changed, it subscribes to one
partition after another before its next heartbeat."""

NEVER: Final = Instant(0)
NO_EPOCH: Final = MetadataIndex(0)

Key = tuple[str, str]
"""Names of a group and of a member."""


@dataclass(slots=True)
class _Session:
    """Session of one membership at this coordinator.

    Attributes:
        member_epoch: The membership.
        coordinator_epoch: Metadata index since which this broker coordinates the group.
        heard_at: Time of the last heartbeat, or of the begin of the session.
        answered_epoch: Group epoch that the last answer to the member named, if any.
        asked_at: Time at which its expiry was proposed.
    """

    member_epoch: MetadataIndex
    coordinator_epoch: MetadataIndex
    heard_at: Instant
    answered_epoch: MetadataIndex = NO_EPOCH
    asked_at: Instant = NEVER


@dataclass(slots=True)
class MemberSessions:
    """Sessions of all members that this broker watches, the longest silent first.

    Attributes:
        broker: This broker.
        _sessions: Sessions, except for the following.
        _busy: Those of members of classic groups whose next heartbeat may take long.
        _silent: Those of members whose expiry was proposed.
    """

    broker: BrokerId
    _sessions: OrderedDict[Key, _Session] = field(default_factory=OrderedDict)
    _busy: OrderedDict[Key, _Session] = field(default_factory=OrderedDict)
    _silent: dict[Key, _Session] = field(default_factory=dict)
    _members: dict[str, frozenset[str]] = field(default_factory=dict)
    _looked_at: Instant = NEVER

    def __len__(self) -> int:
        """Members that this broker watches."""
        return len(self._sessions) + len(self._busy) + len(self._silent)

    def on_groups(self, state: ClusterState, group_ids: Iterable[str], now: Instant) -> None:
        """Begin and end sessions after groups changed."""
        for group_id in group_ids:
            group = state.groups.get(group_id)
            members = group.members if group is not None and self._watches(group) else ()
            names = frozenset(member.member_id for member in members)
            for gone in self._members.get(group_id, frozenset()) - names:
                self._drop((group_id, gone))
            if names:
                self._members[group_id] = names
            else:
                self._members.pop(group_id, None)
            for member in members:
                assert group is not None
                self._begin(group, member, now)

    def on_state(self, state: ClusterState, now: Instant) -> None:
        """Begin and end sessions after the whole state was replaced."""
        self.on_groups(state, {**self._members, **state.groups}, now)

    def _watches(self, group: Group) -> bool:
        return group.coordinator == self.broker

    def _begin(self, group: Group, member: Member, now: Instant) -> None:
        key = group.group_id, member.member_id
        known = self._sessions.get(key) or self._busy.get(key) or self._silent.get(key)
        if (
            known is None
            or known.member_epoch != member.member_epoch
            or known.coordinator_epoch != group.coordinator_epoch  # guard Group.whole_session
        ):
            self._drop(key)
            if not self:
                self._looked_at = now
            has_found = member.member_epoch >= group.coordinator_epoch  # it joined here
            answered = member.member_epoch if has_found else NO_EPOCH
            session = _Session(member.member_epoch, group.coordinator_epoch, now, answered)
            is_busy = not has_found and not group.is_incremental
            sessions = self._busy if is_busy else self._sessions  # guard Group.search
            sessions[key] = session

    def _drop(self, key: Key) -> _Session | None:
        for sessions in (self._sessions, self._busy, self._silent):
            session = sessions.pop(key, None)
            if session is not None:
                return session
        return None

    def on_heartbeat(self, group: Group, member_id: str, now: Instant) -> None:
        """Note a heartbeat, whose answer names the group epoch; no-op without a session."""
        key = group.group_id, member_id
        session = self._drop(key)
        if session is not None:
            is_news = session.answered_epoch != group.group_epoch and not group.is_incremental
            session.heard_at, session.answered_epoch = now, group.group_epoch
            sessions = self._busy if is_news else self._sessions  # guard Group.busy
            sessions[key] = session

    def expired(self, timeout_ns: int, now: Instant) -> list[LeaveGroup]:
        """Return the members to remove, because they were silent for `timeout_ns`.

        When this check runs much later than due, this process was suspended and may have missed
        heartbeats: all sessions begin again.
        """
        is_late = now - self._looked_at > timeout_ns
        self._looked_at = now
        if is_late:  # guard Group.stall
            self._sessions.update(self._silent)
            self._silent.clear()
            for session in (*self._sessions.values(), *self._busy.values()):
                session.heard_at = now
        due = [key for key, one in self._silent.items() if now - one.asked_at >= RETRY_NS]
        for sessions, silence_ns in self._watched(timeout_ns):
            while sessions:
                key, session = next(iter(sessions.items()))
                if now - session.heard_at < silence_ns:
                    break
                self._silent[key] = sessions.pop(key)
                due.append(key)
        return [self._leave(key, now) for key in due]

    def _watched(self, timeout_ns: int) -> tuple[tuple[OrderedDict[Key, _Session], int], ...]:
        """Return sessions in the order in which they end, with the silence that ends them."""
        return (self._sessions, timeout_ns), (self._busy, max(timeout_ns, BUSY_NS))

    def _leave(self, key: Key, now: Instant) -> LeaveGroup:
        session = self._silent[key]
        session.asked_at = now
        group_id, member_id = key
        return LeaveGroup(
            group_id=group_id,
            member_id=member_id,
            member_epoch=session.member_epoch,
            is_expired=True,
            coordinator=self.broker,
            coordinator_epoch=session.coordinator_epoch,
        )

    def next_deadline(self, timeout_ns: int) -> Instant | None:
        """Time of the next check: often enough to tell a late check from a silent member."""
        if not self:
            return None
        due = self._looked_at + timeout_ns // 2
        for sessions, silence_ns in self._watched(timeout_ns):
            for first in islice(sessions.values(), 1):
                due = min(due, first.heard_at + silence_ns)
        for silent in self._silent.values():
            due = min(due, silent.asked_at + RETRY_NS)
        return Instant(due)
