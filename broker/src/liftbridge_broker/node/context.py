"""State that the parts of one node share: its identity, time of the turn, ports and counters.

The node creates it before its parts and passes it to each. It knows none of them: calls upwards go
through plain callables.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from liftbridge_broker.controller.commands import Command
from liftbridge_broker.controller.state import ClusterState, StreamState
from liftbridge_broker.errors import FilesError, LiftbridgeError, UnavailableError
from liftbridge_broker.model.histogram import Histogram
from liftbridge_broker.model.ids import BrokerId, Instant, PartitionId
from liftbridge_broker.model.streams import StreamOptions
from liftbridge_broker.node.data_keys import DataKeys
from liftbridge_broker.node.metadata.driver import MetadataDriver
from liftbridge_broker.node.options import NodeOptions
from liftbridge_broker.node.scheduling.alarm import Alarm
from liftbridge_broker.node.scheduling.chores import Chores
from liftbridge_broker.node.scheduling.cluster_clock import ClusterClock
from liftbridge_broker.node.scheduling.opening_queue import OpeningQueue
from liftbridge_broker.ports.files import FileEvent, Files, Token
from liftbridge_broker.ports.messaging import Messaging
from liftbridge_broker.ports.observe import Observer
from liftbridge_broker.storage.log.types import ReadNeed
from liftbridge_broker.storage.store import LogStore
from liftbridge_broker.wire.acks import AckPolicy

BEGINNING: Final = Instant(0)

ReadDone = Callable[[bytes | LiftbridgeError], None]
"""Gets the bytes of a read outside the event loop, or the error."""


def _ack_times() -> Mapping[int, Histogram]:
    return {policy.value: Histogram() for policy in (AckPolicy.LEADER, AckPolicy.ALL)}


@dataclass(slots=True, eq=False, repr=False)
class NodeContext:
    """State and ports that the parts of one node share.

    Attributes:
        options: Options in force.
        store: The logs.
        metadata: The metadata log.
        clock: The time by which records are stamped and expire.
        alarm: The timer.
        data_keys: Data keys of encrypted streams.
        arm: Looks up the next deadline of all parts.
        is_caught_up: Whether the metadata hold all decisions made before this process started.
        chores: Work that is done in steps.
        openings: Replicas that wait to be opened.
        now: Time of this turn.
        wall_ns: Wall clock of this turn, Unix nanoseconds.
        is_in_turn: Whether the end of the current turn handles work that is due by then.
        is_stopping: Whether new work is refused.
        has_stopped: Whether all partitions were closed, while their logs may still be open.
        unanswered_bytes: Bytes of stored runs whose acks are pending.
        lost_ack_count: Acks that could not be published because NATS was unavailable.
        refused_counts: Messages refused by partitions, by code of the error.
        ack_times: Nanoseconds from the append of runs to their acks over NATS, by ack policy.
    """

    options: NodeOptions
    files: Files
    store: LogStore
    metadata: MetadataDriver
    messaging: Messaging
    observer: Observer
    clock: ClusterClock
    alarm: Alarm
    data_keys: DataKeys
    arm: Callable[[], None]
    new_token: Callable[[], Token]
    is_caught_up: bool
    chores: Chores = field(init=False)
    openings: OpeningQueue = field(init=False)
    now: Instant = BEGINNING
    wall_ns: int = 0
    is_in_turn: bool = False
    is_stopping: bool = False
    has_stopped: bool = False
    unanswered_bytes: int = 0
    lost_ack_count: int = 0
    refused_counts: dict[str, int] = field(default_factory=dict)
    ack_times: Mapping[int, Histogram] = field(default_factory=_ack_times)
    _reads: dict[Token, ReadDone] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.chores = Chores(lambda: self.now, self.arm)
        self.openings = OpeningQueue(self.options.openings_per_turn)

    @property
    def broker(self) -> BrokerId:
        """Id of this broker."""
        return self.options.broker

    @property
    def state(self) -> ClusterState:
        """Applied metadata; readers change nothing."""
        return self.metadata.state

    def options_of(self, stream: StreamState) -> StreamOptions:
        """Return the settings in force of a stream.

        The metadata alone, not the default of a broker, decide when records count as stored, and
        whether they are encrypted.
        """
        given = self.options.defaults.overridden(stream.overrides)
        options = replace(given, encryption=stream.data_key is not None)
        return replace(options, fsync_policy=stream.policy.fsync_policy)  # guard C1.default

    def transition(self, kind: str, fields: Mapping[str, object]) -> None:
        """Report a transition to the observer."""
        self.observer.transition(kind, fields)

    def propose(self, command: Command, now: Instant, reply: Callable[[object], None]) -> None:
        """Propose a command; `reply` gets its answer or a `LiftbridgeError`."""
        if self.is_stopping:
            reply(UnavailableError("broker is stopping"))
            return
        self.now = now
        self.metadata.propose(command, now, reply)
        self.arm()

    def wake_soon(self) -> None:
        """Fire the timer soon, unless the end of a turn handles the due work."""
        if not self.is_in_turn:
            self.alarm.wake(self.now)

    # -- files --------------------------------------------------------------------------------

    def note_append(self, partition_id: PartitionId, now: Instant) -> None:
        """Note that bytes were appended, to be synced by the stream's fsync policy."""
        self.store.note_append(partition_id, now)
        self.alarm.look(now)

    def note_append_failed(self, error: FilesError, now: Instant) -> None:
        """Report a failed append; the store decides whether it is a full disk or fatal."""
        self.store.disk.on_error(error, now)
        self.arm()

    def submit_read(self, need: ReadNeed, done: ReadDone) -> None:
        """Read from the disk, outside the event loop; `done` is called in a later turn."""
        token = self.new_token()
        self._reads[token] = done
        self.files.submit_read(token, need.handle, need.position, need.length)

    def end_read(self, event: FileEvent) -> bool:
        """Pass the outcome of a read to its caller; return whether the event belongs to a read."""
        done = self._reads.pop(event.token, None)
        if done is None:
            return False
        done(event.error if event.error is not None else event.data)
        return True

    # -- publishers ---------------------------------------------------------------------------

    def count_refused(self, error: LiftbridgeError, count: int) -> None:
        """Count refused messages."""
        counts = self.refused_counts
        counts[error.code] = counts.get(error.code, 0) + count

    def send_acks(self, frames: list[bytes]) -> None:
        """Publish acks; while the link is down they are lost, as acks over NATS may be."""
        try:
            self.messaging.publish_echo(frames)
        except UnavailableError:
            self.lost_ack_count += 1
