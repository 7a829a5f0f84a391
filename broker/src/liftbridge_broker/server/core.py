"""One broker on abstract ports: recovers data, builds the node, registers, closes.

The process runs it on a disk, NATS and the machine's clocks; tests of users run it on files and
NATS in memory and on a clock that they advance. The broker behaves the same in both.
"""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import SystemRandom
from typing import Final

from liftbridge_broker.config.options import BrokerOptions
from liftbridge_broker.controller.commands import Bootstrap
from liftbridge_broker.controller.records import Record
from liftbridge_broker.controller.state import BrokerState
from liftbridge_broker.errors import (
    FailedPreconditionError,
    FilesError,
    LiftbridgeError,
)
from liftbridge_broker.model.ids import BrokerId, MetadataIndex
from liftbridge_broker.model.streams import MILLISECOND_NS
from liftbridge_broker.node.membership import ClusterParts
from liftbridge_broker.node.metadata.bootstrap import Beginning, Role, founded_by
from liftbridge_broker.node.metadata.consensus import RaftConsensus
from liftbridge_broker.node.metadata.driver import MetadataDriver
from liftbridge_broker.node.metadata.joining import Joining
from liftbridge_broker.node.metadata.opening import METADATA_DIRECTORY, open_member
from liftbridge_broker.node.node import Node
from liftbridge_broker.node.peers.peer_link import NoPeers, PeerLink
from liftbridge_broker.node.peers.peer_sessions import PeerSessions
from liftbridge_broker.node.upkeep.scrubbing import Scrubber
from liftbridge_broker.ports.clock import Clock
from liftbridge_broker.ports.files import Files, Token
from liftbridge_broker.ports.messaging import Messaging
from liftbridge_broker.ports.metadata import LeaderChanged
from liftbridge_broker.ports.observe import Observer
from liftbridge_broker.ports.timer import Timer
from liftbridge_broker.ports.transport import Channel, Transport
from liftbridge_broker.raft.environment import Rng
from liftbridge_broker.raft.types import Configuration, Peer
from liftbridge_broker.server.told import tell_partitions
from liftbridge_broker.server.wiring import (
    control_options,
    node_options,
    raft_options,
    replication_limits,
    role_of,
    store_options,
)
from liftbridge_broker.storage.compaction import CompactionRunner
from liftbridge_broker.storage.directory import Identity
from liftbridge_broker.storage.raft_recovery import holds_metadata
from liftbridge_broker.storage.retirement import is_retired, renew_retired, retire
from liftbridge_broker.storage.start import open_store
from liftbridge_broker.storage.store import LogStore
from liftbridge_broker.wire.peer_bodies import ORIGIN_SIZE
from liftbridge_broker.wire.peer_keys import OPEN_KEYRING, Keyring

METADATA_TOKEN: Final = Token(1)
DISPLACED_TEXT: Final = (
    "an earlier process of this broker registered again and replaced this process's session"
)
SECOND_NS: Final = 1_000_000_000


class _Tokens:
    """Source of unique tokens for file calls."""

    def __init__(self) -> None:
        self._last = METADATA_TOKEN

    def __call__(self) -> Token:
        self._last = Token(self._last + 1)
        return self._last


@dataclass(slots=True, eq=False)
class Core:
    """Store, metadata and node of one start; the owner pumps events into `node`.

    Attributes:
        options: Options of the broker; the owner reloads settings.
        on_failed: Called when the data directory is no longer writable, after which the broker must
            end.
        runner: Compacts logs in another process; `None` compacts here, in steps.
        keys: Keys with which brokers authenticate one another.
        sessions: Known sessions of other brokers, after `open_store`.
        store: The logs, after `open_store`.
        node: The broker without I/O, after `open`.
        consensus: Member of the metadata group, after `open`.
        joining: State of joining that group, after `open`.
        scrubbing: Looks for damage in the stored data, after `open`.
        is_open: Whether `open` was called.
        was_retired: Whether the directory left its cluster and has not joined another cluster yet.
            Only an existing cluster can admit it.
        incarnation_id: Random id of this start.
        changed: Set when metadata records are applied or the metadata leader changes.
        leader_changes: Number of changes or losses of the leader of the metadata group.
        elections: Number of new leader epochs in the applied metadata.
    """

    options: BrokerOptions
    files: Files
    clock: Clock
    timer: Timer
    observer: Observer
    on_failed: Callable[[LiftbridgeError], None]
    runner: CompactionRunner | None = None
    keys: Keyring = OPEN_KEYRING
    sessions: PeerSessions = field(init=False)
    store: LogStore = field(init=False)
    node: Node = field(init=False)
    consensus: RaftConsensus = field(init=False)
    joining: Joining = field(init=False)
    scrubbing: Scrubber = field(init=False)
    is_open: bool = False
    was_retired: bool = False
    incarnation_id: str = field(init=False)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    leader_changes: int = 0
    elections: int = 0
    _link: PeerLink = field(init=False)
    _new_token: _Tokens = field(default_factory=_Tokens)
    _cluster_id: str = ""

    def __post_init__(self) -> None:
        """Create the id of this start, which differs between two starts of one pod."""
        given = self.options.clustering.start_id
        self.incarnation_id = f"{given}.{secrets.token_hex(8)}" if given else secrets.token_hex(16)

    def open_store(self) -> None:
        """Recover all but the metadata; afterwards the identity of the directory is known.

        Raises:
            LiftbridgeError: The directory cannot be used.
        """
        options = self.options
        broker = BrokerId(options.clustering.server_id or secrets.token_hex(11))
        fresh = Identity(secrets.token_hex(16), broker)
        self.was_retired = renew_retired(self.files, fresh.data_dir_id, (METADATA_DIRECTORY,))
        self.store = open_store(
            self.files,
            fresh,
            store_options(options),
            observer=self.observer,
            new_token=self._new_token,
            now=self.clock.now(),
            wall_ns=self.clock.wall_ns(),
            runner=self.runner,
        )
        self.store.on_failed = lambda reason: self.on_failed(FilesError(reason))
        broker = self.store.identity.broker_id
        self.sessions = PeerSessions(
            broker, self.incarnation_id, self.keys, SystemRandom(), self.clock.now
        )
        self._compare_id(broker)

    @property
    def has_metadata(self) -> bool:
        """Return whether the directory belongs to a cluster.

        If not, the broker must find a cluster.
        """
        return holds_metadata(self.files, METADATA_DIRECTORY)

    @property
    def is_retired(self) -> bool:
        """Return whether this data directory is retired: it must never be a voter's again."""
        return is_retired(self.files, self.store.identity)

    def retire(self) -> None:
        """Mark the directory as retired, durably.

        Raises:
            FilesError: The disk refused.
        """
        retire(self.files, self.store.identity)

    @property
    def me(self) -> Peer:
        """This broker with its data directory, after `open_store`."""
        identity = self.store.identity
        return Peer(identity.broker_id, identity.data_dir_id)

    def open(
        self, messaging: Messaging, transport: Transport | None, beginning: Beginning | None
    ) -> None:
        """Recover the metadata and open every partition; the broker receives no messages yet.

        Args:
            messaging: The link to NATS.
            transport: Transport to other brokers; `None` for a broker that never has peers.
            beginning: Initial metadata of an empty directory; `None` for a directory with metadata,
                and for a broker that never has peers.

        Raises:
            LiftbridgeError: The directory cannot be used.
        """
        now, me = self.clock.now(), self.me
        clustering = self.options.clustering
        broker = BrokerId(me.broker)
        cluster_id = self._cluster_id = "" if beginning is None else beginning.cluster_id
        link = PeerLink(transport or NoPeers(), self.sessions, cluster_id)
        rng = SystemRandom()
        self._link = link
        driver = self._open_metadata(link, rng, beginning)
        if self.consensus.voters:
            link.founders_id = founded_by(self.consensus.voters).cluster_id
        role = role_of(clustering.bootstrap)
        self.joining = Joining(
            me,
            self.consensus,
            link,
            now,
            is_founder=role in (Role.SEED, Role.ALONE),
            on_stranger=self._on_stranger,
        )
        parts = None
        if transport is not None:
            parts = ClusterParts(
                link=link,
                consensus=self.consensus,
                joining=self.joining,
                rng=rng,
                control=control_options(clustering),
                replication=replication_limits(clustering.replication),
            )
        self.node = Node(
            replace(node_options(self.options, broker), keyring=lambda: self.sessions.keys),
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
        interval_ns = self.options.data.scrub_interval_ns
        self.scrubbing = Scrubber(self.node, interval_ns, first=secrets.randbelow(1 << 32))
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

    async def scrub(self) -> None:
        """Verify stored data, piece by piece, until cancelled; no-op when scrubbing is off."""
        is_on = self.options.data.scrub_interval_ns > 0
        while is_on:
            pause_ns = self.scrubbing.step()
            await asyncio.sleep(pause_ns / SECOND_NS)

    def _compare_id(self, stored: BrokerId) -> None:
        """Warn if the data directory belongs to another broker id; the stored id is used."""
        configured = self.options.clustering.server_id
        if configured not in ("", stored):
            path = self.options.data.directory
            fields = {"configured": configured, "stored": stored, "path": path}
            self.observer.transition("server_id_ignored", fields)

    def _open_metadata(
        self, link: PeerLink, rng: Rng, beginning: Beginning | None
    ) -> MetadataDriver:
        clustering = self.options.clustering
        me = self.me
        _, self.consensus, recovered = open_member(
            self.files,
            me,
            link,
            origin=secrets.token_bytes(ORIGIN_SIZE),
            sync_token=METADATA_TOKEN,
            rng=rng,
            now=self.clock.now(),
            bootstrap=Configuration((me,)) if beginning is None else beginning.configuration,
            index_min=self.store.proven_index,
            snapshots_kept=clustering.snapshot_retain,
            options=raft_options(clustering),
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
            snapshot_entries=clustering.snapshot_threshold,
        )

    @property
    def is_connected(self) -> bool:
        """Return whether messages can be sent to other brokers."""
        return self._link.is_connected

    # -- metadata -----------------------------------------------------------------------------

    def _on_change(self, _index: MetadataIndex, records: tuple[Record, ...]) -> None:
        node = self.node
        node.on_change(records)
        self.elections += tell_partitions(self.observer, node.broker, node.state, records)
        self._note_applied()

    def _on_restored(self) -> None:
        self.node.on_restored()
        self._note_applied()

    def _note_applied(self) -> None:
        self.changed.set()
        cluster = self.node.cluster
        if cluster is not None and cluster.is_displaced:
            self.on_failed(FailedPreconditionError(DISPLACED_TEXT))

    def _on_leader(self, event: LeaderChanged) -> None:
        fields = {"leader": event.leader or "", "term": event.term, "is_self": event.is_self}
        self.observer.transition("metadata_leader_changed", fields)
        self.leader_changes += 1
        self.node.on_leader(event)
        if event.is_self and not self.node.state.cluster_id:
            self._name_cluster()
        self.changed.set()

    def _name_cluster(self) -> None:
        """Give a new cluster its id: chosen by an operator, or derived alike by all founders.

        A broker that is killed before that loses the operator's id; the operator repeats the call.
        """
        role = role_of(self.options.clustering.bootstrap)
        cluster_id = self._cluster_id
        if not cluster_id and role is not Role.WAITER:
            cluster_id = founded_by(self.consensus.voters).cluster_id
        if cluster_id:
            self.node.propose(Bootstrap(cluster_id=cluster_id), self.clock.now(), _ignore_outcome)

    def _on_snapshot(self, index: MetadataIndex, size_bytes: int) -> None:
        """The metadata log requested a snapshot; a full disk postpones it."""
        if self.consensus.snapshot_index == index:
            self.observer.transition(
                "metadata_snapshot_taken", {"index": index, "bytes": size_bytes}
            )

    def _on_stranger(self, broker: BrokerId, cluster_id: str) -> None:
        """Report that two clusters share a NATS namespace."""
        own = self._link.cluster_id
        fields = {"broker": broker, "cluster_id": cluster_id, "own_cluster_id": own}
        self.observer.transition("other_cluster_met", fields)

    # -- messages of other brokers ------------------------------------------------------------

    def on_peer(self, channel: Channel, payload: bytes) -> None:
        """Handle a message that another broker sent to this one, or to every broker."""
        self.node.on_peer(channel, payload, self.clock.now(), self.clock.wall_ns())

    @property
    def epoch(self) -> int | None:
        """Return the broker epoch for the clean marker; `None` if no marker may be written.

        A broker that stops before it registers leaves the directory as it was: clean only if the
        previous stop was clean.
        """
        own = self.registration
        return self.store.clean_broker_epoch if own is None else own.broker_epoch

    @property
    def registration(self) -> BrokerState | None:
        """Return the registration of this process once this broker has applied it.

        `None` before.
        """
        if not self.is_open:
            return None
        own = self.node.state.brokers.get(self.node.broker)
        return own if own is not None and own.incarnation_id == self.incarnation_id else None

    def close(self, epoch: int | None) -> None:
        """Sync everything and mark the directory as clean; the owner closes the files.

        Args:
            epoch: See `epoch`; `None` after an unclean stop, which leaves no marker.

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
