"""A broker of a cluster, as a program: the shipped node with control plane and data plane.

What the process does around its node - look for a cluster, register, wait until it may lead, hand
over before it stops - is done here in steps of a timer, in the order of the shipped process.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from liftbridge_broker.controller.commands import (
    FEATURE_LEVEL,
    Bootstrap,
    Command,
    RegisterBroker,
)
from liftbridge_broker.controller.records import Record
from liftbridge_broker.controller.state import BrokerState
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import BrokerId, Instant
from liftbridge_broker.model.subjects import internal_subject
from liftbridge_broker.node.membership import ClusterParts
from liftbridge_broker.node.metadata.bootstrap import Beginning, Discovery, Role, founded_by
from liftbridge_broker.node.metadata.consensus import RaftConsensus
from liftbridge_broker.node.metadata.control import ControlOptions
from liftbridge_broker.node.metadata.driver import MetadataDriver
from liftbridge_broker.node.metadata.joining import Joining
from liftbridge_broker.node.metadata.leader_wait import leader_wait_ns
from liftbridge_broker.node.metadata.opening import open_member
from liftbridge_broker.node.node import Node
from liftbridge_broker.node.options import NodeOptions
from liftbridge_broker.node.peers.peer_link import PeerLink
from liftbridge_broker.node.peers.peer_sessions import PeerSessions
from liftbridge_broker.node.replicas.claims import quarantined_partitions, verified_partitions
from liftbridge_broker.node.replicas.replica_host import ReplicationLimits
from liftbridge_broker.node.scheduling.cluster_clock import ClockLimits
from liftbridge_broker.node.scheduling.opening_queue import OPENINGS_PER_TURN
from liftbridge_broker.ports.files import FileEvent, Token
from liftbridge_broker.ports.messaging import Arrival, SubscriptionId
from liftbridge_broker.ports.metadata import LeaderChanged
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.raft.environment import RaftOptions
from liftbridge_broker.raft.types import Configuration, Peer
from liftbridge_broker.storage.directory import Identity
from liftbridge_broker.storage.raft_log import RaftLog
from liftbridge_broker.storage.raft_recovery import holds_metadata
from liftbridge_broker.storage.start import open_store
from liftbridge_broker.storage.store import LogStore, StoreOptions
from liftbridge_broker.wire.peer_keys import OPEN_KEYRING, Keyring
from liftbridge_testkit.sim.lone import METADATA_TOKEN, NAMESPACE, BrokerSettings
from liftbridge_testkit.sim.program import Ports
from liftbridge_testkit.sim.scheduler import MILLISECOND_NS, SECOND_NS

LOOK_NS = 20 * MILLISECOND_NS
PROPOSAL_NS = SECOND_NS
HAND_OVER_NS = 10 * SECOND_NS
DRAIN_NS = 10 * SECOND_NS
ENDING_NS = 100 * MILLISECOND_NS
"""Between the end of the node and that of the process, while metadata go on."""


CLOCK_LIMITS = ClockLimits(
    tolerance_ns=1_000 * MILLISECOND_NS,
    settle_ns=2_000 * MILLISECOND_NS,
    stamp_ns=500 * MILLISECOND_NS,
)
"""Options in proportion to lives of seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """Shared options of all brokers of a cluster.

    Attributes:
        peers: Brokers that found it together; others wait to be let in.
        broker: Settings of one broker alone.
        raft: Times and bounds of the metadata group.
        control: Those of the control plane.
        replication: Those of the data plane.
        keys: Keys by which brokers recognise one another.
        clock: When clocks count as wrong.
        openings_per_turn: New replicas that one turn opens.
    """

    peers: tuple[BrokerId, ...]
    broker: BrokerSettings = field(default_factory=BrokerSettings)
    raft: RaftOptions = field(default_factory=RaftOptions)
    control: ControlOptions = field(default_factory=ControlOptions)
    replication: ReplicationLimits = field(default_factory=ReplicationLimits)
    keys: Keyring = OPEN_KEYRING
    clock: ClockLimits = CLOCK_LIMITS
    openings_per_turn: int = OPENINGS_PER_TURN


class ClusterBroker:
    """The program; implements `Program` and `Serving`.

    Attributes:
        node: The broker, for clients and watchers; made when a cluster is found.
        consensus: Its member of the metadata group; made with the node.
        metadata_log: The log of that, for looking only.
        is_open: Whether they are made.
        is_ready: Whether it is registered, may lead, and is connected to NATS.
    """

    node: Node
    consensus: RaftConsensus
    metadata_log: RaftLog
    _joining: Joining
    _search_link: PeerLink

    def __init__(self, ports: Ports, settings: ClusterSettings) -> None:
        self.ports = ports
        self.settings = settings
        self.is_open = False
        self.is_ready = False
        self._incarnation_id = ports.new_id()
        self._sessions = PeerSessions(
            ports.broker, self._incarnation_id, settings.keys, ports.random, ports.process.now
        )
        self._token = METADATA_TOKEN
        self._store: LogStore | None = None
        self._search: Discovery | None = None
        self._node_due: Instant | None = None
        self._look_at: Instant | None = None
        self._armed: Instant | None = None
        self._propose_at = Instant(0)
        self._listens = False
        self._stop_began: Instant | None = None
        self._led_at = Instant(0)
        self._close_at: Instant | None = None
        self._end_at: Instant | None = None

    # -- ports of the node --------------------------------------------------------------------

    def _new_token(self) -> Token:
        self._token = Token(self._token + 1)
        return self._token

    def arm(self, deadline: Instant) -> None:
        """Port `Timer` of the node, which shares the machine's with this program."""
        self._node_due = deadline
        self._arm()

    def _arm(self) -> None:
        due = [at for at in (self._node_due, self._look_at) if at is not None]
        if due and (self._armed is None or min(due) < self._armed):
            self._armed = min(due)
            self.ports.process.arm(self._armed)

    # -- start --------------------------------------------------------------------------------

    @property
    def store(self) -> LogStore:
        """The logs, after `start`."""
        assert self._store is not None
        return self._store

    @property
    def me(self) -> Peer:
        """This broker with its data directory."""
        identity = self.store.identity
        return Peer(identity.broker_id, identity.data_dir_id)

    def start(self) -> None:
        """Recover the logs; then find a cluster, or go on with the one the disk knows."""
        ports, process = self.ports, self.ports.process
        settings = self.settings.broker
        try:
            self._store = open_store(
                ports.files,
                Identity(f"{ports.broker}.{ports.disk_number}", ports.broker),
                StoreOptions(
                    flush=settings.flush,
                    space=settings.space,
                    trash_grace_ns=settings.trash_grace_ns,
                    known_names=("metadata",),
                ),
                observer=process,
                new_token=self._new_token,
                now=process.now(),
                wall_ns=process.wall_ns(),
            )
            self.store.on_failed = ports.failed
            if holds_metadata(ports.files, "metadata"):
                self._open(None)
            else:
                self._begin_search()
        except LiftbridgeError as error:
            ports.failed(error.text)
            return
        self._look_at = process.now()
        self._arm()

    def _begin_search(self) -> None:
        peers, broker = self.settings.peers, self.ports.broker
        role = Role.PEER if broker in peers else Role.WAITER
        link = self._search_link = PeerLink(self.ports.transport, self._sessions)
        self._search = Discovery(self.me, role, peers, link.send, self.ports.process.now())

    def _open(self, beginning: Beginning | None) -> None:
        """Recover the metadata and open every partition."""
        ports, process, me = self.ports, self.ports.process, self.me
        cluster_id = "" if beginning is None else beginning.cluster_id
        link = PeerLink(ports.transport, self._sessions, cluster_id)
        driver = self._open_metadata(link, beginning)
        if self.consensus.voters:
            link.founders_id = founded_by(self.consensus.voters).cluster_id
        now = process.now()
        self._joining = Joining(me, self.consensus, link, now)
        parts = ClusterParts(
            link=link,
            consensus=self.consensus,
            joining=self._joining,
            rng=ports.random,
            control=self.settings.control,
            replication=self.settings.replication,
        )
        options = NodeOptions(
            broker=ports.broker,
            namespace=NAMESPACE,
            inbox=internal_subject(NAMESPACE, "ack", f"{ports.broker}.{ports.start_number}"),
            ack_secret=f"{ports.broker} {ports.start_number}".encode(),
            keyring=lambda: self._sessions.keys,
            defaults=self.settings.broker.defaults,
            record_bytes_max=self.settings.broker.record_bytes_max,
            clock=self.settings.clock,
            openings_per_turn=self.settings.openings_per_turn,
        )
        self.node = Node(
            options,
            ports.files,
            self.store,
            driver,
            ports.messaging,
            process,
            self,
            METADATA_TOKEN,
            self._new_token,
            parts,
        )
        self.is_open = True
        self.node.open_partitions(now)
        self.store.begin(self.node.state.applied_index, now)
        self.node.on_timer(now, process.wall_ns())

    def _open_metadata(self, link: PeerLink, beginning: Beginning | None) -> MetadataDriver:
        ports, me = self.ports, self.me
        self.metadata_log, self.consensus, recovered = open_member(
            ports.files,
            me,
            link,
            origin=bytes.fromhex(ports.new_id()),
            sync_token=METADATA_TOKEN,
            rng=ports.random,
            now=ports.process.now(),
            bootstrap=Configuration((me,)) if beginning is None else beginning.configuration,
            index_min=self.store.proven_index,
            options=self.settings.raft,
        )
        return MetadataDriver(
            self.consensus,
            recovered,
            on_change=self._on_change,
            on_failed=lambda error: ports.failed(error.text),
            on_restored=self._on_restored,
            on_leader=self._on_leader,
            snapshot_entries=self.settings.broker.snapshot_entries,
        )

    def _on_change(self, _index: int, records: Sequence[Record]) -> None:
        self.ports.applied()
        self.node.on_change(records)
        self._note_applied()

    def _on_restored(self) -> None:
        self.ports.process.transition("metadata_snapshot_installed", {})
        self.ports.applied()
        self.node.on_restored()
        self._note_applied()

    def _note_applied(self) -> None:
        if self.node.cluster is not None and self.node.cluster.is_displaced:
            self.ports.failed("displaced")

    def _on_leader(self, event: LeaderChanged) -> None:
        fields = {"leader": event.leader or "", "term": event.term, "is_self": event.is_self}
        self.ports.process.transition("metadata_leader_changed", fields)
        self.node.on_leader(event)
        if event.is_self and not self.node.state.cluster_id:
            command = Bootstrap(cluster_id=founded_by(self.consensus.voters).cluster_id)
            self._propose(command)

    def _propose(self, command: Command) -> None:
        """Ask for something that is asked for again until it shows."""
        self.node.propose(command, self.ports.process.now(), lambda _outcome: None)

    # -- the session --------------------------------------------------------------------------

    @property
    def registration(self) -> BrokerState | None:
        """The session of this process, as far as it was applied here; `None` before."""
        own = self.node.state.brokers.get(self.ports.broker)
        is_ours = own is not None and own.incarnation_id == self._incarnation_id
        return own if is_ours else None

    def _look(self, now: Instant) -> None:
        """Do the next step of a start or of a stop, if it is time for one."""
        self._look_at = Instant(now + LOOK_NS)
        if self._search is not None:
            self._look_for_cluster(now)
        elif self._end_at is not None:
            self._end(now)
        elif self._close_at is not None:
            self._drain(now)
        elif self._stop_began is not None:
            self._hand_over(now)
        elif not self.is_ready:
            self._begin_session(now)
        else:
            self._look_at = None

    def _look_for_cluster(self, now: Instant) -> None:
        assert self._search is not None
        self._search.on_timer(now)
        beginning = self._search.beginning
        if beginning is not None:
            self._search = None
            try:
                self._open(beginning)
            except LiftbridgeError as error:
                self.ports.failed(error.text)

    def _begin_session(self, now: Instant) -> None:
        own = self.registration
        if own is None:
            self._joining.on_timer(now)
            if self._joining.is_member and now >= self._propose_at and self.consensus.leader:
                self._propose_at = Instant(now + PROPOSAL_NS)
                self._propose(self._registration_command())
            return
        if not self._listens:
            self._listens = True
            self.store.begin_session(self.node.state.applied_index, now)
            self.node.listen()
        if not own.fenced:
            self.is_ready = True

    def _registration_command(self) -> RegisterBroker:
        return RegisterBroker(
            broker=self.ports.broker,
            incarnation_id=self._incarnation_id,
            data_dir_id=self.me.data_dir_id,
            host="localhost",
            port=9292,
            previous_broker_epoch=self.store.clean_broker_epoch or 0,
            clean_partitions=verified_partitions(self.node),
            known_index=self.store.known_index,
            quarantined_partitions=quarantined_partitions(self.node),
            feature_level=FEATURE_LEVEL,
        )

    # -- the end ------------------------------------------------------------------------------

    def stop(self, now: Instant, wall_ns: int) -> None:
        """Transfer leaderships, for a while, then close."""
        if not self.is_open:
            self.store.abandon()
            self.ports.stopped()
            return
        cluster = self.node.cluster
        assert cluster is not None
        if self.registration is None:
            self._close()
            return
        self._stop_began = self._led_at = now
        cluster.session.want_shutdown = True
        cluster.session.hurry(now)
        self.node.on_timer(now, wall_ns)
        self._look_at = now
        self._arm()

    def _hand_over(self, now: Instant) -> None:
        cluster = self.node.cluster
        assert cluster is not None
        assert self._stop_began is not None
        if self.consensus.leader is not None:
            self._led_at = now
        leaderless_ns = leader_wait_ns(self.node.state, self.consensus.voters, self.node.broker)
        is_given_up = now - self._stop_began >= HAND_OVER_NS or now - self._led_at >= leaderless_ns
        if cluster.session.may_stop or is_given_up:
            self.is_ready = False
            self._close_at = Instant(now + DRAIN_NS)
            self.node.begin_stop(self._close)

    def _drain(self, now: Instant) -> None:
        """Owed acks may wait for brokers that do not come back: not for ever."""
        assert self._close_at is not None
        if now >= self._close_at:
            self._close()

    def _close(self) -> None:
        """End the node; the process continues for a moment, as its connections end one by one."""
        self.is_ready = False
        self._look_at = self._end_at = Instant(self.node.now + ENDING_NS)
        self.node.stop()
        self._arm()

    def _end(self, now: Instant) -> None:
        assert self._end_at is not None
        if not self.is_open or now < self._end_at:
            return
        own = self.registration
        epoch = self.store.clean_broker_epoch if own is None else own.broker_epoch
        self.is_open = False
        try:
            if epoch is None:
                self.store.abandon()
            else:
                self.store.close(epoch)
            self.consensus.close()
        except LiftbridgeError as error:
            self.ports.failed(error.text)
            return
        self.ports.stopped()

    # -- events -------------------------------------------------------------------------------

    def on_file_event(self, event: FileEvent, now: Instant, wall_ns: int) -> None:
        """A call by token ended."""
        if self.is_open:
            self.node.on_file_event(event, now, wall_ns)

    def on_timer(self, now: Instant, wall_ns: int) -> None:
        """The deadline came: the node's, or that of the next step."""
        self._armed = None
        if self._node_due is not None and now >= self._node_due and self.is_open:
            self._node_due = None
            self.node.on_timer(now, wall_ns)
        if self._look_at is not None and now >= self._look_at:
            self._look(now)
        self._arm()

    def on_messages(
        self,
        subscription: SubscriptionId,
        arrivals: list[Arrival],
        payloads: list[bytes],
        now: Instant,
        wall_ns: int,
    ) -> None:
        """Messages of a subscription."""
        if self.is_open:
            self.node.on_messages(subscription, arrivals, payloads, now, wall_ns)

    def on_peer(self, channel: Channel, payload: bytes, now: Instant, wall_ns: int) -> None:
        """Another broker sent something to this one, or to everyone."""
        if self._search is not None:
            message = self._search_link.receive(channel, payload)
            if message is not None:
                self._search.on_peer(message[0])
        elif self.is_open:
            self.node.on_peer(channel, payload, now, wall_ns)

    def on_link(self, *, connected: bool, now: Instant, wall_ns: int) -> None:
        """The link to NATS fell, or is back."""
        del wall_ns
        cluster = self.node.cluster if self.is_open else None
        if connected and cluster is not None:
            cluster.on_reconnected(now)
