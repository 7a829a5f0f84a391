"""The store: all logs of a data directory, their journal, flushing, cleaning and shutdown.

Start: `start.open_store`, then `LogStore.open` for every partition that the metadata names, then
`begin`, which makes the result of recovery durable and removes the clean marker; appends follow.
Operation: the owner appends to the logs and reports that by `note_append`; events and the timer are
inputs, `Flushed` is the output. End: `close`, which leaves a clean marker, or `abandon`.

After a device failure, nothing in the directory is called durable, written or retried any more
(storage policy 7): `disk` knows, and notifies the node.
"""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from liftbridge_broker.errors import CorruptionError, FilesError
from liftbridge_broker.logformat.cipher import BatchCipher
from liftbridge_broker.model.ids import (
    Instant,
    MetadataIndex,
    Offset,
    PartitionId,
    StreamName,
    earliest,
)
from liftbridge_broker.model.streams import FsyncPolicy, StreamOptions
from liftbridge_broker.model.units import MIB, MILLISECOND_NS
from liftbridge_broker.ports.files import FileEvent, Files, Token
from liftbridge_broker.ports.observe import Observer
from liftbridge_broker.storage.cleaning.cleaner import AgeClock, Cleaner, Removals
from liftbridge_broker.storage.cleaning.compaction import SubmitCompaction
from liftbridge_broker.storage.cleaning.compactions import Compactions
from liftbridge_broker.storage.cleaning.retention import FindCursor
from liftbridge_broker.storage.cuts import announce_cuts, cut_logs, restart_log
from liftbridge_broker.storage.directory import (
    CleanMarker,
    DataDirectory,
    note_known_index,
)
from liftbridge_broker.storage.disk import Disk
from liftbridge_broker.storage.flush import (
    FlushDriver,
    Flushed,
    FlushLimits,
    effective_policy,
    limits_of_log,
)
from liftbridge_broker.storage.journal import Journal, LoadedJournal
from liftbridge_broker.storage.last_stop import LastStop
from liftbridge_broker.storage.log.partition_log import PartitionLog
from liftbridge_broker.storage.notes import LogNotes
from liftbridge_broker.storage.opening import Opener
from liftbridge_broker.storage.publishers import save_publishers
from liftbridge_broker.storage.reporting import Reporter
from liftbridge_broker.storage.reserve import SpaceLimits
from liftbridge_broker.storage.stored_log import StoredLog
from liftbridge_broker.storage.trash import TrashBin


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Settings of a store.

    Attributes:
        label: Path of the data directory, for messages.
        flush: Bounds for data that waits for a sync.
        space: Limits at which the disk counts as full.
        trash_grace_ns: Time for which deleted logs are kept.
        known_names: Names in the data directory of other components, such as the metadata log.
        rewrite_bytes_min: Size below which the journal only grows.
    """

    label: str = ""
    flush: FlushLimits = field(default_factory=FlushLimits)
    space: SpaceLimits = field(default_factory=SpaceLimits)
    trash_grace_ns: int = 24 * 3_600_000 * MILLISECOND_NS
    known_names: tuple[str, ...] = ()
    rewrite_bytes_min: int = 4 * MIB


class OpenedLog(NamedTuple):
    """An opened log; `reason` is the cause if it is unusable, else empty."""

    log: PartitionLog
    reason: str


class LogStore:
    """All logs of one data directory; owned by the node, created by `open_store`.

    Attributes:
        identity, is_identity_new: Identity of the directory, and whether this start created it.
        last_stop: How the previous broker left the directory.
        sync_times: Nanoseconds that groups of syncs took.
        slowness: Judges the disk by those times.
        unknown_count: Unknown entries that `begin` found in the directory.
        disk: Whether the disk is in order, full or failed.
        notes: The small files beside the logs.
    """

    def __init__(
        self,
        files: Files,
        directory: DataDirectory,
        journal: Journal,
        loaded: LoadedJournal,
        last_stop: LastStop,
        options: StoreOptions,
        *,
        observer: Observer,
        new_token: Callable[[], Token],
        runner: SubmitCompaction | None,
        now: Instant,
    ) -> None:
        """Take over the data that `open_store` read."""
        self._files = files
        self._directory = directory
        self._journal = journal
        self.last_stop = last_stop
        self._opener = Opener(files, directory, journal, loaded, last_stop)
        self._options = options
        self._reporter = Reporter(observer)
        self._opened_at = now
        self._opened_wall_ns = 0
        self._trash = TrashBin(files, directory, options.trash_grace_ns, new_token)
        self.disk = Disk(files, options.space, self._trash, self._reporter, options.label)
        self._flush = FlushDriver(files, journal, options.flush, new_token, self.disk)
        self.sync_times, self.slowness = self._flush.sync_times, self._flush.slowness
        self._removals = Removals(files, new_token)
        save = partial(save_publishers, files)
        self._compactions = Compactions(
            files, runner, self._removals, new_token, save=save, reporter=self._reporter
        )
        self._cleaner = Cleaner(
            journal,
            self._flush,
            self._removals,
            save=save,
            to_trash=self._trash.take_segments,
            compact=self._compactions.request,
            reporter=self._reporter,
            disk=self.disk,
        )
        self._logs = dict[PartitionId, StoredLog]()
        self.notes = LogNotes(files, self.disk, self._flush, self._logs)
        self._scanned_bytes, self._has_begun = 0, False
        self.identity, self.is_identity_new = directory.identity, directory.is_identity_new
        self.unknown_count = 0

    def start(self, wall_ns: int) -> None:
        """Check disk space and trash; called once.

        Raises:
            FilesError: The disk failed.
        """
        self._opened_wall_ns = wall_ns
        self.disk.space.open(self._opened_at)
        self._trash.begin(self._opened_at)

    def open(
        self, partition: PartitionId, name: StreamName, options: StreamOptions, now: Instant
    ) -> OpenedLog:
        """Open the log of a partition; recover it if needed, and create it if it is missing.

        It must not be open yet. Fsync policy `auto` counts as `commit`, which is right for a single
        replica (see `set_policy`).

        Raises:
            FilesError: The files cannot be read or created; nothing was lost.
        """
        assert partition not in self._logs
        if self._journal.may_know(partition):  # guard Log.anew
            # After a crash, the new log would be shorter than the former log in the journal.
            self._flush.flush_journal(now)
        stored, report = self._opener.open(partition, name, options)
        self._logs[partition], log = stored, stored.log
        self._scanned_bytes += report.scanned_bytes
        self._reporter.report_recovery(stored, report)
        if log.is_offline:
            for path in report.quarantined:
                self.notes.note_damage(partition, path, now)
            return OpenedLog(log, report.reason or "damaged: " + ", ".join(report.quarantined))
        stored.put_state(self._journal)
        self._cleaner.add(stored, now)
        if self._has_begun:
            self._flush.note_journal(now)
        if log.is_dirty:
            # A killed process leaves bytes that are visible and not durable.
            self.note_append(partition, now)
        return OpenedLog(log, "")

    def make(self, partitions: Sequence[PartitionId], name: StreamName) -> None:
        """Create the directories of new logs of a stream with one sync; raise `FilesError`."""
        self._directory.make_logs(partitions, name)

    def begin(self, applied_index: MetadataIndex, now: Instant) -> None:
        """Make the state durable and remove the clean marker once all partitions are open.

        Must return before the first append, and before metadata after `applied_index` are applied.
        Blocks for a few syncs.

        Raises:
            FilesError: The disk failed.
        """
        assert not self._has_begun
        self._has_begun = True
        kept = self._directory.logs()
        self._opener.forget_others(kept)
        unopened = [kept[partition] for partition in self.unopened()]
        unknown = (*self._directory.unknown, *unopened)
        self.unknown_count = len(unknown)
        for path in unknown:
            self._reporter.report("unknown_directory_kept", path=path)
        try:
            self._flush.flush_journal(now)
        except FilesError as error:
            # Recovery can find its result again; a full disk is no reason not to serve.
            if not error.is_full:
                raise
        self.last_stop.read_known(self._files, applied_index)
        self._directory.remove_clean_marker()
        self._reporter.report(
            "data_directory_opened",
            path=self._options.label,
            partitions=len(self._logs),
            is_clean=self.last_stop.was_clean,
            scanned_bytes=self._scanned_bytes,
            duration_ms=(now - self._opened_at) // MILLISECOND_NS,
        )

    def begin_session(self, applied_index: MetadataIndex, now: Instant) -> None:
        """Record that the metadata group knows which logs this process recovered whole."""
        self.note_known(applied_index, now)
        self._opener.in_session = True
        for stored in self._logs.values():
            stored.in_session = True
            if not stored.log.is_offline:
                stored.put_state(self._journal)
        if self._journal.has_pending:
            self._flush.note_journal(now)

    def note_known(self, applied_index: MetadataIndex, now: Instant) -> None:
        """Record that logs are synced by the latest policies in these metadata."""
        self.disk.run(lambda: note_known_index(self._files, applied_index), now)

    def unopened(self) -> tuple[PartitionId, ...]:
        """Return the logs in the directory that are not open."""
        return tuple(key for key in sorted(self._directory.logs()) if key not in self._logs)

    def finish_deletions(self, deleted: Container[PartitionId], now: Instant) -> None:
        """Move logs that are not open to the trash if their deletion is known.

        They remain after a kill between the committed deletion of a stream and the move of its
        logs. An unknown log is not deleted (storage policy 9).
        """
        for partition in self.unopened():
            if partition in deleted:
                path = self._directory.log_path(partition)
                self.delete((partition,), now, self._opened_wall_ns)
                self.unknown_count = max(0, self.unknown_count - 1)
                self._reporter.report("deletion_completed", path=path)

    # Settings.

    def log(self, partition: PartitionId) -> PartitionLog | None:
        """Return the open log of a partition."""
        stored = self._logs.get(partition)
        return None if stored is None else stored.log

    def set_options(self, partition: PartitionId, options: StreamOptions, now: Instant) -> None:
        """Apply settings of a stream."""
        stored = self._logs[partition]
        stored.options = options
        stored.log.limits = limits_of_log(options)
        self.set_policy(partition, effective_policy(options.fsync_policy), now)

    def was_strict(self, partition: PartitionId) -> bool:
        """Return whether an open log was written under policy `commit` alone when it was opened."""
        return self._logs[partition].was_strict

    def set_policy(self, partition: PartitionId, policy: FsyncPolicy, now: Instant) -> None:
        """Apply an fsync policy; the caller, which knows the ISR, resolves `auto`."""
        stored = self._logs[partition]
        put = partial(self._flush.set_policy, stored, policy, now)
        self.disk.run(lambda: self._flush.with_reserve(put, now), now)

    def set_limits(self, options: StoreOptions, now: Instant) -> None:
        """Apply other bounds of flushing and free space and another grace time."""
        self._options = options
        self._flush.set_limits(options.flush, now)
        self._trash.set_grace(options.trash_grace_ns, now)
        self.disk.space.set_free_bytes_min(options.space.free_bytes_min)
        self.disk.run(lambda: self.disk.space.check(now), now)

    def set_leader(
        self,
        partition: PartitionId,
        *,
        is_leader: bool,
        on_trimmed: Callable[[], None] | None = None,
    ) -> None:
        """Set whether this broker moves a partition's log start, and the callback for moves."""
        self._logs[partition].is_leader, self._logs[partition].on_trimmed = is_leader, on_trimmed

    def set_damage_listener(
        self, partition: PartitionId, listener: Callable[[CorruptionError], None]
    ) -> None:
        """Set the callback for damage that compaction finds in a log."""
        self._logs[partition].on_damaged = listener

    def set_cipher(self, partition: PartitionId, cipher: BatchCipher) -> None:
        """Set the cipher with which compaction reads and writes an encrypted log."""
        self._logs[partition].cipher = cipher

    def set_compaction_listener(self, listener: Callable[[PartitionId], None]) -> None:
        """Set the callback for a log whose compacted offset has moved."""
        self._compactions.on_compacted = listener

    def set_cursor_finder(self, find: FindCursor) -> None:
        """Set the look-up of cursors that hold retention back."""
        self._cleaner.find_cursor = find

    def set_age_clock(self, clock: AgeClock) -> None:
        """Set the clock for the age of records; the default is the wall clock."""
        self._cleaner.age_clock = clock

    # Operation.

    def note_append(self, partition: PartitionId, now: Instant) -> None:
        """Record an append to a log: its bytes wait for a sync by its policy."""
        disk = self.disk
        if disk.failure:
            return
        try:
            self._flush.note_append(self._logs[partition], now)
        except FilesError as error:
            disk.on_error(error, now)
        if now >= disk.space.check_due:
            disk.run(lambda: disk.space.check(now), now)

    def journal_state(self, partition: PartitionId, done: Callable[[], None], now: Instant) -> None:
        """Journal the log's current state, mainly its epochs; call `done` once it is durable.

        `done` is never called if the device fails first.
        """
        stored = self._logs[partition]
        stored.put_state(self._journal)
        self.disk.run(lambda: self._flush.require_journal(done, now), now)

    def truncate(self, cuts: Sequence[tuple[PartitionId, Offset]], now: Instant) -> None:
        """Truncate logs, each at its offset, with one sync of the journal for all of them.

        Raises:
            FilesError: The disk is full and nothing was truncated; or it failed, the directory is
                offline, and the next start finds each log either truncated or not.
        """
        logs = [(self._logs[partition], end) for partition, end in cuts]
        announce_cuts(self._journal, logs)
        self._flush.flush_journal(now)
        try:
            cut_logs(self._journal, self._reporter, logs)
        except FilesError as error:
            self.disk.fail(error)
            raise
        for partition, end in cuts:
            self.notes.lower_dropped(partition, end, now)
        self._flush.note_journal(now)

    def restart(self, partition: PartitionId, offset: Offset, now: Instant) -> None:
        """Drop a log and continue at an offset, below its start if empty; or raise `FilesError`."""
        flush = partial(self._flush.flush_journal, now)
        try:
            restart_log(self._journal, self._reporter, self._logs[partition], offset, flush)
        except FilesError as error:
            self.disk.on_error(error, now)
            raise
        self.notes.lower_dropped(partition, offset, now)
        self._flush.note_journal(now)

    def raise_log_start(self, partition: PartitionId, offset: Offset, now: Instant) -> None:
        """Hide records below an offset, durably; whole segments below it are removed."""
        stored = self._logs[partition]
        self.disk.run(lambda: self._cleaner.raise_log_start(stored, offset, "request", now), now)

    def delete(self, partitions: Sequence[PartitionId], now: Instant, wall_ns: int) -> None:
        """Move logs of partitions to the trash; only on a committed command (storage policy 9)."""
        for partition in partitions:
            stored = self._logs.pop(partition, None)
            if stored is not None:
                stored.is_closed = True
                stored.log.abandon()
            self._journal.forget(partition)
        date_ns = self._cleaner.age_ns(now, wall_ns) or wall_ns
        self.disk.run(lambda: self._trash.take_logs(partitions, date_ns, now), now)
        self._flush.note_journal(now)

    def next_deadline(self) -> Instant | None:
        """Return the next time to call `on_timer`, `None` for never."""
        if self.disk.failure:
            return None
        return earliest(
            self._flush.next_deadline(),
            self._cleaner.next_deadline(),
            self._trash.next_deadline(),
            self._compactions.next_deadline(),
            self.disk.space.next_deadline(),
        )

    def on_timer(self, now: Instant, wall_ns: int) -> None:
        """Do the work that is due."""
        self.disk.run(lambda: self._on_timer(now, wall_ns), now)

    def owns(self, token: Token) -> bool:
        """Return whether an event belongs to the store."""
        owners = (self._flush, self._removals, self._trash, self._compactions)
        return any(owner.owns(token) for owner in owners)

    def on_file_event(self, event: FileEvent, now: Instant) -> Sequence[Flushed]:
        """Complete a call of the store; return what became durable, in the order of submission."""
        if self.disk.failure:
            return ()
        try:
            if self._flush.owns(event.token):
                return self._flush.on_event(event, now)
            if self._trash.owns(event.token):
                self._on_purged(event, now)
            elif self._removals.owns(event.token):
                self._removals.on_event(event)
            else:
                self._compactions.on_event(event, now)
        except FilesError as error:
            self.disk.on_error(error, now)
        return ()

    # End.

    def close(self, broker_epoch: int) -> None:
        """Sync and close everything and leave the clean marker; blocks until done.

        Raises:
            FilesError: The disk failed, so the stop is not clean and there is no marker.
        """
        self._compactions.stop()
        if self.disk.failure:
            self.abandon()
            return
        try:
            for stored in self._logs.values():
                stored.is_closed = True
                self.notes.write_last(stored)
                stored.log.close()
                if not stored.log.is_offline:
                    stored.put_state(self._journal)
            self._journal.flush()
            self._journal.close()
            self._directory.write_clean_marker(CleanMarker(broker_epoch, self._journal.stamp))
        except FilesError as error:
            self.disk.fail(error)
            raise

    def abandon(self) -> None:
        """Close all files and do nothing else; the next start recovers."""
        self._compactions.stop()
        for stored in self._logs.values():
            stored.is_closed = True
            stored.log.abandon()
        self._journal.close()

    def _on_timer(self, now: Instant, wall_ns: int) -> None:
        self._flush.on_timer(now)
        self._cleaner.on_timer(now, wall_ns)
        self._trash.on_timer(now, self._cleaner.age_ns(now, wall_ns))
        self._compactions.on_timer(now)
        self.disk.on_timer(now)

    def _on_purged(self, event: FileEvent, now: Instant) -> None:
        size = self._trash.on_event(event, now)
        self._reporter.report("trash_purged", entries=1, bytes=size)
        self.disk.make_room()
