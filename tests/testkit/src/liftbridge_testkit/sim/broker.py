"""A broker of a cluster, as a program: the shipped core on the ports of a machine.

What the process does around its core - steps of the search, of the start and of the hand-over, and
the end of a stop - is done here by a timer, in the order of the shipped process.
"""

from collections.abc import Generator
from dataclasses import dataclass, field

from liftbridge_broker.api.access.control import AccessControl
from liftbridge_broker.api.context import Context
from liftbridge_broker.config.options import AccessOptions
from liftbridge_broker.controller.state import BrokerState
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import BrokerId, Instant
from liftbridge_broker.model.metadata_log import Peer
from liftbridge_broker.model.subjects import internal_subject
from liftbridge_broker.model.units import MILLISECOND_NS, SECOND_NS
from liftbridge_broker.node.assembly.core import Change, Core, CoreOptions
from liftbridge_broker.node.assembly.session import (
    LOOK_NS,
    Announcement,
    hand_over,
    has_company,
    register,
)
from liftbridge_broker.node.control import ControlOptions
from liftbridge_broker.node.metadata.bootstrap import Beginning, Role
from liftbridge_broker.node.metadata.consensus import RaftConsensus
from liftbridge_broker.node.metadata.opening import METADATA_DIRECTORY
from liftbridge_broker.node.node import Node
from liftbridge_broker.node.options import ActivityOptions, NodeOptions
from liftbridge_broker.node.replicas.role_context import ReplicationLimits
from liftbridge_broker.node.scheduling.cluster_clock import ClockLimits
from liftbridge_broker.node.scheduling.opening_queue import OPENINGS_PER_TURN
from liftbridge_broker.ports.files import FileEvent
from liftbridge_broker.ports.master_keys import NO_MASTER_KEYS, MasterKeys
from liftbridge_broker.ports.messaging import Arrival, SubscriptionId
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.raft.options import RaftOptions
from liftbridge_broker.server.access import Enforcement
from liftbridge_broker.storage.directory import Identity
from liftbridge_broker.storage.raft_log.log import RaftLog
from liftbridge_broker.storage.store import StoreOptions
from liftbridge_broker.wire.peer.keys import OPEN_KEYRING, Keyring
from liftbridge_testkit.sim.lone import NAMESPACE, BrokerSettings
from liftbridge_testkit.sim.program import Ports

HAND_OVER_NS = 10 * SECOND_NS
DRAIN_NS = 10 * SECOND_NS
ENDING_NS = 100 * MILLISECOND_NS
"""Time from the end of the node to that of the process, while metadata continue."""

ACCESS_NS = 500 * MILLISECOND_NS
"""Time between two looks whether access control has to be turned on."""


CLOCK_LIMITS = ClockLimits(
    tolerance_ns=1_000 * MILLISECOND_NS,
    settle_ns=2_000 * MILLISECOND_NS,
    stamp_ns=500 * MILLISECOND_NS,
)
"""Clock limits in proportion to runs of seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """Options that all brokers of a cluster share.

    Attributes:
        peers: Brokers that found it together; others wait for admission.
        broker: Settings of one broker alone.
        raft: Times and bounds of the metadata group.
        control: Settings of the control plane.
        replication: Settings of the data plane.
        keys: Keys with which brokers authenticate each other.
        clock: Bounds beyond which clocks count as wrong.
        openings_per_turn: Maximum number of new replicas opened in one turn.
        activity_off_every: Of so many starts, one is without the activity stream in its settings.
        access: Access control as the configuration asks for it.
        masters: Master keys of one broker.
    """

    peers: tuple[BrokerId, ...]
    broker: BrokerSettings = field(default_factory=BrokerSettings)
    raft: RaftOptions = field(default_factory=RaftOptions)
    control: ControlOptions = field(default_factory=ControlOptions)
    replication: ReplicationLimits = field(default_factory=ReplicationLimits)
    keys: Keyring = OPEN_KEYRING
    clock: ClockLimits = CLOCK_LIMITS
    openings_per_turn: int = OPENINGS_PER_TURN
    activity_off_every: int = 1
    access: AccessOptions = field(default_factory=AccessOptions)
    masters: MasterKeys = NO_MASTER_KEYS


def _options(ports: Ports, settings: ClusterSettings) -> CoreOptions:
    """Options of one start, as the configuration and the machine's chance give them."""
    broker, own = ports.broker, settings.broker
    return CoreOptions(
        fresh=Identity(f"{broker}.{ports.disk_number}", broker),
        incarnation_id=ports.new_id(),
        role=Role.PEER if broker in settings.peers else Role.WAITER,
        peers=settings.peers,
        node=NodeOptions(
            broker=broker,
            namespace=NAMESPACE,
            inbox=internal_subject(NAMESPACE, "ack", f"{broker}.{ports.start_number}"),
            ack_secret=f"{broker} {ports.start_number}".encode(),
            defaults=own.defaults,
            record_bytes_max=own.record_bytes_max,
            clock=settings.clock,
            openings_per_turn=settings.openings_per_turn,
            activity=ActivityOptions(
                is_enabled=ports.start_number % settings.activity_off_every != 0
            ),
            masters=settings.masters,
            consumer_timeout_ns=3 * SECOND_NS,
            coordinator_timeout_ns=3 * SECOND_NS,
        ),
        store=StoreOptions(
            flush=own.flush,
            space=own.space,
            trash_grace_ns=own.trash_grace_ns,
            known_names=(METADATA_DIRECTORY,),
        ),
        raft=settings.raft,
        control=settings.control,
        replication=settings.replication,
        snapshot_entries=own.snapshot_entries,
    )


class ClusterBroker:
    """A broker process; implements `Program` and `Serving`.

    Attributes:
        settings: Options of its cluster.
        is_ready: Whether it is registered, may lead, and is connected to NATS.
    """

    def __init__(self, ports: Ports, settings: ClusterSettings) -> None:
        self.ports = ports
        self.settings = settings
        self.is_ready = False
        self._enforcement = Enforcement(
            settings.access, ports.process, ports.process, has_operators=False
        )
        self._access_at = Instant(0)
        self._core = Core(
            _options(ports, settings),
            ports.files,
            ports.process,
            self,
            ports.process,
            ports.random,
            lambda: bytes.fromhex(ports.new_id()),
            lambda error: ports.failed(error.text),
            self._on_change,
            keys=settings.keys,
        )
        self._node_due: Instant | None = None
        self._look_at: Instant | None = None
        self._armed: Instant | None = None
        self._starting: Generator[None, None, None] | None = None
        self._handing_over: Generator[None, None, bool] | None = None
        self._close_at: Instant | None = None
        self._end_at: Instant | None = None
        self._is_over = False

    # -- what clients and watchers see --------------------------------------------------------

    @property
    def node(self) -> Node:
        """The broker; made when a cluster is found."""
        return self._core.node

    @property
    def consensus(self) -> RaftConsensus:
        """Its member of the metadata group; made with the node."""
        return self._core.consensus

    @property
    def metadata_log(self) -> RaftLog:
        """The log of that, for looking only."""
        return self._core.metadata_log

    @property
    def me(self) -> Peer:
        """This broker with its data directory."""
        return self._core.me

    @property
    def access(self) -> AccessControl:
        """What it lets its clients do."""
        return self._enforcement.clients

    def context(self) -> Context:
        """Return the context of a service of the API, which checks what callers may do."""
        return Context(
            self.node,
            self.ports.process,
            1 << 20,
            streams_max=1 << 20,
            partitions_max=1 << 20,
            access=self.access,
        )

    @property
    def is_open(self) -> bool:
        """Return whether the node was made and has not ended."""
        return self._core.is_open and not self._is_over

    @property
    def registration(self) -> BrokerState | None:
        """The session of this process, as far as it was applied here; `None` before."""
        return self._core.registration

    # -- ports of the core --------------------------------------------------------------------

    def arm(self, deadline: Instant) -> None:
        """Implement `Timer` for the node, which shares the machine's timer with this program."""
        self._node_due = deadline
        self._arm()

    def _arm(self) -> None:
        due = [at for at in (self._node_due, self._look_at) if at is not None]
        if due and (self._armed is None or min(due) < self._armed):
            self._armed = min(due)
            self.ports.process.arm(self._armed)

    def _on_change(self, change: Change) -> None:
        if change is Change.RESTORED:
            self.ports.process.transition("metadata_snapshot_installed", {})
        if change is not Change.LEADER:
            self.ports.applied()

    # -- start --------------------------------------------------------------------------------

    def start(self) -> None:
        """Recover the logs; then find a cluster, or go on with the one the disk knows."""
        core = self._core
        try:
            core.open_store()
            if core.has_metadata:
                self._open(None)
            else:
                core.begin_search(self.ports.transport)
        except LiftbridgeError as error:
            self.ports.failed(error.text)
            return
        self._look_at = self.ports.process.now()
        self._arm()

    def _open(self, beginning: Beginning | None) -> None:
        """Recover the metadata and open every partition; then the session begins."""
        self._core.open(self.ports.messaging, self.ports.transport, beginning)
        self._enforcement.attach(self._core.node)
        self._starting = register(self._core, Announcement(host="localhost", port=9292))

    def _look(self, now: Instant) -> None:
        """Take the next step of a start or a stop, if it is due."""
        self._look_at = Instant(now + LOOK_NS)
        if self._core.search is not None:
            self._look_for_cluster()
        elif self._end_at is not None:
            self._end(now)
        elif self._close_at is not None:
            self._drain(now)
        elif self._handing_over is not None:
            if self._is_done(self._handing_over):
                self._settle(now)
        elif self._starting is not None:
            if self._is_done(self._starting):
                self._starting = None
                self.is_ready = True
        else:
            self._look_at = None

    def _look_for_cluster(self) -> None:
        assert self._core.search is not None
        beginning = self._core.search.look()
        if beginning is not None:
            self._core.end_search()
            try:
                self._open(beginning)
            except LiftbridgeError as error:
                self.ports.failed(error.text)

    def _is_done(self, steps: Generator[None, None, object]) -> bool:
        """Do a step; return whether there is none after it."""
        try:
            next(steps)
        except StopIteration:
            return True
        except LiftbridgeError as error:
            self.ports.failed(error.text)
        return False

    # -- the end ------------------------------------------------------------------------------

    def stop(self, now: Instant, wall_ns: int) -> None:
        """Transfer leaderships, for a while, then close."""
        del wall_ns
        core = self._core
        if not self.is_open:
            core.store.abandon()
            self.ports.stopped()
            return
        self._starting = None
        self._look_at = now
        self._handing_over = hand_over(core, HAND_OVER_NS) if has_company(core) else None
        if self._handing_over is None or self._is_done(self._handing_over):
            self._settle(now)
        self._arm()

    def _settle(self, now: Instant) -> None:
        """Refuse new work, and wait for the acks that are owed."""
        self.is_ready = False
        self._close_at = Instant(now + DRAIN_NS)
        self._look_at = Instant(now + LOOK_NS)
        self.node.begin_stop(self._close)

    def _drain(self, now: Instant) -> None:
        """Wait a limited time for pending acks, which may depend on brokers that never return."""
        assert self._close_at is not None
        if now >= self._close_at:
            self._close()

    def _close(self) -> None:
        """End the node; the process continues for a moment, as its connections end one by one."""
        self._look_at = self._end_at = Instant(self.node.context.now + ENDING_NS)
        self.node.stop()
        self._arm()

    def _end(self, now: Instant) -> None:
        assert self._end_at is not None
        if self._is_over or now < self._end_at:
            return
        epoch = self._core.epoch
        self._is_over = True
        try:
            self._core.close(epoch)
        except LiftbridgeError as error:
            self.ports.failed(error.text)
            return
        self.ports.stopped()

    # -- events -------------------------------------------------------------------------------

    def on_file_event(self, event: FileEvent, now: Instant, wall_ns: int) -> None:
        """Handle the end of a call by token."""
        if self.is_open:
            self.node.on_file_event(event, now, wall_ns)

    def on_timer(self, now: Instant, wall_ns: int) -> None:
        """Handle a deadline of the node or of the next step."""
        self._armed = None
        if self._node_due is not None and now >= self._node_due and self.is_open:
            self._node_due = None
            self.node.on_timer(now, wall_ns)
        if self.is_ready and now >= self._access_at:
            self._access_at = Instant(now + ACCESS_NS)
            self._enforcement.look()
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
        """Handle messages of a subscription."""
        if self.is_open:
            self.node.on_messages(subscription, arrivals, payloads, now, wall_ns)

    def on_peer(self, channel: Channel, payload: bytes, now: Instant, wall_ns: int) -> None:
        """Another broker sent something to this one, or to everyone."""
        del now, wall_ns
        if not self._is_over:
            self._core.on_peer(channel, payload)

    def on_no_responders(self, broker: BrokerId, channel: Channel, sent_at: Instant) -> None:
        """Handle the answer of NATS to a probe of a broker."""
        if not self._is_over:
            self._core.on_no_responders(broker, channel, sent_at)

    def on_link(self, *, connected: bool, now: Instant, wall_ns: int) -> None:
        """Handle the loss or return of the link to NATS."""
        del wall_ns
        self._core.on_peer_links(connected=connected)
        cluster = self.node.cluster if self.is_open else None
        if connected and cluster is not None:
            cluster.on_reconnected(now)
