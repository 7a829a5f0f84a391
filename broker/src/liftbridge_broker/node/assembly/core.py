"""One broker on its ports: recovers data, finds a cluster, builds the node, closes.

The process runs it with a disk, NATS and the machine's clocks; tests of users run it with files and
NATS in memory and a clock that they advance; the simulator injects faults. The broker behaves the
same in all of them. Random values are arguments.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from liftbridge_broker.controller.commands import Bootstrap
from liftbridge_broker.controller.records import Record
from liftbridge_broker.controller.state import BrokerState
from liftbridge_broker.errors import (
    FailedPreconditionError,
    FilesError,
    LiftbridgeError,
)
from liftbridge_broker.model.ids import BrokerId, Instant, MetadataIndex
from liftbridge_broker.model.metadata_log import Configuration, Peer
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.assembly.partition_events import log_partition_changes
from liftbridge_broker.node.assembly.search import Search
from liftbridge_broker.node.control import ControlOptions
from liftbridge_broker.node.membership import ClusterParts
from liftbridge_broker.node.metadata.bootstrap import Beginning, Role, founded_by
from liftbridge_broker.node.metadata.consensus import DEFAULT_RAFT_OPTIONS, RaftConsensus
from liftbridge_broker.node.metadata.driver import SNAPSHOT_ENTRIES_DEFAULT, MetadataDriver
from liftbridge_broker.node.metadata.joining import Joining
from liftbridge_broker.node.metadata.opening import METADATA_DIRECTORY, open_member
from liftbridge_broker.node.node import Node
from liftbridge_broker.node.options import NodeOptions
from liftbridge_broker.node.peers.peer_link import NoPeers, PeerLink
from liftbridge_broker.node.peers.peer_sessions import PeerSessions
from liftbridge_broker.node.replicas.role_context import ReplicationLimits
from liftbridge_broker.node.upkeep.scrubbing import Scrubber
from liftbridge_broker.ports.clock import Clock
from liftbridge_broker.ports.files import Files, Token
from liftbridge_broker.ports.messaging import Messaging
from liftbridge_broker.ports.metadata import LeaderChanged
from liftbridge_broker.ports.observe import Observer
from liftbridge_broker.ports.rng import Rng
from liftbridge_broker.ports.timer import Timer
from liftbridge_broker.ports.transport import Channel, Transport
from liftbridge_broker.raft.options import RaftOptions
from liftbridge_broker.storage.cleaning.compaction import SubmitCompaction
from liftbridge_broker.storage.directory import Identity
from liftbridge_broker.storage.raft_log.log import SNAPSHOTS_KEPT, RaftLog
from liftbridge_broker.storage.raft_log.recovery import holds_metadata
from liftbridge_broker.storage.retirement import is_retired, renew_retired, retire
from liftbridge_broker.storage.start import open_store
from liftbridge_broker.storage.store import LogStore, StoreOptions
from liftbridge_broker.wire.peer.keys import OPEN_KEYRING, Keyring

METADATA_TOKEN: Final = Token(1)
DISPLACED_TEXT: Final = (
    "an earlier process of this broker registered again and replaced the session of this one"
)


class Change(Enum):
    """Change of the metadata, or of their leader, that the node has not acted on yet."""

    APPLIED = "applied"
    RESTORED = "restored"
    """A snapshot of the leader replaced the state."""
    LEADER = "leader"
    """The leader of the metadata group changed or was lost."""


class _Tokens:
    """Source of unique tokens for file calls."""

    def __init__(self) -> None:
        self._last = METADATA_TOKEN

    def __call__(self) -> Token:
        self._last = Token(self._last + 1)
        return self._last


@dataclass(slots=True)
class Elections:
    """Counts of elections since the start.

    Attributes:
        metadata: Changes and losses of the leader of the metadata group.
        partitions: New leader epochs of partitions in the applied metadata.
    """

    metadata: int = 0
    partitions: int = 0


def _nobody_waits() -> None:
    """No-op: no caller waits for the search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreOptions:
    """Options of one start.

    Attributes:
        fresh: Identity for a data directory that has none.
        configured: Id in the configuration, empty for none; a stored one takes precedence.
        incarnation_id: Identifies this start; two starts of one broker differ.
        role: Role of a broker with an empty directory when no other broker knows a cluster.
        peers: Brokers that found the cluster together, for `Role.PEER`.
        node: Options of the node; the core sets its `broker` and `keyring`.
        store: Options of the store.
        raft: Times and bounds of the metadata group.
        control: Times and bounds of the control plane.
        replication: Times and bounds of the data plane.
        snapshots_kept: Snapshots of the metadata that are kept.
        snapshot_entries: Metadata commands between two snapshots.
        scrub_interval_ns: Longest duration of a pass of scrubbing; 0 for none.
        scrub_first: Any number; it selects the partition that scrubbing begins with.
    """

    fresh: Identity
    configured: str = ""
    incarnation_id: str
    role: Role
    peers: tuple[str, ...] = ()
    node: NodeOptions
    store: StoreOptions
    raft: RaftOptions = DEFAULT_RAFT_OPTIONS
    control: ControlOptions = field(default_factory=ControlOptions)
    replication: ReplicationLimits = field(default_factory=ReplicationLimits)
    snapshots_kept: int = SNAPSHOTS_KEPT
    snapshot_entries: int = SNAPSHOT_ENTRIES_DEFAULT
    scrub_interval_ns: int = 0
    scrub_first: int = 0


@dataclass(slots=True, eq=False)
class Core:
    """Store, metadata and node of one start; the owner pumps events into `node`.

    Attributes:
        options: Options of the broker.
        rng: Random source; unpredictable in production.
        new_origin: Returns 16 random bytes, unique to this process.
        on_failed: Called when the data directory is no longer writable: the broker must end.
        on_change: Called at each change of the metadata, before the node acts on it.
        runner: Compacts logs in another process; `None` compacts here, in steps.
        keys: Keys with which brokers authenticate one another.
        sessions: Known sessions of other brokers, after `open_store`.
        store: The logs, after `open_store`.
        node: The broker without I/O, after `open`.
        metadata_log: The log of the metadata, after `open`; read-only.
        consensus: Its member of the metadata group, after `open`.
        joining: Its membership in that group, after `open`.
        scrubbing: Looks for damage in stored data, after `open`.
        search: The search for a cluster, while it runs.
        is_open: Whether `open` was called.
        was_retired: Whether the directory left its cluster and has joined no other yet: a cluster
            must admit it.
        elections: Counts of elections.
    """

    options: CoreOptions
    files: Files
    clock: Clock
    timer: Timer
    observer: Observer
    rng: Rng
    new_origin: Callable[[], bytes]
    on_failed: Callable[[LiftbridgeError], None]
    on_change: Callable[[Change], None]
    runner: SubmitCompaction | None = None
    keys: Keyring = OPEN_KEYRING
    sessions: PeerSessions = field(init=False)
    store: LogStore = field(init=False)
    node: Node = field(init=False)
    metadata_log: RaftLog = field(init=False)
    consensus: RaftConsensus = field(init=False)
    joining: Joining = field(init=False)
    scrubbing: Scrubber = field(init=False)
    search: Search | None = None
    is_open: bool = False
    was_retired: bool = False
    elections: Elections = field(default_factory=Elections)
    _link: PeerLink = field(init=False)
    _new_token: _Tokens = field(default_factory=_Tokens)
    _cluster_id: str = ""

    @property
    def incarnation_id(self) -> str:
        """Identifies this start."""
        return self.options.incarnation_id

    def open_store(self) -> None:
        """Recover all but the metadata; afterwards the identity of the directory is known.

        Raises:
            LiftbridgeError: The directory cannot be used.
        """
        fresh = self.options.fresh
        self.was_retired = renew_retired(self.files, fresh.data_dir_id, (METADATA_DIRECTORY,))
        self.store = open_store(
            self.files,
            fresh,
            self.options.store,
            observer=self.observer,
            new_token=self._new_token,
            now=self.clock.now(),
            wall_ns=self.clock.wall_ns(),
            runner=self.runner,
        )
        self.store.disk.on_failed = lambda reason: self.on_failed(FilesError(reason))
        broker = self.store.identity.broker_id
        self.sessions = PeerSessions(
            broker, self.incarnation_id, self.keys, self.rng, self.clock.now
        )
        self._compare_id(broker)

    @property
    def has_metadata(self) -> bool:
        """Return whether the directory belongs to a cluster; else the broker must find one."""
        return holds_metadata(self.files, METADATA_DIRECTORY)

    @property
    def is_retired(self) -> bool:
        """Return whether no voter may ever use the directory, as it is now, after this start."""
        return is_retired(self.files, self.store.identity)

    def retire(self) -> None:
        """Mark the directory durably as retired.

        Raises:
            FilesError: The disk reported an error.
        """
        retire(self.files, self.store.identity)

    @property
    def me(self) -> Peer:
        """This broker with its data directory, after `open_store`."""
        identity = self.store.identity
        return Peer(identity.broker_id, identity.data_dir_id)

    def begin_search(
        self, transport: Transport, on_arrived: Callable[[], None] = _nobody_waits
    ) -> Search:
        """Look for the cluster of an empty directory, or found one, until `end_search`.

        A directory that left a cluster must be admitted by another, and founds none.

        Args:
            transport: The link to other brokers.
            on_arrived: Called when the search may have progressed.
        """
        self.search = Search(
            self.me,
            Role.WAITER if self.was_retired else self.options.role,
            self.options.peers,
            PeerLink(transport, self.sessions),
            self.clock,
            self.observer,
            on_arrived,
        )
        return self.search

    def end_search(self) -> None:
        """End the search, and ignore further messages about it; no-op without a search."""
        self.search = None

    def open(
        self, messaging: Messaging, transport: Transport | None, beginning: Beginning | None
    ) -> None:
        """Recover the metadata and open every partition; no messages are received yet.

        Args:
            messaging: The link to NATS.
            transport: The link to other brokers; `None` for a broker that never has peers.
            beginning: Initial metadata of an empty directory; `None` for a directory with metadata,
                and for a broker that never has peers.

        Raises:
            LiftbridgeError: The directory cannot be used.
        """
        now, me, options = self.clock.now(), self.me, self.options
        cluster_id = self._cluster_id = "" if beginning is None else beginning.cluster_id
        link = PeerLink(transport or NoPeers(), self.sessions, cluster_id)
        self._link = link
        driver = self._open_metadata(link, beginning)
        if self.consensus.voters:
            link.founders_id = founded_by(self.consensus.voters).cluster_id
        self.joining = Joining(
            me,
            self.consensus,
            link,
            now,
            is_founder=options.role in (Role.SEED, Role.ALONE),
            on_stranger=self._on_stranger,
        )
        parts = None
        if transport is not None:
            parts = ClusterParts(
                link=link,
                consensus=self.consensus,
                joining=self.joining,
                rng=self.rng,
                control=options.control,
                replication=options.replication,
            )
        self.node = Node(
            replace(options.node, broker=BrokerId(me.broker), keyring=lambda: self.sessions.keys),
            self.files,
            self.store,
            driver,
            messaging,
            self.observer,
            self.timer,
            METADATA_TOKEN,
            self._new_token,
            parts,
        )
        self.scrubbing = Scrubber(
            self.node.partitions,
            self.node.context,
            options.scrub_interval_ns,
            first=options.scrub_first,
        )
        self.is_open = True
        self.node.open_partitions(now)
        self.store.begin(driver.state.applied_index, now)
        self.observer.transition(
            "metadata_recovered",
            {
                "applied_index": driver.state.applied_index,
                "streams": len(driver.state.streams),
                "duration_ms": (self.clock.now() - now) // MILLISECOND_NS,
            },
        )
        # From now on elections and proposals depend on time.
        self.node.on_timer(self.clock.now(), self.clock.wall_ns())

    def _compare_id(self, stored: BrokerId) -> None:
        """Warn when a data directory belongs to another broker: the stored id wins."""
        configured = self.options.configured
        if configured not in ("", stored):
            path = self.options.store.label
            fields = {"configured": configured, "stored": stored, "path": path}
            self.observer.transition("server_id_ignored", fields)

    def _open_metadata(self, link: PeerLink, beginning: Beginning | None) -> MetadataDriver:
        options, me = self.options, self.me
        self.metadata_log, self.consensus, recovered = open_member(
            self.files,
            me,
            link,
            origin=self.new_origin(),
            sync_token=METADATA_TOKEN,
            rng=self.rng,
            now=self.clock.now(),
            bootstrap=Configuration((me,)) if beginning is None else beginning.configuration,
            index_min=self.store.last_stop.proven_index,
            snapshots_kept=options.snapshots_kept,
            options=options.raft,
        )
        for finding in recovered.findings:
            self.observer.transition("metadata_repaired", {"finding": finding})
        return MetadataDriver(
            self.consensus,
            recovered,
            on_change=self._on_change,
            on_failed=self.on_failed,
            on_snapshot=self._on_snapshot,
            on_restored=self._on_restored,
            on_leader=self._on_leader,
            snapshot_entries=options.snapshot_entries,
        )

    @property
    def is_connected(self) -> bool:
        """Return whether messages can be sent to other brokers."""
        return self._link.is_connected

    # -- metadata -----------------------------------------------------------------------------

    def _on_change(self, _index: MetadataIndex, records: tuple[Record, ...]) -> None:
        self.on_change(Change.APPLIED)
        node = self.node
        node.on_change(records)
        self.elections.partitions += log_partition_changes(
            self.observer, node.broker, node.state, records
        )
        self._end_displaced()

    def _on_restored(self) -> None:
        self.on_change(Change.RESTORED)
        self.node.on_restored()
        self._end_displaced()

    def _end_displaced(self) -> None:
        cluster = self.node.cluster
        if cluster is not None and cluster.is_displaced:
            self.on_failed(FailedPreconditionError(DISPLACED_TEXT))

    def _on_leader(self, event: LeaderChanged) -> None:
        fields = {"leader": event.leader or "", "term": event.term, "is_self": event.is_self}
        self.observer.transition("metadata_leader_changed", fields)
        self.elections.metadata += 1
        self.on_change(Change.LEADER)
        self.node.on_leader(event)
        if event.is_self and not self.node.state.cluster_id:
            self._name_cluster()

    def _name_cluster(self) -> None:
        """Give a new cluster its id: the one an operator chose, or one that all founders derive.

        A broker that is killed before this loses the operator's id; the operator repeats it.
        """
        cluster_id = self._cluster_id
        if not cluster_id and self.options.role is not Role.WAITER:
            cluster_id = founded_by(self.consensus.voters).cluster_id
        if cluster_id:
            self.node.propose(Bootstrap(cluster_id=cluster_id), self.clock.now(), _ignore_outcome)

    def _on_snapshot(self, index: MetadataIndex, size_bytes: int) -> None:
        """Report a snapshot of the metadata, unless a full disk postponed it."""
        if self.consensus.snapshot_index == index:
            self.observer.transition(
                "metadata_snapshot_taken", {"index": index, "bytes": size_bytes}
            )

    def _on_stranger(self, broker: BrokerId, cluster_id: str) -> None:
        """Report that two clusters share one namespace."""
        own = self._link.cluster_id
        fields = {"broker": broker, "cluster_id": cluster_id, "own_cluster_id": own}
        self.observer.transition("other_cluster_met", fields)

    # -- messages of other brokers ------------------------------------------------------------

    def on_peer(self, channel: Channel, payload: bytes) -> None:
        """Handle a message that another broker sent to this one, or to every broker."""
        if self.search is not None:
            self.search.on_payload(channel, payload)
        elif self.is_open:
            self.node.on_peer(channel, payload, self.clock.now(), self.clock.wall_ns())

    def on_no_responders(self, broker: BrokerId, channel: Channel, sent_at: Instant) -> None:
        """Handle the answer of NATS to a probe that this process sent at `sent_at`."""
        if self.is_open:
            clock = self.clock
            self.node.on_no_responders(broker, channel, sent_at, clock.now(), clock.wall_ns())

    def on_peer_links(self, *, connected: bool) -> None:
        """Handle the loss of a connection to other brokers, or the return of all."""
        cluster = self.node.cluster if self.is_open else None
        if cluster is None:
            return
        if connected:
            cluster.on_connected(self.clock.now())
        else:
            cluster.on_disconnected(self.clock.now())

    @property
    def epoch(self) -> int | None:
        """Broker epoch for the clean marker; `None` when there must be none.

        A broker that stops before it registered leaves the directory as it was: clean only if the
        previous stop was.
        """
        own = self.registration
        return self.store.last_stop.broker_epoch if own is None else own.broker_epoch

    @property
    def registration(self) -> BrokerState | None:
        """The session of this process, once its registration is applied here; `None` before."""
        if not self.is_open:
            return None
        own = self.node.state.brokers.get(self.node.broker)
        return own if own is not None and own.incarnation_id == self.incarnation_id else None

    def close(self, epoch: int | None) -> None:
        """Sync everything and mark the directory as clean; the owner closes the files.

        Args:
            epoch: See `epoch`; `None` after an unclean stop, which leaves no mark.

        Raises:
            LiftbridgeError: The disk failed.
        """
        if epoch is None:
            self.store.abandon()
        else:
            self.store.close(epoch)
        if self.is_open:
            self.consensus.close()


def _ignore_outcome(_outcome: object) -> None:
    """Ignore the outcome: the next leader proposes again while the cluster has no id."""
