"""Syncs appended bytes to the device: fsync policies and group commit (storage policies 2, 10).

At most one sync is in flight for a data directory. All data that becomes dirty meanwhile joins the
next sync, so that all waiters share its cost. Partitions under `commit` always join a sync; those
under `interval` join when their time or bytes are reached, a few at a time, because a sync of a
thousand files would delay commits.

Policy `never` promises nothing. Its logs are still synced in the background, rarely, because an
unsynced log must be scanned in full after a crash.

The journal has the recovery point of each log. It is flushed at most every `journal_ns` unless a
caller waits for it: syncing it with every group would double the latency of a commit (measured on
ext4: 138 us for the log alone, 270 us for both). Recovery then scans the bytes synced within that
time again. The journal is updated only after the log's sync has returned, so it never claims too
much.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from liftbridge_broker.errors import FilesError
from liftbridge_broker.model.histogram import Histogram
from liftbridge_broker.model.ids import Instant, Offset, PartitionId, earliest
from liftbridge_broker.model.streams import FsyncPolicy, StreamOptions
from liftbridge_broker.model.units import MIB, MILLISECOND_NS, SECOND_NS
from liftbridge_broker.ports.files import FileEvent, FileHandle, Files, Token
from liftbridge_broker.storage.disk import Disk
from liftbridge_broker.storage.journal import Journal
from liftbridge_broker.storage.log.types import LogLimits
from liftbridge_broker.storage.slowness import Slowness
from liftbridge_broker.storage.stored_log import StoredLog

UNHURRIED_COUNT_MAX: Final = 32
"""Maximum number of partitions not under `commit` that join a sync."""
SIZE_CHECK_APPENDS: Final = 8
"""Appends between two checks of the waiting bytes; a bound may be exceeded by that many batches."""
FULL_RETRY_NS: Final = SECOND_NS
"""Pause before the journal is written again after the disk was full."""


class Flushed(NamedTuple):
    """All records of a partition below `flushed_offset` are on the device."""

    partition_id: PartitionId
    flushed_offset: Offset


class FlushLimits(NamedTuple):
    """Bounds for data that waits for a sync.

    Attributes:
        interval_ns: Policy `interval`: maximum time until a sync.
        bytes_max: Policy `interval`: maximum unsynced bytes of a partition.
        journal_ns: Maximum time a change waits for the journal if no caller requests it.
        background_ns: Policy `never`: time after which a log is synced.
        background_bytes_max: Policy `never`: bytes after which it is synced.
    """

    interval_ns: int = SECOND_NS
    bytes_max: int = 8 * MIB
    journal_ns: int = SECOND_NS // 10
    background_ns: int = 60 * SECOND_NS
    background_bytes_max: int = 256 * MIB


@dataclass(slots=True)
class _Queue:
    """Dirty logs of one policy.

    `deadline` is the time at which the first of them must be synced.
    """

    wait_ns: int
    bytes_max: int
    waiting: list[StoredLog] = field(default_factory=list)
    deadline: Instant | None = None


class _Flight(NamedTuple):
    """A sync in flight: the logs with their ends at its start, and the waiters for the journal."""

    token: Token
    began: Instant
    logs: list[tuple[StoredLog, Offset]]
    has_journal: bool
    waiters: list[Callable[[], None]]


class FlushDriver:
    """Schedules syncs. Owned by the store; device errors are raised to it.

    Attributes:
        sync_times: Nanoseconds from the submission of a group of syncs to its end.
        slowness: Judges the disk by those times.
    """

    def __init__(
        self,
        files: Files,
        journal: Journal,
        limits: FlushLimits,
        new_token: Callable[[], Token],
        disk: Disk,
    ) -> None:
        """Start with nothing dirty.

        Args:
            files: The data directory.
            journal: Its journal.
            limits: Bounds of waiting.
            new_token: Returns tokens that are used nowhere else.
            disk: Makes room when a full disk refused the journal, which is retried later.
        """
        self.sync_times = Histogram()
        self.slowness = Slowness()
        self._files = files
        self._journal = journal
        self._limits = limits
        self._new_token = new_token
        self._disk = disk
        self._commit = _Queue(0, 0)
        self._unhurried = {
            FsyncPolicy.INTERVAL: _Queue(limits.interval_ns, limits.bytes_max),
            FsyncPolicy.NEVER: _Queue(limits.background_ns, limits.background_bytes_max),
        }
        self._journal_deadline: Instant | None = None
        self._waiters: list[Callable[[], None]] = []
        self._flight: _Flight | None = None

    def set_limits(self, limits: FlushLimits, now: Instant) -> None:
        """Apply other bounds, also to data that already waits."""
        self._limits = limits
        interval, never = self._unhurried[FsyncPolicy.INTERVAL], self._unhurried[FsyncPolicy.NEVER]
        interval.wait_ns, interval.bytes_max = limits.interval_ns, limits.bytes_max
        never.wait_ns, never.bytes_max = limits.background_ns, limits.background_bytes_max
        if interval.deadline is not None:
            interval.deadline = min(interval.deadline, Instant(now + limits.interval_ns))

    def note_append(self, stored: StoredLog, now: Instant) -> None:
        """Record that bytes were appended. Benchmark: `tests/bench/bench_store.py`."""
        policy = stored.policy
        if policy is FsyncPolicy.COMMIT:
            if not stored.is_waiting:
                stored.is_waiting = True
                self._commit.waiting.append(stored)
            if self._flight is None:
                self._submit(now)
            return
        queue = self._unhurried[policy]
        if not stored.is_waiting:
            stored.is_waiting = True
            queue.waiting.append(stored)
            if queue.deadline is None:
                queue.deadline = Instant(now + queue.wait_ns)
            stored.append_count = 0
            return
        stored.append_count += 1
        # Summing the segments costs microseconds, so not at every append.
        if stored.append_count % SIZE_CHECK_APPENDS or not self._is_large(stored, queue):
            return
        queue.deadline = now
        if self._flight is None:
            self._submit(now)

    @staticmethod
    def _is_large(stored: StoredLog, queue: _Queue) -> bool:
        return stored.log.size_bytes - stored.counted_bytes >= queue.bytes_max

    def set_policy(self, stored: StoredLog, policy: FsyncPolicy, now: Instant) -> None:
        """Apply another policy, also to data that already waits.

        Blocks for a sync of the journal if the log was strict, or is new to the journal. Later
        records must not be judged by that, nor by the policy under which the log was created.

        Raises:
            FilesError: The disk failed, or is full; the old policy stays in force.
        """
        assert policy is not FsyncPolicy.AUTO
        if policy is stored.policy:
            return
        # The next start must find in the journal the reason why this start took a log offline.
        may_journal = not stored.log.is_offline  # guard Log.offline_journal
        if may_journal and (stored.is_strict or stored.is_fresh):
            self._journal.put(stored.partition_id, stored.log.state, is_strict=False)
            if self._journal.has_pending:
                self._journal.flush()
        stored.is_strict = stored.is_fresh = False
        stored.policy = policy
        stored.log.commit = policy is FsyncPolicy.COMMIT
        stored.strict_from = stored.log.log_end_offset
        if stored.is_waiting:
            # The old queue may still contain the log, and sync it earlier than necessary.
            stored.is_waiting = False
            self.note_append(stored, now)

    def note_journal(self, now: Instant) -> None:
        """Record that the journal has a change that no caller waits for."""
        if self._journal_deadline is None:
            self._journal_deadline = Instant(now + self._limits.journal_ns)

    def require_journal(self, done: Callable[[], None], now: Instant) -> None:
        """Flush the journal at once; call `done` when all its changes so far are durable.

        Raises:
            FilesError: The device failed.
        """
        self._waiters.append(done)
        if self._flight is None:
            self._submit(now)

    def flush_journal(self, now: Instant) -> None:
        """Flush the journal, blocking; on a full disk release the reserve for it.

        Raises:
            FilesError: The disk is still full; or it failed and the directory is offline.
        """
        if self._journal.has_pending:
            self.with_reserve(self._journal.flush, now)

    def with_reserve(self, act: Callable[[], None], now: Instant) -> None:
        """Write; on a full disk release the reserve and retry; errors as above."""
        try:
            act()
        except FilesError as error:
            self._disk.on_error(error, now)
            if self._disk.failure:
                raise
            self.note_journal(now)
            act()

    def owns(self, token: Token) -> bool:
        """Return whether an event belongs to the flight in progress."""
        return self._flight is not None and self._flight.token == token

    def next_deadline(self) -> Instant | None:
        """Return the next time to call `on_timer`; none while a flight is in progress."""
        if self._flight is not None:
            return None
        queues = (queue.deadline for queue in self._unhurried.values())
        return earliest(self._journal_deadline, *queues)

    def on_timer(self, now: Instant) -> None:
        """Submit syncs that are due.

        Raises:
            FilesError: The device failed.
        """
        due = self.next_deadline()
        if due is not None and due <= now:
            self._submit(now)

    def on_event(self, event: FileEvent, now: Instant) -> list[Flushed]:
        """Complete the flight; start the next one if anything waits.

        Raises:
            FilesError: The sync failed: nothing in it may be called durable, now or later (storage
                policy 7).
        """
        flight = self._flight
        assert flight is not None
        assert flight.token == event.token
        if event.error is not None:
            raise event.error
        self._flight = None
        self.sync_times.observe(now - flight.began)
        self.slowness.end(now)
        flushed = []
        for stored, end in flight.logs:
            if stored.is_closed:
                continue
            log = stored.log
            log.mark_synced(end)
            stored.put_state(self._journal)
            flushed.append(Flushed(stored.partition_id, log.recovery_point))
        if flight.has_journal:
            self._journal.finish_flush()
        if self._journal.has_pending:
            self.note_journal(now)
        for done in flight.waiters:
            done()
        if self._flight is None and (self._commit.waiting or self._waiters or self._is_due(now)):
            self._submit(now)
        return flushed

    def _is_due(self, now: Instant) -> bool:
        due = self.next_deadline()
        return due is not None and due <= now

    def _submit(self, now: Instant) -> None:
        """Start a flight with all due logs; no flight may be in progress."""
        assert self._flight is None
        logs: list[tuple[StoredLog, Offset]] = []
        handles: list[FileHandle] = []
        directories: list[str] = []
        queue = self._commit
        self._take(queue, len(queue.waiting), logs, handles, directories)
        for queue in self._unhurried.values():
            if queue.deadline is not None and queue.deadline <= now:
                self._take(queue, UNHURRIED_COUNT_MAX - len(logs), logs, handles, directories)
                if not queue.waiting:
                    queue.deadline = None
        has_journal = self._add_journal(handles, now)
        waiters: list[Callable[[], None]] = []
        if has_journal or not self._journal.has_pending:
            waiters, self._waiters = self._waiters, []
        if not logs and not has_journal:
            for done in waiters:
                done()
            return
        token = self._new_token()
        self._flight = _Flight(token, now, logs, has_journal, waiters)
        self.slowness.begin(now)
        self._files.submit_sync(token, handles, directories)

    def _take(
        self,
        queue: _Queue,
        count_max: int,
        logs: list[tuple[StoredLog, Offset]],
        handles: list[FileHandle],
        directories: list[str],
    ) -> None:
        """Move up to `count_max` logs of a queue into a flight."""
        if count_max <= 0:
            return
        taken, queue.waiting = queue.waiting[:count_max], queue.waiting[count_max:]
        for stored in taken:
            if stored.is_closed or not stored.is_waiting:
                continue
            stored.is_waiting = False
            log = stored.log
            stored.counted_bytes = log.size_bytes
            unsynced = log.unsynced()
            handles += unsynced.handles
            directories += unsynced.directories
            logs.append((stored, log.log_end_offset))

    def _add_journal(self, handles: list[FileHandle], now: Instant) -> bool:
        """Write the journal's changes if due; return whether its handle joined the flight."""
        deadline = self._journal_deadline
        is_due = bool(self._waiters) or (deadline is not None and deadline <= now)
        if not is_due or not self._journal.has_pending:
            self._journal_deadline = None if is_due else deadline
            return False
        try:
            handles.append(self._journal.begin_flush())
        except FilesError as error:
            if not error.is_full:
                raise
            self._journal_deadline = Instant(now + FULL_RETRY_NS)
            self._disk.on_full(now)
            return False
        self._journal_deadline = None
        return True


def effective_policy(policy: FsyncPolicy) -> FsyncPolicy:
    """Return the policy in force for a single replica: `auto` waits for the disk."""
    return FsyncPolicy.COMMIT if policy is FsyncPolicy.AUTO else policy


def limits_of_log(options: StreamOptions) -> LogLimits:
    """Return the limits at which a log rolls, by the settings of its stream."""
    return LogLimits(options.segment_bytes_max, options.segment_age_ms_max * MILLISECOND_NS)
