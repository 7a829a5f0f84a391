"""The broker without I/O: routes requests, messages and timers to partitions and metadata.

Every call runs to completion in the caller's turn. Time is an argument; slow work is submitted to a
port and its result arrives as an event. One deadline covers all timers of the node: the shell arms
one timer with `next_deadline` (ADR 0007).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from liftbridge_broker.controller.commands import Command, CreateStream, ResumeStream
from liftbridge_broker.controller.records import AccessSwitched, Record, RulesChanged
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import BrokerId, Instant, PartitionId, StreamName, earliest
from liftbridge_broker.model.streams import StreamOptions
from liftbridge_broker.node.applied import AppliedMetadata
from liftbridge_broker.node.context import NodeContext
from liftbridge_broker.node.data_keys import DataKeys
from liftbridge_broker.node.encryption.creating import EncryptedStreams
from liftbridge_broker.node.encryption.handing_over import LockedLeaderships
from liftbridge_broker.node.encryption.reporting import MasterKeyReports
from liftbridge_broker.node.encryption.rewrapping import Rewrapping
from liftbridge_broker.node.groups.coordination import GroupCoordination, nobody_to_tell
from liftbridge_broker.node.held import HeldPartitions
from liftbridge_broker.node.membership import ClusterParts, Membership
from liftbridge_broker.node.metadata.driver import MetadataDriver
from liftbridge_broker.node.options import NodeOptions
from liftbridge_broker.node.partition.listening import Listening
from liftbridge_broker.node.partition.opening import newest_timestamp
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.partition.runs import PublishRun
from liftbridge_broker.node.publishing.activity import ActivityStream
from liftbridge_broker.node.publishing.forwarding import Forwarding
from liftbridge_broker.node.publishing.remote_partition import RemotePartition
from liftbridge_broker.node.publishing.stream_readiness import once_ready
from liftbridge_broker.node.publishing.subjects import SubjectPublish, SubjectPublisher, Waiter
from liftbridge_broker.node.reading.client_reads import ClientReads
from liftbridge_broker.node.refusals import stopped
from liftbridge_broker.node.scheduling.alarm import LOOK_NS, Alarm
from liftbridge_broker.node.scheduling.cluster_clock import ClusterClock, Date
from liftbridge_broker.node.upkeep.group_lags import GroupLags, Pair, Positions
from liftbridge_broker.node.upkeep.retention_cursors import RetentionCursors
from liftbridge_broker.ports.files import FileEvent, Files, Token
from liftbridge_broker.ports.messaging import Arrival, Messaging, SubscriptionId
from liftbridge_broker.ports.metadata import LeaderChanged
from liftbridge_broker.ports.observe import Observer
from liftbridge_broker.ports.timer import Timer
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.storage.store import LogStore

INBOX_SUBSCRIPTION: Final = SubscriptionId(0)
"""Subscription of the broker's own ack inbox; partitions use their ids, which are above."""


def _ignore() -> None:
    """Ignore the event."""


class Node:
    """One broker without I/O.

    Attributes:
        context: State and ports that its parts share.
        partitions: Partitions of which a replica is held here, by id, in order of creation.
        held: Opens and closes them, and assigns their roles.
        listening: Subscriptions of the partitions led here.
        cursors: Finds cursors in partitions of `__cursors` that are led here.
        cluster: This broker's membership in its cluster; `None` for a sole broker.
        on_access: Called after the access control of the metadata may have changed.
        client_reads: Reads from the disk for clients, bounded.
        groups: Consumer groups, as far as this broker coordinates them or leads their partitions.
        lags: How far groups are behind in the partitions led here.
        activity: Stores the events of the stream `__activity`.
        rewrapping: Rewraps data keys after another master key was chosen.
    """

    def __init__(
        self,
        options: NodeOptions,
        files: Files,
        store: LogStore,
        metadata: MetadataDriver,
        messaging: Messaging,
        observer: Observer,
        timer: Timer,
        metadata_token: Token,
        new_token: Callable[[], Token],
        parts: ClusterParts | None = None,
    ) -> None:
        """Start without partitions; `parts` are those that only a member of a cluster has."""
        self.partitions: dict[PartitionId, Partition] = {}
        newest = partial(newest_timestamp, self.partitions)
        clock = ClusterClock(options.clock, observer.transition, newest)
        store.set_age_clock(clock.time_for_age)
        self.context = context = NodeContext(
            options=options,
            files=files,
            store=store,
            metadata=metadata,
            messaging=messaging,
            observer=observer,
            clock=clock,
            alarm=Alarm(timer),
            data_keys=DataKeys(options.masters, observer.transition, self._arm),
            arm=self._arm,
            new_token=new_token,
            is_caught_up=parts is None,
        )
        self._metadata_token = metadata_token
        self.on_access: Callable[[], None] = _ignore
        self._settled: Callable[[], None] | None = None
        self._to_subjects = SubjectPublisher(messaging, options)
        self.listening = Listening(context)
        self.held = HeldPartitions(context, self.partitions, self.listening)
        self.cursors = self.held.cursors
        self._names = self.held.names
        self._applied = AppliedMetadata(context, self.held)
        self.cluster: Membership | None = None
        if parts is not None:

            def lost(broker: BrokerId, now: Instant) -> None:
                self._forwarding.on_messages_lost(broker, is_own=broker == self.broker, now=now)

            self.cluster = Membership(context, self.held, self._applied, parts, lost)
        cluster = self.cluster
        alone = RetentionCursors(context, self.partitions, self.cursors)
        finder = cluster.held if cluster else alone
        store.set_cursor_finder(finder.find)
        self.lags = GroupLags(context, self.partitions, finder)
        self.client_reads = ClientReads(context, None if cluster is None else cluster.answers)
        self.groups = GroupCoordination(
            context,
            (lambda _now: False) if cluster is None else cluster.is_self_fenced,
            nobody_to_tell if cluster is None else cluster.control.report_coordinator,
        )
        self._readiness = None if cluster is None else cluster.readiness
        find = self._names.for_publish
        self._forwarding = Forwarding(context, find, self._to_subjects, self._readiness)
        self.activity = ActivityStream(context, self.partitions)
        self.rewrapping = Rewrapping(context)
        self._encrypted = EncryptedStreams(context)
        self._key_reports = MasterKeyReports(context)
        self._locked = LockedLeaderships(context)

    # -- calls of the API --------------------------------------------------------------------

    @property
    def broker(self) -> BrokerId:
        """Id of this broker."""
        return self.context.options.broker

    @property
    def state(self) -> ClusterState:
        """Applied metadata; readers change nothing."""
        return self.context.metadata.state

    @property
    def partition_count(self) -> int:
        """Replicas held here; paused ones do not count, as in the original."""
        return sum(not partition.is_paused for partition in self.partitions.values())

    @property
    def leader_count(self) -> int:
        """Number of partitions led here that accept messages."""
        return sum(p.is_led and not p.is_paused for p in self.partitions.values())

    def find_partition(self, stream: str, number: int) -> Partition:
        """Return a partition that this broker leads; see `PartitionNames.led`."""
        return self._names.led(stream, number)

    def find_replica(self, stream: str, number: int) -> Partition:
        """Return a partition of which this broker has a replica; see `PartitionNames.replica`."""
        return self._names.replica(stream, number)

    def find_for_publish(self, stream: str, number: int) -> Partition | RemotePartition:
        """Return a partition to publish to, led by any broker; see `PartitionNames.for_publish`."""
        return self._names.for_publish(stream, number)

    def find_led(self, stream: str, number: int) -> Partition:
        """Return a partition for a leader-only operation; see `PartitionNames.led_for_publish`."""
        return self._names.led_for_publish(stream, number)

    def publish(
        self, partition: Partition | RemotePartition, run: PublishRun, now: Instant, wall_ns: int
    ) -> None:
        """Store a run from a client: directly, or over NATS if another broker may have to do so."""
        self.context.now, self.context.wall_ns = now, wall_ns
        is_shared = partition.group and run.publisher is None and run.offsets is None
        if isinstance(partition, RemotePartition) or is_shared:
            self._forwarding.publish(partition, run, now)
            self.context.alarm.look(now)
        else:
            partition.publish(run, now, wall_ns)

    def propose(self, command: Command, now: Instant, reply: Callable[[object], None]) -> None:
        """Propose a command; `reply` gets its answer or a `LiftbridgeError`."""
        if isinstance(command, CreateStream):
            reply = once_ready(self.context, self._readiness, command.name, reply)
            if command.overrides.encryption:
                self._encrypted.create(command, now, reply)
                return
        self.context.propose(command, now, reply)

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

    def look_up_positions(
        self,
        pairs: Sequence[Pair],
        done: Callable[[Positions], None],
        now: Instant,
        wall_ns: int,
    ) -> None:
        """Find positions of groups in partitions held here; see `GroupLags.look_up`."""
        self.context.now, self.context.wall_ns = now, wall_ns
        self.lags.look_up(pairs, done)
        self._arm()

    # -- publishing over NATS -----------------------------------------------------------------

    def publish_to_subject(
        self, publish: SubjectPublish, now: Instant, waiter: Waiter | None
    ) -> Callable[[], None]:
        """Publish an envelope to a subject, and wait for an ack.

        Args:
            publish: The message; its subject and inbox are checked.
            now: Time now.
            waiter: Gets the ack; with `None` no ack is awaited: the caller's inbox gets them all.

        Returns:
            Callback that cancels the wait.

        Raises:
            UnavailableError: The link to NATS is down.
            LimitError: Too many acks are pending.
        """
        forget = self._to_subjects.publish(publish, now, waiter)
        self._arm()
        return forget

    @property
    def is_congested(self) -> bool:
        """Return whether to stop reading from publishers until NATS or the disk has caught up."""
        context = self.context
        is_behind = context.messaging.backlog_bytes > context.messaging.backlog_bytes_max // 8
        is_behind = is_behind or self.listening.is_behind
        return is_behind or context.unanswered_bytes > context.options.unanswered_bytes_max

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
        self._begin_turn(now, wall_ns)
        for run in partition.intake.runs_of(arrivals, payloads):
            partition.take_copy(run, now, wall_ns)
        if self.cluster is not None:
            self._end_turn(now, is_data=True)

    def on_peer(self, channel: Channel, payload: bytes, now: Instant, wall_ns: int) -> None:
        """Handle a payload of another broker."""
        self._begin_turn(now, wall_ns)
        # An attacker may send unauthenticated frames at any rate: do no look-ups for them.
        if self.cluster is not None and self.cluster.on_peer(channel, payload, now):
            self._end_turn(now, is_data=channel is Channel.DATA)
        self.context.is_in_turn = False

    def on_no_responders(
        self, broker: BrokerId, channel: Channel, sent_at: Instant, now: Instant, wall_ns: int
    ) -> None:
        """Handle the answer of NATS to a probe of a broker: nobody listens for it."""
        self._begin_turn(now, wall_ns)
        # As for frames: nobody signs these signals, so that anyone on NATS may send them.
        if self.cluster is not None and self.cluster.on_no_responders(
            broker, channel, sent_at, now
        ):
            self._end_turn(now, is_data=False)
        self.context.is_in_turn = False

    def _begin_turn(self, now: Instant, wall_ns: int) -> None:
        context = self.context
        context.now, context.wall_ns, context.is_in_turn = now, wall_ns, True

    def _end_turn(self, now: Instant, *, is_data: bool) -> None:
        """Send messages to other brokers that became due, and arm the timer for later work."""
        self.context.is_in_turn = False
        if self.cluster is not None:
            self.cluster.flush(now)
        self.context.alarm.set(Instant(now + LOOK_NS) if is_data else self.next_deadline())
        if self._settled is not None:
            self._check_settled()

    def on_file_event(self, event: FileEvent, now: Instant, wall_ns: int) -> None:
        """Handle the end of a submitted file operation."""
        self._begin_turn(now, wall_ns)
        if self.context.end_read(event):
            pass
        elif event.token == self._metadata_token:
            self.context.metadata.on_file_event(event)
        else:
            for flushed in self.context.store.on_file_event(event, now):
                partition = self.partitions.get(flushed.partition_id)
                if partition is not None:
                    partition.on_flushed(flushed.flushed_offset, wall_ns)
        self._end_turn(now, is_data=False)

    def on_change(self, records: Sequence[Record]) -> None:
        """Handle applied records; called from within another call."""
        context = self.context
        self._applied.take_records(records, context.now, context.wall_ns)
        if self.cluster is not None:
            self.cluster.on_applied(records, context.now)
        self.groups.on_applied(records, context.now)
        self.lags.on_groups(context.now)
        self._forwarding.on_change(context.now)
        if any(isinstance(record, AccessSwitched | RulesChanged) for record in records):
            self.on_access()  # guard Access.applied
        self.activity.on_change()
        self._key_reports.look(context.now)
        self._locked.look(context.now)

    def on_restored(self) -> None:
        """Handle metadata restored from a leader's snapshot; the changes in between are unknown."""
        context = self.context
        if self.cluster is not None:
            self.cluster.replicas.forget_positions()
        self._applied.take_state(context.now, context.wall_ns)
        if context.is_caught_up:
            context.store.note_known(context.state.applied_index, context.now)
        if self.cluster is not None:
            self.cluster.on_brokers(context.now)
        self.groups.on_state(context.now)
        self.lags.on_groups(context.now)
        self._forwarding.on_change(context.now)
        self.on_access()  # guard Access.restored
        self.activity.on_change()

    def on_leader(self, event: LeaderChanged) -> None:
        """Handle a change of the metadata leader."""
        if self.cluster is not None:
            self.cluster.on_leader(event, self.context.now)

    def on_timer(self, now: Instant, wall_ns: int) -> None:
        """Handle a due deadline, or the end of a turn that `wake_soon` requested."""
        context = self.context
        context.now, context.wall_ns = now, wall_ns
        if context.alarm.ring(now) and self.cluster is not None:
            self.cluster.flush(now)
            return
        if self.cluster is None:
            context.clock.on_date(Date(wall_ns), now)
        else:
            self.cluster.detector.on_timer(now)  # often the only work that is due
        if context.alarm.rearm(self.next_deadline(), now):
            return
        context.store.on_timer(now, wall_ns)
        context.metadata.on_timer(now)
        if self.cluster is not None:
            self.cluster.on_timer(now)
        self.groups.on_timer(now)
        self.lags.on_timer(now)
        self._forwarding.on_timer(now)
        self.activity.on_timer(now)
        context.data_keys.on_timer(now)
        self._key_reports.look(now)
        self._locked.look(now)
        self._to_subjects.inbox.expire(now)
        self._applied.do_waiting(now, wall_ns)
        for command in self.held.take_idle(now):
            context.propose(command, now, lambda _: None)  # the next check shows it
        self._arm()

    def _arm(self) -> None:
        self.context.alarm.set(self.next_deadline())

    def next_deadline(self) -> Instant | None:
        """Time of the next `on_timer` call, `None` for never."""
        return earliest(
            self.context.store.next_deadline(),
            self.context.metadata.next_deadline(),
            self._forwarding.next_deadline(),
            self.groups.next_deadline(),
            self.lags.next_deadline(),
            self.activity.next_deadline(),
            self._to_subjects.inbox.next_deadline(),
            self.held.next_idle(),
            self.context.data_keys.next_deadline(),
            self._key_reports.next_deadline(),
            self._locked.next_deadline(),
            None if self.cluster is None else self.cluster.next_deadline(),
            self.context.now if self._applied.is_waiting else None,
        )

    def open_partitions(self, now: Instant) -> None:
        """Open and recover the log of every replica held here; called once, at start."""
        for stream, state in self.state.partitions():
            if self.broker in state.replicas:
                self.held.open(stream, state, now)
        if self.context.is_caught_up:
            self._applied.finish_deletions(now)
        self.groups.on_state(now)
        self.lags.on_groups(now)

    def listen(self) -> None:
        """Start to receive NATS messages; called once, after the broker is registered."""
        context = self.context
        context.messaging.subscribe(INBOX_SUBSCRIPTION, context.options.inbox, "")
        self.listening.begin()
        self.activity.begin()

    def set_limits(
        self,
        *,
        publishers_max: int,
        publisher_ttl_ns: int,
        unanswered_bytes_max: int,
        consumer_timeout_ns: int,
        coordinator_timeout_ns: int,
    ) -> None:
        """Apply new limits; see `NodeOptions`."""
        self.context.options = replace(
            self.context.options,
            publishers_max=publishers_max,
            publisher_ttl_ns=publisher_ttl_ns,
            unanswered_bytes_max=unanswered_bytes_max,
            consumer_timeout_ns=consumer_timeout_ns,
            coordinator_timeout_ns=coordinator_timeout_ns,
        )
        for partition in self.partitions.values():
            partition.writer.publishers.set_limits(
                publishers_max=publishers_max, ttl_ns=publisher_ttl_ns
            )

    def set_defaults(self, defaults: StreamOptions, now: Instant) -> None:
        """Apply new defaults for settings that streams do not override."""
        self.context.options = replace(self.context.options, defaults=defaults)
        self.held.renew_options(now)
        self._arm()

    def renew_master_keys(self, now: Instant) -> None:
        """Unwrap data keys again, and report the master keys, which have changed."""
        self.context.data_keys.renew(now)
        self._key_reports.look(now)
        self._locked.look(now)
        self._arm()

    def begin_stop(self, settled: Callable[[], None]) -> None:
        """Refuse new work; `settled` is called once, perhaps at once, when no ack is pending."""
        self.context.is_stopping = True
        self.context.openings.end()
        for partition in self.partitions.values():
            partition.refuse_appends(stopped())
        self._settled = settled
        self._forwarding.end()
        if self.cluster is not None:
            self.cluster.end_waits()
        self._check_settled()

    def _check_settled(self) -> None:
        settled = self._settled
        if settled is not None and not any(len(p.pending) for p in self.partitions.values()):
            self._settled = None
            settled()

    def stop(self) -> None:
        """Refuse new work and end every subscription; the owner closes the store afterwards."""
        self.context.is_stopping = self.context.has_stopped = True
        self.context.openings.end()
        for partition_id in list(self.partitions):
            self.held.close(partition_id, stopped())
