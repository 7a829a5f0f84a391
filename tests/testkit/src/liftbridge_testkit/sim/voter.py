"""A member of the metadata group without partitions, as a program: Raft log, consensus, driver."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from liftbridge_broker.controller.commands import FEATURE_LEVEL, RegisterBroker, UnfenceBroker
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import BrokerId, Instant
from liftbridge_broker.model.metadata_log import Configuration, Peer
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.metadata.consensus import RaftConsensus
from liftbridge_broker.node.metadata.driver import MetadataDriver
from liftbridge_broker.node.metadata.opening import open_member
from liftbridge_broker.node.peers.peer_link import PeerLink, unsigned_sessions
from liftbridge_broker.node.peers.peers import Peers
from liftbridge_broker.ports.files import FileEvent, Token
from liftbridge_broker.ports.messaging import Arrival, SubscriptionId
from liftbridge_broker.ports.metadata import LeaderChanged
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.raft.configuration import EMPTY
from liftbridge_broker.raft.options import RaftOptions
from liftbridge_broker.storage.directory import DataDirectory, Identity
from liftbridge_broker.storage.raft_log.log import RaftLog
from liftbridge_broker.wire.peer.messages import PeerHeader
from liftbridge_testkit.sim.program import Ports

METADATA_TOKEN = Token(1)
RETRY_NS = 500 * MILLISECOND_NS
CLUSTER_ID = "group"


def _ignore(_header: PeerHeader, _tail: bytes, _now: Instant) -> None:
    """Ignore the message: only the group exists here."""


def peer_of(broker: str, disk_number: int) -> Peer:
    """Return the identity of a machine with its present disk."""
    return Peer(BrokerId(broker), f"{broker}.{disk_number}")


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterSettings:
    """Configuration of every member.

    Attributes:
        bootstrap: The first configuration, for disks that exist from the beginning.
        options: Times and bounds of Raft.
        snapshot_entries: Commands between two snapshots.
    """

    bootstrap: Configuration
    options: RaftOptions = field(default_factory=RaftOptions)
    snapshot_entries: int = 64


class Voter:
    """A member process; implements `Program`.

    Attributes:
        me: Identity with the present disk.
        log: Its log on disk.
        consensus: The member of the group.
        driver: Holds the state.
        is_ready: Whether it was started; a member is active from then on.
    """

    log: RaftLog
    consensus: RaftConsensus
    driver: MetadataDriver
    _peers: Peers

    def __init__(self, ports: Ports, settings: VoterSettings) -> None:
        self.ports = ports
        self.settings = settings
        self.me = peer_of(ports.broker, ports.disk_number)
        self.is_ready = False
        self._incarnation_id = ports.new_id()
        self._armed: Instant | None = None
        self._retry_at: Instant | None = None
        self._is_registering = False

    def start(self) -> None:
        """Recover, and join the group."""
        try:
            self._open()
        except LiftbridgeError as error:
            self.ports.failed(error.text)
            return
        self.is_ready = True
        self._retry_at = self.ports.process.now()
        self._arm()

    def _open(self) -> None:
        ports, shell = self.ports, self.ports.process
        directory = DataDirectory.open(
            ports.files, Identity(self.me.data_dir_id, ports.broker), ("metadata",)
        )
        if directory.identity.data_dir_id != self.me.data_dir_id or (
            directory.is_identity_new and ports.files.exists("metadata")
        ):
            # The identity is lost but the log survived: no process may use its name.
            raise LiftbridgeError("the data directory is another one's")
        sessions = unsigned_sessions(self.me.broker, self._incarnation_id)
        link = PeerLink(ports.transport, sessions, CLUSTER_ID)
        self.log, self.consensus, recovered = open_member(
            ports.files,
            self.me,
            link,
            origin=bytes.fromhex(ports.new_id()),
            sync_token=METADATA_TOKEN,
            rng=ports.random,
            now=shell.now(),
            bootstrap=EMPTY if ports.disk_number else self.settings.bootstrap,
            options=self.settings.options,
        )
        self._peers = Peers(link, self.consensus.on_peer, _ignore, _ignore)
        self.driver = MetadataDriver(
            self.consensus,
            recovered,
            on_change=lambda _index, _records: ports.applied(),
            on_failed=lambda error: ports.failed(error.text),
            on_snapshot=lambda index, size: self._tell(
                "metadata_snapshot_taken", {"index": index, "bytes": size}
            ),
            on_restored=lambda: self._tell(
                "metadata_snapshot_installed", {"index": self.driver.state.applied_index}
            ),
            on_leader=self._on_leader,
            snapshot_entries=self.settings.snapshot_entries,
        )

    def _tell(self, kind: str, fields: Mapping[str, object]) -> None:
        self.ports.process.transition(kind, fields)

    def _on_leader(self, change: LeaderChanged) -> None:
        self._tell("metadata_leader_changed", {"leader": change.leader, "term": change.term})

    def _arm(self) -> None:
        deadlines = (self.driver.next_deadline(), self._retry_at)
        deadline = min((at for at in deadlines if at is not None), default=None)
        if deadline is not None and (self._armed is None or deadline < self._armed):
            self._armed = deadline
            self.ports.process.arm(deadline)

    # A session: registered, then unfenced when it has caught up.

    def _register(self, now: Instant) -> None:
        self._retry_at = Instant(now + RETRY_NS)
        mine = self.driver.state.brokers.get(self.me.broker)
        if self._is_registering or self.consensus.leader is None:
            return
        if mine is not None and mine.incarnation_id == self._incarnation_id:
            if not mine.fenced:
                return
            command: RegisterBroker | UnfenceBroker = UnfenceBroker(
                broker=self.me.broker,
                broker_epoch=mine.broker_epoch,
                applied_index=self.driver.state.applied_index,
            )
        else:
            command = RegisterBroker(
                broker=self.me.broker,
                incarnation_id=self._incarnation_id,
                data_dir_id=self.me.data_dir_id,
                feature_level=FEATURE_LEVEL,
            )
        self._is_registering = True
        self.driver.propose(command, now, self._registered)

    def _registered(self, outcome: object) -> None:
        del outcome  # the state shows it at the next attempt
        self._is_registering = False

    # Events.

    def act(self, do: Callable[[], None]) -> None:
        """Let a client call the driver, in a turn."""
        do()
        self._arm()

    def on_file_event(self, event: FileEvent, now: Instant, wall_ns: int) -> None:
        """Handle the end of a sync."""
        del now, wall_ns
        self.driver.on_file_event(event)
        self._arm()

    def on_timer(self, now: Instant, wall_ns: int) -> None:
        """Handle the deadline."""
        del wall_ns
        self._armed = None
        if not self.is_ready:
            return
        if self._retry_at is not None and now >= self._retry_at:
            self._register(now)
        self.driver.on_timer(now)
        self._arm()

    def on_messages(
        self,
        subscription: SubscriptionId,
        arrivals: list[Arrival],
        payloads: list[bytes],
        now: Instant,
        wall_ns: int,
    ) -> None:
        """No-op: it has no streams."""

    def on_peer(self, channel: Channel, payload: bytes, now: Instant, wall_ns: int) -> None:
        """Handle a message of the group."""
        del wall_ns
        if self.is_ready:
            self._peers.on_payload(channel, payload, now)
            self.driver.catch_up()
            self._arm()

    def on_no_responders(self, broker: BrokerId, channel: Channel, sent_at: Instant) -> None:
        """No-op: its votes depend on time alone."""

    def on_link(self, *, connected: bool, now: Instant, wall_ns: int) -> None:
        """No-op: the consensus asks its port whether it is connected."""

    def stop(self, now: Instant, wall_ns: int) -> None:
        """Stop in order: close the files."""
        del now, wall_ns
        if self.is_ready:
            self.consensus.close()
        self.is_ready = False
        self.ports.stopped()
