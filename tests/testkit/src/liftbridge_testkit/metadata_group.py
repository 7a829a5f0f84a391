"""Members of a metadata group on files, a network and a clock in memory, driven by the test."""

from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from liftbridge_broker.adapters.memory.files import MemoryFiles
from liftbridge_broker.model.ids import BrokerId, Instant, MetadataIndex
from liftbridge_broker.model.metadata_log import Configuration, Peer
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.metadata.consensus import RaftConsensus
from liftbridge_broker.node.metadata.opening import open_member
from liftbridge_broker.node.peers.peer_link import PeerLink, unsigned_sessions
from liftbridge_broker.node.peers.peers import Peers
from liftbridge_broker.ports.files import Token
from liftbridge_broker.ports.metadata import (
    Committed,
    LeaderChanged,
    MetadataEvent,
    ProposalToken,
    ReadReady,
    ReadToken,
    RecoveredMetadata,
    Refused,
    Restored,
    Urgency,
)
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.raft.configuration import EMPTY
from liftbridge_broker.wire.peer.messages import PeerHeader

SYNC_TOKEN = Token(7)
SEPARATOR = b"\n"


class Sent(NamedTuple):
    """A payload in flight."""

    sender: BrokerId
    target: BrokerId
    payload: bytes


@dataclass(slots=True)
class Network:
    """Carries payloads in order; broken pairs and lost brokers lose them.

    Attributes:
        broken: Pairs of sender and target between which everything is lost.
        sent: Payloads in flight, oldest first.
        carried: Number of carried messages so far.
    """

    payload_bytes_max: int = 16 * 1024
    broken: set[tuple[BrokerId, BrokerId]] = field(default_factory=set)
    sent: deque[Sent] = field(default_factory=deque)
    carried: int = 0

    def cut(self, one: BrokerId, others: list[BrokerId]) -> None:
        """Cut a broker off from the other brokers, in both directions."""
        for other in others:
            self.broken |= {(one, other), (other, one)}


@dataclass(slots=True)
class Port:
    """The transport of one broker."""

    network: Network
    broker: BrokerId
    is_connected: bool = True

    @property
    def payload_bytes_max(self) -> int:
        """Longest payload."""
        return self.network.payload_bytes_max

    def send(self, broker: BrokerId, channel: Channel, payload: bytes) -> None:
        """Send a payload."""
        assert channel is Channel.METADATA
        assert len(payload) <= self.network.payload_bytes_max
        if self.is_connected:
            self.network.sent.append(Sent(self.broker, broker, payload))

    def probe(self, broker: BrokerId, channel: Channel, sent_at: Instant) -> None:
        """Port `Transport`: nobody is ever absent here."""


def _ignore(_header: PeerHeader, _tail: bytes, _now: Instant) -> None:
    """Ignore the message: only the group exists here."""


class Member:
    """One broker with its disk, over several lives.

    Attributes:
        told: Commands of its state, by applying events and snapshots, in order.
        outcomes: Events that ended proposals of this life.
        events: All events of this life.
        peers: Receiver of messages, while it lives.
        link: Its link to the other members.
    """

    peers: Peers
    link: PeerLink

    def __init__(self, group: "Group", peer: Peer) -> None:
        """Create the member without a life."""
        self.group = group
        self.peer = peer
        self.files = MemoryFiles()
        self.port = Port(group.network, peer.broker)
        self.told: list[bytes] = []
        self.applied_index = 0
        self.events: list[MetadataEvent] = []
        self.outcomes: list[Committed | Refused] = []
        self.reads: list[int] = []
        self.life = 0
        self.token = 0
        self.consensus: RaftConsensus | None = None
        self.recovered: RecoveredMetadata | None = None

    @property
    def running(self) -> RaftConsensus:
        """Consensus of the current life."""
        assert self.consensus is not None
        return self.consensus

    def start(self, bootstrap: Configuration = EMPTY) -> None:
        """Begin a life with the data on disk."""
        self.life += 1
        self.token = 0
        self.events, self.outcomes, self.reads = [], [], []
        sessions = unsigned_sessions(self.peer.broker, f"run-{self.life}")
        link = PeerLink(self.port, sessions, "cluster")
        origin = f"{self.peer.broker}-{self.life}".encode().ljust(16, b".")
        _, self.consensus, self.recovered = open_member(
            self.files,
            self.peer,
            link,
            origin=origin,
            sync_token=SYNC_TOKEN,
            rng=Random(f"{self.peer} {self.life}"),
            now=self.group.now,
            bootstrap=bootstrap,
        )
        self.link = link
        self.peers = Peers(link, self.consensus.on_peer, _ignore, _ignore)
        held = self.recovered.snapshot.split(SEPARATOR) if self.recovered.snapshot else []
        self.told = held
        self.applied_index = self.recovered.snapshot_index
        for entry in self.recovered.entries:
            self.apply(entry)

    def stop(self, *, power_cut: bool = False) -> None:
        """End the life; after a power cut, unsynced data is lost."""
        self.consensus = None
        if power_cut:
            self.files.crash(None)
        else:
            self.files.kill()

    def propose(self, command: bytes, urgency: Urgency = Urgency.ORDINARY) -> int:
        """Propose a command; return its token."""
        self.token += 1
        self.running.propose(ProposalToken(self.token), command, urgency)
        self.take()
        return self.token

    def read(self, token: int) -> None:
        """Begin a read."""
        self.running.read(ReadToken(token))
        self.take()

    def snapshot(self) -> None:
        """Take a snapshot of the whole state."""
        self.running.snapshot(MetadataIndex(self.applied_index), SEPARATOR.join(self.told))
        self.take()

    def apply(self, event: Committed) -> None:
        """Apply an entry."""
        assert event.entry_index == self.applied_index + 1
        self.applied_index = event.entry_index
        if event.command:
            self.told.append(event.command)

    def take(self) -> None:
        """Handle all events."""
        for event in self.running.take_events():
            self.events.append(event)
            match event:
                case Committed():
                    self.apply(event)
                    if event.token:
                        self.outcomes.append(event)
                case Restored(index, state):
                    assert index > self.applied_index
                    self.applied_index = index
                    self.told = state.split(SEPARATOR) if state else []
                case Refused():
                    self.outcomes.append(event)
                case ReadReady(token):
                    self.reads.append(token)
                case _:
                    pass

    def leaders(self) -> list[LeaderChanged]:
        """Return the reported changes of leadership."""
        return [event for event in self.events if isinstance(event, LeaderChanged)]

    def pump(self) -> bool:
        """Complete submitted syncs; return whether there was one."""
        events = self.files.calls.pump() if self.consensus is not None else ()
        for event in events:
            self.running.on_file_event(event)
            self.take()
        return bool(events)


class Group:
    """A group of members with their network and clock."""

    def __init__(self, count: int) -> None:
        """Start `count` voters that found the group together."""
        self.now = Instant(1)
        self.network = Network()
        self.members: dict[BrokerId, Member] = {}
        peers = [Peer(BrokerId(f"n{number}"), f"disk-{number}") for number in range(1, count + 1)]
        for peer in peers:
            self.members[peer.broker] = Member(self, peer)
            self.members[peer.broker].start(Configuration(tuple(peers)))
        self.settle()

    def __getitem__(self, number: int) -> Member:
        """Return member number n, from 1."""
        return self.members[BrokerId(f"n{number}")]

    def add(self, number: int, disk: str) -> Member:
        """Start a broker that does not belong to the group yet."""
        broker = BrokerId(f"n{number}")
        member = self.members[broker] = Member(self, Peer(broker, disk))
        member.start()
        return member

    @property
    def alive(self) -> list[Member]:
        """Members that live."""
        return [member for member in self.members.values() if member.consensus is not None]

    @property
    def leader(self) -> Member:
        """The leader of the highest term."""
        leaders = [member for member in self.alive if member.running.is_leader]
        return max(leaders, key=lambda member: member.running.term)

    @property
    def followers(self) -> list[Member]:
        """All living members except the leader."""
        leader = self.leader
        return [member for member in self.alive if member is not leader]

    def settle(self) -> None:
        """Deliver all payloads and complete all syncs, until nothing is left."""
        while True:
            is_moving = False
            for member in self.alive:
                is_moving |= member.pump()
            while self.network.sent:
                self.deliver(self.network.sent.popleft())
                is_moving = True
            if not is_moving:
                return

    def deliver(self, sent: Sent) -> None:
        """Deliver one payload, unless it is lost."""
        target = self.members.get(sent.target)
        if target is None or target.consensus is None:
            return
        if (sent.sender, sent.target) not in self.network.broken:
            self.network.carried += 1
            target.peers.on_payload(Channel.METADATA, sent.payload, self.now)
            target.take()

    def run(self, milliseconds: int) -> None:
        """Advance the time."""
        for _ in range(0, milliseconds, 10):
            self.now = Instant(self.now + 10 * MILLISECOND_NS)
            for member in self.alive:
                deadline = member.running.next_deadline()
                if deadline is not None and deadline <= self.now:
                    member.running.on_timer(self.now)
                    member.take()
            self.settle()

    def elect(self) -> Member:
        """Advance the time until there is a leader that all members follow."""
        for _ in range(100):
            self.run(100)
            believed = {member.running.leader for member in self.alive}
            leading = {member.peer for member in self.alive if member.running.is_leader}
            if len(leading) == 1 and believed == leading:
                return self.leader
        raise AssertionError("no leader within 10 s")

    def commit(self, *commands: bytes) -> None:
        """Commit commands at the leader and apply them at all members."""
        for command in commands:
            self.leader.propose(command)
        self.settle()
        self.run(200)
