"""Control plane of one broker: its session, and the duties of the metadata leader.

Every broker sends heartbeats and reports silent leaders. The metadata leader watches all sessions,
changes leaders, recovers partitions, returns leaderships to preferred replicas, moves replicas off
drained brokers and maintains the group's members. It only proposes: the decision is made where the
command is applied (rule R0).
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from liftbridge_broker.controller.balance import drain_moves, preferred_elections
from liftbridge_broker.controller.commands import BrokerLoad, ChangeLeader, Command
from liftbridge_broker.controller.consumer_groups.coordinator_reports import CoordinatorReports
from liftbridge_broker.controller.records import BrokerChanged, PartitionChanged, Record
from liftbridge_broker.controller.reports import LeaderReport as CountedReport
from liftbridge_broker.controller.reports import LeaderReports
from liftbridge_broker.errors import LiftbridgeError, NoMetadataLeaderError
from liftbridge_broker.model.ids import BrokerId, Instant, MetadataIndex, PartitionId, earliest
from liftbridge_broker.model.metadata_log import Peer
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.context import NodeContext
from liftbridge_broker.node.metadata.broker_sessions import SESSION_NS, BrokerSessions
from liftbridge_broker.node.metadata.failure_detector import PROBE_NS
from liftbridge_broker.node.metadata.group import furthest_voter
from liftbridge_broker.node.metadata.inquiries import Inquiries
from liftbridge_broker.node.metadata.own_session import HEARTBEAT_NS, OwnSession
from liftbridge_broker.node.peers.peer_link import PeerLink
from liftbridge_broker.node.scheduling.cluster_clock import DELAY_NS_MAX, Date
from liftbridge_broker.ports.metadata import LeaderChanged, MetadataConsensus
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.wire.peer.bodies import (
    CoordinatorReport,
    LeaderReport,
    LogInfo,
    LogInfoReply,
    LogInfoRequest,
    Silence,
)
from liftbridge_broker.wire.peer.heartbeat import Heartbeat, HeartbeatReply
from liftbridge_broker.wire.peer.membership import Join
from liftbridge_broker.wire.peer.messages import PeerHeader

UPKEEP_NS: Final = 1_000 * MILLISECOND_NS
MEMBERS_RETRY_NS: Final = 50 * MILLISECOND_NS
"""Time between two attempts to change the group: one change is committed before the next begins."""

BALANCE_NS: Final = 300_000 * MILLISECOND_NS
BALANCE_PARTITIONS_MAX: Final = 100
HAND_OVER_NS: Final = 30_000 * MILLISECOND_NS
"""Time between two attempts to hand the leadership over: all disks may be full."""

MOVES_MAX: Final = 10
VOTERS_MAX: Final = 5
HASHES_MAX: Final = 4_096
"""Applied indexes whose hash is kept to compare with the reports of brokers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlOptions:
    """Times and bounds of the control plane.

    Attributes:
        heartbeat_ns: Time between two heartbeats of a broker.
        session_ns: Time without a heartbeat after which a broker is fenced, and fences itself.
        probe_ns: Time between two probes of a broker whose end matters here; 0 for none.
        balance_ns: Time between two checks for leaderships to give back; 0 for never.
        balance_partitions_max: Leaderships given back in one check.
        moves_max: Reassignments off drained brokers that may be under way at once.
        voters_max: Largest number of voters of the metadata group.
    """

    heartbeat_ns: int = HEARTBEAT_NS
    session_ns: int = SESSION_NS
    probe_ns: int = PROBE_NS
    balance_ns: int = BALANCE_NS
    balance_partitions_max: int = BALANCE_PARTITIONS_MAX
    moves_max: int = MOVES_MAX
    voters_max: int = VOTERS_MAX


Subject = TypeVar("Subject")


class ControlPlane:
    """Session of one broker, and its duties while it is the metadata leader.

    Attributes:
        session: This broker's own session.
        is_leader: Whether this broker has the duties of the metadata leader.
    """

    def __init__(
        self,
        context: NodeContext,
        consensus: MetadataConsensus,
        link: PeerLink,
        options: ControlOptions,
        log_infos: Callable[[Sequence[PartitionId]], tuple[LogInfo, ...]],
        is_confirmed: Callable[[Instant], bool],
    ) -> None:
        """Start as an unregistered broker without duties.

        Args:
            context: State and ports that the parts of the node share.
            consensus: The metadata group.
            link: Sends messages to other brokers.
            options: Times and bounds.
            log_infos: Returns the ends of logs held here; damaged logs are marked.
            is_confirmed: Returns whether this broker leads the metadata group, and a quorum
                confirmed it a moment ago.
        """
        self._context = context
        self._log_infos = log_infos
        self._is_confirmed = is_confirmed
        self._consensus = consensus
        self._link = link
        self._options = options
        self.session = OwnSession(heartbeat_ns=options.heartbeat_ns, session_ns=options.session_ns)
        self._sessions: BrokerSessions | None = None
        self._reports = LeaderReports()
        self._coordinators = CoordinatorReports()
        self._inquiries = Inquiries()
        self._hashes: OrderedDict[MetadataIndex, int] = OrderedDict()
        self._upkeep_at = Instant(0)
        self._members_at = Instant(0)
        self._balance_at = Instant(0)
        self._hand_over_at = Instant(0)

    @property
    def is_leader(self) -> bool:
        """Return whether this broker has the duties of the metadata leader."""
        return self._sessions is not None

    @property
    def applied_indexes(self) -> Mapping[BrokerId, MetadataIndex]:
        """Applied metadata index by broker, as reported; known to the metadata leader only."""
        return {} if self._sessions is None else self._sessions.applied

    # -- events -------------------------------------------------------------------------------

    def on_leader(self, event: LeaderChanged, now: Instant) -> None:
        """Handle a change of the metadata leader, or its loss."""
        if event.is_self:
            self._sessions = BrokerSessions(self._context.state, now, self._options.session_ns)
            self._reports.clear()
            self._coordinators.clear()
            self._inquiries = Inquiries()
            self._inquiries.hurry(now)
            self._upkeep_at = now
            self._members_at = now
            self._balance_at = Instant(now + self._options.balance_ns)
        else:
            self._sessions = None
        if event.leader is not None:
            self.session.hurry(now)

    def excuse(self, now: Instant) -> None:
        """Restart the sessions of others, as this broker could hear nobody until now."""
        if self._sessions is not None:
            self._sessions.excuse(now)

    def on_ended(self, broker: BrokerId, now: Instant) -> None:
        """End the session of a broker whose process has ended; no-op without the duties."""
        if self._sessions is None:
            return
        self._sessions.end(self._context.state, broker, now)
        for command in self._sessions.expired(self._context.state, now):
            self._propose(command, now)

    def on_applied(self, index: MetadataIndex, records: Sequence[Record], now: Instant) -> None:
        """Handle records applied up to `index`."""
        self._hashes[index] = self._context.state.chain
        if len(self._hashes) > HASHES_MAX:
            self._hashes.popitem(last=False)
        for record in records:
            match record:
                case BrokerChanged(broker):
                    self._members_at = now
                    if broker.broker == self._context.broker:
                        if broker.broker_epoch == self.session.broker_epoch:
                            self.session.is_fenced = broker.fenced
                        self.session.hurry(now)
                case PartitionChanged(state) if state.leader is None:
                    self._inquiries.hurry(now)
                case _:
                    pass

    def on_peer(self, header: PeerHeader, now: Instant) -> bool:
        """Handle a message; return whether it belongs to the control plane."""
        body = header.body
        match body:
            case Heartbeat():
                self._take_heartbeat(header.sender, header.broker_epoch, body, now)
                self._answer_heartbeat(header.sender, header.correlation_id, now)
            case HeartbeatReply():
                self._take_reply(header.correlation_id, body, now)
            case LeaderReport(silences):
                self._on_report(header.sender, header.broker_epoch, silences, now)
            case CoordinatorReport():
                self._on_coordinator_report(body, now)
            case LogInfoRequest(partitions):
                logs = self._log_infos(partitions)
                self._link.send(header.sender, Channel.METADATA, LogInfoReply(logs))
            case LogInfoReply(logs):
                self._on_log_infos(header.sender, header.broker_epoch, logs, now)
            case Join():
                self._on_join(header.sender, body)
            case _:
                return False
        return True

    def on_timer(self, now: Instant) -> None:
        """Run all duties that are due."""
        self._beat(now)
        if self._sessions is None:
            return
        for command in self._sessions.expired(self._context.state, now):
            self._propose(command, now)
        for recovery in self._inquiries.on_timer(self._context.state, self._ask, now):
            self._propose(recovery, now)
        if now >= self._upkeep_at:
            self._upkeep_at = Instant(now + UPKEEP_NS)
            self._hand_over(now)
            self._drain(now)
        if now >= self._members_at:
            is_changing = self._keep_members()
            self._members_at = Instant(now + (MEMBERS_RETRY_NS if is_changing else UPKEEP_NS))
        if self._options.balance_ns and now >= self._balance_at:
            self._balance_at = Instant(now + self._options.balance_ns)
            self._balance(now)

    def next_deadline(self) -> Instant | None:
        """Time of the next `on_timer` call, `None` for never."""
        own = self.session.next_deadline()
        if self._sessions is None:
            return own
        return earliest(
            own,
            self._sessions.next_deadline(self._context.state),
            self._inquiries.next_deadline(),
            self._upkeep_at,
            self._members_at,
            self._balance_at if self._options.balance_ns else None,
        )

    # -- this broker --------------------------------------------------------------------------

    def report(self, silences: Sequence[Silence], now: Instant) -> None:
        """Report silent leaders to the metadata leader (F4)."""
        leader = self._consensus.leader
        if leader is None or not silences:
            return
        if leader.broker == self._context.broker:
            self._on_report(leader.broker, self.session.broker_epoch, silences, now)
        else:
            report = LeaderReport(tuple(silences))
            self._link.send(BrokerId(leader.broker), Channel.METADATA, report)

    def report_coordinator(self, report: CoordinatorReport, now: Instant) -> None:
        """Pass on a consumer's report about its coordinator to the metadata leader.

        Raises:
            NoMetadataLeaderError: No metadata leader is known.
        """
        leader = self._consensus.leader
        if leader is None:
            raise NoMetadataLeaderError
        if leader.broker == self._context.broker:
            self._on_coordinator_report(report, now)
        else:
            self._link.send(BrokerId(leader.broker), Channel.METADATA, report)

    def _beat(self, now: Instant) -> None:
        state = self._context.state
        chain, wall_ns = state.chain.to_bytes(8, "big"), self._context.wall_ns
        due = self.session.beat(state.applied_index, chain, now, wall_ns)
        leader = self._consensus.leader
        if due is None or leader is None:
            return
        number, heartbeat = due
        if self._sessions is None:
            broker = BrokerId(leader.broker)
            self._link.send(broker, Channel.METADATA, heartbeat, correlation_id=number)
            return
        self._take_heartbeat(self._context.broker, self.session.broker_epoch, heartbeat, now)
        self._context.clock.on_date(self._date(now), now)
        reply = self._reply(self._context.broker, now)
        if reply is not None and self._is_confirmed(now):  # guard Self.confirmed
            self.session.on_reply(number, reply)

    def _take_reply(self, correlation_id: int, reply: HeartbeatReply, now: Instant) -> None:
        sent_at = self.session.on_reply(correlation_id, reply)
        if sent_at is not None and now - sent_at <= DELAY_NS_MAX:  # guard Clock.delay
            date = Date(reply.cluster_time_ns, reply.is_upper_bound, reply.is_believed)
            self._context.clock.on_date(date, now)

    # -- the metadata leader ------------------------------------------------------------------

    def _take_heartbeat(
        self, broker: BrokerId, broker_epoch: int, heartbeat: Heartbeat, now: Instant
    ) -> None:
        if self._sessions is None:
            return
        known = self._hashes.get(heartbeat.applied_index)
        reported = int.from_bytes(heartbeat.applied_hash, "big")
        if known is not None and known != reported:
            fields: dict[str, object] = {"broker": broker, "index": heartbeat.applied_index}
            self._context.transition("metadata_diverged", fields)
        wanted = self._sessions.on_heartbeat(
            self._context.state, broker, broker_epoch, heartbeat, now
        )
        for command in wanted:
            self._propose(command, now)

    def _date(self, now: Instant) -> Date:
        assert self._sessions is not None
        voters = {BrokerId(peer.broker) for peer in self._consensus.voters}
        return self._sessions.date_of(voters, self._context.clock.tolerance_ns, now)

    def _reply(self, broker: BrokerId, now: Instant) -> HeartbeatReply | None:
        assert self._sessions is not None
        date = self._context.clock.date(now)
        return self._sessions.reply(self._context.state, broker, self._consensus.term, date)

    def _answer_heartbeat(self, broker: BrokerId, correlation_id: int, now: Instant) -> None:
        if self._sessions is None:
            return
        reply = self._reply(broker, now)
        if reply is not None:
            self._link.send(broker, Channel.METADATA, reply, correlation_id=correlation_id)

    def _on_report(
        self, reporter: BrokerId, broker_epoch: int, silences: Sequence[Silence], now: Instant
    ) -> None:
        if self._sessions is None:
            return
        changes = [
            self._reports.on_report(
                self._context.state,
                CountedReport(
                    reporter,
                    broker_epoch,
                    silence.partition,
                    silence.leader,
                    silence.leader_epoch,
                    silence.partition_epoch,
                ),
                now,
            )
            for silence in silences
        ]
        due = tuple(change for change in changes if change is not None)
        if due:
            self._propose(ChangeLeader(changes=due), now)

    def _on_coordinator_report(self, report: CoordinatorReport, now: Instant) -> None:
        if self._sessions is None:
            return
        window_ns = self._context.options.coordinator_timeout_ns
        command = self._coordinators.on_report(self._context.state, *report, window_ns, now)
        if command is not None:
            self._propose(command, now)

    def _ask(self, broker: BrokerId, partitions: tuple[PartitionId, ...]) -> None:
        self._link.send(broker, Channel.METADATA, LogInfoRequest(partitions))

    def _on_log_infos(
        self, broker: BrokerId, broker_epoch: int, logs: Sequence[LogInfo], now: Instant
    ) -> None:
        if self._sessions is None:
            return
        for command in self._inquiries.on_answer(
            self._context.state, broker, broker_epoch, logs, now
        ):
            self._propose(command, now)

    def _on_join(self, broker: BrokerId, join: Join) -> None:
        """Add a broker to the group, unless it was removed permanently."""
        if self._sessions is None:
            return
        peer = Peer(broker, join.data_dir_id)
        if peer in self._consensus.voters or peer in self._consensus.learners:
            return
        known = self._context.state.brokers.get(broker)
        if known is not None and known.removed and known.data_dir_id == join.data_dir_id:
            return
        self._try(self._consensus.add_learner, peer)

    def _hand_over(self, now: Instant) -> None:
        """Hand leadership to another voter, because a full disk blocks commands here."""
        if not self._consensus.is_full or now < self._hand_over_at:
            return
        self._hand_over_at = Instant(now + HAND_OVER_NS)
        me = self._consensus.leader
        assert me is not None
        successor = furthest_voter(self._context.state, self._consensus, besides=me)
        if successor is not None:
            self._try(self._consensus.transfer, successor)

    def _keep_members(self) -> bool:
        """Request one change that adjusts the group to the registered brokers; `False` if none."""
        members = (*self._consensus.voters, *self._consensus.learners)
        for peer in members:
            known = self._context.state.brokers.get(BrokerId(peer.broker))
            if known is None:
                continue
            is_former = known.data_dir_id != peer.data_dir_id
            is_joining = is_former and known.fenced and peer in self._consensus.learners
            if is_joining:  # guard Members.joining
                continue  # with an empty disk; it registers next
            if (is_former or known.removed) and peer != self._consensus.leader:
                self._try(self._consensus.remove, peer)
                return True
        if len(self._consensus.voters) >= self._options.voters_max:
            return False
        for peer in self._consensus.learners:
            known = self._context.state.brokers.get(BrokerId(peer.broker))
            if known is not None and not known.fenced and not known.draining:
                self._try(self._consensus.promote, peer)
                return True
        return False

    def _drain(self, now: Instant) -> None:
        if not any(broker.draining for broker in self._context.state.brokers.values()):
            return  # the load of all brokers is not worth computing each second
        for move in drain_moves(self._context.state, self._load(), self._options.moves_max):
            self._propose(move, now)

    def _balance(self, now: Instant) -> None:
        command = preferred_elections(self._context.state, self._options.balance_partitions_max)
        if command is not None:
            self._propose(command, now)

    def _load(self) -> tuple[BrokerLoad, ...]:
        """Return leaderships by broker, which placement balances."""
        counts = dict.fromkeys(self._context.state.brokers, 0)
        for _, partition in self._context.state.partitions():
            if partition.leader is not None:
                counts[partition.leader] += 1
        return tuple(BrokerLoad(broker, count) for broker, count in counts.items())

    def _propose(self, command: Command, now: Instant) -> None:
        self._context.propose(command, now, _ignore_outcome)

    @staticmethod
    def _try(change: Callable[[Subject], None], peer: Subject) -> None:
        """Request a change of the group; a change not allowed now is retried later."""
        try:
            change(peer)
        except LiftbridgeError:
            return


def _ignore_outcome(_outcome: object) -> None:
    """Ignore the outcome: the state shows it at the next check."""
