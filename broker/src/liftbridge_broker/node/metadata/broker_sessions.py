"""Sessions of all brokers as the metadata leader keeps them (C2, C3, C13).

Soft state: losing it with the leadership is safe, because a new leader starts every session at full
length. This module only proposes; the guards are in `decide`.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from liftbridge_broker.controller.balance import may_stop
from liftbridge_broker.controller.commands import (
    Command,
    FenceBroker,
    ShutDownBroker,
    UnfenceBroker,
)
from liftbridge_broker.controller.state import BrokerState, ClusterState
from liftbridge_broker.model.ids import BrokerId, Instant, MetadataIndex
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.scheduling.cluster_clock import Date, agreed
from liftbridge_broker.wire.peer.heartbeat import Heartbeat, HeartbeatReply

SESSION_NS: Final = 1_500 * MILLISECOND_NS
"""Time without a heartbeat after which a broker is fenced."""

NEVER: Final = Instant(0)

RETRY_NS: Final = 500 * MILLISECOND_NS
"""Time after which a change that was not applied is proposed again."""


@dataclass(slots=True)
class _Session:
    """Session of one broker in one registration.

    Attributes:
        broker_epoch: The registration.
        heard_at: Time of its last heartbeat, or of the start of the wait for one.
        asked_for: Kind of the last proposal.
        asked_at: Time of the last proposal; 0 for never.
        wall_ahead_ns: Lead of its wall clock over the monotonic clock here; `None` before it
            reported that.
    """

    broker_epoch: MetadataIndex
    heard_at: Instant
    asked_for: type[Command] | None = None
    asked_at: Instant = NEVER
    wall_ahead_ns: int | None = None


class BrokerSessions:
    """Last heartbeats of all brokers; each metadata leader creates its own.

    Args:
        session_ns: Time without a heartbeat after which a broker is fenced.

    Attributes:
        applied: Applied metadata index that each broker reported last.
    """

    def __init__(self, state: ClusterState, now: Instant, session_ns: int = SESSION_NS) -> None:
        """Begin every session at full length."""
        self._session_ns = session_ns
        self._sessions: dict[BrokerId, _Session] = {}
        self._looked_at = now
        self.applied: dict[BrokerId, MetadataIndex] = {}
        for broker in state.brokers.values():
            self._session(broker, now)

    def _session(self, broker: BrokerState, now: Instant) -> _Session:
        """Return the session of the current registration; start it now for a new registration."""
        session = self._sessions.get(broker.broker)
        if session is None or session.broker_epoch != broker.broker_epoch:
            session = self._sessions[broker.broker] = _Session(broker.broker_epoch, now)
        return session

    def on_heartbeat(
        self,
        state: ClusterState,
        broker_id: BrokerId,
        broker_epoch: int,
        heartbeat: Heartbeat,
        now: Instant,
    ) -> list[Command]:
        """Handle a heartbeat; return the commands to propose because of it.

        A heartbeat of another registration proves nothing about the current one.
        """
        broker = state.brokers.get(broker_id)
        if (
            broker is None
            or broker.broker_epoch != broker_epoch  # guard C3.heartbeat
            or broker.removed
        ):
            return []
        session = self._session(broker, now)
        session.heard_at = now
        session.wall_ahead_ns = heartbeat.wall_ns - now if heartbeat.wall_ns else None
        # No broker can have applied more than the log holds; ignore any higher index.
        self.applied[broker_id] = min(heartbeat.applied_index, state.applied_index)
        wanted: Command | None = None
        if heartbeat.want_shutdown and not broker.in_controlled_shutdown:
            wanted = ShutDownBroker(broker=broker_id, broker_epoch=broker.broker_epoch)
        elif (
            broker.fenced
            and not heartbeat.want_fence
            and heartbeat.applied_index >= broker.registration_index
        ):
            wanted = UnfenceBroker(
                broker=broker_id,
                broker_epoch=broker.broker_epoch,
                applied_index=heartbeat.applied_index,
                want_fence=heartbeat.want_fence,
            )
        if wanted is None or not self._may_ask(session, type(wanted), now):
            return []
        return [wanted]

    def excuse(self, now: Instant) -> None:
        """Restart all sessions, as this broker could hear nobody until now."""
        for session in self._sessions.values():
            session.heard_at = now  # guard C3.excused

    def end(self, state: ClusterState, broker_id: BrokerId, now: Instant) -> None:
        """End the session of a broker whose process has ended; the next `expired` returns it."""
        broker = state.brokers.get(broker_id)
        if broker is not None:
            self._session(broker, now).heard_at = Instant(now - self._session_ns)

    def date_of(self, voters: Collection[BrokerId], tolerance_ns: int, now: Instant) -> Date:
        """Date that a majority of the voters has reached, by recent heartbeats."""
        sessions = (self._sessions.get(voter) for voter in voters)
        clocks = [
            session.wall_ahead_ns + now
            for session in sessions
            if session is not None
            and session.wall_ahead_ns is not None
            and now - session.heard_at < self._session_ns
        ]
        return agreed(clocks, len(voters), tolerance_ns)

    def reply(
        self, state: ClusterState, broker_id: BrokerId, term: int, date: Date
    ) -> HeartbeatReply | None:
        """Return the reply to a heartbeat, with cluster time; `None` for an unregistered broker."""
        broker = state.brokers.get(broker_id)
        if broker is None or broker.removed:
            return None
        return HeartbeatReply(
            broker_epoch=broker.broker_epoch,
            incarnation_id=broker.incarnation_id,
            is_fenced=broker.fenced,
            should_shutdown=may_stop(state, broker_id, self.applied),
            term=term,
            cluster_time_ns=date.wall_ns,
            is_upper_bound=date.is_upper_bound,
            is_believed=date.is_believed,
        )

    def expired(self, state: ClusterState, now: Instant) -> list[Command]:
        """Return the brokers to fence, because no heartbeat came for a session.

        When this check runs much later than due, this process was suspended and may have missed
        heartbeats: all sessions restart (S78).
        """
        stalled = now - self._looked_at > self._session_ns
        self._looked_at = now
        fences: list[Command] = []
        for broker in state.brokers.values():
            session = self._session(broker, now)
            if broker.fenced:
                continue
            if stalled:  # guard C3.stall
                session.heard_at = now
            elif now - session.heard_at >= self._session_ns and self._may_ask(
                session, FenceBroker, now
            ):
                fence = FenceBroker(broker=broker.broker, broker_epoch=broker.broker_epoch)
                fences.append(fence)
        return fences

    def next_deadline(self, state: ClusterState) -> Instant:
        """Time of the next check: often enough to tell a late check from a silent broker."""
        due = self._looked_at + self._session_ns // 2
        for broker in state.brokers.values():
            session = self._sessions.get(broker.broker)
            if broker.fenced or session is None:
                continue
            silent = session.heard_at + self._session_ns
            due = min(due, max(silent, session.asked_at + RETRY_NS if session.asked_at else 0))
        return Instant(due)

    @staticmethod
    def _may_ask(session: _Session, kind: type[Command], now: Instant) -> bool:
        """Return whether to propose a command of a kind: once per broker and `RETRY_NS`."""
        if session.asked_for is kind and now - session.asked_at < RETRY_NS:
            return False
        session.asked_for, session.asked_at = kind, now
        return True
