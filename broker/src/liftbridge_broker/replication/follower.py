"""The follower of one partition: its fetch positions and its handling of answers (F1 to F5).

Knows no I/O: the owner sends `position` in the fetch session of the leader (`sessions.py`), passes
each answer to `on_reply` and applies the outcome before it passes the next answer. No value of a
peer is asserted. Marks such as `# guard F3.epoch` name guards of the rules;
`tests/guards/replication.yaml` names the test that fails when a guard is removed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.logformat.batch import BatchHeader, walk_verified
from liftbridge_broker.model.fetching import FetchedHead, FetchError, FetchPosition
from liftbridge_broker.model.ids import (
    OFFSET_MAX,
    BrokerId,
    Instant,
    LeaderEpoch,
    MetadataIndex,
    Offset,
)
from liftbridge_broker.model.partitions import NOT_COPIED, Copied, PartitionState
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.ports.replica_log import LogView
from liftbridge_broker.ports.rng import Rng
from liftbridge_broker.replication.divergence import truncation_target
from liftbridge_broker.replication.isr import NEVER

NOT_ALIVE: Final = frozenset(
    {FetchError.NOT_LEADER, FetchError.UNKNOWN_PARTITION, FetchError.CORRUPT}
)
"""Errors that a healthy leader of the partition does not return."""


class FollowerLimits(NamedTuple):
    """Times of a follower, in nanoseconds.

    Attributes:
        silence_ns: Time without a valid answer after which the leader is reported.
        repeat_ns: Time between two reports about the same leader.
        jitter_ns: Maximum random addition to both, so that not all followers report at once.
    """

    silence_ns: int = 600 * MILLISECOND_NS
    repeat_ns: int = 600 * MILLISECOND_NS
    jitter_ns: int = 60 * MILLISECOND_NS


class Wait(NamedTuple):
    """Nothing to do.

    Attributes:
        error: Reason why the leader sent no records.
        is_retry: Whether to send the position again after a pause. If not, the answer was to an
            earlier position, and a fetch with the current position is in flight.
    """

    error: FetchError | None
    is_retry: bool


# Not tuples: those of one shape would be equal, whatever their class.


@dataclass(frozen=True, slots=True)
class Rejected:
    """The records are not those requested: count and report that, and request them again later."""

    reason: str


@dataclass(frozen=True, slots=True)
class Truncate:
    """Truncate the log and its epochs at `end`, even without a record there; then fetch again.

    Attributes:
        end: New log end offset.
        is_below_high_watermark: Whether records that counted as committed are lost after an unclean
            election. Then the high watermark falls with the log, and the owner reports the loss.
    """

    end: Offset
    is_below_high_watermark: bool


@dataclass(frozen=True, slots=True)
class RestartAt:
    """Drop the log and restart at `offset`.

    The leader has no older records, or this log holds records that the leader lacks.

    Attributes:
        offset: New log start and end.
        is_below_high_watermark: As for `Truncate`.
    """

    offset: Offset
    is_below_high_watermark: bool = False


class Append(NamedTuple):
    """Append verified records and store the leader's offsets.

    New epochs enter the epoch cache durably before the records are served or counted.

    Attributes:
        data: Whole batches, empty when there are none.
        headers: Their headers.
        high_watermark: High watermark to store; it may decrease.
        log_start: Log start offset to store; segments below may be deleted.
        compacted_offset: Offset to store; tombstones below may be dropped.
        dropped_offset: Offset to store durably before the records if the log is empty: the records
            may lack tombstones below it.
        copied: Offset to store durably before the records if it changed: the end that this copy of
            a compacted log must reach.
    """

    data: bytes
    headers: tuple[BatchHeader, ...]
    high_watermark: Offset
    log_start: Offset
    compacted_offset: Offset = Offset(0)
    dropped_offset: Offset = Offset(0)
    copied: Copied = NOT_COPIED


@dataclass(frozen=True, slots=True)
class Damaged:
    """The local log contradicts committed records: declare it unclean, then set it aside (F5)."""

    reason: str


FollowerOutcome = Wait | Rejected | Truncate | RestartAt | Append | Damaged
_DROP: Final = Wait(None, is_retry=False)


class FollowerCore:
    """Follower state of one partition, across successive leaders.

    It truncates nothing at its start (F1): records above its high watermark may be committed, and
    only the leader's answer shows that.

    Attributes:
        me: This broker.
    """

    __slots__ = (
        "_is_commit_mode",
        "_is_matching",
        "_jitter_ns",
        "_limits",
        "_log",
        "_refused_since",
        "_replica_epoch",
        "_report_at",
        "_rng",
        "_since",
        "_state",
        "me",
    )

    def __init__(
        self,
        me: BrokerId,
        log: LogView,
        state: PartitionState,
        *,
        is_commit_mode: bool,
        limits: FollowerLimits,
        rng: Rng,
        now: Instant,
    ) -> None:
        """Start to follow (F1).

        Args:
            me: This broker, a replica by `state`.
            log: Its log.
            state: The partition by the metadata, led by another broker.
            is_commit_mode: Whether only what is on disk counts.
            limits: Times.
            rng: Random source, for the jitter of reports.
            now: Current time.
        """
        self.me = me
        self._log = log
        self._limits = limits
        self._rng = rng
        self._adopt(state, is_commit_mode)
        self._is_matching = False
        self._suspect_anew(now)

    @property
    def state(self) -> PartitionState:
        """The partition as this follower knows it."""
        return self._state

    def on_state(self, state: PartitionState, *, is_commit_mode: bool, now: Instant) -> None:
        """Apply newer metadata, with the same or another leader; ignore older metadata.

        Afterwards the owner puts `position` into the session of the leader.
        """
        if state.partition_epoch < self._state.partition_epoch:  # guard F1.epoch
            return
        is_new = state.leader_epoch != self._state.leader_epoch
        self._adopt(state, is_commit_mode)
        if is_new:
            self._is_matching = False
            self._suspect_anew(now)

    def _adopt(self, state: PartitionState, is_commit_mode: bool) -> None:
        epoch = state.replica_epoch(self.me)
        assert state.leader not in (None, self.me)
        assert epoch is not None
        self._state = state
        self._is_commit_mode = is_commit_mode
        self._replica_epoch: MetadataIndex = epoch

    def _suspect_anew(self, now: Instant) -> None:
        self._since = now
        self._refused_since: Instant | None = None
        self._report_at = NEVER
        self._jitter_ns = self._rng.randrange(self._limits.jitter_ns + 1)

    def position(self) -> FetchPosition:
        """Return the position to send to the leader (F2)."""
        log, end = self._log, self._end_to_keep()
        return FetchPosition(
            self._state.partition_id,
            self._replica_epoch,
            self._state.leader_epoch,
            end,
            # Sent only in commit mode: a changed position costs a fetch.
            min(log.recovery_point, end) if self._is_commit_mode else Offset(0),
            log.epochs.latest,
            log.log_start_offset,
            log.compacted_offset,
        )

    def on_reply(self, head: FetchedHead, data: bytes, now: Instant) -> FollowerOutcome:
        """Decide on the answer of the leader for this partition (F3).

        Args:
            head: Head of the answer, from the current session with the leader.
            data: Records, whole batches of [fetch_offset, ...), untrusted.
            now: Current time.
        """
        state = self._state
        if head.partition != state.partition_id:  # guard F3.partition
            return _DROP
        error = head.error
        if (
            head.leader_epoch != state.leader_epoch  # guard F3.epoch
            or error in NOT_ALIVE  # guard F4.alive
        ):
            if self._refused_since is None:
                self._refused_since = now
            return Wait(error, is_retry=True)
        log, end = self._log, self._end_to_keep()
        if head.fetch_offset != end:  # guard F3.offset
            return _DROP
        if end < log.log_end_offset:
            self._refused_since = None
            return self._cut(end, is_below=end < log.high_watermark)
        if error is not None or head.diverging is not None:
            self._refused_since = None
            return self._on_trouble(head, error)
        return self._on_records(head, data, now)

    def _on_trouble(self, head: FetchedHead, error: FetchError | None) -> FollowerOutcome:
        """Handle an answer that cannot be applied at this position."""
        if error is FetchError.OFFSET_OUT_OF_RANGE:
            return self._on_out_of_range(head)
        if error is None and head.diverging is not None:
            return self._on_diverging(head.diverging)
        return Wait(error, is_retry=True)

    def _on_diverging(self, diverging: tuple[LeaderEpoch, Offset]) -> FollowerOutcome:
        """Truncate records that the leader lacks; never by the high watermark (KIP-101).

        Compaction uses committed records only, so only an unclean election can undo a record that
        superseded earlier records. The log does not show which records it superseded. So the
        follower copies again from the first offset that compaction touched.
        """
        log = self._log
        target = truncation_target(log.epochs, log.log_end_offset, diverging)
        if target is None:
            return Rejected(f"divergence {diverging} is not in the log")
        if self._may_lose_committed():
            # A truncated record may have superseded older ones, which the leader still has.
            target = min(target, log.compacted_from)  # guard F3.compacted
        elif target < log.high_watermark:  # guard F3.floor
            return Damaged(
                f"the logs diverge at offset {target}, below the high watermark "
                f"{log.high_watermark}, without an unclean election"
            )
        end = max(target, log.log_start_offset)  # guard F3.log_start
        return self._cut(end, is_below=target < log.high_watermark)

    def _cut(self, end: Offset, *, is_below: bool) -> Truncate | RestartAt:
        """Truncate the log; a truncation at the log start also drops the hidden records below it.

        Their leader epochs may be later than those of the next records, and recovery treats a log
        with falling epochs as damaged.
        """
        if end == self._log.log_start_offset:  # guard F3.hidden
            return RestartAt(end, is_below_high_watermark=is_below)
        return Truncate(end, is_below_high_watermark=is_below)

    def _end_to_keep(self) -> Offset:
        """Return the log end, or the offset to truncate an incomplete copy at first.

        A copy of a compacted log may have stopped before the superseding records, or lost them in a
        power cut. The leader of an unclean election may hold the superseded records instead. This
        replica then lacks them, and no divergence shows it.
        """
        log = self._log
        whole_from, epoch = log.copied
        is_doubtful = log.log_end_offset < whole_from and epoch < self._state.unclean_epoch
        if is_doubtful and self._may_lose_committed():  # guard F3.whole
            return max(log.compacted_from, log.log_start_offset)
        return log.log_end_offset

    def _copied(self, head: FetchedHead, headers: Sequence[BatchHeader], end: Offset) -> Copied:
        """Return the end that this copy must reach once these batches are appended up to `end`.

        Compaction uses committed records only, and an in-sync replica holds all of them. The high
        watermark alone is no proof, because that of a new leader starts too low.
        """
        known = self._log.copied
        has_gaps = sum(header.count for header in headers) < end - self._log.log_end_offset
        if not has_gaps and known.whole_from < OFFSET_MAX:
            return known
        is_whole = self.me in self._state.isr and end >= head.high_watermark
        whole_from = end if is_whole else Offset(OFFSET_MAX)  # guard F3.gaps
        return Copied(whole_from, self._state.leader_epoch if has_gaps else known.leader_epoch)

    def _may_lose_committed(self) -> bool:
        """Return whether an unclean election is newer than all records of this replica (F3)."""
        return (self._log.epochs.latest or 0) < self._state.unclean_epoch

    def _on_out_of_range(self, head: FetchedHead) -> FollowerOutcome:
        log = self._log
        state = self._state
        if head.log_start > log.log_end_offset:
            # The leader has deleted all records that this replica holds. A complete replica never
            # lags that much, so either this broker's metadata are stale, or the leader soon removes
            # the replica from the in-sync set.
            if self.me in state.isr or self.me in state.elr:  # guard F3.complete
                return Wait(head.error, is_retry=True)
            return RestartAt(head.log_start)
        latest = log.epochs.latest
        if latest is None and self._may_lose_committed():  # guard F3.empty
            # This log is empty, and the leader of an unclean election ends before this offset.
            return RestartAt(head.log_start)
        if latest is not None and latest > state.leader_epoch:
            return Damaged(f"the log holds leader epoch {latest}, newer than {state.leader_epoch}")
        return Wait(head.error, is_retry=True)

    def _may_revive(self, head: FetchedHead) -> bool:
        """Return whether this replica may hold records whose tombstones will not arrive (S143).

        The leader dropped the tombstones once all replicas of that time had dropped the deleted
        records. A log that ends before them belongs to a replica that was removed and added again.
        An empty log holds no deleted records, and a log that began empty knows which tombstones it
        lacks.
        """
        log = self._log
        end = log.log_end_offset
        return log.log_start_offset < end < head.dropped_offset > log.dropped_offset

    def _may_diverge_below(self, head: FetchedHead) -> bool:
        """Return whether this log may diverge below its end though the leader accepts the position.

        A leader whose log begins there has no epochs left to compare; when the answer leaves, its
        log may begin later. Once an answer shows that both logs match, they match for the epoch.
        """
        log = self._log
        return log.log_start_offset < log.log_end_offset <= head.log_start and (
            log.high_watermark < log.log_end_offset or self._may_lose_committed()
        )

    def _on_records(self, head: FetchedHead, data: bytes, now: Instant) -> FollowerOutcome:
        if self._may_revive(head):  # guard F3.dropped
            self._refused_since = None
            # A complete replica was a replica throughout; otherwise it leaves the in-sync set.
            if self.me in self._state.isr or self.me in self._state.elr:
                return Wait(None, is_retry=True)
            return RestartAt(max(head.log_start, self._log.log_start_offset))
        headers: tuple[BatchHeader, ...] = ()
        end = self._log.log_end_offset
        if not self._is_matching:
            if self._may_diverge_below(head):  # guard F3.anew
                self._refused_since = None
                return RestartAt(end)
            self._is_matching = True
        if data:
            try:
                headers = tuple(header for _, header in walk_verified(data, 0, len(data)))
            except CorruptionError as error:  # guard F3.checksum
                return self._reject(str(error), now)
            reason = self._mismatch(headers[0], headers[-1])
            if reason:
                return self._reject(reason, now)
            end = headers[-1].end_offset
        self._refused_since = None
        log_start = self._log.log_start_offset
        high_watermark = max(min(head.high_watermark, end), log_start)  # guard F3.high_watermark
        # Only the leader moves the log start, and never above the high watermark.
        log_start = max(log_start, min(head.log_start, high_watermark))
        return Append(
            data,
            headers,
            high_watermark,
            log_start,
            head.compacted_offset,
            head.dropped_offset,
            self._copied(head, headers, end),
        )

    def _mismatch(self, first: BatchHeader, last: BatchHeader) -> str:
        """Return why consecutive batches do not fit this log, empty if they do."""
        log = self._log
        if first.partition_id != self._state.partition_id:  # guard F3.records_partition
            return f"batch of partition {first.partition_id}"
        if first.base_offset != log.log_end_offset:  # guard F3.records_offset
            return f"batch at offset {first.base_offset}, not {log.log_end_offset}"
        if first.leader_epoch < (log.epochs.latest or 0):  # guard F3.records_epoch_falls
            return f"batch of leader epoch {first.leader_epoch} behind {log.epochs.latest}"
        if last.leader_epoch > self._state.leader_epoch:  # guard F3.records_epoch_ahead
            return f"batch of leader epoch {last.leader_epoch} in {self._state.leader_epoch}"
        return ""

    def _reject(self, reason: str, now: Instant) -> Rejected:
        if self._refused_since is None:
            self._refused_since = now
        return Rejected(reason)

    # Reports of a silent leader (F4).

    def _alive_at(self, heard_at: Instant) -> Instant:
        """Return the time at which the leader was last known to serve this partition."""
        if self._refused_since is not None:  # guard F4.refused
            return max(self._refused_since, self._since)
        return max(heard_at, self._since)

    def suspicion(self, heard_at: Instant, now: Instant) -> int | None:
        """Return the leader's silence to report now, in nanoseconds; `None` for none.

        The report is repeated after `repeat_ns`, as long as the silence lasts.

        Args:
            heard_at: Time of the last answer of the leader's broker in the fetch session.
                Partitions not in that answer count as served, unless refused before.
            now: Current time.
        """
        silence = now - self._alive_at(heard_at)
        if silence < self._limits.silence_ns + self._jitter_ns or now < self._report_at:
            return None
        jitter = self._rng.randrange(self._limits.jitter_ns + 1)
        self._report_at = Instant(now + self._limits.repeat_ns + jitter)
        return silence

    def restart_silence(self, now: Instant) -> None:
        """Restart the silence after a stall of this process, which says nothing of the leader."""
        self._since = now

    def repeat_report(self) -> None:
        """Repeat an active report immediately, because a new metadata leader does not know it."""
        self._report_at = NEVER
