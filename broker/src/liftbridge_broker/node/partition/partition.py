"""One partition of this broker: intake, commit, acks, readers, pause and read-only.

Runs come in through `publish` (gRPC) and `on_messages` (NATS); bytes go to the log, copies to every
other listener of the subject, acks to their callers. Offsets are exclusive ends. With one replica a
record is committed when it is appended, or, under fsync policy `commit`, when it is on disk; with
several, `replication` says when (L4). `commit_to` is the only place that moves the high watermark
of a leader.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from liftbridge_broker.access.quotas import NO_QUOTA, QuotaKey, QuotaKind, Quotas
from liftbridge_broker.controller.commands import ResumeStream
from liftbridge_broker.errors import (
    CorruptionError,
    FailedPreconditionError,
    FencedPublisherError,
    FilesError,
    LiftbridgeError,
    NotAppendedError,
    NotFoundError,
    NotLeaderError,
    OutcomeUnknownError,
    PartitionOfflineError,
    ReadonlyError,
    StorageFullError,
    UnavailableError,
)
from liftbridge_broker.model.ids import (
    Instant,
    LeaderEpoch,
    Offset,
    PartitionId,
    PartitionNumber,
    StreamName,
)
from liftbridge_broker.model.streams import FsyncPolicy, StreamOptions
from liftbridge_broker.node.context import NodeContext
from liftbridge_broker.node.partition.activity import Activity
from liftbridge_broker.node.partition.intake import InboxAcks, Intake
from liftbridge_broker.node.partition.pause import Pause
from liftbridge_broker.node.partition.pending_acks import ReplicaAcks
from liftbridge_broker.node.partition.publishers import is_foreign
from liftbridge_broker.node.partition.readers import Readers
from liftbridge_broker.node.partition.roles import Replication, Role, Subscriber
from liftbridge_broker.node.partition.run_checks import check_run, in_pieces, joined, without_stored
from liftbridge_broker.node.partition.runs import POLICY_ALL, PublishRun, Stored
from liftbridge_broker.node.partition.sealing import LogWriter
from liftbridge_broker.node.refusals import cut_off, leader_changed
from liftbridge_broker.replication.publishers import StoredPiece
from liftbridge_broker.storage.log.partition_log import PartitionLog
from liftbridge_broker.wire.acks import AckEncoder
from liftbridge_broker.wire.publish import EnvelopeEncoder

NOT_LEADER_TEXT: Final = "Server not partition leader"


class OtherListeners(NamedTuple):
    """Callables that reach the other listeners of a subject (`node.partition.listening`).

    Attributes:
        can_take: Returns whether NATS and neighbouring partitions accept messages of a subject.
        fan_out: Copies a directly appended run to them.
    """

    can_take: Callable[[str], bool]
    fan_out: Callable[["Partition", PublishRun], None]


@dataclass(slots=True, eq=False)
class Partition:
    """State of one partition of which this broker holds a replica.

    Invariants: `log.high_watermark <= log.log_end_offset`; no run is appended while paused,
    read-only, offline or closed, or in another role than `LEADER`.

    Attributes:
        context: State and ports that the parts of the node share.
        others: Reaches the other listeners of its subject.
        log: Its log; owned by the store.
        partition_id: Unique id.
        stream: Name of the stream.
        number: Number within the stream.
        subject: Subject of the partition: that of the stream, with a suffix from number 1 on.
        group: NATS queue group, empty for none.
        options: Settings in force.
        leader_epoch: Epoch of this leadership, or of the last one.
        writer: Writes runs to the log.
        acks: Builds its acks.
        intake: Turns its NATS messages into runs.
        role: This broker's role for it.
        replication: The other replicas; `None` for a sole replica, and in role `NONE`.
        has_read_error: Whether it is offline only because of a read error; its log may be intact.
        pause: Whether it is paused, and the runs that wait.
    """

    context: NodeContext
    others: OtherListeners
    log: PartitionLog
    partition_id: PartitionId
    stream: str
    number: PartitionNumber
    subject: str
    group: str
    options: StreamOptions
    leader_epoch: LeaderEpoch
    writer: LogWriter
    acks: AckEncoder
    intake: Intake
    role: Role = Role.NONE
    replication: Replication | None = None
    is_readonly: bool = False
    offline_reason: str = ""
    has_read_error: bool = False
    closed_error: LiftbridgeError | None = None
    activity: Activity = field(default_factory=Activity)
    readers: Readers = field(default_factory=Readers)
    pending: ReplicaAcks = field(init=False)
    pause: Pause = field(init=False)
    _envelopes: EnvelopeEncoder = field(init=False)
    _end_at_start: Offset = field(default=Offset(0))

    def __post_init__(self) -> None:
        self.pending = ReplicaAcks(self.context)
        resume = ResumeStream(name=StreamName(self.stream), partitions=(self.number,))
        self.pause = Pause(self.context, resume, self._refuse)
        self._envelopes = EnvelopeEncoder(self.stream, self.subject, self.number)

    # -- publishing ---------------------------------------------------------------------------

    @property
    def is_commit_mode(self) -> bool:
        """Return whether acks and reads wait for the disk; `auto` does with a single replica."""
        if self.replication is not None:
            return self.replication.is_commit_mode
        return self.options.fsync_policy in {FsyncPolicy.COMMIT, FsyncPolicy.AUTO}

    @property
    def is_latest_known(self) -> bool:
        """Return whether every possibly committed record is known to be committed (I9).

        A sole replica may have committed the records it started with before they were on disk.
        """
        if self.replication is not None:
            return self.replication.is_latest_known
        return self.log.high_watermark >= self._end_at_start  # guard A.alone

    @property
    def is_led(self) -> bool:
        """Return whether this broker leads it, or is about to."""
        return self.role is Role.LEADER or self.role is Role.RISING

    @property
    def is_paused(self) -> bool:
        """Return whether it takes no messages, as the metadata say."""
        return self.pause.is_paused

    def acks_for(self, subject: str) -> InboxAcks:
        """Return a new sink for acks of messages on `subject`."""
        return self.intake.acks_for(subject)

    @property
    def takes_runs(self) -> bool:
        """Return whether neighbouring messages may share a run.

        Optimistic concurrency checks each message; a queue group routes each one separately.
        """
        return not self.options.optimistic_concurrency and not self.group

    def publish(self, run: PublishRun, now: Instant, wall_ns: int) -> None:
        """Append a run that arrived directly, and copy it to the other listeners.

        A paused partition is resumed first; the run waits for that. Every pending ack of the run is
        answered exactly once, now or later.
        """
        if (self.pause.is_paused or self.role is Role.RISING) and self.closed_error is None:
            self._park(run, now)
            return
        if run.offsets is not None:
            # A restore writes back old messages: other listeners do not get them again.
            self._append(run, now, wall_ns)
            return
        if not self.others.can_take(run.subject):
            text = "not appended: the connection to NATS is lost or too slow, or copies wait"
            self._refuse(run, NotAppendedError(text))
            return
        appended = self._append(run, now, wall_ns)
        if appended is not None:
            self.others.fan_out(self, appended)

    def envelopes_of(self, run: PublishRun) -> list[bytes]:
        """Return NATS frames of a run for other listeners; new leaders do not store them again."""
        return self._envelopes.frames(
            run.values,
            keys=run.keys,
            headers=run.headers,
            correlation_ids=run.correlation_ids,
            ack_inbox=run.ack_inbox.encode(),
            ack_policy=run.policy,
            expected_offsets=run.expected_offsets,
            appended_partition_id=None if self.replication is None else self.partition_id,
        )

    def take_copy(self, run: PublishRun, now: Instant, wall_ns: int) -> None:
        """Append a run that arrived over NATS, or from a neighbouring partition.

        A manually paused partition counts and drops the messages, as the original does; an
        auto-paused partition resumes.
        """
        publisher = run.publisher
        if publisher is not None and is_foreign(
            self.context.state, self.stream, publisher.publisher_id
        ):
            # Its sequence numbers belong to another stream on this subject.
            run.publisher = None
        if self.pause.is_paused:
            if self.pause.is_auto and self.closed_error is None:
                self._park(run, now)
            else:
                self.activity.dropped_count += len(run.values)
            return
        if self.role is Role.LEADER:
            self._append(run, now, wall_ns)
        elif self.role is Role.RISING and self.closed_error is None:
            self._park(run, now)

    def _append(self, run: PublishRun, now: Instant, wall_ns: int) -> PublishRun | None:
        """Append a run, and send or hold its acks; return its new part, `None` for none."""
        replication = self.replication
        try:
            self._check_open()
            pieces = check_run(run, self.log, self.options, self.writer.publishers, replication)
            rest = without_stored(run, pieces) if pieces else run
            if rest is None:
                self._acknowledge(run, joined(pieces), wall_ns)
                return None
            if replication is not None:
                replication.check_append(is_all=run.waits_for_all, now=now)
            try:
                timestamp, base, data = self.writer.write(rest, self.leader_epoch, now, wall_ns)
            except FilesError as error:
                raise self._append_failed(error, now) from error
        except LiftbridgeError as error:
            # A cut-off leader cannot report the cause: another leader may have changed the log.
            is_cut_off = replication is not None and replication.is_cut_off  # guard A.refusal
            self._refuse(run, cut_off() if is_cut_off else error)
            return None
        count, end = len(rest.values), self.log.log_end_offset
        self.activity.last_active = now
        self.activity.on_received(rest.path, count, rest.size_bytes, wall_ns)
        if replication is not None:
            replication.on_appended(base, data, now)
        elif not self.is_commit_mode:
            self.commit_to(end, wall_ns)
        self.context.note_append(self.partition_id, now)
        base_offset = Offset(end - count if rest.offsets is None else rest.offsets[0])
        stored = Stored(base_offset, timestamp, wall_ns, self.leader_epoch, is_duplicate=False)
        if pieces:
            stored = in_pieces(stored, joined((*pieces, StoredPiece(base_offset, count))))
        self._hold(end, stored, rest)
        return rest

    def _refuse(self, run: PublishRun, error: LiftbridgeError) -> None:
        self.context.count_refused(error, len(run.values))
        if isinstance(error, FencedPublisherError):
            self.context.transition("publisher_fenced", self._named({"reason": error.text}))
        run.refuse(error)

    def _hold(self, end: Offset, stored: Stored, run: PublishRun) -> None:
        acks = run.pending_acks
        if not acks:
            return
        if end <= self.log.high_watermark:
            for ack in acks:
                ack.sink.acked(stored)
            return
        if self.replication is not None and not self.replication.is_cut_off:
            is_stored = not self.is_commit_mode or end <= self.log.recovery_point
            acks = self.pending.hold_own(end, stored, acks, is_stored=is_stored)
            if not acks:
                return
        self.pending.add(end, stored, acks, run.size_bytes)

    def _acknowledge(self, run: PublishRun, pieces: tuple[StoredPiece, ...], wall_ns: int) -> None:
        """Answer a duplicate with the position of the original, once that is committed."""
        last = pieces[-1]
        first = Stored(last.base_offset, wall_ns, wall_ns, self.leader_epoch, is_duplicate=True)
        # Always policy ALL: a publisher that retries needs to know that the record is durable.
        run.pending_acks = [ack._replace(policy=POLICY_ALL) for ack in run.pending_acks]
        self._hold(Offset(last.base_offset + last.record_count), in_pieces(first, pieces), run)

    def _check_open(self) -> None:
        if self.closed_error is not None:
            raise NotAppendedError(f"not appended: {self.closed_error.text}")
        if self.role is not Role.LEADER:  # guard L2.role
            raise NotLeaderError(NOT_LEADER_TEXT)
        if self.offline_reason:  # guard L2.offline
            raise PartitionOfflineError(f"not appended: partition offline: {self.offline_reason}")
        if self.is_readonly:  # guard C18.readonly
            raise ReadonlyError(f"readonly partition: {self.number}")
        if self.context.store.disk.is_full:
            raise StorageFullError("not appended: storage full")
        quotas = self.context.state.quotas
        if quotas:
            self._check_quota(quotas)

    def _check_quota(self, quotas: Quotas) -> None:
        """Refuse messages while the partition holds as many bytes as its stream may.

        Raises:
            StorageFullError: It does; retention or a larger quota makes room.
        """
        quota = quotas.get(QuotaKey(QuotaKind.STREAM, self.stream), NO_QUOTA)
        size = self.log.size_bytes
        if quota.stored_bytes and size >= quota.stored_bytes:  # guard Quota.stored
            raise StorageFullError(
                f"not appended: quota of stream {self.stream} exceeded: partition {self.number} "
                f"holds {size} bytes, at most {quota.stored_bytes} are allowed; shorten its "
                "retention or get a larger quota"
            )

    def _append_failed(self, error: FilesError, now: Instant) -> LiftbridgeError:
        """Return the refusal for a failed write, and update the partition."""
        self.context.note_append_failed(error, now)
        if error.is_full:
            return StorageFullError("not appended: storage full")
        self.go_offline(error.text)
        return PartitionOfflineError(f"not appended: {error}")

    # -- commit -------------------------------------------------------------------------------

    def on_flushed(self, flushed_offset: Offset, wall_ns: int) -> None:
        """Handle a sync of everything below `flushed_offset`."""
        if self.replication is not None:
            self.pending.release_own(flushed_offset, wall_ns)
            self.replication.on_flushed(wall_ns)
        elif self.role is Role.LEADER and self.is_commit_mode:
            self.commit_to(flushed_offset, wall_ns)

    def commit_to(self, end: Offset, wall_ns: int) -> None:
        """Move the high watermark, release acks, wake readers (I3)."""
        log = self.log
        if end <= log.high_watermark:
            return
        assert end <= log.log_end_offset
        log.high_watermark = end
        self.pending.release(end, wall_ns)
        self.readers.wake()

    def commit_alone(self, wall_ns: int) -> None:
        """Commit the records of a sole replica: all of them, or those on disk.

        The original hides the last records after a crash until the next append (defect D14).
        """
        log = self.log
        self.commit_to(log.recovery_point if self.is_commit_mode else log.log_end_offset, wall_ns)

    def set_options(self, options: StreamOptions, wall_ns: int) -> None:
        """Apply settings; release acks that waited only for the disk."""
        self.options = options
        self.intake.set_options(options)
        if self.replication is None and self.role is Role.LEADER:
            self.commit_alone(wall_ns)

    # -- readers ------------------------------------------------------------------------------

    def detach(self, subscriber: Subscriber, now: Instant) -> None:
        """Remove a subscription."""
        self.readers.detach(subscriber)
        self.activity.last_active = now

    # -- state --------------------------------------------------------------------------------

    def set_readonly(self, *, is_readonly: bool, wall_ns: int) -> None:
        """Refuse, or accept again, new messages; notify readers at the end."""
        self.is_readonly = is_readonly
        self.activity.readonly_changed.mark(wall_ns)
        self.readers.wake()

    def set_paused(self, *, is_paused: bool, is_auto: bool, now: Instant, wall_ns: int) -> None:
        """Stop intake and end subscriptions, or continue with the runs that waited."""
        self.activity.pause_changed.mark(wall_ns)
        self.pause.is_paused, self.pause.is_auto = is_paused, is_paused and is_auto
        if is_paused:
            self.readers.end(FailedPreconditionError("commit log was closed"))
        else:
            self.activity.last_active = now
        # After a pause too: runs that waited for this leadership must request the resume.
        self._unpark(now, wall_ns)

    def _unpark(self, now: Instant, wall_ns: int) -> None:
        for run in self.pause.take():
            if run.path == "nats":
                self.take_copy(run, now, wall_ns)
            else:
                self.publish(run, now, wall_ns)

    def rise(self, replication: Replication) -> None:
        """Become leader by the metadata; accept records only after `lead`."""
        self.replication = replication
        if self.role is not Role.LEADER:
            self.readers.end(leader_changed(), stays=True)
        self.role = Role.RISING

    def lead(
        self, replication: Replication | None, leader_epoch: LeaderEpoch, now: Instant, wall_ns: int
    ) -> None:
        """Accept records from now on, waiting runs first; `None` means a sole replica."""
        if self.role is not Role.LEADER or self.replication is not None:
            self._end_at_start = self.log.log_end_offset
        self.replication, self.leader_epoch = replication, leader_epoch
        self.role, self.activity.last_active = Role.LEADER, now
        if not self.pause.is_paused:
            self._unpark(now, wall_ns)

    def follow(self, replication: Replication | None) -> None:
        """Stop leading: another broker leads, or with `None` no known broker.

        Uncommitted records stored here have an unknown outcome.
        """
        was_leader = self.role in (Role.LEADER, Role.RISING)
        self.replication = replication
        self.role = Role.NONE if replication is None else Role.FOLLOWER
        if was_leader:  # guard L7.demote
            self.pause.fail(UnavailableError("not appended: leader changed"))
            self.pending.fail(OutcomeUnknownError("outcome unknown: leader changed"))
            self.readers.end(leader_changed(), stays=True)

    def _park(self, run: PublishRun, now: Instant) -> None:
        replication = self.replication
        if not self.pause.is_paused and replication is not None and replication.is_recovering:
            text = "not appended: the partition recovers from an unclean election"
            self._refuse(run, NotAppendedError(text))
        else:
            self.pause.park(run, now)

    def on_unreadable(self, error: LiftbridgeError) -> None:
        """Go offline after a read that found damage or failed."""
        is_damaged = isinstance(error, CorruptionError)
        self.has_read_error = not is_damaged and (self.has_read_error or not self.offline_reason)
        if isinstance(error, CorruptionError):
            where = {"path": error.path, "position": error.position, "reason": error.text}
            self.context.transition("corruption_found", self._named(where))
            self.context.store.notes.note_damage(self.partition_id, error.path, self.context.now)
        self.go_offline(error.text)

    def _named(self, fields: Mapping[str, object]) -> Mapping[str, object]:
        return {"stream": self.stream, "partition": self.number, **fields}

    def go_offline(self, reason: str) -> None:
        """Stop serving: the files failed or are damaged, and stay unchanged for an operator."""
        if self.offline_reason:
            return
        self.offline_reason = reason
        self.context.transition("partition_offline", self._named({"reason": reason}))
        self.pending.fail(OutcomeUnknownError(f"outcome unknown: {reason}"))
        if self.replication is not None:
            self.replication.on_offline(reason)

    def go_online(self) -> None:
        """Serve again: the log was verified after the read error."""
        self.offline_reason, self.has_read_error = "", False
        self.context.transition("partition_online", self._named({}))

    def refuse_appends(self, error: LiftbridgeError) -> None:
        """Refuse all appends with `error`; reads and pending acks continue."""
        self.closed_error = error
        self.pause.fail(NotAppendedError(f"not appended: {error}"))

    def close(self, error: LiftbridgeError) -> None:
        """Close the partition: the stream was deleted, or the broker stops.

        Pending acks get an unknown outcome when the broker stops, because their records may
        be on disk; after a deletion of the stream their outcome no longer matters.
        """
        self.refuse_appends(error)
        self.readers.end(error)
        is_deleted = isinstance(error, NotFoundError)
        self.pending.fail(error if is_deleted else OutcomeUnknownError(f"outcome unknown: {error}"))
