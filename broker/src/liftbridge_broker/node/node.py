"""The broker without I/O: routes requests, messages and timers to partitions and metadata.

Everything runs to its end on the caller's turn. Time is an argument; slow work is submitted to a
port and comes back as an event. One deadline covers all timers of the node: the shell arms one
timer with `next_deadline` (architecture 5).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from liftbridge_broker.controller.commands import Command, CreateStream, ResumeStream
from liftbridge_broker.controller.records import Record
from liftbridge_broker.controller.state import ClusterState, StreamState
from liftbridge_broker.errors import (
    FilesError,
    LiftbridgeError,
    NotFoundError,
    UnavailableError,
)
from liftbridge_broker.model.histogram import Histogram
from liftbridge_broker.model.ids import (
    BrokerId,
    Instant,
    PartitionId,
    PublisherId,
    StreamName,
)
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.streams import StreamOptions
from liftbridge_broker.model.subjects import RESERVED_STREAMS, partition_subject
from liftbridge_broker.node.applied import take_records
from liftbridge_broker.node.auto_pause import AutoPause
from liftbridge_broker.node.cursors import CursorTable, LookUpDone
from liftbridge_broker.node.intake import Intake
from liftbridge_broker.node.metadata import MetadataDriver
from liftbridge_broker.node.options import NodeOptions
from liftbridge_broker.node.partition import BEGINNING, Partition
from liftbridge_broker.node.publishers import restored_publishers
from liftbridge_broker.node.runs import POLICY_ALL, POLICY_LEADER, PublishRun
from liftbridge_broker.node.subjects import SubjectPublish, SubjectPublisher, Waiter
from liftbridge_broker.ports.files import FileEvent, Files, Token
from liftbridge_broker.ports.messaging import Arrival, Messaging, SubscriptionId
from liftbridge_broker.ports.observe import Observer
from liftbridge_broker.ports.timer import Timer
from liftbridge_broker.replication.publishers import PublisherTable
from liftbridge_broker.storage.store import LogStore
from liftbridge_broker.storage.types import ReadNeed
from liftbridge_broker.wire.acks import AckEncoder
from liftbridge_broker.wire.subjects import ReservedSubjects, SubjectTable

INBOX_SUBSCRIPTION: Final = SubscriptionId(0)
"""Subscription of the broker's own ack inbox; partitions use their ids, which are above."""

_STOPPED: Final = UnavailableError("commit log was closed")

ReadDone = Callable[[bytes | LiftbridgeError], None]


@dataclass(slots=True, eq=False)
class Node:
    """One broker.

    Attributes:
        partitions: Partitions led here, by id, in order of creation.
        lost_ack_count: Acks that could not be published because NATS was away.
        lost_copy_count: Messages that other listeners of a subject missed for the same reason.
        unanswered_bytes: Bytes of runs that are stored and wait for their acks.
        refused_counts: Messages refused by partitions, by code of the error.
        ack_times: Nanoseconds from the append of runs to their acks over NATS, by ack policy.
    """

    options: NodeOptions
    files: Files
    store: LogStore
    metadata: MetadataDriver
    messaging: Messaging
    observer: Observer
    timer: Timer
    metadata_token: Token
    new_token: Callable[[], Token]
    partitions: dict[PartitionId, Partition] = field(default_factory=dict)
    _to_subjects: SubjectPublisher = field(init=False)
    _subjects: SubjectTable[Partition] = field(default_factory=SubjectTable)
    _names: dict[tuple[str, int], Partition] = field(default_factory=dict)
    _reads: dict[Token, ReadDone] = field(default_factory=dict)
    _idle: AutoPause = field(default_factory=AutoPause)
    _cursors: dict[PartitionId, CursorTable] = field(default_factory=dict)
    _is_stopping: bool = False
    _is_listening: bool = False
    _settled: Callable[[], None] | None = None
    _armed: Instant | None = None
    _now: Instant = BEGINNING
    _wall_ns: int = 0
    lost_ack_count: int = 0
    lost_copy_count: int = 0
    unanswered_bytes: int = 0
    refused_counts: dict[str, int] = field(default_factory=dict)
    ack_times: Mapping[int, Histogram] = field(
        default_factory=lambda: {POLICY_LEADER: Histogram(), POLICY_ALL: Histogram()}
    )

    def __post_init__(self) -> None:
        self._to_subjects = SubjectPublisher(self.messaging, self.options.inbox)

    # -- what the API asks --------------------------------------------------------------------

    @property
    def broker(self) -> BrokerId:
        """Id of this broker."""
        return self.options.broker

    @property
    def state(self) -> ClusterState:
        """Applied metadata; readers change nothing."""
        return self.metadata.state

    @property
    def partition_count(self) -> int:
        """Partitions led here that take messages; paused ones do not count, as in the original."""
        return sum(not partition.is_paused for partition in self.partitions.values())

    def find_partition(self, stream: str, number: int) -> Partition:
        """Partition led by this broker.

        Raises:
            NotFoundError: There is no such stream or partition.
        """
        partition = self._names.get((stream, number))
        if partition is None:
            raise NotFoundError(f"no such partition: {stream}/{number}")
        return partition

    def find_for_publish(self, stream: str, number: int) -> Partition:
        """As `find_partition`, with the texts of `Publish`.

        Raises:
            NotFoundError: `no such stream: <name>` or `no such partition: <n>`.
        """
        partition = self._names.get((stream, number))
        if partition is not None:
            return partition
        if self.state.stream(stream) is None:
            raise NotFoundError(f"no such stream: {stream}")
        raise NotFoundError(f"no such partition: {number}")

    def publish(self, partition: Partition, run: PublishRun, now: Instant, wall_ns: int) -> None:
        """Store a run from a client: directly, or over NATS when a queue group decides who does."""
        if partition.group and run.publisher is None and run.target_offset is None:
            self._to_subjects.publish_for_group(
                partition, run, now, lambda ack: self._is_in_group(ack.stream, partition.group)
            )
            self._arm()
        else:
            partition.publish(run, now, wall_ns)

    def propose(self, command: Command, now: Instant, reply: Callable[[object], None]) -> None:
        """Give a command to the metadata; `reply` gets its answer or a `LiftbridgeError`."""
        if self._is_stopping:
            reply(UnavailableError("broker is stopping"))
            return
        self._now = now
        if isinstance(command, CreateStream):
            reply = self._once_heard(reply)
        self.metadata.propose(command, now, reply)
        self._arm()

    def _once_heard(self, reply: Callable[[object], None]) -> Callable[[object], None]:
        """Tell of a new stream only when it hears its subject, or what follows at once is lost."""

        def answered(outcome: object) -> None:
            if isinstance(outcome, LiftbridgeError):
                reply(outcome)
            else:
                self.messaging.when_subscribed(lambda: reply(outcome))

        return answered

    def resume(
        self,
        partition: Partition,
        now: Instant,
        reply: Callable[[LiftbridgeError | None], None],
    ) -> None:
        """Resume a paused partition (all of its stream after a pause with `resumeAll`)."""
        command = ResumeStream(name=StreamName(partition.stream), partitions=(partition.number,))

        def answered(outcome: object) -> None:
            reply(outcome if isinstance(outcome, LiftbridgeError) else None)

        self.propose(command, now, answered)

    # -- publishing over NATS -----------------------------------------------------------------

    def publish_to_subject(
        self,
        publish: SubjectPublish,
        now: Instant,
        waiter: Waiter | None,
    ) -> Callable[[], None]:
        """Publish an envelope to a subject, and wait for an ack.

        Args:
            publish: The message; its subject and inbox are checked.
            now: Time now.
            waiter: Gets the ack; with `None` none is waited for: the caller's inbox gets all.

        Returns:
            What to call when the caller gives up.

        Raises:
            UnavailableError: The link to NATS is down.
            LimitError: Too many acks are waited for.
        """
        forget = self._to_subjects.publish(publish, now, waiter)
        self._arm()
        return forget

    def _is_in_group(self, name: str, group: str) -> bool:
        stream = self.state.stream(name)
        return stream is not None and stream.group == group

    def send_acks(self, frames: list[bytes]) -> None:
        """Publish acks; while the link is down they are lost, as acks over NATS may be."""
        if self.messaging.is_connected:
            try:
                self.messaging.publish_echo(frames)
            except UnavailableError:
                self.lost_ack_count += 1
        else:
            self.lost_ack_count += 1

    # -- host of the partitions ---------------------------------------------------------------

    def note_append(self, partition: Partition, now: Instant) -> None:
        """Tell the store that bytes wait for a sync."""
        self.store.note_append(partition.partition_id, now)
        deadline = self.store.next_deadline()
        if deadline is not None and (self._armed is None or deadline < self._armed):
            self._armed = deadline
            self.timer.arm(deadline)

    def can_fan_out(self) -> bool:
        """Whether the link to NATS takes messages; asked before anything is appended."""
        messaging = self.messaging
        return messaging.is_connected and messaging.backlog_bytes < messaging.backlog_bytes_max // 2

    @property
    def is_congested(self) -> bool:
        """Whether publishers should be read no further until NATS or the disk has caught up."""
        messaging = self.messaging
        is_behind = messaging.backlog_bytes > messaging.backlog_bytes_max // 8
        return is_behind or self.unanswered_bytes > self.options.unanswered_bytes_max

    def count_refused(self, error: LiftbridgeError, count: int) -> None:
        """Note that messages were refused."""
        counts = self.refused_counts
        counts[error.code] = counts.get(error.code, 0) + count

    def note_append_failed(self, error: FilesError, now: Instant) -> None:
        """An append failed: the store decides between a full disk and the end."""
        self.store.note_append_failed(error, now)
        self._arm()

    def note_roll(self, partition: Partition) -> None:
        """A segment was sealed: the next start need not scan it for idempotent publishers."""
        self.store.write_snapshot(partition.partition_id, self._now)

    def is_full(self) -> bool:
        """Whether the disk is too full to append."""
        return self.store.is_full

    def fan_out(self, partition: Partition, run: PublishRun, now: Instant, wall_ns: int) -> None:
        """Copy a directly appended run to the partitions beside it and to NATS.

        The quiet connection does not bring it back here, so the partitions of this broker on the
        same subject, queue groups apart, get it at once (ADR 0005).
        """
        try:
            self.messaging.publish_quiet(partition.envelopes_of(run))
        except UnavailableError:
            self.lost_copy_count += len(run.values)
        neighbours = self._subjects.lookup(run.subject)
        if len(neighbours) > 1:
            for neighbour in neighbours:
                if neighbour is not partition:
                    for copy in neighbour.intake.copies_of(run):
                        neighbour.take_copy(copy, now, wall_ns)

    def request_resume(self, partition: Partition, now: Instant) -> None:
        """Resume because a message came."""

        def answered(error: LiftbridgeError | None) -> None:
            if error is not None:
                partition.resume_failed(error)

        self.resume(partition, now, answered)

    def is_foreign(self, partition: Partition, publisher_id: PublisherId) -> bool:
        """Whether a publisher is registered, for another stream than the partition's."""
        if publisher_id not in self.state.publisher_epochs:
            return False
        stream = self.state.stream(partition.stream)
        own = stream.publishers.values() if stream is not None else ()
        return all(publisher.publisher_id != publisher_id for publisher in own)

    def transition(self, kind: str, fields: Mapping[str, object]) -> None:
        """Tell the observer."""
        self.observer.transition(kind, fields)

    # -- events -------------------------------------------------------------------------------

    def on_messages(
        self,
        subscription: SubscriptionId,
        arrivals: list[Arrival],
        payloads: list[bytes],
        now: Instant,
        wall_ns: int,
    ) -> None:
        """Messages of one subscription of one chunk."""
        if subscription == INBOX_SUBSCRIPTION:
            for payload in payloads:
                self._to_subjects.inbox.on_message(payload)
            return
        partition = self.partitions.get(PartitionId(subscription))
        if partition is None:
            return  # deleted while its last messages were under way
        for run in partition.intake.runs_of(arrivals, payloads):
            partition.take_copy(run, now, wall_ns)

    def submit_read(self, need: ReadNeed, done: ReadDone) -> None:
        """Read what is not in memory; `done` follows in a later turn."""
        token = self.new_token()
        self._reads[token] = done
        self.files.submit_read(token, need.handle, need.position, need.length)

    def on_file_event(self, event: FileEvent, now: Instant, wall_ns: int) -> None:
        """A submitted file operation ended."""
        done = self._reads.pop(event.token, None)
        if done is not None:
            done(event.error if event.error is not None else event.data)
            return
        if event.token == self.metadata_token:
            self._now, self._wall_ns = now, wall_ns
            self.metadata.on_file_event(event)
            self._arm()
            return
        for flushed in self.store.on_file_event(event, now, wall_ns):
            partition = self.partitions.get(flushed.partition_id)
            if partition is not None:
                partition.on_flushed(flushed.flushed_offset, wall_ns)
        if self._settled is not None:
            self._tell_settled()
        self._arm()

    def on_change(self, records: Sequence[Record]) -> None:
        """Metadata was applied; called from within `on_file_event` or `propose`."""
        take_records(self, records, self._now, self._wall_ns)

    def on_timer(self, now: Instant, wall_ns: int) -> None:
        """The deadline came."""
        self._armed = None
        self._now, self._wall_ns = now, wall_ns
        self.store.on_timer(now, wall_ns)
        self.metadata.on_timer(now)
        self._to_subjects.inbox.expire(now)
        for command in self._idle.take_due(self.partitions, now):
            self.propose(command, now, _ignore_outcome)
        self._arm()

    def _arm(self) -> None:
        deadline = self.next_deadline()
        if deadline is not None and (self._armed is None or deadline < self._armed):
            self._armed = deadline
            self.timer.arm(deadline)

    def next_deadline(self) -> Instant | None:
        """When `on_timer` wants to be called, `None` for never."""
        deadlines = (
            self.store.next_deadline(),
            self.metadata.next_deadline(),
            self._to_subjects.inbox.next_deadline(),
            self._idle.next_deadline(),
        )
        return min((at for at in deadlines if at is not None), default=None)

    # -- partitions ---------------------------------------------------------------------------

    def open_partitions(self, now: Instant) -> None:
        """Open and recover the log of every partition led here; called once, at start.

        Those without a leader too: a crash between registration and election leaves them so.
        A kill between a committed deletion and the move of the logs leaves them; they go now.
        """
        for stream, state in self.state.partitions():
            if state.leader == self.broker or (
                state.leader is None and self.broker in state.replicas
            ):
                self.open_partition(stream, state, now)
        self.store.finish_deletions(self.metadata.deleted, now)

    def listen(self) -> None:
        """Take messages from NATS from now on; called once, after the broker is registered."""
        self._is_listening = True
        self.messaging.subscribe(INBOX_SUBSCRIPTION, self.options.inbox, "")
        for partition in self.partitions.values():
            self._listen_to(partition)

    def _listen_to(self, partition: Partition) -> None:
        if self._is_listening and not partition.offline_reason:
            self.messaging.subscribe(
                SubscriptionId(partition.partition_id), partition.subject, partition.group
            )

    def set_limits(
        self, *, publishers_max: int, publisher_ttl_ns: int, unanswered_bytes_max: int
    ) -> None:
        """Put other limits into force; see `NodeOptions`."""
        self.options = replace(
            self.options,
            publishers_max=publishers_max,
            publisher_ttl_ns=publisher_ttl_ns,
            unanswered_bytes_max=unanswered_bytes_max,
        )
        for partition in self.partitions.values():
            partition.publishers.set_limits(publishers_max=publishers_max, ttl_ns=publisher_ttl_ns)

    def set_defaults(self, defaults: StreamOptions, now: Instant) -> None:
        """Take over new defaults for what streams do not override."""
        self.options = replace(self.options, defaults=defaults)
        for stream, state in self.state.partitions():
            partition = self.partitions.get(state.partition_id)
            if partition is not None:
                self.set_options(partition, self.options_of(stream), now)
        self._arm()

    def set_options(self, partition: Partition, options: StreamOptions, now: Instant) -> None:
        """Put settings of a stream into force for one of its partitions."""
        partition.set_options(options, self._wall_ns)
        self.store.set_options(partition.partition_id, options, now)
        self.watch_idle(partition, now)

    def options_of(self, stream: StreamState) -> StreamOptions:
        """Settings in force of a stream."""
        return self.options.defaults.overridden(stream.overrides)

    def watch_idle(self, partition: Partition, now: Instant) -> None:
        """Look again when the partition may have been idle for its auto-pause time."""
        self._idle.watch(partition, now)

    def open_partition(self, stream: StreamState, state: PartitionState, now: Instant) -> None:
        """Open the log of a partition led here and take its messages.

        Raises:
            FilesError: The files of a new partition cannot be made.
        """
        options = self.options_of(stream)
        number = state.partition_id
        log, reason = self.store.open(number, stream.name, options, now)
        is_internal = stream.name in RESERVED_STREAMS
        acks = AckEncoder(stream.name, stream.subject)
        publishers = self._new_publishers()
        if stream.publishers and not reason:
            snapshot = self.store.read_snapshot(number)
            publishers = restored_publishers(self._new_publishers, log, snapshot)
            self.store.set_snapshot_source(number, publishers.snapshot)
        partition = Partition(
            host=self,
            log=log,
            partition_id=state.partition_id,
            stream=stream.name,
            number=state.number,
            stream_subject=stream.subject,
            subject=partition_subject(stream.subject, state.number),
            group=stream.group,
            options=options,
            leader_epoch=state.leader_epoch,
            is_replicated=len(state.replicas) > 1,
            publishers=publishers,
            acks=acks,
            intake=Intake(
                acks,
                self.send_acks,
                partition_id=state.partition_id,
                record_bytes_max=self.options.record_bytes_max,
                takes_singles=options.optimistic_concurrency,
                reserved=None if is_internal else ReservedSubjects(self.options.namespace),
                ack_times=self.ack_times,
            ),
            is_paused=state.paused,
            is_auto_paused=state.auto_paused,
            is_readonly=state.readonly,
            last_active=now,
        )
        self.partitions[state.partition_id] = partition
        self._names[stream.name, state.number] = partition
        if reason:
            partition.go_offline(reason)
        else:
            log.epochs.assign(state.leader_epoch, log.log_end_offset)
            partition.commit_recovered()
        if not stream.group:
            self._subjects.add(partition.subject, partition)
        self._listen_to(partition)
        self.watch_idle(partition, now)

    def _new_publishers(self) -> PublisherTable:
        return PublisherTable(
            publishers_max=self.options.publishers_max,
            ttl_ns=self.options.publisher_ttl_ns,
            registered=self.state.publisher_epochs,
        )

    def verified_partitions(self) -> tuple[PartitionId, ...]:
        """Partitions that hold every acknowledged record also after an unclean stop (1.15).

        Under fsync policy `commit` nothing was acknowledged before it was on disk, and recovery
        read what lies behind the last checkpoint.
        """
        return tuple(
            partition.partition_id
            for partition in self.partitions.values()
            if partition.is_commit_mode and not partition.offline_reason
        )

    def close_partition(self, partition_id: PartitionId, error: LiftbridgeError) -> None:
        """Stop serving a partition; its log stays open until the store lets it go."""
        partition = self.partitions.pop(partition_id, None)
        if partition is None:
            return
        self.messaging.unsubscribe(SubscriptionId(partition_id))
        self._subjects.remove(partition.subject, partition)
        del self._names[partition.stream, partition.number]
        self._cursors.pop(partition_id, None)
        self._idle.forget(partition_id)
        partition.close(error)

    def look_up_cursor(self, partition: Partition, key: bytes, done: LookUpDone) -> None:
        """Latest cursor stored under a key in a partition of `__cursors`."""
        table = self._cursors.get(partition.partition_id)
        if table is None:
            table = self._cursors[partition.partition_id] = CursorTable(partition, self)
        table.look_up(key, done)

    def begin_stop(self, settled: Callable[[], None]) -> None:
        """Refuse new work; what is stored gets its acks as its policy asks for.

        Args:
            settled: Called once, when no ack is owed any more; perhaps at once.
        """
        self._is_stopping = True
        for partition in self.partitions.values():
            partition.refuse_appends(_STOPPED)
        self._settled = settled
        self._tell_settled()

    def _tell_settled(self) -> None:
        settled = self._settled
        if settled is not None and not any(p.owes_acks for p in self.partitions.values()):
            self._settled = None
            settled()

    def stop(self) -> None:
        """Refuse new work and end every subscription; the store is closed by the owner after."""
        self._is_stopping = True
        for partition_id in list(self.partitions):
            self.close_partition(partition_id, _STOPPED)


def _ignore_outcome(_outcome: object) -> None:
    """Whether an automatic pause succeeded shows at the next check."""
