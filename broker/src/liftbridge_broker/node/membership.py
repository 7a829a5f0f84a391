"""Cluster membership of a node: control plane, data plane and messages from peers.

A node without it is a sole broker, whose partitions have no other replicas. The broker takes roles
only after its own registration was applied: before that, its metadata may date from an earlier
process.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from liftbridge_broker.controller.records import BrokerChanged, Record
from liftbridge_broker.controller.state import BrokerState
from liftbridge_broker.model.ids import (
    BrokerId,
    Instant,
    MetadataIndex,
    PartitionId,
    earliest,
)
from liftbridge_broker.node.applied import AppliedMetadata
from liftbridge_broker.node.context import NodeContext
from liftbridge_broker.node.control import ControlOptions, ControlPlane
from liftbridge_broker.node.held import HeldPartitions
from liftbridge_broker.node.metadata.consensus import RaftConsensus
from liftbridge_broker.node.metadata.failure_detector import FailureDetector
from liftbridge_broker.node.metadata.inquiries import end_of
from liftbridge_broker.node.metadata.joining import Joining
from liftbridge_broker.node.metadata.own_session import OwnSession
from liftbridge_broker.node.partition.opening import take_up_publishers
from liftbridge_broker.node.peers.outage import Outage
from liftbridge_broker.node.peers.peer_link import PeerLink
from liftbridge_broker.node.peers.peers import Peers
from liftbridge_broker.node.publishing.publisher_sequences import PublisherSequences
from liftbridge_broker.node.publishing.stream_readiness import StreamReadiness
from liftbridge_broker.node.reading.answers import Answers
from liftbridge_broker.node.replicas.replicas import Replicas
from liftbridge_broker.node.replicas.role_context import (
    LogChanges,
    ReplicationLimits,
    RoleContext,
)
from liftbridge_broker.node.upkeep.retention_cursors import RetentionCursors
from liftbridge_broker.ports.metadata import LeaderChanged
from liftbridge_broker.ports.rng import Rng
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.wire.peer.bodies import LogInfo, MessagesLost
from liftbridge_broker.wire.peer.messages import PeerHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterParts:
    """Parts that a node needs to be a member of a cluster.

    Attributes:
        link: Sends messages to other brokers; it registers with the link's `incarnation_id`.
        consensus: Its member of the metadata group, driven by its `MetadataDriver`.
        joining: Its admission to that group.
        rng: Random source.
        control: Times and bounds of the control plane.
        replication: Times and bounds of the data plane.
    """

    link: PeerLink
    consensus: RaftConsensus
    joining: Joining
    rng: Rng
    control: ControlOptions = field(default_factory=ControlOptions)
    replication: ReplicationLimits = field(default_factory=ReplicationLimits)


class Membership:
    """Membership of one broker in its cluster.

    Attributes:
        link: Sends messages to other brokers.
        control: The control plane.
        replicas: The data plane.
        readiness: Callers that wait for leaders of new partitions to listen.
        sequences: Publishers that wait for their next sequences.
        held: Look-ups of retention cursors.
        answers: Questions about offsets that wait until they may be answered.
        peers: Dispatch of incoming messages.
        detector: Notices when processes of other brokers end.
        ended_count: Processes of other brokers that ended, as `detector` noticed.
        impostor_count: Messages for a session sent by another process than the registered one.
    """

    def __init__(
        self,
        context: NodeContext,
        held: HeldPartitions,
        applied: AppliedMetadata,
        parts: ClusterParts,
        on_messages_lost: Callable[[BrokerId, Instant], None],
    ) -> None:
        """Start unregistered.

        Args:
            context: State and ports that the parts of the node share.
            held: Partitions of which this broker holds a replica.
            applied: Applies the metadata to them.
            parts: Parts that only a member of a cluster has.
            on_messages_lost: Called with a broker when messages to it that were in flight are lost.
        """
        link, partitions = parts.link, held.partitions
        self._context = context
        self._held_partitions = held
        self._applied = applied
        self._on_messages_lost = on_messages_lost
        self.link = link
        self._consensus = parts.consensus
        self._joining = parts.joining
        self.control = ControlPlane(
            context, parts.consensus, link, parts.control, self._log_infos, self._is_confirmed
        )
        changes = LogChanges(cut=held.on_cut, readable=held.on_readable, replace=held.replace_log)
        self._roles = RoleContext(context, self.session.is_self_fenced, changes)
        self.replicas = Replicas(self._roles, held.listening, link, parts.rng, parts.replication)
        held.replicas = self.replicas
        self.readiness = StreamReadiness(context, held.listening, link)
        self.sequences = PublisherSequences(context, partitions, link)
        self.answers = Answers(context)
        self.held = RetentionCursors(context, partitions, held.cursors, self.answers, link)
        self.peers = Peers(link, self._to_metadata, self._to_search, self._to_others)
        self.detector = FailureDetector(link.probe, parts.control.probe_ns)
        self._outage = Outage(context.now)
        self.impostor_count = 0
        self.ended_count = 0
        self._was_self_fenced = False
        self._knows_cluster()

    @property
    def session(self) -> OwnSession:
        """This broker's session with the metadata leader."""
        return self.control.session

    def is_self_fenced(self, now: Instant) -> bool:
        """Return whether this broker has fenced itself: its roles may be outdated."""
        return self.session.is_self_fenced(now)

    def _is_confirmed(self, now: Instant) -> bool:
        """Return whether this broker leads the metadata group by a quorum heard a moment ago."""
        leading = self._consensus.core.leading
        return leading is not None and leading.is_quorum_heard(now)

    def _log_infos(self, partitions: Sequence[PartitionId]) -> tuple[LogInfo, ...]:
        """Return the ends of logs held here; mark damaged logs, so that no broker waits for them.

        Logs that went offline since are left out, as their contents are uncertain.
        """
        infos: list[LogInfo] = []
        for partition_id in partitions:
            partition = self._held_partitions.partitions.get(partition_id)
            if partition is None or (partition.offline_reason and not partition.log.is_offline):
                continue
            is_damaged = bool(partition.offline_reason)
            infos.append(end_of(partition_id, partition.log, is_damaged=is_damaged))
        return tuple(infos)

    # -- messages -----------------------------------------------------------------------------

    def _to_metadata(self, header: PeerHeader, tail: bytes, now: Instant) -> None:
        self.detector.on_message(header.sender, now)
        self._consensus.on_peer(header, tail, now)
        self._context.metadata.catch_up()

    def _to_search(self, header: PeerHeader, tail: bytes, now: Instant) -> None:
        del tail
        self._joining.on_peer(header, now)

    def _to_others(self, header: PeerHeader, tail: bytes, now: Instant) -> None:
        self.detector.on_message(header.sender, now)
        known = self._context.state.brokers.get(header.sender)
        if (
            known is not None
            and known.broker_epoch == header.broker_epoch
            and known.incarnation_id != header.incarnation_id  # guard Peer.incarnation
        ):
            # Messages for a session count only from the process that registered it.
            self.impostor_count += 1
            return
        if isinstance(header.body, MessagesLost):
            self._on_messages_lost(header.sender, now)
        elif not (self.replicas.on_peer(header, tail, now) or self.control.on_peer(header, now)):
            others = (self.readiness, self.sequences, self.held)
            _ = any(part.on_peer(header) for part in others)

    def on_disconnected(self, now: Instant) -> None:
        """Handle the loss of a connection to other brokers."""
        self._outage.begin(now)
        self._context.wake_soon()

    def on_connected(self, now: Instant) -> None:
        """Handle the return of all connections to other brokers."""
        self.detector.on_connected(now)
        if self._outage.end(now):
            self._excuse(now)
        self.replicas.on_connected()
        self.session.hurry(now)
        self._context.wake_soon()

    def _excuse(self, now: Instant) -> None:
        """Restart timers that judge the silence of others: this broker could hear nobody."""
        self._consensus.excuse(now)
        self.control.excuse(now)
        self.replicas.excuse(now)

    def on_reconnected(self, now: Instant) -> None:
        """Notify all brokers that messages to this one, and acks, may be lost with a connection."""
        for broker in self._context.state.brokers:
            if broker != self._context.broker:
                self.link.send(broker, Channel.METADATA, MessagesLost())
        self._on_messages_lost(self._context.broker, now)
        self._context.wake_soon()

    def on_no_responders(
        self, broker: BrokerId, channel: Channel, sent_at: Instant, now: Instant
    ) -> bool:
        """Handle the answer of NATS to a probe; return whether it made work due."""
        if not self.detector.on_no_responders(broker, channel, sent_at, now):
            return False
        self.ended_count += 1
        self._context.transition("broker_ended", {"broker": broker})
        self.control.on_ended(broker, now)
        self._consensus.abandon_leader(broker, now)
        self._context.metadata.catch_up()
        return True

    def on_peer(self, channel: Channel, payload: bytes, now: Instant) -> bool:
        """Handle a payload of another broker; return whether it may have made work due."""
        return self.peers.on_payload(channel, payload, now)

    # -- metadata -----------------------------------------------------------------------------

    def on_leader(self, event: LeaderChanged, now: Instant) -> None:
        """Handle a change of the metadata leader, or its loss."""
        self.control.on_leader(event, now)
        self._watch(now)
        if event.leader is not None:
            self.replicas.repeat_reports()
        if event.is_self:
            for broker in self._context.state.brokers:
                if self.detector.has_ended(broker):
                    self.control.on_ended(broker, now)

    def _watch(self, now: Instant) -> None:
        """Watch the metadata leader, or the former one; as leader, all that are not fenced."""
        leader, state = self._consensus.leader, self._context.state
        if self.control.is_leader:
            watched = [broker.broker for broker in state.brokers.values() if not broker.fenced]
        elif leader is not None:
            watched = [BrokerId(leader.broker)]
        else:
            return
        self.detector.watch((name for name in watched if name != self._context.broker), now)

    def on_applied(self, records: Sequence[Record], now: Instant) -> None:
        """Handle applied records, after the partitions were updated."""
        if any(isinstance(record, BrokerChanged) for record in records):
            self.on_brokers(now)
        self._knows_cluster()
        self.control.on_applied(self._context.state.applied_index, records, now)

    @property
    def is_displaced(self) -> bool:
        """Return whether another process of this broker has taken over this one's session.

        The registration of an earlier process may be applied that late. That process has ended, and
        the replicas here count as unclean: only a restart brings the broker back.
        """
        return self._context.is_caught_up and self._registration() is None

    def on_brokers(self, now: Instant) -> None:
        """Handle a change of brokers; this one may be registered now."""
        self._watch(now)
        own = self._registration()
        if own is not None and own.broker_epoch != self.session.broker_epoch:
            self._begin(own.broker_epoch, now)
        self.replicas.on_brokers()

    def _registration(self) -> BrokerState | None:
        """Registration of this process, `None` before it applies or once another replaced it."""
        own = self._context.state.brokers.get(self._context.broker)
        is_ours = own is not None and own.incarnation_id == self.link.incarnation_id
        return own if is_ours else None

    def _begin(self, broker_epoch: MetadataIndex, now: Instant) -> None:
        """Take up roles and ask for membership, now that the registration was applied."""
        self.link.broker_epoch = broker_epoch
        self._roles.broker_epoch = broker_epoch
        self.session.begin(broker_epoch, now)
        self.session.want_fence = False
        context, held = self._context, self._held_partitions
        is_first, context.is_caught_up = not context.is_caught_up, True
        if is_first:
            self._catch_up(now)
            return
        for stream, state in context.state.partitions():
            partition = held.partitions.get(state.partition_id)
            if partition is not None:
                held.assign_role(partition, stream, state, now)

    def _catch_up(self, now: Instant) -> None:
        """Do the work deferred while the metadata might date from an earlier process (S74)."""
        context, held = self._context, self._held_partitions
        for stream, state in context.state.partitions():
            partition = held.partitions.get(state.partition_id)
            if partition is not None and stream.publishers and context.broker in state.replicas:
                # The log holds records of publishers that are known only now.
                take_up_publishers(context, partition)
        self._applied.take_state(now, context.wall_ns)
        self._applied.finish_deletions(now)

    def _knows_cluster(self) -> None:
        if self._context.state.cluster_id:
            self.link.cluster_id = self._context.state.cluster_id

    def end_waits(self) -> None:
        """Answer all callers that wait for other brokers, because the broker stops."""
        self.readiness.end()
        self.sequences.end()
        self.held.end()
        self.answers.end()

    # -- time ---------------------------------------------------------------------------------

    def on_timer(self, now: Instant) -> None:
        """Run all work that is due."""
        if self._outage.excuses(now):
            self._excuse(now)
        self._joining.on_timer(now)
        self.control.on_timer(now)
        self.readiness.on_timer(now)
        self.sequences.on_timer(now)
        self.held.on_timer(now)
        self.answers.on_timer(now)
        is_fenced = self._context.is_caught_up and self.is_self_fenced(now)
        if is_fenced != self._was_self_fenced:
            self._was_self_fenced = is_fenced
            self._context.transition("self_fenced", {"is_fenced": is_fenced})
            self.replicas.fence(now, is_fenced=is_fenced)
        silences = self.replicas.on_timer(now)
        if silences:
            self.control.report(silences, now)

    def flush(self, now: Instant) -> None:
        """Send messages that became due in this turn."""
        if self._roles.is_due:
            self.replicas.flush(now)

    def next_deadline(self) -> Instant | None:
        """Time of the next `on_timer` call, `None` for never."""
        return earliest(
            self._joining.next_deadline(),
            self.detector.next_deadline(),
            self._outage.next_deadline(self._context.now),
            self.control.next_deadline(),
            self.replicas.next_deadline(),
            self.readiness.next_deadline(),
            self.sequences.next_deadline(),
            self.held.next_deadline(),
            self.answers.next_deadline(),
        )
