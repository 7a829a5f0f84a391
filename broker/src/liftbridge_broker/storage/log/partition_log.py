"""The commit log of one partition: segments in order, the newest open for appends.

Holds bytes, offsets and epochs; knows nothing of leaders, ISR or acks. The owner decides what is
committed and when to sync. Rules: bytes are sent as they are stored; storage policies 3 and 4.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final, Self

from liftbridge_broker.logformat.batch import COVERED_START, BatchHeader
from liftbridge_broker.logformat.index_blocks import RELATIVE_MAX
from liftbridge_broker.model.ids import OFFSET_MAX, Offset, PartitionId
from liftbridge_broker.model.partitions import NOT_COPIED
from liftbridge_broker.ports.files import FileHandle, Files
from liftbridge_broker.storage.log import rewrite
from liftbridge_broker.storage.log.batch_reader import BatchReader
from liftbridge_broker.storage.log.epochs import LeaderEpochCache
from liftbridge_broker.storage.log.reader import LogReader
from liftbridge_broker.storage.log.recovery import recover
from liftbridge_broker.storage.log.segment import CLEANED_SUFFIX, Segment
from liftbridge_broker.storage.log.state import LogState
from liftbridge_broker.storage.log.types import LogLimits, RecoveryReport, SegmentInfo, Unsynced

INDEX_HANDLES_MAX: Final = 8
"""Index files kept open for the next sync; losing older files costs only a rebuild."""


class PartitionLog:
    """Log of one partition, owned by one `LogStore` and used from one thread.

    Attributes:
        partition_id: Partition the batches belong to.
        directory: Folder of its files.
        log_start_offset: First offset that readers may read.
        log_end_offset: Offset of the next record.
        high_watermark: First offset not known to be committed; set by the owner.
        recovery_point: Offset below which all records are synced.
        epochs: Leader epochs; an append of a new epoch adds it.
        commit: Whether the fsync policy in force is `commit`; set by the owner.
        compacted_offset: Offset below which keys have only their newest record; 0 if unknown.
        compacted_everywhere: Minimum of that of all replicas, set by the owner; 0 if unknown.
        dropped_offset: Offset below which tombstones may be missing; may exceed a copy's end.
        copied: Offset that a copy of a compacted log must reach.
        largest_timestamp: Largest timestamp ever appended, `NO_TIMESTAMP` for none.
        generation: Changes when segments are cut, dropped or replaced: readers seek again.
        is_offline: Whether recovery found rot, which must not be cut; then appends are refused.
        index_failures: Number of failed index writes; such indexes are rebuilt later.
    """

    __slots__ = (
        "_active",
        "_bases",
        "_files",
        "_index_handles",
        "_segments",
        "_sync_limit",
        "_syncing",
        "_syncing_indexes",
        "commit",
        "compacted_everywhere",
        "compacted_offset",
        "copied",
        "directory",
        "dropped_offset",
        "epochs",
        "generation",
        "high_watermark",
        "index_failures",
        "is_offline",
        "largest_timestamp",
        "limits",
        "log_end_offset",
        "log_start_offset",
        "partition_id",
        "recovery_point",
    )

    def __init__(
        self,
        files: Files,
        directory: str,
        partition_id: PartitionId,
        limits: LogLimits,
        segments: Sequence[Segment],
        state: LogState,
    ) -> None:
        """Take over the result of recovery; use `open`.

        Args:
            files: Port to the data directory.
            directory: Folder of the log's files.
            partition_id: Partition of the log.
            limits: When to roll.
            segments: At least one, adjoining, all but the last sealed.
            state: Small state, consistent with the segments.
        """
        assert segments
        self._files = files
        self.directory = directory
        self.partition_id = partition_id
        self.limits = limits
        self._segments = list(segments)
        self._bases = [segment.base_offset for segment in segments]
        self._active = segments[-1]
        self.log_start_offset = state.log_start
        self.log_end_offset = self._active.end_offset
        self.high_watermark = state.high_watermark
        self.recovery_point = state.recovery_point
        self.epochs = LeaderEpochCache(state.epochs)
        self.compacted_offset = self.compacted_everywhere = self.dropped_offset = Offset(0)
        self.copied = NOT_COPIED
        self.generation = self.index_failures = 0
        self.commit = self.is_offline = False
        self.largest_timestamp = max(one.largest_timestamp for one in segments)
        self._sync_limit = Offset(OFFSET_MAX)
        self._syncing: list[Segment] = []
        self._index_handles: list[FileHandle] = []
        self._syncing_indexes: list[FileHandle] = []

    @classmethod
    def open(
        cls,
        files: Files,
        directory: str,
        partition_id: PartitionId,
        limits: LogLimits,
        state: LogState | None,
        *,
        clean: bool,
        commit: bool,
        on_doubt: Callable[[], object] = lambda: None,
    ) -> tuple[Self, RecoveryReport]:
        """Open a log, recover it by storage policy 4, and report the findings.

        With anything quarantined the log is offline and its files are unchanged.

        Args:
            files: Port to the data directory.
            directory: Folder of the log's files; created when missing.
            partition_id: Partition that the batches must be of.
            limits: When to roll.
            state: State in the journal; `None` if lost: then all is scanned as for `commit`.
            clean: Whether the broker stopped in order after the last append.
            commit: Whether the fsync policy was `commit`: only the last write may be truncated.
            on_doubt: Called before a truncation under `commit` of records that may have counted.

        Raises:
            FilesError: The file system failed; nothing was lost.
        """
        found = recover(
            files, directory, partition_id, state, clean=clean, commit=commit, on_doubt=on_doubt
        )
        log = cls(files, directory, partition_id, limits, found.segments, found.state)
        log.commit = commit
        log.is_offline = bool(found.report.quarantined)
        return log, found.report

    # Appending.

    def append(self, batch: bytes, header: BatchHeader, wall_ns: int) -> None:
        """Append one sealed batch at the end; roll first if the limits require it.

        Args:
            batch: The whole batch, verified by its source.
            header: Its header.
            wall_ns: Wall clock, for the age of segments.

        Raises:
            FilesError: The file system refused; the log is unchanged.
        """
        self.append_batches(batch, (header,), wall_ns)

    def append_batches(self, data: bytes, headers: Sequence[BatchHeader], wall_ns: int) -> None:
        """Append joined batches with one write; arguments and errors as for `append`.

        Measured by tests/bench/bench_log.py.
        """
        assert not self.is_offline
        self._check_follow(data, headers)
        segment = self._active
        if segment.size and (self.needs_roll(wall_ns) or not segment.fits(headers[-1], len(data))):
            self.roll()
            segment = self._active
        handle = segment.handle
        if handle is None:
            handle = segment.open()
        if not segment.size:
            segment.first_append_ns = wall_ns
        # Load before the write: otherwise a batch refused for its index reappears at a start.
        segment.load_index()
        self._files.append(handle, data)
        latest = self.epochs.latest
        for header in headers:
            if header.leader_epoch != latest:
                latest = header.leader_epoch
                self.epochs.assign(latest, header.base_offset)
            segment.note_batch(header)
        self.log_end_offset = segment.end_offset
        self.largest_timestamp = max(self.largest_timestamp, segment.largest_timestamp)
        if segment.has_index_block:
            self.index_failures += segment.write_index_block()

    def _check_follow(self, data: bytes, headers: Sequence[BatchHeader]) -> None:
        """Assert, before the write, that batches belong at the end of this log."""
        expected: int = self.log_end_offset
        epoch: int = self.epochs.latest or 0
        size = 0
        for header in headers:
            assert header.base_offset == expected
            assert header.leader_epoch >= epoch
            assert header.partition_id == self.partition_id
            expected, epoch = header.last_offset + 1, header.leader_epoch
            size += COVERED_START + header.length
        assert size == len(data)

    def needs_roll(self, wall_ns: int) -> bool:
        """Return whether the active segment is at its size or age limit; never when it is empty."""
        size, (bytes_max, age_max) = self._active.size, self.limits
        if not size:
            return False
        if bytes_max and size >= bytes_max:
            return True
        # Also if its start is that much in the future, because the clock was set back.
        return bool(age_max) and abs(wall_ns - self._active.first_append_ns) >= age_max

    def roll(self) -> None:
        """Seal the active segment and start a new one; no-op if it is empty.

        The name of the sealed segment is made durable first, so that no power cut leaves a gap
        between files; in commit mode also its records: a batch in the new segment must never be
        durable before the batches in front of it.

        Raises:
            FilesError: The sync failed; the log is unchanged and its disk is not to be trusted.
        """
        segment = self._active
        if not segment.size:
            return
        if self.commit and self.is_dirty:
            self._files.sync(segment.open())
        if segment.is_name_new:  # guard Log.names_in_order
            self._files.sync_directory(self.directory)
            segment.is_name_new = False
        self._write_index(segment)
        segment.is_sealed = True
        self._start_segment(self.log_end_offset)

    # Syncing.

    @property
    def is_dirty(self) -> bool:
        """Return whether anything was appended that is not known to be durable."""
        return self.recovery_point < self.log_end_offset

    @property
    def is_empty(self) -> bool:
        """Return whether the log has no record at or above the log start."""
        return self.log_start_offset == self.log_end_offset

    @property
    def compacted_from(self) -> Offset:
        """Base offset of the first segment that lost records to compaction, or the log end."""
        compacted = (segment.base_offset for segment in self._segments if segment.is_compacted)
        return next(compacted, self.log_end_offset)

    def unsynced(self) -> Unsynced:
        """Return what to sync, after which `mark_synced(log_end_offset)` may be called.

        Starts a sync: at most one is in flight for a log, and until `mark_synced` its handles stay
        open. Also names index files of sealed segments, whose loss would only cost a rebuild.

        Raises:
            FilesError: A file cannot be opened.
        """
        handles: list[FileHandle] = []
        for segment in reversed(self._segments):
            if segment.end_offset <= self.recovery_point:
                break
            if segment.size:
                handles.append(segment.open())
                if not segment.is_syncing:
                    segment.is_syncing = True
                    self._syncing.append(segment)
        self._syncing_indexes += self._index_handles
        self._index_handles.clear()
        self._sync_limit = Offset(OFFSET_MAX)
        is_new = any(segment.is_name_new for segment in self._syncing)  # guard Log.names
        return Unsynced(
            (*reversed(handles), *self._syncing_indexes), (self.directory,) if is_new else ()
        )

    def mark_synced(self, log_end_offset: Offset) -> None:
        """Record that the sync that `unsynced` started succeeded.

        Args:
            log_end_offset: End of the log when the sync was submitted. Records truncated since do
                not count, nor do their replacements.
        """
        limit = min(log_end_offset, self._sync_limit)
        self.recovery_point = max(self.recovery_point, limit)
        assert self.recovery_point <= self.log_end_offset
        for segment in self._syncing:
            segment.is_name_new = False
        self._end_sync()

    def _end_sync(self) -> None:
        """Release the handles of a sync that is no longer in flight."""
        for segment in self._syncing:
            segment.end_sync()
        self._syncing.clear()
        for handle in self._syncing_indexes:
            self._files.close(handle)
        self._syncing_indexes.clear()

    # Reading.

    def reader(self, offset: Offset) -> LogReader:
        """Create a reader of record frames from an offset on, or from the log start if higher."""
        return LogReader(self, offset)

    def batch_reader(self, offset: Offset) -> BatchReader:
        """Create a reader of stored batches from an offset on, for replicas and bulk readers."""
        return BatchReader(self, offset)

    def read_batches(self, offset: Offset, max_bytes: int, end: Offset) -> bytes:
        """Read the stored batches of [offset, end), verified; `batch_reader` does not block.

        Batches that `offset` or `end` fall into are re-cut, so that the result covers exactly a
        range that starts at `offset`.

        Args:
            offset: First offset, at least the log start.
            max_bytes: Bound of the result; one batch is returned even when it is larger.
            end: First offset not to return.

        Raises:
            CorruptionError: A batch in the range is damaged.
            FilesError: The file cannot be read.
        """
        assert offset >= self.log_start_offset
        reader = BatchReader(self, offset)
        result = reader.read(max_bytes, end)
        while result.need is not None:
            handle, position, length = result.need
            reader.feed(self._files.read(handle, position, length))
            result = reader.read(max_bytes, end)
        reader.close()
        return b"".join(result.slices)

    def segment_at(self, offset: Offset) -> Segment | None:
        """Return the segment whose range holds an offset, `None` outside of the log."""
        number = bisect_right(self._bases, offset) - 1
        if number < 0 or offset >= self.log_end_offset:
            return None
        return self._segments[number]

    def live_segments(self) -> tuple[Segment, ...]:
        """Return all segments, oldest first; for look-ups and readers of this package."""
        return tuple(self._segments)

    # Segments.

    @property
    def size_bytes(self) -> int:
        """Bytes of all log files."""
        return sum(segment.size for segment in self._segments)

    @property
    def segment_count(self) -> int:
        """Number of segments, the active one included, even when it is empty."""
        return len(self._segments)

    @property
    def state(self) -> LogState:
        """State for the journal."""
        return LogState(
            self.log_start_offset, self.recovery_point, self.high_watermark, self.epochs.entries
        )

    def segments(self) -> tuple[SegmentInfo, ...]:
        """Return all segments, oldest first; the last one is active and may be empty."""
        return tuple(segment.info for segment in self._segments)

    def set_log_start(self, offset: Offset) -> None:
        """Raise the log start to an offset, at most the log end; no-op below the log start."""
        assert offset <= self.log_end_offset
        if offset <= self.log_start_offset:
            return
        self.log_start_offset = offset
        self.epochs.clamp(offset)  # guard Epochs.clamp

    def drop_segments_below(self, offset: Offset) -> list[str]:
        """Remove sealed segments that end at or below an offset from the log.

        Args:
            offset: At most the log start, which the owner has journaled durably: from then on the
                files are obsolete, and after a crash the next start removes them.

        Returns:
            Paths that the owner must remove.
        """
        assert offset <= self.log_start_offset
        paths: list[str] = []
        while len(self._segments) > 1 and self._segments[0].end_offset <= offset:
            paths += self._take_out(0)
        return paths

    def restart_at(self, offset: Offset) -> None:
        """Drop everything and continue at an offset: the leader no longer has older records.

        Args:
            offset: New log start and end, which the owner has journaled durably as log start; or,
                for a log without records, below the current start and journaled afterwards.

        Raises:
            FilesError: A file could not be removed.
        """
        assert offset >= self.log_start_offset or self.is_empty
        paths: list[str] = []
        while self._segments:
            paths += self._take_out(len(self._segments) - 1)
        self._close_index_handles()
        self._start_segment(offset)
        self.log_start_offset = self.log_end_offset = self.high_watermark = offset
        self.recovery_point = offset
        self.compacted_offset = min(self.compacted_offset, offset)
        self._sync_limit = min(self._sync_limit, offset)
        self.epochs.clear()
        self._remove_files(paths)

    def truncate(self, end: Offset) -> None:
        """Remove everything from an offset on; a batch that it falls into is re-cut.

        The owner has durably journaled a recovery point of at most `end` before. The remaining
        records are as durable as before; readers look up their positions again.

        Args:
            end: New log end offset, at least the log start.

        Raises:
            FilesError: The file system failed; the next start completes the truncation.
            CorruptionError: The batch at `end` is damaged.
        """
        assert end >= self.log_start_offset
        self.epochs.truncate(end)
        if end >= self.log_end_offset:
            return
        self.generation += 1
        self.recovery_point = min(self.recovery_point, end)
        self.compacted_offset = min(self.compacted_offset, end)
        self._sync_limit = min(self._sync_limit, end)
        while self._active.base_offset >= end and len(self._segments) > 1:
            # Newest first, each removal durable, so that no crash leaves a gap.
            self._remove_files(self._take_out(len(self._segments) - 1))
            self._active = self._segments[-1]
        if self._active.base_offset >= end:
            self._remove_files(self._take_out(0))
            self._start_segment(end)
        elif end < self._active.end_offset:
            rewrite.truncate_segment(self._active, end)
        self._active.is_sealed = False
        self.log_end_offset = end
        self.high_watermark = min(self.high_watermark, end)
        self.largest_timestamp = max(segment.largest_timestamp for segment in self._segments)

    def replace_segments(self, bases: Sequence[Offset], cleaned: str) -> list[str]:
        """Replace adjoining sealed segments by one compacted file.

        Args:
            bases: Base offsets of the segments, within `RELATIVE_MAX` offsets; the first names the
                remaining file.
            cleaned: Path of the compacted file, `<log file of the first>.cleaned`, synced. It
                covers the same range; its index may be `<index file>.cleaned` in the same folder.

        Returns:
            Paths that the owner must remove.

        Raises:
            CorruptionError: The compacted file does not cover the range; nothing was changed.
            FilesError: The file system failed; the next start finds a whole log.
        """
        first = self._bases.index(bases[0])
        old = self._segments[first : first + len(bases)]
        assert [segment.base_offset for segment in old] == list(bases)
        assert all(segment.is_sealed for segment in old)
        assert bases[-1] - bases[0] <= RELATIVE_MAX
        assert cleaned == old[0].path + CLEANED_SUFFIX
        made = rewrite.swap_in(old[0], end=old[-1].end_offset)
        self.generation += 1
        paths = [path for segment in old[1:] for path in (segment.path, segment.index_path)]
        for segment in old:
            segment.bury()
        self._segments[first : first + len(old)] = [made]
        self._bases[first : first + len(old)] = [made.base_offset]
        return paths

    def _start_segment(self, base_offset: Offset) -> None:
        """Make a new, empty segment the active one; the first append creates its files."""
        self._active = Segment(self._files, self.directory, self.partition_id, base_offset)
        self._segments.append(self._active)
        self._bases.append(base_offset)

    def _take_out(self, number: int) -> list[str]:
        """Remove a segment from the list of segments; return the paths of its files."""
        segment = self._segments.pop(number)
        del self._bases[number]
        self.generation += 1
        segment.bury()
        return [segment.path, segment.index_path] if segment.has_files else []

    def _remove_files(self, paths: Sequence[str]) -> None:
        """Remove files of the log durably."""
        for path in paths:
            self._files.remove(path)
        self._files.sync_directory(self.directory)

    def _write_index(self, segment: Segment) -> None:
        """Complete the index file of a segment; it is synced with the log later."""
        handle = segment.write_index()
        if handle is not None:
            if len(self._index_handles) >= INDEX_HANDLES_MAX:
                self._files.close(self._index_handles.pop(0))
            self._index_handles.append(handle)
        elif not segment.is_index_written:
            self.index_failures += 1

    # Closing.

    def close_idle(self) -> int:
        """Close handles that no operation in flight needs, and drop idle indexes.

        Files with unsynced data stay open, so that an error of their write-back is not missed.

        Returns:
            Number of handles closed.
        """
        closed = 0
        for segment in self._segments:
            if segment.end_offset <= self.recovery_point:
                closed += segment.close()
            segment.drop_index()
        if not self.is_dirty:
            closed += self._close_index_handles()
        return closed

    def _close_index_handles(self) -> int:
        """Close index files that wait for the next sync; return their number."""
        count = len(self._index_handles)
        for handle in self._index_handles:
            self._files.close(handle)
        self._index_handles.clear()
        return count

    def close(self) -> None:
        """Make everything durable, complete the index, close all handles.

        Afterwards `recovery_point` is the log end offset, as the journal of a clean stop needs.

        Raises:
            FilesError: A sync failed: the stop is not clean.
        """
        if not self.is_offline:
            if self.is_dirty:
                for handle in self.unsynced().handles:
                    self._files.sync(handle)
            # Also of a file whose first record a full disk refused.
            if any(segment.is_name_new for segment in self._segments):  # guard Log.names_at_stop
                self._files.sync_directory(self.directory)
            self.mark_synced(self.log_end_offset)
            self._write_index(self._active)
        self.abandon()

    def abandon(self) -> None:
        """Only close all handles; for a log whose disk failed.

        No sync is in flight. A file with a pending read is closed when the reader is fed or closed.
        """
        self._end_sync()
        self._close_index_handles()
        for segment in self._segments:
            segment.bury()
        self.generation += 1
