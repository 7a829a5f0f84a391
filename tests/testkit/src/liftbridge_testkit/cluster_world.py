"""Several whole nodes without I/O: one NATS and one clock in memory, a disk for each.

A member of a cluster is the shipped core (`node.assembly`), which all of them begin together, or
which is let in later. It registers in steps of that core; `is_registered` means that roles are
taken. Heartbeats unfence the broker by themselves.

Events of a member: `on_peer(channel, payload, now, wall_ns)` besides those of a broker alone. For a
stop in order `node.cluster.session.want_shutdown` is set; `session.may_stop` says when.
"""

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from liftbridge_broker.adapters.memory.files import MemoryFiles
from liftbridge_broker.adapters.memory.messaging import MemoryMessaging, Sent
from liftbridge_broker.controller.commands import Command, CreateStream
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import BrokerId, Instant, PartitionId, StreamName
from liftbridge_broker.model.metadata_log import Configuration, Peer
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.streams import StreamOptions, StreamOverrides
from liftbridge_broker.model.subjects import internal_subject
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.assembly.core import Core, CoreOptions
from liftbridge_broker.node.assembly.session import Announcement, register
from liftbridge_broker.node.metadata.bootstrap import Beginning, Role
from liftbridge_broker.node.metadata.consensus import RaftConsensus
from liftbridge_broker.node.metadata.opening import METADATA_DIRECTORY
from liftbridge_broker.node.node import Node
from liftbridge_broker.node.options import ActivityOptions, NodeOptions
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.partition.runs import POLICY_ALL, PendingAck, PublishRun
from liftbridge_broker.node.peers.peer_link import PeerLink
from liftbridge_broker.ports.files import FileHandle, Token
from liftbridge_broker.ports.messaging import Arrival, SubscriptionId
from liftbridge_broker.ports.transport import EVERYONE, Channel
from liftbridge_broker.raft.configuration import EMPTY
from liftbridge_broker.storage.directory import Identity
from liftbridge_broker.storage.reserve import SpaceLimits
from liftbridge_broker.storage.store import LogStore, StoreOptions
from liftbridge_testkit.held_keys import HeldKeys
from liftbridge_testkit.node_world import START, START_WALL_NS, Answers

STEP_NS = 5 * MILLISECOND_NS
NAMESPACE = "test-ns"
CLUSTER_ID = "cluster"
"""On messages; the metadata have none, as nobody has named this cluster or raised its level."""

STREAMS = "streams/"
"""Folder of the logs of streams."""

TURNS_MAX = 20_000
"""Turns and messages at one moment; more of them are something that spins."""


class Payload(NamedTuple):
    """A message between brokers on its way."""

    sender: BrokerId
    target: BrokerId
    channel: Channel
    payload: bytes


@dataclass(slots=True)
class Port:
    """The transport of one broker."""

    world: "ClusterWorld"
    broker: BrokerId
    is_connected: bool = True
    payload_bytes_max: int = 64 * 1024

    def send(self, broker: BrokerId, channel: Channel, payload: bytes) -> None:
        """Port `Transport`."""
        assert len(payload) <= self.payload_bytes_max
        if not self.is_connected:
            return
        targets = list(self.world.members) if broker == EVERYONE else [broker]
        for target in targets:
            self.world.sent.append(Payload(self.broker, target, channel, payload))

    def probe(self, broker: BrokerId, channel: Channel, sent_at: Instant) -> None:
        """Port `Transport`: nobody is ever absent here."""


class HoldingFiles(MemoryFiles):
    """A disk that can be slow with the files of streams, and with nothing else.

    Attributes:
        is_holding: Whether syncs of them by token do not end until `release`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_holding = False
        self._held = list(self.calls.waiting)

    def submit_sync(
        self, token: Token, handles: Sequence[FileHandle], directories: Sequence[str] = ()
    ) -> None:
        """See the port."""
        super().submit_sync(token, handles, directories)
        if self.is_holding and any(self._handles[one].path.startswith(STREAMS) for one in handles):
            self._held.append(self.calls.waiting.pop())

    def release(self) -> None:
        """Do what was held."""
        self.is_holding = False
        self.calls.waiting += self._held
        self._held.clear()

    def kill(self) -> None:
        """End the process; what was held is not done."""
        self._held.clear()
        super().kill()


@dataclass(slots=True)
class _Clock:
    """Port `Clock`: that of the world."""

    world: "ClusterWorld"

    def now(self) -> Instant:
        """See the port."""
        return self.world.now

    def wall_ns(self) -> int:
        """See the port."""
        return self.world.wall_ns


class Member:
    """One broker with its disk, over several lives.

    Attributes:
        files: Its disk.
        core: The broker of this life.
        is_alive: Whether it runs.
        is_registered: Whether this life's registration was applied.
        told: Transitions of all lives.
        failures: Failures of its store or metadata.
        armed: Deadline its timer has.
        masters: Its master keys, in all lives.
    """

    def __init__(self, world: "ClusterWorld", number: int) -> None:
        """Begin without a life."""
        self.world = world
        self.broker = BrokerId(f"b{number}")
        self.peer = Peer(self.broker, f"disk-{number}")
        self.files = HoldingFiles()
        self.port = Port(world, self.broker)
        self.told: list[tuple[str, Mapping[str, object]]] = []
        self.failures: list[str] = []
        self.armed: Instant | None = None
        self.is_alive = False
        self.is_registered = False
        self.is_stalled = False
        self.life = 0
        self.messaging = MemoryMessaging()
        self.masters = HeldKeys(**world.master_keys)
        self.core: Core
        self._steps: Generator[None, None, None] | None = None
        self._step_at = START

    @property
    def store(self) -> LogStore:
        """The logs of this life."""
        return self.core.store

    @property
    def node(self) -> Node:
        """The node of this life."""
        return self.core.node

    @property
    def consensus(self) -> RaftConsensus:
        """Its member of the metadata group."""
        return self.core.consensus

    @property
    def link(self) -> PeerLink:
        """Its link to the other brokers."""
        assert self.node.cluster is not None
        return self.node.cluster.link

    # Ports.

    def transition(self, kind: str, fields: Mapping[str, object]) -> None:
        """Port `Observer`."""
        self.told.append((kind, fields))

    def told_count(self, kind: str) -> int:
        """Return the transitions of a kind so far."""
        return sum(found == kind for found, _ in self.told)

    def arm(self, deadline: Instant) -> None:
        """Port `Timer`."""
        self.armed = deadline

    # Life.

    def start(self, bootstrap: Configuration = EMPTY) -> None:
        """Begin a life with what is on disk; see the module."""
        world = self.world
        self.life += 1
        self.is_alive, self.is_registered, self.armed = True, False, None
        self.messaging = MemoryMessaging()
        self.core = Core(
            self._options(),
            self.files,
            _Clock(world),
            self,
            self,
            Random(f"{self.broker} {self.life} {world.seed}"),
            lambda: f"{self.broker}-{self.life}".encode().ljust(16, b"."),
            lambda error: self.failures.append(error.text),
            lambda _change: None,
        )
        self.core.open_store()
        self.core.open(self.messaging, self.port, Beginning(bootstrap, ""))
        self.link.cluster_id = CLUSTER_ID
        self._steps = register(self.core, Announcement(host="localhost", port=9292))
        self._step_at = world.now

    def _options(self) -> CoreOptions:
        world = self.world
        return CoreOptions(
            fresh=Identity(self.peer.data_dir_id, self.broker),
            incarnation_id=f"run-{self.broker}-{self.life}",
            role=Role.WAITER,
            node=NodeOptions(
                broker=self.broker,
                namespace=NAMESPACE,
                inbox=internal_subject(NAMESPACE, "ack", f"{self.broker}.{self.life}"),
                ack_secret=f"{self.broker} {self.life}".encode(),
                defaults=world.defaults,
                record_bytes_max=1 << 20,
                activity=world.activity.get(self.broker, ActivityOptions()),
                masters=self.masters,
            ),
            store=StoreOptions(space=SpaceLimits(0, 0), known_names=(METADATA_DIRECTORY,)),
            snapshot_entries=world.snapshot_entries,
        )

    def _step(self) -> None:
        """Do the next step of the registration."""
        assert self._steps is not None
        self._step_at = Instant(self.world.now + STEP_NS)
        if next(self._steps, self) is self:
            self._steps = None
        self.is_registered = self.is_registered or self.core.registration is not None

    def kill(self, *, power_cut: bool = False) -> None:
        """End the process; with a power cut nothing that was not synced is left."""
        self.is_alive = False
        self.messaging = MemoryMessaging()
        if power_cut:
            self.files.crash(None)
        else:
            self.files.kill()

    def stop(self) -> None:
        """End it in order, after it has transferred its leaderships."""
        self.node.stop()
        self.core.close(self.core.epoch)
        self.is_alive = False
        self.messaging = MemoryMessaging()
        self.files.kill()

    def restart(self) -> None:
        """Begin another life."""
        self.start()

    # Turns.

    def take_turn(self) -> bool:
        """Let ended file calls and the due timer come in; whether there was anything."""
        world = self.world
        if not self.is_alive or self.is_stalled:
            return False
        events = self.files.calls.pump()
        for event in events:
            self.node.on_file_event(event, world.now, world.wall_ns)
        is_due = self.armed is not None and self.armed <= world.now
        if is_due:
            self.armed = None
            self.node.on_timer(world.now, world.wall_ns)
        if self._steps is not None and self._step_at <= world.now:
            self._step()
        return bool(events) or is_due

    def log_bytes(self, partition_id: PartitionId) -> bytes:
        """Return all stored batches of a partition."""
        log = self.node.partitions[partition_id].log
        return log.read_batches(log.log_start_offset, 1 << 30, log.log_end_offset)


@dataclass
class ClusterWorld:
    """Some brokers that begin a cluster together.

    Attributes:
        size: Number of brokers.
        seed: Chance of this world.
        now: Monotonic nanoseconds, the same for all.
        sent: Messages between brokers on their way.
        broken: Pairs of sender and target between which everything is lost.
        deaf: The same for one channel only.
        members: All brokers by id.
        activity: Settings of the activity stream, of brokers that have other ones than the default.
        master_keys: Master keys that each broker starts with.
    """

    size: int = 3
    seed: int = 1
    master_keys: Mapping[str, bytes] = field(default_factory=dict)
    defaults: StreamOptions = field(default_factory=StreamOptions)
    snapshot_entries: int = 8_192
    now: Instant = START
    sent: deque[Payload] = field(default_factory=deque)
    broken: set[tuple[BrokerId, BrokerId]] = field(default_factory=set)
    deaf: set[tuple[BrokerId, BrokerId, Channel]] = field(default_factory=set)
    members: dict[BrokerId, Member] = field(default_factory=dict)
    activity: dict[BrokerId, ActivityOptions] = field(default_factory=dict)
    carried: int = 0

    def __post_init__(self) -> None:
        """Start all of them."""
        members = [Member(self, number) for number in range(1, self.size + 1)]
        configuration = Configuration(tuple(sorted(member.peer for member in members)))
        for member in members:
            self.members[member.broker] = member
            member.start(configuration)
        self.until(lambda: self.is_whole)

    @property
    def is_whole(self) -> bool:
        """Return whether every broker runs and knows all of them as unfenced."""
        return all(
            member.is_registered
            and sum(not broker.fenced for broker in member.node.state.brokers.values()) == self.size
            for member in self.members.values()
        )

    @property
    def wall_ns(self) -> int:
        """Unix nanoseconds, in step with `now`."""
        return START_WALL_NS + self.now

    def __getitem__(self, number: int) -> Member:
        """Broker number n, from 1."""
        return self.members[BrokerId(f"b{number}")]

    @property
    def alive(self) -> list[Member]:
        """Brokers that run."""
        return [member for member in self.members.values() if member.is_alive]

    # Faults.

    def cut(self, one: Member, *others: Member) -> None:
        """Part a broker from others (all of them by default), both ways."""
        for other in others or tuple(self.members.values()):
            if other is not one:
                self.broken |= {(one.broker, other.broker), (other.broker, one.broker)}

    def heal(self) -> None:
        """Let every message through again."""
        self.broken.clear()
        self.deaf.clear()

    # Time.

    def settle(self) -> None:
        """Let everything happen that happens at this moment."""
        turns = 0
        while True:
            is_moving = False
            for member in self.members.values():
                is_moving |= member.take_turn()
                messages, member.messaging.new = member.messaging.new, []
                for message in messages:
                    self._publish(member, message)
                    is_moving = True
            while self.sent:
                self._deliver(self.sent.popleft())
                is_moving = True
                turns += 1
                assert turns <= TURNS_MAX, "brokers talk without end"
            turns += 1
            assert turns <= TURNS_MAX, "the world does not come to rest"
            if not is_moving:
                return

    def _deliver(self, sent: Payload) -> None:
        target = self.members.get(sent.target)
        if target is None or not target.is_alive or (sent.sender, sent.target) in self.broken:
            return
        if (sent.sender, sent.target, sent.channel) in self.deaf:
            return
        self.carried += 1
        target.node.on_peer(sent.channel, sent.payload, self.now, self.wall_ns)

    def _publish(self, sender: Member | None, message: Sent) -> None:
        """Carry a NATS message to every broker."""
        arrival = Arrival(message.subject, message.reply, message.headers)
        for member in self.alive:
            is_quiet = message.is_quiet and member is sender
            found = member.messaging.receivers(message.subject, is_quiet=is_quiet)
            for subscription in found:
                self._hear(member, subscription, arrival, message.payload)

    def _hear(
        self, member: Member, subscription: SubscriptionId, arrival: Arrival, payload: bytes
    ) -> None:
        member.node.on_messages(subscription, [arrival], [payload], self.now, self.wall_ns)

    def publish_nats(self, subject: str, payload: bytes, *, reply: str = "") -> None:
        """Publish on NATS, as a client would."""
        self._publish(None, Sent(subject, payload, b"", is_quiet=False, reply=reply))
        self.settle()

    def run(self, milliseconds: int) -> None:
        """Let time pass."""
        self.settle()
        for _ in range(0, milliseconds * MILLISECOND_NS, STEP_NS):
            self.now = Instant(self.now + STEP_NS)
            self.settle()

    def until(self, condition: Callable[[], bool], *, milliseconds: int = 20_000) -> int:
        """Let time pass until something holds; returns how many milliseconds that took."""
        self.settle()
        began = self.now
        while not condition():
            assert self.now - began <= milliseconds * MILLISECOND_NS, (
                f"not within {milliseconds} ms"
            )
            self.now = Instant(self.now + STEP_NS)
            self.settle()
        return (self.now - began) // MILLISECOND_NS

    # What clients do.

    def propose(self, command: Command, at: Member | None = None) -> object:
        """Give a command to a broker and wait for the answer or refusal."""
        answers: list[object] = []
        member = at if at is not None else self.alive[0]
        member.node.propose(command, self.now, answers.append)
        self.until(lambda: bool(answers), milliseconds=10_000)
        return answers[0]

    def create(
        self, name: str = "s", *, factor: int = 3, partitions: int = 1, **overrides: object
    ) -> PartitionId:
        """Create a stream, and wait until its first partition takes records."""
        outcome = self.propose(
            CreateStream(
                name=StreamName(name),
                subject=name,
                partitions=partitions,
                replication_factor=factor,
                overrides=StreamOverrides(**overrides),  # type: ignore[arg-type]  # by name
                creation_timestamp=self.wall_ns,
            )
        )
        assert not isinstance(outcome, LiftbridgeError), outcome
        partition_id = self.state(name).partition_id
        self.until(lambda: self.leader(name) is not None)
        return partition_id

    def state(self, name: str = "s", number: int = 0) -> PartitionState:
        """Return a partition by the newest metadata of any broker."""
        newest = max(self.alive, key=lambda member: member.node.state.applied_index)
        stream = newest.node.state.stream(name)
        assert stream is not None
        return stream.partitions[number]

    def leader(self, name: str = "s", number: int = 0) -> Member | None:
        """Return the broker that takes the records of a partition at present."""
        state = self.state(name, number)
        if state.leader is None:
            return None
        member = self.members[state.leader]
        if not member.is_alive:
            return None
        partition = member.node.partitions.get(state.partition_id)
        if partition is None or partition.role != "leader":
            return None
        return member if partition.leader_epoch == state.leader_epoch else None

    def replica(self, number: int, name: str = "s") -> Partition:
        """Return the replica of a broker."""
        return self[number].node.find_replica(name, 0)

    def publish(
        self,
        *values: bytes,
        name: str = "s",
        policy: int = POLICY_ALL,
        at: Member | None = None,
        **fields: object,
    ) -> Answers:
        """Publish a run at the leader, or elsewhere, as gRPC does; nothing is waited for."""
        member = at if at is not None else self.leader(name)
        assert member is not None
        answers = Answers()
        partition = member.node.find_for_publish(name, 0)
        run = PublishRun(
            list(values),
            partition.subject,
            "grpc",
            (PendingAck(policy, answers),),
            policy=policy,
            **fields,  # type: ignore[arg-type]  # by name
        )
        member.node.publish(partition, run, self.now, self.wall_ns)
        return answers

    def commit(self, *values: bytes, name: str = "s") -> int:
        """Publish with acks of all and wait; returns the offset of the first value."""
        answers = self.publish(*values, name=name)
        self.until(lambda: answers.is_answered)
        return answers.offset
