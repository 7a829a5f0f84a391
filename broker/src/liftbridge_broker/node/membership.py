"""Cluster membership of a node: control plane, data plane and messages from peers.

A node without it is a broker alone, whose partitions have no other replicas. The broker takes roles
only after its own registration was applied: before that, its metadata may date from an earlier
process.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from liftbridge_broker.controller.commands import Command
from liftbridge_broker.controller.records import BrokerChanged, Record
from liftbridge_broker.controller.state import BrokerState, ClusterState, StreamState
from liftbridge_broker.model.ids import (
    OFFSET_MAX,
    BrokerId,
    Instant,
    MetadataIndex,
    Offset,
    PartitionId,
    earliest,
)
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.node.metadata.consensus import RaftConsensus
from liftbridge_broker.node.metadata.control import ControlOptions, ControlPlane
from liftbridge_broker.node.metadata.driver import MetadataDriver
from liftbridge_broker.node.metadata.inquiries import end_of
from liftbridge_broker.node.metadata.joining import Joining
from liftbridge_broker.node.metadata.own_session import OwnSession
from liftbridge_broker.node.partition.opening import OpeningHost, take_up_publishers
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.peers.peer_link import PeerLink
from liftbridge_broker.node.peers.peers import Peers
from liftbridge_broker.node.publishing.publisher_sequences import PublisherSequences
from liftbridge_broker.node.publishing.stream_readiness import StreamReadiness, StreamReadinessHost
from liftbridge_broker.node.reading.answers import Answers
from liftbridge_broker.node.replicas.applied import PartitionOwner, finish_deletions, take_state
from liftbridge_broker.node.replicas.replica_host import ReplicasHost, ReplicationLimits
from liftbridge_broker.node.replicas.replicas import Replicas
from liftbridge_broker.node.scheduling.cluster_clock import ClusterClock
from liftbridge_broker.node.upkeep.retention_cursors import RetentionCursors, RetentionCursorsHost
from liftbridge_broker.ports.metadata import LeaderChanged
from liftbridge_broker.ports.rng import Rng
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.storage.flush import effective_policy
from liftbridge_broker.wire.peer import PeerHeader
from liftbridge_broker.wire.peer_bodies import LogInfo, MessagesLost


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


class MembershipHost(
    OpeningHost, ReplicasHost, StreamReadinessHost, PartitionOwner, RetentionCursorsHost, Protocol
):
    """The part of the node that membership needs."""

    metadata: MetadataDriver
    clock: ClusterClock

    def assign_role(
        self, partition: Partition, stream: StreamState, state: PartitionState, now: Instant
    ) -> None:
        """Lead or follow, as the metadata say."""
        ...

    def on_messages_lost(self, broker: BrokerId, now: Instant) -> None:
        """Handle the loss of messages to a broker that were in flight."""
        ...


class Membership:
    """See the module.

    Attributes:
        link: Sends messages to other brokers.
        control: The control plane.
        replicas: The data plane.
        readiness: Callers that wait for leaders of new partitions to listen.
        sequences: Publishers that wait for their next sequences.
        held: Look-ups of retention cursors.
        answers: Questions about offsets that wait until they may be answered.
        peers: Dispatch of incoming messages.
        is_active: Whether this broker's registration was applied, so that it takes roles.
        impostor_count: Messages for a session sent by another process than the registered one.
    """

    def __init__(self, host: MembershipHost, parts: ClusterParts) -> None:
        """Start unregistered."""
        self._host = host
        self.link = parts.link
        self._consensus = parts.consensus
        self._joining = parts.joining
        self.control = ControlPlane(self, parts.consensus, parts.link, parts.control)
        self.replicas = Replicas(
            host, parts.link, parts.rng, parts.replication, self.is_self_fenced
        )
        self.readiness = StreamReadiness(host, parts.link)
        self.sequences = PublisherSequences(host, parts.link)
        self.held = RetentionCursors(host, parts.link, start=parts.link.incarnation_id)
        self.answers = Answers(host)
        self.peers = Peers(parts.link, self._to_metadata, self._to_search, self._to_others)
        self.is_active = False
        self.impostor_count = 0
        self._was_self_fenced = False
        self._knows_cluster()

    @property
    def session(self) -> OwnSession:
        """This broker's session with the metadata leader."""
        return self.control.session

    def is_self_fenced(self, now: Instant) -> bool:
        """Return whether this broker has fenced itself: its roles may be outdated."""
        return self.session.is_self_fenced(now)

    # -- host of the control plane ------------------------------------------------------------

    @property
    def broker(self) -> BrokerId:
        """Id of this broker."""
        return self._host.broker

    @property
    def state(self) -> ClusterState:
        """Applied metadata."""
        return self._host.state

    @property
    def wall_ns(self) -> int:
        """Wall clock of this turn, Unix nanoseconds."""
        return self._host.wall_ns

    @property
    def clock(self) -> ClusterClock:
        """Cluster time."""
        return self._host.clock

    def propose(self, command: Command, now: Instant, reply: Callable[[object], None]) -> None:
        """Propose a command to the metadata group."""
        self._host.propose(command, now, reply)

    def transition(self, kind: str, fields: dict[str, object]) -> None:
        """Report a transition to the observer."""
        self._host.transition(kind, fields)

    def log_infos(self, partitions: Sequence[PartitionId]) -> tuple[LogInfo, ...]:
        """Return the ends of logs held here; mark damaged logs, so that no broker waits for them.

        Logs that went offline since are left out, as their contents are not vouched for.
        """
        found: list[LogInfo] = []
        for partition_id in partitions:
            partition = self._host.partitions.get(partition_id)
            if partition is None or (partition.offline_reason and not partition.log.is_offline):
                continue
            is_damaged = bool(partition.offline_reason)
            found.append(end_of(partition_id, partition.log, is_damaged=is_damaged))
        return tuple(found)

    # -- messages -----------------------------------------------------------------------------

    def _to_metadata(self, header: PeerHeader, tail: bytes, now: Instant) -> None:
        self._consensus.on_peer(header, tail, now)
        self._host.metadata.catch_up()

    def _to_search(self, header: PeerHeader, tail: bytes, now: Instant) -> None:
        del tail
        self._joining.on_peer(header, now)

    def _to_others(self, header: PeerHeader, tail: bytes, now: Instant) -> None:
        known = self.state.brokers.get(header.sender)
        if (
            known is not None
            and known.broker_epoch == header.broker_epoch
            and known.incarnation_id != header.incarnation_id  # guard Peer.incarnation
        ):
            # Messages for a session count only from the process that registered it.
            self.impostor_count += 1
            return
        if isinstance(header.body, MessagesLost):
            self._host.on_messages_lost(header.sender, now)
        elif not (self.replicas.on_peer(header, tail, now) or self.control.on_peer(header, now)):
            others = (self.readiness, self.sequences, self.held)
            _ = any(one.on_peer(header) for one in others)

    def on_reconnected(self, now: Instant) -> None:
        """Notify all brokers that messages to this one, and acks, may be lost with a connection."""
        for broker in self.state.brokers:
            if broker != self.broker:
                self.link.send(broker, Channel.METADATA, MessagesLost())
        self._host.on_messages_lost(self.broker, now)
        self._host.wake_soon()

    def on_peer(self, channel: Channel, payload: bytes, now: Instant) -> bool:
        """Handle a payload of another broker; return whether it may have made work due."""
        return self.peers.on_payload(channel, payload, now)

    # -- metadata -----------------------------------------------------------------------------

    def on_leader(self, event: LeaderChanged, now: Instant) -> None:
        """Handle a change of the metadata leader, or its loss."""
        self.control.on_leader(event, now)
        if event.leader is not None:
            self.replicas.repeat_reports()

    def on_applied(self, records: Sequence[Record], now: Instant) -> None:
        """Handle applied records, after the partitions were updated."""
        if any(isinstance(record, BrokerChanged) for record in records):
            self.on_brokers(now)
        self._knows_cluster()
        self.control.on_applied(self.state.applied_index, records, now)

    @property
    def is_displaced(self) -> bool:
        """Return whether another process of this broker has taken over this one's session.

        The registration of an earlier process may be applied that late. That process has ended, and
        the replicas here count as unclean: only a restart brings the broker back.
        """
        return self.is_active and self._registration() is None

    def on_brokers(self, now: Instant) -> None:
        """Handle a change of brokers; this one may be registered now."""
        own = self._registration()
        if own is not None and own.broker_epoch != self.session.broker_epoch:
            self._begin(own.broker_epoch, now)
        self.replicas.on_brokers()

    def _registration(self) -> BrokerState | None:
        """Registration of this process, `None` before it applies or once another replaced it."""
        own = self.state.brokers.get(self.broker)
        is_ours = own is not None and own.incarnation_id == self.link.incarnation_id
        return own if is_ours else None

    def _begin(self, broker_epoch: MetadataIndex, now: Instant) -> None:
        """Take up roles and ask for membership, now that the registration was applied."""
        self.link.broker_epoch = broker_epoch
        self.replicas.broker_epoch = broker_epoch
        self.session.begin(broker_epoch, now)
        self.session.want_fence = False
        is_first, self.is_active = not self.is_active, True
        host = self._host
        if is_first:
            self._catch_up(now)
            return
        for stream, state in self.state.partitions():
            partition = host.partitions.get(state.partition_id)
            if partition is not None:
                host.assign_role(partition, stream, state, now)

    def _catch_up(self, now: Instant) -> None:
        """Do the work deferred while the metadata might date from an earlier process (S74)."""
        host = self._host
        for stream, state in self.state.partitions():
            partition = host.partitions.get(state.partition_id)
            if partition is not None and stream.publishers and host.broker in state.replicas:
                # The log holds records of publishers that are known only now.
                take_up_publishers(host, partition)
        take_state(host, now, host.wall_ns)
        finish_deletions(host, now)

    def _knows_cluster(self) -> None:
        if self.state.cluster_id:
            self.link.cluster_id = self.state.cluster_id

    def takes(
        self, partition: Partition, stream: StreamState, state: PartitionState, now: Instant
    ) -> bool:
        """Assign the role of a partition; return false if this broker has its only replica."""
        if not self.is_active:
            return True
        is_alone = state.replicas == (self.broker,)
        if is_alone and not (state.is_recovering and state.leader == self.broker):
            if partition.replication is not None:
                self.replicas.drop(partition, now)
                partition.log.compacted_everywhere = Offset(OFFSET_MAX)
                policy = effective_policy(partition.options.fsync_policy)
                self._host.store.set_policy(partition.partition_id, policy, now)
                self._host.store.set_leader(partition.partition_id, is_leader=True)
            return False
        self.replicas.on_state(partition, stream, state, now)
        return True

    def end_waits(self) -> None:
        """Answer all callers that wait for other brokers, because the broker stops."""
        self.readiness.end()
        self.sequences.end()
        self.held.end()
        self.answers.end()

    # -- time ---------------------------------------------------------------------------------

    def on_timer(self, now: Instant) -> None:
        """Run all work that is due."""
        self._joining.on_timer(now)
        self.control.on_timer(now)
        self.readiness.on_timer(now)
        self.sequences.on_timer(now)
        self.held.on_timer(now)
        self.answers.on_timer(now)
        is_fenced = self.is_active and self.is_self_fenced(now)
        if is_fenced != self._was_self_fenced:
            self._was_self_fenced = is_fenced
            self.transition("self_fenced", {"is_fenced": is_fenced})
            self.replicas.fence(now, is_fenced=is_fenced)
        silences = self.replicas.on_timer(now)
        if silences:
            self.control.report(silences, now)

    def flush(self, now: Instant) -> None:
        """Send messages that became due in this turn."""
        if self.replicas.is_due:
            self.replicas.flush(now)

    def next_deadline(self) -> Instant | None:
        """Time of the next `on_timer` call, `None` for never."""
        return earliest(
            self._joining.next_deadline(),
            self.control.next_deadline(),
            self.replicas.next_deadline(),
            self.readiness.next_deadline(),
            self.sequences.next_deadline(),
            self.held.next_deadline(),
            self.answers.next_deadline(),
        )
