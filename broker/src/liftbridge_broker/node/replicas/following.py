"""A partition that this broker follows: applies the leader's fetch answers (F1 to F5).

`FollowerCore` judges an answer; this module appends to, truncates or restarts the log, and sends
the next position only when the state that it reports is durable.
"""

from collections.abc import Callable

from liftbridge_broker.controller.commands import DeclareUnclean
from liftbridge_broker.errors import (
    CorruptionError,
    FilesError,
    LiftbridgeError,
    NotLeaderError,
)
from liftbridge_broker.model.fetching import FetchedHead
from liftbridge_broker.model.ids import BrokerId, Instant, Offset
from liftbridge_broker.node.partition.partition import NOT_LEADER_TEXT, Partition
from liftbridge_broker.node.refusals import leader_changed
from liftbridge_broker.node.replicas.role_context import RoleContext
from liftbridge_broker.replication.follower import (
    Append,
    Damaged,
    FollowerCore,
    FollowerOutcome,
    Rejected,
    RestartAt,
    Truncate,
    Wait,
)
from liftbridge_broker.wire.peer.bodies import Silence


class Following:
    """Role of this broker for one partition that another broker leads.

    Attributes:
        partition: The partition.
        partition_id: Its id.
        core: Decides how to apply each answer of the leader.
        leader: Its leader.
        is_current: Whether this is still the broker's role for the partition.
        is_held: Whether no position may be sent: the journal must be flushed first, or the log is
            damaged.
        is_refused: Whether the last answer was one that a healthy leader does not send.
        rejected_count: Answers with other records than requested.
        truncated_count: Number of truncations of the log.
    """

    def __init__(
        self,
        roles: RoleContext,
        partition: Partition,
        core: FollowerCore,
        leader: BrokerId,
        verify: Callable[["Following"], None],
    ) -> None:
        """Start to follow; `verify` reads the log after a read error, and calls `on_verified`."""
        self._roles = roles
        self._context = roles.context
        self._verify = verify
        self.partition = partition
        self.partition_id = partition.partition_id
        self.core = core
        self.leader = leader
        self.is_current = True
        self.is_commit_mode = False
        self.is_held = False
        self.is_refused = False
        self.rejected_count = 0
        self.truncated_count = 0
        self._is_declaring = False

    @property
    def is_latest_known(self) -> bool:
        """Always true: readers of a follower accept what it knows."""
        return True

    @property
    def is_recovering(self) -> bool:
        """Always false: a follower does not lead."""
        return False

    @property
    def is_cut_off(self) -> bool:
        """Always false: a follower serves its readers whichever broker leads."""
        return False

    def begin(self) -> None:
        """Set the fsync policy of the log, and mark it in the store as a follower's."""
        partition = self.partition
        self._roles.set_policy(partition, is_commit=self.is_commit_mode, now=self._context.now)
        self._context.store.set_leader(partition.partition_id, is_leader=False)

    # -- for its leader -----------------------------------------------------------------------

    def put_position(self) -> None:
        """Schedule this replica's position for the leader."""
        session = self._roles.fetching.get(self.leader)
        if session is not None and self.is_current:
            session.put(self.core.position())
            self._roles.wake(session)

    def retry_position(self) -> None:
        """Schedule the same position again after a pause."""
        roles = self._roles
        session = roles.fetching.get(self.leader)
        if session is not None and self.is_current:
            if not self.is_held:
                session.put(self.core.position())
                session.retry(self.partition_id, self._context.now)
            roles.refused[self.partition_id] = None
            roles.look_soon()
            roles.wake(session)

    # -- for the partition --------------------------------------------------------------------

    def check_append(self, *, is_all: bool, now: Instant) -> None:
        """Refuse every run.

        Raises:
            NotLeaderError: Always.
        """
        del is_all, now
        raise NotLeaderError(NOT_LEADER_TEXT)  # guard L2.follower

    def on_appended(self, base: Offset, data: bytes, now: Instant) -> None:
        """No-op: a follower appends only what its leader sends."""

    def on_flushed(self, wall_ns: int) -> None:
        """Send the flushed position, which the leader counts in commit mode."""
        del wall_ns
        if self.is_commit_mode:
            self._put_position()

    def on_offline(self, reason: str) -> None:
        """Handle a log that cannot be used any more (F5)."""
        self.is_held = True
        self._declare(reason)

    def repair(self) -> None:
        """Retry a declaration that failed."""
        if self.partition.offline_reason:
            self._declare(self.partition.offline_reason)

    # -- answers ------------------------------------------------------------------------------

    def silence(self, heard_at: Instant, now: Instant) -> Silence | None:
        """Return the report about a silent leader (F4), `None` for none.

        Args:
            heard_at: Time of the last answer of the leader's broker.
            now: Current time.
        """
        silence_ns = self.core.suspicion(heard_at, now)
        if silence_ns is None:
            return None
        state = self.core.state
        epochs = state.leader_epoch, state.partition_epoch
        return Silence(state.partition_id, self.leader, *epochs, silence_ns)

    def on_reply(self, head: FetchedHead, data: bytes, now: Instant) -> None:
        """Apply an answer of the leader."""
        if self.is_held or self.partition.offline_reason:
            return
        outcome = self.core.on_reply(head, data, now)
        self.is_refused = isinstance(outcome, Rejected) or (
            isinstance(outcome, Wait) and outcome.is_retry
        )
        try:
            self._follow(outcome, now)
        except FilesError:
            # The store was notified and decides about the directory; a full disk is temporary.
            self.retry_position()
        except CorruptionError as error:
            # A truncation reads the part that it keeps, and found corrupt bytes.
            self.partition.on_unreadable(error)

    def _follow(self, outcome: FollowerOutcome, now: Instant) -> None:
        match outcome:
            case Append():
                self._append(outcome, now)
            case Truncate():
                self._truncate(outcome, now)
            case RestartAt(offset, is_below_high_watermark):
                if is_below_high_watermark:
                    self._report_loss(offset)
                self.restart_at(offset, now)
            case Damaged(reason):
                self._on_damaged(reason)
            case Rejected(reason):
                self.rejected_count += 1
                self._report("fetched_records_rejected", reason=reason)
                self.retry_position()
            case Wait():
                if outcome.is_retry:
                    self.retry_position()

    def _append(self, append: Append, now: Instant) -> None:
        partition = self.partition
        log = partition.log
        dropped, copied = log.dropped_offset, append.copied
        if append.headers and log.is_empty:  # guard F3.copy
            dropped = max(dropped, append.dropped_offset)
        if (dropped, copied) != (log.dropped_offset, log.copied):
            self._context.store.notes.note_copied(partition.partition_id, dropped, copied, now)
        if append.headers:
            before = log.epochs.latest
            segments = log.segment_count
            try:
                log.append_batches(append.data, append.headers, self._context.wall_ns)
            except FilesError as error:
                self._context.store.disk.on_error(error, now)
                raise
            partition.writer.note_replicated(append.headers, segments)
            self._context.note_append(partition.partition_id, now)
            if log.epochs.latest != before:
                self._hold_for_journal(now)  # guard F3.journal
        if append.high_watermark != log.high_watermark:
            log.high_watermark = Offset(min(append.high_watermark, log.log_end_offset))
            partition.readers.wake()
        log.compacted_everywhere = append.compacted_offset
        if append.log_start > log.log_start_offset:
            self._context.store.raise_log_start(partition.partition_id, append.log_start, now)
        self._put_position()

    def _hold_for_journal(self, now: Instant) -> None:
        """Send no position before the new leader epoch is durable."""
        self.is_held = True
        core = self.core

        def done() -> None:
            if self.core is core and not self.partition.offline_reason:
                self.is_held = False
                self._put_position()

        self._context.store.journal_state(self.partition.partition_id, done, now)

    def _truncate(self, truncate: Truncate, now: Instant) -> None:
        log = self.partition.log
        removed = log.log_end_offset - truncate.end
        if truncate.is_below_high_watermark:
            self._report_loss(truncate.end)
        self._context.store.truncate([(self.partition.partition_id, truncate.end)], now)
        self.truncated_count += removed > 0
        self._roles.log_changes.cut(self.partition)
        self._end_readers()
        self._put_position()

    def _report_loss(self, end: Offset) -> None:
        """Report the loss of records that counted as committed."""
        log = self.partition.log
        self._report(
            "committed_records_removed", high_watermark=log.high_watermark, log_end_offset=end
        )

    def restart_at(self, offset: Offset, now: Instant) -> None:
        """Drop the log and restart it at an offset.

        Raises:
            FilesError: The disk reported an error.
        """
        self._context.store.restart(self.partition.partition_id, offset, now)
        self._roles.log_changes.cut(self.partition)
        self._end_readers()
        self._put_position()

    def _end_readers(self) -> None:
        """End readers that received records now removed, so that they read the replacements."""
        partition = self.partition
        for reader in list(partition.readers.subscribers):
            if reader.next_offset > partition.log.log_end_offset:  # guard A.cut
                reader.on_closed(leader_changed())

    # -- damage -------------------------------------------------------------------------------

    def _on_damaged(self, reason: str) -> None:
        """Declare the replica unclean before any of its records is removed (C12)."""
        self.is_held = True  # guard F5.held
        self._report("replica_damaged", reason=reason)
        self._declare(reason)

    def _declare(self, reason: str) -> None:
        if self._is_declaring:
            return
        self._is_declaring = True
        state = self.core.state
        epoch = state.replica_epoch(self._context.broker)
        assert epoch is not None
        command = DeclareUnclean(
            broker=self._context.broker,
            broker_epoch=self._roles.broker_epoch,
            partition_id=state.partition_id,
            replica_epoch=epoch,
            reason=reason,
        )
        self._context.propose(command, self._context.now, self._declared)

    def _declared(self, outcome: object) -> None:
        """Restart the log at its start offset, as no commit depends on this replica any more.

        Only while it follows: without a leader to copy from, this replica may be the last one with
        any records, and a later role finds the same damage.
        """
        self._is_declaring = False
        if not self.is_current:  # guard F5.current
            return
        if isinstance(outcome, LiftbridgeError):  # guard F5.declared
            # Retried later: the leader's next answer or the owner finds the same state.
            self.is_held = bool(self.partition.offline_reason)
            self.retry_position()
            return
        if self.partition.offline_reason:
            if self.partition.has_read_error:  # guard F5.verified
                self._verify(self)
            else:
                self._roles.log_changes.replace(self.partition.partition_id)
            return
        self.is_held = False
        try:
            self.restart_at(self.partition.log.log_start_offset, self._context.now)
        except FilesError:
            self.retry_position()

    def on_verified(self, error: LiftbridgeError | None) -> None:
        """Keep the log if all of it was read and is intact; replace it otherwise."""
        if error is not None:
            self.partition.on_unreadable(error)
            self._roles.log_changes.replace(self.partition_id)
            return
        self.partition.go_online()
        self._roles.log_changes.readable(self.partition)
        self.begin()
        self._hold_for_journal(self._context.now)

    def _put_position(self) -> None:
        if not self.is_held:
            self.put_position()

    def _report(self, kind: str, **fields: object) -> None:
        partition = self.partition
        named = {"stream": partition.stream, "partition": partition.number, **fields}
        self._context.transition(kind, named)
