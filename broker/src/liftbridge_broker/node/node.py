"""The broker without I/O: routes requests, messages and timers to partitions and metadata.

Every call runs to completion in the caller's turn. Time is an argument; slow work is submitted to a
port and its result arrives as an event. One deadline covers all timers of the node: the shell arms
one timer with `next_deadline` (ADR 0007).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from liftbridge_broker.controller.commands import Command, CreateStream, ResumeStream
from liftbridge_broker.controller.records import Record
from liftbridge_broker.controller.state import ClusterState, StreamState
from liftbridge_broker.errors import FilesError, LiftbridgeError, UnavailableError
from liftbridge_broker.model.histogram import Histogram
from liftbridge_broker.model.ids import (
    BrokerId,
    Instant,
    PartitionId,
    PublisherId,
    StreamName,
    earliest,
)
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.streams import StreamOptions
from liftbridge_broker.node.membership import ClusterParts, Membership
from liftbridge_broker.node.metadata.driver import MetadataDriver
from liftbridge_broker.node.options import NodeOptions
from liftbridge_broker.node.partition import opening
from liftbridge_broker.node.partition.partition import BEGINNING, Partition
from liftbridge_broker.node.partition.roles import Role
from liftbridge_broker.node.partition.runs import POLICY_ALL, POLICY_LEADER, PublishRun
from liftbridge_broker.node.partition.stream_subjects import StreamSubjects
from liftbridge_broker.node.partition_names import PartitionNames
from liftbridge_broker.node.publishing.forwarding import Forwarding
from liftbridge_broker.node.publishing.listening import Listening
from liftbridge_broker.node.publishing.remote_partition import RemotePartition, remote_partition
from liftbridge_broker.node.publishing.stream_readiness import once_ready
from liftbridge_broker.node.publishing.subjects import SubjectPublish, SubjectPublisher, Waiter
from liftbridge_broker.node.reading.client_reads import ClientReads, ReadDone
from liftbridge_broker.node.reading.cursors import CursorTables
from liftbridge_broker.node.refusals import stopped
from liftbridge_broker.node.replicas import applied
from liftbridge_broker.node.scheduling.alarm import LOOK_NS, Alarm
from liftbridge_broker.node.scheduling.chores import Chores
from liftbridge_broker.node.scheduling.cluster_clock import ClusterClock, Date
from liftbridge_broker.node.scheduling.opening_queue import OpeningQueue
from liftbridge_broker.node.upkeep.auto_pause import AutoPause
from liftbridge_broker.node.upkeep.retention_cursors import RetentionCursors
from liftbridge_broker.ports.files import FileEvent, Files, Token
from liftbridge_broker.ports.messaging import Arrival, Messaging, SubscriptionId
from liftbridge_broker.ports.metadata import LeaderChanged
from liftbridge_broker.ports.observe import Observer
from liftbridge_broker.ports.timer import Timer
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.storage.store import LogStore
from liftbridge_broker.storage.types import ReadNeed

INBOX_SUBSCRIPTION: Final = SubscriptionId(0)
"""Subscription of the broker's own ack inbox; partitions use their ids, which are above."""


@dataclass(slots=True, eq=False)
class Node:
    """One broker.

    Attributes:
        parts: Parts of a cluster member; `None` for a broker alone.
        cluster: The member; `None` for a broker alone.
        partitions: Partitions of which a replica is held here, by id, in order of creation.
        lost_ack_count: Acks that could not be published because NATS was unavailable.
        unanswered_bytes: Bytes of runs that are stored and wait for their acks.
        refused_counts: Messages refused by partitions, by code of the error.
        ack_times: Nanoseconds from the append of runs to their acks over NATS, by ack policy.
        has_stopped: Whether `stop` was called.
        client_reads: Reads from the disk for clients, bounded.
        stream_subjects: Subjects that are stored, to which no ack goes.
        cursors: Finds cursors in partitions of `__cursors` that are led here.
        chores: Work that is done in steps.
        clock: The time by which records expire.
        listening: Subscriptions of the partitions led here.
        openings: Replicas that wait to be opened.
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
    parts: ClusterParts | None = None
    partitions: dict[PartitionId, Partition] = field(default_factory=dict)
    cluster: Membership | None = None
    client_reads: ClientReads = field(init=False)
    stream_subjects: StreamSubjects = field(init=False)
    cursors: CursorTables = field(init=False)
    chores: Chores = field(init=False)
    _alarm: Alarm = field(init=False)
    clock: ClusterClock = field(init=False)
    openings: OpeningQueue = field(init=False)
    _to_subjects: SubjectPublisher = field(init=False)
    listening: Listening = field(init=False)
    _names: PartitionNames = field(init=False)
    _forwarding: Forwarding = field(init=False)
    _reads: dict[Token, ReadDone] = field(default_factory=dict)
    _idle: AutoPause = field(default_factory=AutoPause)
    has_stopped: bool = False
    _is_stopping: bool = False
    _settled: Callable[[], None] | None = None
    _is_in_turn: bool = False
    now: Instant = BEGINNING
    wall_ns: int = 0
    lost_ack_count: int = 0
    unanswered_bytes: int = 0
    refused_counts: dict[str, int] = field(default_factory=dict)
    ack_times: Mapping[int, Histogram] = field(
        default_factory=lambda: {POLICY_LEADER: Histogram(), POLICY_ALL: Histogram()}
    )

    def __post_init__(self) -> None:
        options = self.options
        self._alarm = Alarm(self.timer)
        self.chores = Chores(lambda: self.now, self._arm)
        self.client_reads = ClientReads(self.submit_read)
        self.stream_subjects = StreamSubjects(lambda: self.state.streams, self.chores)
        self.cursors = CursorTables(self)
        self.openings = OpeningQueue(options.openings_per_turn)
        newest = partial(opening.newest_timestamp, self.partitions)
        self.clock = ClusterClock(options.clock, self.transition, newest)
        self.store.set_age_clock(self.clock.time_for_age)
        self._to_subjects = SubjectPublisher(self.messaging, options)
        self.listening = Listening(self.messaging, self)
        self._names = PartitionNames(self, self._remote)
        if self.parts is not None:
            self.cluster = Membership(self, self.parts)
        alone = RetentionCursors(self, None)
        self.store.set_cursor_finder((self.cluster.held if self.cluster else alone).find)
        readiness = None if self.cluster is None else self.cluster.readiness
        self._forwarding = Forwarding(self, self._to_subjects, readiness)

    # -- calls of the API --------------------------------------------------------------------

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
        """Replicas held here; paused ones do not count, as in the original."""
        return sum(not partition.is_paused for partition in self.partitions.values())

    @property
    def leader_count(self) -> int:
        """Number of partitions led here that accept messages."""
        return sum(p.is_led and not p.is_paused for p in self.partitions.values())

    def find_partition(self, stream: str, number: int) -> Partition:
        """Partition led by this broker; see `PartitionNames.led`."""
        return self._names.led(stream, number)

    def find_replica(self, stream: str, number: int) -> Partition:
        """Partition of which this broker has a replica; see `PartitionNames.replica`."""
        return self._names.replica(stream, number)

    def find_for_publish(self, stream: str, number: int) -> Partition | RemotePartition:
        """Return a partition to publish to, led anywhere; see `PartitionNames.for_publish`."""
        return self._names.for_publish(stream, number)

    def find_led(self, stream: str, number: int) -> Partition:
        """Return a partition for a leader-only operation; see `PartitionNames.led_for_publish`."""
        return self._names.led_for_publish(stream, number)

    def _remote(self, stream: StreamState, state: PartitionState) -> RemotePartition:
        options = self.options_of(stream)
        return remote_partition(stream, state, options, self.send_acks, self.ack_times)

    def publish(
        self, partition: Partition | RemotePartition, run: PublishRun, now: Instant, wall_ns: int
    ) -> None:
        """Store a run from a client: directly, or over NATS when another broker may have to."""
        self.now, self.wall_ns = now, wall_ns
        is_shared = partition.group and run.publisher is None and run.offsets is None
        if isinstance(partition, RemotePartition) or is_shared:
            self._forwarding.publish(partition, run, now)
            self._arm()
        else:
            partition.publish(run, now, wall_ns)

    def propose(self, command: Command, now: Instant, reply: Callable[[object], None]) -> None:
        """Propose a command; `reply` gets its answer or a `LiftbridgeError`."""
        if self._is_stopping:
            reply(UnavailableError("broker is stopping"))
            return
        self.now = now
        if isinstance(command, CreateStream):
            readiness = None if self.cluster is None else self.cluster.readiness
            reply = once_ready(self, readiness, command.name, reply)
        self.metadata.propose(command, now, reply)
        self._arm()

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
        self, publish: SubjectPublish, now: Instant, waiter: Waiter | None
    ) -> Callable[[], None]:
        """Publish an envelope to a subject, and wait for an ack.

        Args:
            publish: The message; its subject and inbox are checked.
            now: Time now.
            waiter: Gets the ack; with `None` no ack is awaited: the caller's inbox gets all.

        Returns:
            Callback that cancels the wait.

        Raises:
            UnavailableError: The link to NATS is down.
            LimitError: Too many acks are pending.
        """
        forget = self._to_subjects.publish(publish, now, waiter)
        self._arm()
        return forget

    def send_acks(self, frames: list[bytes]) -> None:
        """Publish acks; while the link is down they are lost, as acks over NATS may be."""
        try:
            self.messaging.publish_echo(frames)
        except UnavailableError:
            self.lost_ack_count += 1

    def note_append(self, partition: Partition, now: Instant) -> None:
        """Notify the store that bytes wait for a sync."""
        self.store.note_append(partition.partition_id, now)
        self._alarm.look(now)

    def can_fan_out(self, subject: str) -> bool:
        """Return whether NATS and neighbours accept messages of a subject, before storing them."""
        messaging = self.messaging
        is_behind = messaging.backlog_bytes >= messaging.backlog_bytes_max // 2
        return messaging.takes_frames and not is_behind and self.listening.has_room(subject)

    @property
    def is_congested(self) -> bool:
        """Return whether to stop reading from publishers until NATS or the disk has caught up."""
        is_behind = self.messaging.backlog_bytes > self.messaging.backlog_bytes_max // 8
        is_behind = is_behind or self.listening.is_behind
        return is_behind or self.unanswered_bytes > self.options.unanswered_bytes_max

    def count_refused(self, error: LiftbridgeError, count: int) -> None:
        """Count refused messages."""
        counts = self.refused_counts
        counts[error.code] = counts.get(error.code, 0) + count

    def note_append_failed(self, error: FilesError, now: Instant) -> None:
        """Report a failed append; the store decides whether it is a full disk or fatal."""
        self.store.note_append_failed(error, now)
        self._arm()

    def note_damage(self, partition: Partition, path: str) -> None:
        """Note damage that a read found in a file of the log."""
        self.store.note_damage(partition.partition_id, path, self.now)

    def note_roll(self, partition: Partition) -> None:
        """Note a sealed segment: the next start need not scan it for idempotent publishers."""
        self.store.write_snapshot(partition.partition_id, self.now)

    def is_full(self) -> bool:
        """Return whether the disk is too full to append."""
        return self.store.is_full

    def fan_out(self, partition: Partition, run: PublishRun) -> None:
        """Copy a directly appended run to every other listener of its subject."""
        self.listening.fan_out(partition, run)

    def request_resume(self, partition: Partition, now: Instant) -> None:
        """Resume a partition because a message arrived."""

        def answered(error: LiftbridgeError | None) -> None:
            if error is not None:
                partition.resume_failed(error)

        self.resume(partition, now, answered)

    def is_foreign(self, partition: Partition, publisher_id: PublisherId) -> bool:
        """Return whether a publisher is registered, for another stream than the partition's."""
        if publisher_id not in self.state.publisher_epochs:
            return False
        stream = self.state.stream(partition.stream)
        own = stream.publishers.values() if stream is not None else ()
        return all(publisher.publisher_id != publisher_id for publisher in own)

    def transition(self, kind: str, fields: Mapping[str, object]) -> None:
        """Report a transition to the observer."""
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
        """Handle the messages of one subscription in one chunk."""
        if subscription == INBOX_SUBSCRIPTION:
            for payload in payloads:
                self._to_subjects.inbox.on_message(payload)
            return
        partition = self.partitions.get(PartitionId(subscription))
        if partition is None:
            return  # deleted while its last messages were in flight
        self.now, self.wall_ns, self._is_in_turn = now, wall_ns, True
        for run in partition.intake.runs_of(arrivals, payloads):
            partition.take_copy(run, now, wall_ns)
        if self.cluster is not None:
            self._end_turn(now, is_data=True)

    def on_peer(self, channel: Channel, payload: bytes, now: Instant, wall_ns: int) -> None:
        """Handle a payload of another broker."""
        self.now, self.wall_ns, self._is_in_turn = now, wall_ns, True
        # An attacker may send unauthenticated frames at any rate: look nothing up for them.
        if self.cluster is not None and self.cluster.on_peer(channel, payload, now):
            self._end_turn(now, is_data=channel is Channel.DATA)
        self._is_in_turn = False

    def _end_turn(self, now: Instant, *, is_data: bool) -> None:
        """Send messages to other brokers that became due, and arm the timer for later work."""
        self._is_in_turn = False
        if self.cluster is not None:
            self.cluster.flush(now)
        self._alarm.set(Instant(now + LOOK_NS) if is_data else self.next_deadline())
        if self._settled is not None:
            self._tell_settled()

    def wake_soon(self) -> None:
        """Fire the timer soon, unless the end of a turn handles the due work."""
        if not self._is_in_turn:
            self._alarm.wake(self.now)

    def note_change(self, partition: Partition, *, is_cut: bool) -> None:
        """Rebuild publisher state after a follower's log was cut or is readable again."""
        self.cursors.forget(partition.partition_id)
        stream = self.state.stream(partition.stream)
        if (stream is not None and stream.publishers) or len(partition.publishers):
            opening.renew_publishers(self, partition, self.now, is_cut=is_cut)

    @property
    def is_caught_up(self) -> bool:
        """Return whether the metadata hold all decisions made before this process started."""
        return self.cluster is None or self.cluster.is_active

    def submit_read(self, need: ReadNeed, done: ReadDone) -> None:
        """Read from the disk; `done` is called in a later turn."""
        token = self.new_token()
        self._reads[token] = done
        self.files.submit_read(token, need.handle, need.position, need.length)

    def on_file_event(self, event: FileEvent, now: Instant, wall_ns: int) -> None:
        """Handle the end of a submitted file operation."""
        self.now, self.wall_ns, self._is_in_turn = now, wall_ns, True
        done = self._reads.pop(event.token, None)
        if done is not None:
            done(event.error if event.error is not None else event.data)
        elif event.token == self.metadata_token:
            self.metadata.on_file_event(event)
        else:
            for flushed in self.store.on_file_event(event, now):
                partition = self.partitions.get(flushed.partition_id)
                if partition is not None:
                    partition.on_flushed(flushed.flushed_offset, wall_ns)
        self._end_turn(now, is_data=False)

    def on_change(self, records: Sequence[Record]) -> None:
        """Handle applied records; called from within another call."""
        applied.take_records(self, records, self.now, self.wall_ns)
        if self.cluster is not None:
            self.cluster.on_applied(records, self.now)
        self._forwarding.on_change(self.now)

    def on_restored(self) -> None:
        """Handle metadata restored from a leader's snapshot; the changes in between are unknown."""
        if self.cluster is not None:
            self.cluster.replicas.forget_positions()
        applied.take_state(self, self.now, self.wall_ns)
        if self.is_caught_up:
            self.store.note_known(self.state.applied_index, self.now)
        if self.cluster is not None:
            self.cluster.on_brokers(self.now)
        self._forwarding.on_change(self.now)

    def on_leader(self, event: LeaderChanged) -> None:
        """Handle a change of the metadata leader."""
        if self.cluster is not None:
            self.cluster.on_leader(event, self.now)

    def on_messages_lost(self, broker: BrokerId, now: Instant) -> None:
        """Handle the loss of messages to a broker, or to this one, that were in flight."""
        self._forwarding.on_messages_lost(broker, is_own=broker == self.broker, now=now)

    def on_timer(self, now: Instant, wall_ns: int) -> None:
        """Handle a due deadline, or the end of a turn that `wake_soon` asked for."""
        self.now, self.wall_ns = now, wall_ns
        if self._alarm.ring(now) and self.cluster is not None:
            self.cluster.flush(now)
            return
        if self.cluster is None:
            self.clock.on_told(Date(wall_ns), now)
        if self._alarm.rearm(self.next_deadline(), now):
            return
        self.store.on_timer(now, wall_ns)
        self.metadata.on_timer(now)
        if self.cluster is not None:
            self.cluster.on_timer(now)
        self._forwarding.on_timer(now)
        self._to_subjects.inbox.expire(now)
        applied.do_waiting(self, now, wall_ns)
        for command in self._idle.take_due(self.partitions, now):
            self.propose(command, now, lambda _: None)  # shows at the next check
        self._arm()

    def _arm(self) -> None:
        self._alarm.set(self.next_deadline())

    def next_deadline(self) -> Instant | None:
        """Time of the next `on_timer` call, `None` for never."""
        return earliest(
            self.store.next_deadline(),
            self.metadata.next_deadline(),
            self._forwarding.next_deadline(),
            self._to_subjects.inbox.next_deadline(),
            self._idle.next_deadline(),
            None if self.cluster is None else self.cluster.next_deadline(),
            self.now if applied.is_waiting(self) else None,
        )

    def open_partitions(self, now: Instant) -> None:
        """Open and recover the log of every replica held here; called once, at start."""
        for stream, state in self.state.partitions():
            if self.broker in state.replicas:
                self.open_partition(stream, state, now)
        if self.is_caught_up:
            applied.finish_deletions(self, now)

    def listen(self) -> None:
        """Start to receive NATS messages; called once, after the broker is registered."""
        self.messaging.subscribe(INBOX_SUBSCRIPTION, self.options.inbox, "")
        self.listening.begin()

    def set_limits(
        self, *, publishers_max: int, publisher_ttl_ns: int, unanswered_bytes_max: int
    ) -> None:
        """Apply new limits; see `NodeOptions`."""
        self.options = replace(
            self.options,
            publishers_max=publishers_max,
            publisher_ttl_ns=publisher_ttl_ns,
            unanswered_bytes_max=unanswered_bytes_max,
        )
        for partition in self.partitions.values():
            partition.publishers.set_limits(publishers_max=publishers_max, ttl_ns=publisher_ttl_ns)

    def set_defaults(self, defaults: StreamOptions, now: Instant) -> None:
        """Apply new defaults for settings that streams do not override."""
        self.options = replace(self.options, defaults=defaults)
        for stream, state in self.state.partitions():
            partition = self.partitions.get(state.partition_id)
            if partition is not None:
                self.set_options(partition, self.options_of(stream), now)
        self._arm()

    def set_options(self, partition: Partition, options: StreamOptions, now: Instant) -> None:
        """Apply settings of a stream to one of its partitions."""
        partition.set_options(options, self.wall_ns)
        self.store.set_options(partition.partition_id, options, now)
        self.watch_idle(partition, now)

    def options_of(self, stream: StreamState) -> StreamOptions:
        """Settings in force of a stream.

        The metadata alone decide when records count as stored, not the default of a broker.
        """
        options = self.options.defaults.overridden(stream.overrides)
        return replace(options, fsync_policy=stream.policy.fsync_policy)  # guard C1.default

    def watch_idle(self, partition: Partition, now: Instant) -> None:
        """Check the partition again when it may have been idle for its auto-pause time."""
        self._idle.watch(partition, now)

    def open_partition(self, stream: StreamState, state: PartitionState, now: Instant) -> None:
        """Open a replica and take the role that the metadata say.

        Raises:
            FilesError: The files of a new partition cannot be created.
        """
        partition = self.partitions.get(state.partition_id)
        if partition is None:
            partition = opening.open_partition(self, stream, state, self.options_of(stream), now)
            self.partitions[state.partition_id] = partition
            self._names.add(partition)
            self.watch_idle(partition, now)
        self.assign_role(partition, stream, state, now)

    def assign_role(
        self, partition: Partition, stream: StreamState, state: PartitionState, now: Instant
    ) -> None:
        """Lead or follow, as the metadata say."""
        if self.cluster is not None and self.cluster.takes(partition, stream, state, now):
            return
        if state.replicas != (self.broker,):
            self.stop_intake(partition)
            partition.follow(None)
        elif partition.role is not Role.LEADER or state.leader == self.broker:
            # A sole replica leads even while its broker is fenced: no other replica has records.
            log = partition.log
            if not partition.offline_reason:
                log.epochs.assign(state.leader_epoch, log.log_end_offset)
            partition.lead(None, state.leader_epoch, now, self.wall_ns)
            partition.commit_alone(self.wall_ns)
            self.start_intake(partition)

    def start_intake(self, partition: Partition) -> None:
        """Start to receive the messages of a partition led here."""
        self.listening.start(partition)

    def is_listening(self, partition_id: PartitionId) -> bool:
        """Return whether this broker receives the messages of a partition."""
        return self.listening.is_listening(partition_id)

    def stop_intake(self, partition: Partition) -> None:
        """Stop receiving the messages of a partition."""
        self.listening.stop(partition)

    def replace_log(self, partition_id: PartitionId) -> None:
        """Set a damaged log aside, after its replica was declared unclean."""
        applied.replace_log(self, partition_id, self.now, self.wall_ns)

    def close_partition(self, partition_id: PartitionId, error: LiftbridgeError) -> None:
        """Stop serving a partition; its log stays open until the store releases it."""
        partition = self.partitions.pop(partition_id, None)
        if partition is None:
            return
        self.stop_intake(partition)
        if self.cluster is not None:
            self.cluster.replicas.drop(partition, self.now)
        self._names.remove(partition)
        self.cursors.forget(partition_id)
        self._idle.forget(partition_id)
        partition.close(error)

    def begin_stop(self, settled: Callable[[], None]) -> None:
        """Refuse new work; `settled` is called once, perhaps at once, when no ack is pending."""
        self._is_stopping = True
        self.openings.end()
        for partition in self.partitions.values():
            partition.refuse_appends(stopped())
        self._settled = settled
        self._forwarding.end()
        if self.cluster is not None:
            self.cluster.end_waits()
        self._tell_settled()

    def _tell_settled(self) -> None:
        settled = self._settled
        if settled is not None and not any(p.has_pending_acks for p in self.partitions.values()):
            self._settled = None
            settled()

    def stop(self) -> None:
        """Refuse new work and end every subscription; the store is closed by the owner after."""
        self._is_stopping = self.has_stopped = True
        self.openings.end()
        for partition_id in list(self.partitions):
            self.close_partition(partition_id, stopped())
