"""A broker that is a cluster by itself, as a program: store, metadata log and node."""

from dataclasses import dataclass, field

from liftbridge_broker.controller.commands import RegisterBroker
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import BrokerId, Instant
from liftbridge_broker.model.metadata_log import Configuration, Peer
from liftbridge_broker.model.streams import StreamOptions
from liftbridge_broker.model.subjects import internal_subject
from liftbridge_broker.node.metadata.driver import MetadataDriver
from liftbridge_broker.node.metadata.opening import Member, open_member
from liftbridge_broker.node.node import Node
from liftbridge_broker.node.options import NodeOptions
from liftbridge_broker.node.peers.peer_link import NoPeers, PeerLink, unsigned_sessions
from liftbridge_broker.node.replicas.claims import verified_partitions
from liftbridge_broker.ports.files import FileEvent, Token
from liftbridge_broker.ports.messaging import Arrival, SubscriptionId
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.storage.directory import Identity
from liftbridge_broker.storage.flush import FlushLimits
from liftbridge_broker.storage.reserve import SpaceLimits
from liftbridge_broker.storage.start import open_store
from liftbridge_broker.storage.store import LogStore, StoreOptions
from liftbridge_testkit.sim.program import Ports

NAMESPACE = "lb"
METADATA_TOKEN = Token(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Configuration of every broker, as an operator would write it.

    Attributes:
        defaults: Settings of streams.
        flush: Times of syncs.
        space: Bounds of the volume.
        record_bytes_max: Largest record.
        snapshot_entries: Metadata commands between two snapshots.
        trash_grace_ns: Time for which a deleted log is kept.
    """

    defaults: StreamOptions = field(default_factory=StreamOptions)
    flush: FlushLimits = field(default_factory=FlushLimits)
    space: SpaceLimits = field(default_factory=lambda: SpaceLimits(4_096, 0))
    record_bytes_max: int = 1 << 20
    snapshot_entries: int = 64
    trash_grace_ns: int = 1_000_000_000


class LoneBroker:
    """A broker process; implements `Program` and `Serving`.

    Attributes:
        node: The broker, for clients and watchers; made by `start`.
        is_ready: Whether it is registered and connected to NATS.
    """

    node: Node

    def __init__(self, ports: Ports, settings: BrokerSettings) -> None:
        self.ports = ports
        self.settings = settings
        self.is_ready = False
        self._store: LogStore | None = None
        self._member: Member | None = None
        self._token = METADATA_TOKEN

    def _new_token(self) -> Token:
        self._token = Token(self._token + 1)
        return self._token

    def start(self) -> None:
        """Recover, open partitions and register; ready when the registration is committed."""
        try:
            self._open()
        except LiftbridgeError as error:
            self.ports.failed(error.text)
            return
        self._register()

    def _open(self) -> None:
        ports, settings, shell = self.ports, self.settings, self.ports.process
        store = self._store = open_store(
            ports.files,
            Identity(ports.new_id(), ports.broker),
            StoreOptions(
                flush=settings.flush,
                space=settings.space,
                trash_grace_ns=settings.trash_grace_ns,
                known_names=("metadata",),
            ),
            observer=shell,
            new_token=self._new_token,
            now=shell.now(),
            wall_ns=shell.wall_ns(),
        )
        store.disk.on_failed = ports.failed
        me = Peer(store.identity.broker_id, store.identity.data_dir_id)
        member = self._member = open_member(
            ports.files,
            me,
            PeerLink(NoPeers(), unsigned_sessions(me.broker, ports.new_id())),
            origin=bytes.fromhex(ports.new_id()),
            sync_token=METADATA_TOKEN,
            rng=ports.random,
            now=shell.now(),
            bootstrap=Configuration((me,)),
            index_min=store.last_stop.proven_index,
        )
        driver = MetadataDriver(
            member.consensus,
            member.recovered,
            on_change=lambda _index, records: self.node.on_change(records),
            on_failed=lambda error: ports.failed(error.text),
            snapshot_entries=settings.snapshot_entries,
        )
        options = NodeOptions(
            broker=ports.broker,
            namespace=NAMESPACE,
            inbox=internal_subject(NAMESPACE, "ack", f"{ports.broker}.{ports.start_number}"),
            ack_secret=f"{ports.broker} {ports.start_number}".encode(),
            defaults=settings.defaults,
            record_bytes_max=settings.record_bytes_max,
        )
        self.node = Node(
            options,
            ports.files,
            store,
            driver,
            ports.messaging,
            shell,
            shell,
            METADATA_TOKEN,
            self._new_token,
        )
        self.node.open_partitions(shell.now())
        store.begin(self.node.state.applied_index, shell.now())

    def _register(self) -> None:
        assert self._store is not None
        ports, identity = self.ports, self._store.identity
        command = RegisterBroker(
            broker=ports.broker,
            incarnation_id=ports.new_id(),
            data_dir_id=identity.data_dir_id,
            host="localhost",
            port=9292,
            previous_broker_epoch=self._store.last_stop.broker_epoch or 0,
            clean_partitions=verified_partitions(self.node.partitions, self._store),
            known_index=self._store.last_stop.known_index,
        )
        self.node.propose(command, ports.process.now(), self._registered)

    def _registered(self, outcome: object) -> None:
        if isinstance(outcome, LiftbridgeError):
            self.ports.failed(outcome.text)
            return
        assert self._store is not None
        self._store.begin_session(self.node.state.applied_index, self.ports.process.now())
        self.node.listen()
        self.is_ready = True

    # Events.

    def on_file_event(self, event: FileEvent, now: Instant, wall_ns: int) -> None:
        """Handle the end of a call by token."""
        self.node.on_file_event(event, now, wall_ns)

    def on_timer(self, now: Instant, wall_ns: int) -> None:
        """Handle the deadline."""
        self.node.on_timer(now, wall_ns)

    def on_messages(
        self,
        subscription: SubscriptionId,
        arrivals: list[Arrival],
        payloads: list[bytes],
        now: Instant,
        wall_ns: int,
    ) -> None:
        """Handle messages of a subscription."""
        self.node.on_messages(subscription, arrivals, payloads, now, wall_ns)

    def on_peer(self, channel: Channel, payload: bytes, now: Instant, wall_ns: int) -> None:
        """Ignore the message: it has no peers."""

    def on_no_responders(self, broker: BrokerId, channel: Channel, sent_at: Instant) -> None:
        """No-op: it has no peers."""

    def on_link(self, *, connected: bool, now: Instant, wall_ns: int) -> None:
        """No-op: the node asks its port whether it is connected."""

    def stop(self, now: Instant, wall_ns: int) -> None:
        """Stop in order: refuse requests, sync, and mark the directory as clean."""
        del now, wall_ns
        assert self._store is not None
        assert self._member is not None
        if not self.is_ready:
            self._store.abandon()
            self.ports.stopped()
            return
        self.is_ready = False
        self.node.stop()
        try:
            self._store.close(self.node.state.brokers[self.node.broker].broker_epoch)
            self._member.consensus.close()
        except LiftbridgeError as error:
            self.ports.failed(error.text)
            return
        self.ports.stopped()
