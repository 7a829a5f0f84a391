"""Recovery of a log after a stop or a crash, by storage policy 4.

Every batch above the recovery point is verified; below it only headers are read, and only if an
index is missing. The first place without a whole batch that adjoins the previous batch is *damage*,
and its meaning depends on its place:

- below the recovery point it is rot: those records were durable. Nothing is changed; the store
    writes a note beside the file, so that a start after a clean stop also verifies that file.
- above it, in any mode but commit, the system lost pages, in any order: truncated, with a copy.
- above it, in commit mode, each write waited for the previous write, so a crash can only have
    damaged the last write. Its shape decides (`CrashShape`). A torn write was never acknowledged:
    truncated, with a copy. A write that lost a part is truncated as well; but it may have counted,
    so the owner is notified first. Anything else is rot. The same holds if the journal was lost,
    since then the recovery point is unknown.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from liftbridge_broker.errors import CorruptionError, FilesError
from liftbridge_broker.logformat.batch import HEADER_SIZE, BatchHeader, read_header
from liftbridge_broker.logformat.index_blocks import Summary
from liftbridge_broker.model.ids import Offset, PartitionId
from liftbridge_broker.model.units import MIB
from liftbridge_broker.ports.files import Files
from liftbridge_broker.storage.log.epochs import LeaderEpochCache
from liftbridge_broker.storage.log.index import LoadedIndex, Resume, keep_below, load_index
from liftbridge_broker.storage.log.rewrite import complete_truncation, is_summary_of, shrink
from liftbridge_broker.storage.log.scan import (
    NO_EPOCH,
    CrashShape,
    LogFile,
    crash_shape,
    find_batch_behind,
    has_known_range,
    reaches_beyond,
    scan_batches,
)
from liftbridge_broker.storage.log.segment import (
    CLEANED_SUFFIX,
    CUT_SUFFIX,
    DAMAGED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TRUNCATED_SUFFIX,
    Segment,
    base_of,
    index_name,
    log_name,
    read_file,
    read_summary,
)
from liftbridge_broker.storage.log.state import LogState
from liftbridge_broker.storage.log.types import EMPTY_STATE, READ_BLOCK_BYTES, RecoveryReport

CUT_COPIES_MAX: Final = 8
_COPY_BLOCK_BYTES: Final = MIB


class Recovered(NamedTuple):
    """Result of opening a log.

    Attributes:
        segments: At least one, adjoining, all but the last sealed.
        state: Small state that matches the segments.
        report: Findings and repairs.
    """

    segments: tuple[Segment, ...]
    state: LogState
    report: RecoveryReport


class _Damage(NamedTuple):
    """The first damage.

    Attributes:
        number: Number of the log file, from 0.
        position: Position in it; -1 if the file itself does not adjoin the previous file.
        offset: Offset that should start at this place.
        message: Description.
    """

    number: int
    position: int
    offset: Offset
    message: str


def recover(
    files: Files,
    directory: str,
    partition_id: PartitionId,
    state: LogState | None,
    *,
    clean: bool,
    commit: bool,
    on_doubt: Callable[[], object],
) -> Recovered:
    """Open the log in a directory; see `PartitionLog.open` for arguments and errors."""
    files.make_directory(directory)
    run = _Recovery(files, directory, partition_id, state, clean=clean, commit=commit)
    try:
        return _judge(run, on_doubt)
    except FilesError:
        run.abandon()
        raise


def _judge(run: "_Recovery", on_doubt: Callable[[], object]) -> Recovered:
    """Inspect everything, then decide and act."""
    run.settle_leftovers()
    damage = run.look_at_segments()
    quarantined: tuple[str, ...] = ()
    if damage is not None and run.is_rot(damage):
        quarantined = (run.path(damage.offset if damage.position < 0 else run.base(damage)),)
    elif damage is not None:
        if run.is_doubtful(damage):
            on_doubt()
        run.cut(damage)
    reason = damage.message if damage is not None else ""
    end = max(run.log_end_offset, run.log_start)
    if not quarantined and end < run.recovery_point:
        quarantined = (run.path(run.bases[-1] if run.bases else run.log_start),)
        reason = f"log ends at offset {end}, below the recovery point {run.recovery_point}"
    if not quarantined:
        run.finish()
    return run.result(quarantined, reason, run.log_end_offset if run.is_cut else None)


class _Recovery:
    """One opening of a log.

    Attributes:
        bases: Base offsets of the log files, ascending.
        segments: The intact segments, the last perhaps only up to damage.
        recovery_point: Offset below which everything was durable; 0 if unknown.
        is_cut: Whether anything was truncated.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        partition_id: PartitionId,
        state: LogState | None,
        *,
        clean: bool,
        commit: bool,
    ) -> None:
        self._files = files
        self._directory = directory
        self._partition_id = partition_id
        self._is_known = state is not None
        self._is_clean = clean and state is not None  # a clean stop left a journal
        self._is_strict = commit or state is None
        self._state = state or EMPTY_STATE
        self.recovery_point = self._state.recovery_point
        self.log_start = self._state.log_start
        self._epochs = LeaderEpochCache(self._state.epochs)
        self.bases: list[Offset] = []
        self._marked: set[Offset] = set()
        self.segments: list[Segment] = []
        self.is_cut = False
        self._scanned_bytes = 0
        self._cut_bytes = 0
        self._rebuilt_indexes = 0
        self._cut_copies: list[str] = []
        self._removed: list[str] = []
        self._covered: list[Offset] = []
        self._in_doubt: list[tuple[Segment, int]] = []

    @property
    def log_end_offset(self) -> Offset:
        """End of the good part."""
        return self.segments[-1].end_offset if self.segments else self.log_start

    def path(self, base_offset: Offset) -> str:
        """Return the path of the log file of a segment."""
        return f"{self._directory}/{log_name(base_offset)}"

    def base(self, damage: _Damage) -> Offset:
        """Return the base offset of the damaged file."""
        return self.bases[damage.number]

    # Looking.

    def settle_leftovers(self) -> None:
        """Complete or remove leftovers of interrupted work, and find the log files."""
        for name in self._files.list(self._directory):
            path = f"{self._directory}/{name}"
            if name.endswith(CLEANED_SUFFIX):
                self._remove(path)
            elif name.endswith(LOG_SUFFIX + TRUNCATED_SUFFIX):
                log_path = path.removesuffix(TRUNCATED_SUFFIX)
                complete_truncation(self._files, log_path, self._partition_id)
                self._removed.append(path)
            base_offset = base_of(name, LOG_SUFFIX)
            if base_offset is not None:
                self.bases.append(base_offset)
            marked = base_of(name, LOG_SUFFIX + DAMAGED_SUFFIX)
            if marked is not None:
                self._marked.add(marked)
        self.bases.sort()
        if not self._is_known and self.bases:
            self.log_start = self.bases[0]
        while len(self.bases) > 1 and self.bases[1] <= self.log_start:
            # The journal has the log start that made these files obsolete. But files that
            # compaction merged into the first file may still exist beside it, and do not show where
            # it ends.
            base_offset, behind = self.bases[:2]
            if self._reaches_beyond(base_offset, behind, self.log_start):
                break
            del self.bases[0]
            path = self.path(base_offset)
            if has_known_range(self._files, path, self._partition_id, base_offset):
                self._remove(path)
            else:
                # It may have reached beyond its remains.
                self._files.rename(path, self._free_cut_path(path))
            self._remove(f"{self._directory}/{index_name(base_offset)}")

    def _reaches_beyond(self, base_offset: Offset, behind: Offset | None, limit: Offset) -> bool:
        """Return whether a log file may hold records at or above an offset."""
        return reaches_beyond(
            self._files,
            self.path(base_offset),
            self._partition_id,
            base_offset,
            behind=behind,
            limit=limit,
        )

    def look_at_segments(self) -> _Damage | None:
        """Take the segments in order while they are intact; return the first damage."""
        expected = min(self.bases[0], self.log_start) if self.bases else self.log_start
        for number, base_offset in enumerate(self.bases):
            behind = self.bases[number + 1] if number + 1 < len(self.bases) else None
            if base_offset < expected and not self._reaches_beyond(base_offset, behind, expected):
                # Compaction merged it into the previous file; the crash came before its removal.
                self._covered.append(base_offset)
                continue
            if base_offset != expected:
                message = f"a segment begins at offset {base_offset}, not at {expected}"
                return _Damage(number, -1, expected, message)
            segment = Segment(self._files, self._directory, self._partition_id, base_offset)
            self.segments.append(segment)
            damage = self._look_at(segment, number, behind)
            if damage is not None:
                return damage
            expected = segment.end_offset
        return None

    def _look_at(self, segment: Segment, number: int, behind: Offset | None) -> _Damage | None:
        """Take a segment, by its index if that is trusted, else by walking the log."""
        segment.has_files = True
        segment.is_sealed = behind is not None
        handle = segment.open()
        file = LogFile(
            self._files, handle, segment.path, self._partition_id, self._files.size(handle)
        )
        summary = read_summary(
            self._files, segment.index_path, self._partition_id, segment.base_offset
        )
        is_marked = segment.base_offset in self._marked  # guard Log.damaged
        if summary is not None and not is_marked and self._is_believed(summary, file, behind):
            segment.adopt_summary(summary)
            segment.close()
            return None
        is_below = behind is not None and self._is_durable(behind)
        verified = is_marked or not (is_below or self._is_clean)
        damage = self._walk(segment, file, number, verified=verified, is_whole=is_marked)
        if segment.is_sealed or self._is_clean:
            self._rebuilt_indexes += 1
        if damage is None:
            segment.close()
        return damage

    def _is_believed(self, summary: Summary, file: LogFile, behind: Offset | None) -> bool:
        """Return whether a summary makes a walk over its log file unnecessary."""
        is_adjoining = behind is None or summary.end_offset >= behind
        is_durable = self._is_durable(summary.end_offset)
        return is_adjoining and is_durable and is_summary_of(file, summary)

    def _is_durable(self, end_offset: Offset) -> bool:
        """Return whether everything below an offset is known to have been durable."""
        return self._is_known and (self._is_clean or end_offset <= self.recovery_point)

    def _walk(
        self, segment: Segment, file: LogFile, number: int, *, verified: bool, is_whole: bool
    ) -> _Damage | None:
        """Count the batches of a segment.

        All, or from the position at which the index can resume.
        """
        loaded = load_index(
            read_file(self._files, segment.index_path),
            partition_id=self._partition_id,
            base_offset=segment.base_offset,
        )
        resume = None if is_whole else self._resume(loaded, file)
        if resume is not None:
            segment.adopt_resume(keep_below(loaded, resume), resume)
            segment.first_timestamp = read_header(file.read(0, HEADER_SIZE), 0).first_timestamp
        start = segment.size
        damage = None
        try:
            while segment.size < file.size:
                if verified:
                    self._take_plain(segment, file)
                self._take_slowly(segment, file, verified=verified)
        except CorruptionError as error:
            damage = _Damage(number, error.position, segment.end_offset, str(error))
        segment.first_append_ns = segment.first_timestamp
        if verified:
            segment.verified.add(start, segment.size)
            self._scanned_bytes += segment.size - start
            self._in_doubt.append((segment, start))
        return damage

    def _take_plain(self, segment: Segment, file: LogFile) -> None:
        """Verify and count the leading plain batches."""
        epoch = self._epochs.epoch_at(max(segment.end_offset, self.log_start))
        while segment.note_block(file.read(segment.size, READ_BLOCK_BYTES), epoch):
            pass

    def _take_slowly(self, segment: Segment, file: LogFile, *, verified: bool) -> None:
        """Count batches one by one: those that need their own check, or only a header check.

        Raises:
            CorruptionError: The log is damaged at the next batch.
        """
        end = segment.end_offset
        epoch = self._epochs.epoch_at(Offset(end - 1)) if end > self.log_start else None
        walk = scan_batches(
            file, start=segment.size, base_offset=end, verified=verified, epoch=epoch or NO_EPOCH
        )
        for _, header in walk:
            segment.note_batch(header)
            self._note_epoch(header)
            if verified:
                return

    def _note_epoch(self, header: BatchHeader) -> None:
        """Make the epoch cache match a batch; epochs that ended below the log start are dropped."""
        start = max(header.base_offset, self.log_start)
        if start < header.end_offset and self._epochs.epoch_at(start) != header.leader_epoch:
            self._epochs.assign(header.leader_epoch, start)

    def _resume(self, loaded: LoadedIndex, file: LogFile) -> Resume | None:
        """Return the last place up to the recovery point that both the index and the log have."""
        if not self._is_known:
            return None
        for resume in reversed(loaded.resumes):
            entry = resume.entry
            if entry.offset > self.recovery_point or entry.position >= file.size:
                continue
            try:
                header = read_header(file.read(entry.position, HEADER_SIZE), 0)
                first = read_header(file.read(0, HEADER_SIZE), 0)
            except CorruptionError:
                return None
            is_there = header.base_offset == entry.offset
            is_ours = header.partition_id == first.partition_id == file.partition_id
            return resume if is_there and is_ours else None
        return None

    # Judging and acting.

    def is_rot(self, damage: _Damage) -> bool:
        """Return whether damage affects durable records, so that nothing may be truncated."""
        if damage.offset < self.recovery_point:
            return True
        return self._is_strict and (
            self._shape(damage) is CrashShape.NONE  # guard Log.rot
            or self._has_batch_behind(damage)
        )

    def is_doubtful(self, damage: _Damage) -> bool:
        """Return whether the truncated records may have counted."""
        return self._is_strict and self._shape(damage) is not CrashShape.TORN

    def _shape(self, damage: _Damage) -> CrashShape:
        if damage.position < 0:
            return CrashShape.LOST
        path = self.path(self.base(damage))
        handle = self._files.open(path)
        try:
            size = self._files.size(handle)
            file = LogFile(self._files, handle, path, self._partition_id, size)
            return crash_shape(file, damage.position, damage.offset)
        finally:
            self._files.close(handle)

    def _has_batch_behind(self, damage: _Damage) -> bool:
        """Return whether a valid batch follows damage, in its file or in a later one."""
        for number in range(damage.number, len(self.bases)):
            path = self.path(self.bases[number])
            handle = self._files.open(path)
            try:
                size = self._files.size(handle)
                file = LogFile(self._files, handle, path, self._partition_id, size)
                start = damage.position if number == damage.number else -1
                if find_batch_behind(file, start, damage.offset):
                    return True
            finally:
                self._files.close(handle)
        return False

    def cut(self, damage: _Damage) -> None:
        """Remove damage and everything after it from the log, and keep copies."""
        self.is_cut = True
        first = damage.number + (damage.position >= 0)
        for base_offset in reversed(self.bases[first:]):
            path = self.path(base_offset)
            handle = self._files.open(path)
            try:
                size = self._files.size(handle)
            finally:
                self._files.close(handle)
            if size:
                self._cut_bytes += size
                self._cut_copies.append(self._free_cut_path(path))
                self._files.rename(path, self._cut_copies[-1])
            else:
                self._remove(path)
            self._remove(f"{self._directory}/{index_name(base_offset)}")
        del self.bases[first:]
        self._files.sync_directory(self._directory)
        if damage.position >= 0:
            self._cut_file(self.segments[-1], damage.position)

    def _cut_file(self, segment: Segment, position: int) -> None:
        """Truncate the damaged file, after a durable copy of its tail."""
        handle = segment.open()
        size = self._files.size(handle)
        target = self._free_cut_path(segment.path)
        copy = self._files.open(target, create=True)
        try:
            self._files.truncate(copy, 0)
            at = position
            while at < size:
                block = self._files.read(handle, at, min(_COPY_BLOCK_BYTES, size - at))
                self._files.append(copy, block)
                at += len(block)
            self._files.sync(copy)
        finally:
            self._files.close(copy)
        self._files.sync_directory(self._directory)
        self._cut_copies.append(target)
        self._cut_bytes += size - position
        segment.reset_index_file()
        shrink(segment, position)

    def _free_cut_path(self, path: str) -> str:
        """Return a name for a copy; after `CUT_COPIES_MAX` copies, the last is replaced."""
        for number in range(1, CUT_COPIES_MAX):
            target = f"{path}.{number}{CUT_SUFFIX}"
            if not self._files.exists(target):
                return target
        return f"{path}.{CUT_COPIES_MAX}{CUT_SUFFIX}"

    def finish(self) -> None:
        """Remove files that left the log, write indexes, activate the last segment."""
        if self.log_end_offset < self.log_start:
            # The crash lost only records that retention had already removed.
            for base_offset in self.bases:
                self._covered.append(base_offset)
            for segment in self.segments:
                segment.bury()
            self.segments.clear()
        for base_offset in self._covered:
            self._remove(self.path(base_offset))
            self._remove(f"{self._directory}/{index_name(base_offset)}")
        self._tidy()
        for segment in self.segments[:-1]:
            handle = segment.write_index()
            if handle is not None:
                self._files.close(handle)
        if self.segments:
            self._activate(self.segments[-1])
        self._write_again()

    def _activate(self, segment: Segment) -> None:
        """Open the last segment for appends; note whether its name may not be durable yet."""
        segment.is_sealed = False
        is_synced = self._is_clean or self.recovery_point > segment.base_offset
        segment.is_name_new = not is_synced  # guard Log.names_of_killed

    def _tidy(self) -> None:
        """Remove indexes without a log file, and notes of damage that does not exist."""
        kept = {segment.base_offset for segment in self.segments}
        for name in self._files.list(self._directory):
            base = base_of(name, INDEX_SUFFIX)
            if base is not None and base not in kept:
                self._remove(f"{self._directory}/{name}")
        for base_offset in self._marked:
            self._remove(self.path(base_offset) + DAMAGED_SUFFIX)

    def _write_again(self) -> None:
        """Mark everything above the recovery point for the next sync.

        A sync of the previous process may have failed. Then its pages are readable, but no later
        sync writes them.
        """
        for segment, start in self._in_doubt:
            if not segment.is_dead and segment.end_offset > self.recovery_point:
                self._files.rewrite(segment.open(), start)

    def result(
        self, quarantined: tuple[str, ...], reason: str, cut_offset: Offset | None
    ) -> Recovered:
        """Return the combined result."""
        if not self.segments:
            self.segments.append(
                Segment(self._files, self._directory, self._partition_id, self.log_start)
            )
        end = self.log_end_offset
        log_start = min(self.log_start, end)
        self._epochs.drop_beyond(end)  # guard Epochs.load
        self._epochs.clamp(log_start)
        # An empty log is as durable as its start; otherwise the log start may be in a batch that
        # was not synced.
        floor = log_start if log_start == end else self.recovery_point
        state = LogState(
            log_start,
            Offset(min(max(self.recovery_point, floor), end)),
            Offset(min(max(self._state.high_watermark, log_start), end)),
            self._epochs.entries,
        )
        report = RecoveryReport(
            self._scanned_bytes,
            self._cut_bytes,
            cut_offset,
            tuple(self._cut_copies),
            quarantined,
            self._rebuilt_indexes,
            tuple(self._removed),
            reason,
        )
        return Recovered(tuple(self.segments), state, report)

    def abandon(self) -> None:
        """Close all opened files."""
        for segment in self.segments:
            segment.bury()

    def _remove(self, path: str) -> None:
        """Remove a file if it exists, and report it."""
        if self._files.exists(path):
            self._files.remove(path)
            self._removed.append(path)
