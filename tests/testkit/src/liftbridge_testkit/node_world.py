"""A whole node without I/O: files in memory, a list as NATS, a manual clock.

All calls of the node to its ports are recorded. Nothing happens automatically: `settle` completes
submitted file calls and delivers messages as a NATS server would, and `advance` advances the time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from liftbridge_broker.adapters.memory.files import MemoryFiles
from liftbridge_broker.adapters.memory.messaging import MemoryMessaging, Sent
from liftbridge_broker.controller.commands import (
    FEATURE_LEVEL,
    Command,
    CreateStream,
    InitPublisher,
    RegisterBroker,
    UnfenceBroker,
)
from liftbridge_broker.controller.records import BrokerEpochAnswer, Done
from liftbridge_broker.controller.state import PublisherState
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.groups.cursors import CursorPosition
from liftbridge_broker.logformat.frames import Frame, decode_frame
from liftbridge_broker.model.ids import BrokerId, Instant, StreamName
from liftbridge_broker.model.streams import StreamOptions, StreamOverrides
from liftbridge_broker.model.subjects import internal_subject
from liftbridge_broker.node.metadata.driver import MetadataDriver
from liftbridge_broker.node.node import Node
from liftbridge_broker.node.options import NodeOptions
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.partition.runs import POLICY_LEADER, PendingAck, PublishRun, Stored
from liftbridge_broker.node.reading.subscription import (
    Position,
    StartPosition,
    StopPosition,
    Subscription,
)
from liftbridge_broker.node.replicas.claims import verified_partitions
from liftbridge_broker.ports.files import Token
from liftbridge_broker.ports.master_keys import NO_MASTER_KEYS, MasterKeys
from liftbridge_broker.ports.messaging import Arrival
from liftbridge_broker.replication.publishers import PublisherStamp
from liftbridge_broker.storage.directory import Identity
from liftbridge_broker.storage.reserve import SpaceLimits
from liftbridge_broker.storage.start import open_store
from liftbridge_broker.storage.store import LogStore, StoreOptions
from liftbridge_broker.wire.envelope import encode_publish
from liftbridge_proto import api_pb2
from liftbridge_testkit.batches import frame_bounds
from liftbridge_testkit.lone_metadata import open_lone

START = Instant(1_000)
START_WALL_NS = 1_700_000_000_000_000_000
NAMESPACE = "test-ns"
METADATA_TOKEN = Token(1)
PULL_BYTES = 1 << 20
TURNS_MAX = 10_000
"""Maximum number of deadlines in one `advance`; more mean a timer that spins."""

EARLIEST = Position(StartPosition.EARLIEST, 0, 0)
NEVER = Position(StopPosition.ON_CANCEL, 0, 0)


@dataclass(slots=True)
class Answers:
    """An ack sink that records its calls."""

    stored: list[Stored] = field(default_factory=list)
    errors: list[LiftbridgeError] = field(default_factory=list)

    def acked(self, stored: Stored) -> None:
        """Port `AckSink`."""
        assert not self.is_answered, "a run is answered once"
        self.stored.append(stored)

    def refused(self, error: LiftbridgeError) -> None:
        """Port `AckSink`."""
        assert not self.is_answered, "a run is answered once"
        self.errors.append(error)

    @property
    def is_answered(self) -> bool:
        """Return whether there is an outcome."""
        return bool(self.stored or self.errors)

    @property
    def offset(self) -> int:
        """Offset of the first record; the run must have been acked."""
        assert not self.errors, self.errors
        return self.stored[0].base_offset

    @property
    def error(self) -> LiftbridgeError:
        """Return the refusal of the run, which must have been refused."""
        assert not self.stored, self.stored
        return self.errors[0]


@dataclass(slots=True)
class Reading:
    """A subscriber that reads all available records whenever it is woken.

    Attributes:
        frames: Records delivered so far.
        end: Reason of the end of the subscription, `None` while it is open.
        is_taking: Whether it reads; false for a slow client.
        pull_bytes: Bytes requested at a time.
    """

    world: "NodeWorld"
    frames: list[Frame] = field(default_factory=list)
    end: LiftbridgeError | None = None
    is_taking: bool = True
    pull_bytes: int = PULL_BYTES
    wake_count: int = 0
    _subscription: Subscription | None = None

    def open(
        self, partition: Partition, start: Position, stop: Position, *, is_reverse: bool
    ) -> "Reading":
        """Open the subscription and read available records."""
        self._subscription = Subscription.open(
            partition,
            self.world.node.client_reads,
            self._wake,
            start=start,
            stop=stop,
            is_reverse=is_reverse,
        )
        self.take()
        return self

    def _wake(self) -> None:
        self.wake_count += 1
        self.take()

    def take(self) -> None:
        """Read until no more records are available."""
        subscription = self._subscription
        while self.is_taking and subscription is not None and self.end is None:
            slices, count, end, waits = subscription.pull(self.pull_bytes)
            before = len(self.frames)
            for piece in slices:
                self.frames += [decode_frame(piece, *bounds) for bounds in frame_bounds(piece)]
            assert len(self.frames) - before == count
            if end is not None:
                self.end = end
                subscription.close(self.world.now)
            if waits:
                return

    def close(self) -> None:
        """Close the subscription, as a client that cancels."""
        assert self._subscription is not None
        self._subscription.close(self.world.now)

    @property
    def values(self) -> list[bytes]:
        """Values delivered so far."""
        return [frame.value for frame in self.frames]

    @property
    def offsets(self) -> list[int]:
        """Offsets delivered so far."""
        return [int(frame.offset) for frame in self.frames]


@dataclass
class NodeWorld:
    """Owner of a node, one at a time, on one set of files.

    Attributes:
        files: The disk, kept across nodes.
        defaults: The broker's settings of streams.
        record_bytes_max: Largest record.
        publishers_max: Idempotent publishers remembered for each partition.
        now: Monotonic nanoseconds.
        transitions: Reported transitions, in order.
        failures: Failures of the store and the metadata.
        armed: Deadline of the timer.
        masters: Master keys of encrypted streams.
    """

    files: MemoryFiles = field(default_factory=MemoryFiles)
    defaults: StreamOptions = field(default_factory=StreamOptions)
    record_bytes_max: int = 1 << 20
    publishers_max: int = 1_000
    space: SpaceLimits = field(default_factory=lambda: SpaceLimits(0, 0))
    now: Instant = START
    transitions: list[tuple[str, Mapping[str, object]]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    armed: Instant | None = None
    masters: MasterKeys = NO_MASTER_KEYS
    store: LogStore = field(init=False)
    node: Node = field(init=False)
    messaging: MemoryMessaging = field(init=False)
    _token: int = METADATA_TOKEN
    _starts: int = 0

    def __post_init__(self) -> None:
        self.start()

    # Ports.

    @property
    def wall_ns(self) -> int:
        """Unix nanoseconds, in step with `now`."""
        return START_WALL_NS + self.now

    def transition(self, kind: str, fields: Mapping[str, object]) -> None:
        """Port `Observer`."""
        self.transitions.append((kind, fields))

    def told(self, kind: str) -> list[Mapping[str, object]]:
        """Return the fields of the transitions of one kind."""
        return [fields for told, fields in self.transitions if told == kind]

    def arm(self, deadline: Instant) -> None:
        """Port `Timer`."""
        self.armed = deadline

    def _new_token(self) -> Token:
        self._token += 1
        return Token(self._token)

    # Life.

    def start(self) -> None:
        """Start a node on the files, as a process does: recover, register, listen."""
        self._starts += 1
        self.armed = None
        self.messaging = MemoryMessaging()
        self.store = open_store(
            self.files,
            Identity("data-dir-1", BrokerId("broker-1")),
            StoreOptions(space=self.space, known_names=("metadata",)),
            observer=self,
            new_token=self._new_token,
            now=self.now,
            wall_ns=self.wall_ns,
        )
        self.store.disk.on_failed = self.failures.append
        log, recovered = open_lone(
            self.files,
            sync_token=METADATA_TOKEN,
            index_min=self.store.last_stop.proven_index,
            now=self.now,
        )
        driver = MetadataDriver(
            log,
            recovered,
            on_change=lambda _index, records: self.node.on_change(records),
            on_failed=lambda error: self.failures.append(error.text),
        )
        options = NodeOptions(
            broker=BrokerId("broker-1"),
            namespace=NAMESPACE,
            inbox=internal_subject(NAMESPACE, "ack", f"{self._starts}"),
            ack_secret=b"node",
            defaults=self.defaults,
            record_bytes_max=self.record_bytes_max,
            publishers_max=self.publishers_max,
            masters=self.masters,
        )
        self.node = Node(
            options,
            self.files,
            self.store,
            driver,
            self.messaging,
            self,
            self,
            METADATA_TOKEN,
            self._new_token,
        )
        self.node.open_partitions(self.now)
        self.store.begin(self.node.state.applied_index, self.now)
        self._register()
        self.store.begin_session(self.node.state.applied_index, self.now)
        self.node.listen()

    def _register(self) -> None:
        outcome = self.propose(
            RegisterBroker(
                broker=BrokerId("broker-1"),
                incarnation_id=f"run-{self._starts}",
                data_dir_id="data-dir-1",
                host="localhost",
                port=9292,
                previous_broker_epoch=self.store.last_stop.broker_epoch or 0,
                clean_partitions=verified_partitions(self.node.partitions, self.store),
                known_index=self.store.last_stop.known_index,
                feature_level=FEATURE_LEVEL,
            )
        )
        assert isinstance(outcome, BrokerEpochAnswer), outcome
        outcome = self.propose(
            UnfenceBroker(
                broker=BrokerId("broker-1"),
                broker_epoch=outcome.broker_epoch,
                applied_index=self.node.state.applied_index,
            )
        )
        assert outcome == Done(), outcome

    def kill(self) -> None:
        """End the process but keep its written data, then start again."""
        self.files.kill()
        self.start()

    def crash(self, keep: Random | None = None) -> None:
        """Cut the power, keep the unsynced data that `keep` chooses, and start again."""
        self.files.crash(keep)
        self.start()

    def stop(self) -> None:
        """Shut down in order; `start` begins again."""
        self.node.stop()
        self.settle()
        self.store.close(self.node.state.brokers[self.node.broker].broker_epoch)
        self.files.kill()

    # Turns.

    def settle(self) -> None:
        """Complete file calls, deliver messages and do chores, until nothing is left."""
        while True:
            events = self.files.calls.pump()
            for event in events:
                self.node.on_file_event(event, self.now, self.wall_ns)
            messages, self.messaging.new = self.messaging.new, []
            for message in messages:
                self._carry(message)
            if self.node.context.chores.is_waiting:
                self.node.on_timer(self.now, self.wall_ns)
            elif not events and not messages:
                return

    def _carry(self, message: Sent) -> None:
        arrival = Arrival(message.subject, "", message.headers)
        for subscription in self.messaging.receivers(message.subject, is_quiet=message.is_quiet):
            self.node.on_messages(
                subscription, [arrival], [message.payload], self.now, self.wall_ns
            )

    def advance(self, duration_ns: int) -> None:
        """Advance the time; fire every deadline on the way."""
        until = Instant(self.now + duration_ns)
        turns = 0
        while self.armed is not None and self.armed <= until:
            turns += 1
            assert turns <= TURNS_MAX, "a deadline is due again after its event"
            self.now = max(self.now, self.armed)
            self.armed = None
            self.node.on_timer(self.now, self.wall_ns)
            self.settle()
        self.now = until

    # Actions of clients.

    def propose(self, command: Command) -> object:
        """Propose a command and wait for the answer or refusal."""
        answers: list[object] = []
        self.node.propose(command, self.now, answers.append)
        if not answers:
            self.settle()
        assert len(answers) == 1
        return answers[0]

    def create(
        self,
        name: str = "s",
        subject: str = "",
        *,
        group: str = "",
        partitions: int = 1,
        is_internal: bool = False,
        **overrides: object,
    ) -> Partition:
        """Create a stream and return its first partition."""
        outcome = self.propose(
            CreateStream(
                name=StreamName(name),
                subject=subject or name,
                group=group,
                partitions=partitions,
                overrides=StreamOverrides(**overrides),  # type: ignore[arg-type]  # by name
                creation_timestamp=self.wall_ns,
                is_internal=is_internal,
            )
        )
        assert not isinstance(outcome, LiftbridgeError), outcome
        return self.partition(name)

    def partition(self, name: str = "s", number: int = 0) -> Partition:
        """Return the current partition object of the node."""
        return self.node.find_partition(name, number)

    def init_publisher(self, name: str = "p", stream: str = "s") -> PublisherState:
        """Register an idempotent publisher."""
        outcome = self.propose(InitPublisher(stream=StreamName(stream), publisher=name))
        assert isinstance(outcome, PublisherState), outcome
        return outcome

    def publish(
        self,
        partition: Partition,
        *values: bytes,
        policy: int = POLICY_LEADER,
        publisher: PublisherStamp | None = None,
        **fields: object,
    ) -> Answers:
        """Publish a run as gRPC does, without pumping."""
        answers = Answers()
        run = PublishRun(
            list(values),
            partition.subject,
            "grpc",
            (PendingAck(policy, answers),),
            policy=policy,
            publisher=publisher,
            **fields,  # type: ignore[arg-type]  # by name
        )
        self.node.publish(partition, run, self.now, self.wall_ns)
        return answers

    def deliver(
        self, subject: str, *payloads: bytes, reply: str = "", headers: bytes = b""
    ) -> None:
        """Deliver messages published on NATS, as one chunk for each subscription."""
        arrival = Arrival(subject, reply, headers)
        for subscription in self.messaging.receivers(subject, is_quiet=False):
            self.node.on_messages(
                subscription, [arrival] * len(payloads), list(payloads), self.now, self.wall_ns
            )

    def subscribe(
        self,
        partition: Partition,
        start: Position = EARLIEST,
        stop: Position = NEVER,
        *,
        is_reverse: bool = False,
    ) -> Reading:
        """Open a subscription that reads all available records.

        Raises:
            LiftbridgeError: The subscription was refused.
        """
        return Reading(self).open(partition, start, stop, is_reverse=is_reverse)

    def values(self, partition: Partition) -> dict[int, bytes]:
        """Return the committed values of a partition by offset."""
        reading = self.subscribe(partition)
        self.settle()
        reading.close()
        return dict(zip(reading.offsets, reading.values, strict=True))

    def look_up_cursor(self, partition: Partition, key: bytes) -> list[int | LiftbridgeError]:
        """Look up a cursor; the list gets the answer, immediately or after `settle`."""
        found: list[int | LiftbridgeError] = []

        def done(outcome: CursorPosition | LiftbridgeError) -> None:
            found.append(outcome.offset if isinstance(outcome, CursorPosition) else outcome)

        self.node.cursors.look_up(partition, key, done)
        return found


def envelope(value: bytes = b"v", **fields: object) -> bytes:
    """Encode a message in the envelope of Liftbridge, with any fields of `proto.Message`."""
    return encode_publish(api_pb2.Message(value=value, **fields))  # type: ignore[arg-type] # by name


def at_offset(offset: int) -> Position:
    """Start at an offset; as a stop, stop at it."""
    return Position(StartPosition.OFFSET, offset, 0)


def stop_at(offset: int) -> Position:
    """Stop after an offset."""
    return Position(StopPosition.OFFSET, offset, 0)
