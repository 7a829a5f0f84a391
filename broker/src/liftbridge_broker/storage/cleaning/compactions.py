"""Compactions of a store: they choose the next log, run the compaction and swap in the result.

One log at a time. With a runner the work happens in another process; without a runner, it happens
in this process, a step at a time, between the events of the node.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from liftbridge_broker.errors import CorruptionError, FilesError
from liftbridge_broker.model.ids import Instant, Offset, PartitionId
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.ports.files import FileEvent, Files, Token
from liftbridge_broker.storage.cleaning.cleaner import Removals
from liftbridge_broker.storage.cleaning.compaction import (
    CompactionJob,
    CompactionResult,
    SegmentRef,
    Steps,
    SubmitCompaction,
    cleaned_path,
    compact,
    decode_result,
)
from liftbridge_broker.storage.cleaning.dropped import note_dropped
from liftbridge_broker.storage.log.partition_log import PartitionLog
from liftbridge_broker.storage.log.segment import CLEANED_SUFFIX, LOG_SUFFIX
from liftbridge_broker.storage.log.types import SegmentInfo
from liftbridge_broker.storage.reporting import Reporter
from liftbridge_broker.storage.stored_log import StoredLog

STEP_PAUSE_NS: Final = 10 * MILLISECOND_NS
"""Pause between two steps in this process, so that the node has most of the time."""
_WORTHWHILE_PART: Final = 10
"""Share of new bytes (a tenth) from which a log is compacted again.

A newly sealed segment also suffices.
"""


@dataclass(slots=True)
class _Work:
    """The compaction in progress; `steps` if it runs in this process, else `token`."""

    stored: StoredLog
    job: CompactionJob
    begun: Instant
    cut_count: int
    steps: Steps | None = None
    token: Token | None = None
    step_at: Instant | None = None


class Compactions:
    """Logs that wait for compaction and the one in progress. Write errors are raised.

    Attributes:
        on_compacted: Called for a log whose compacted offset has moved.
    """

    def __init__(
        self,
        files: Files,
        runner: SubmitCompaction | None,
        removals: Removals,
        new_token: Callable[[], Token],
        *,
        save: Callable[[StoredLog], None],
        reporter: Reporter,
    ) -> None:
        """Start with nothing to do; see `Cleaner` for the arguments."""
        self._files = files
        self._runner = runner
        self._removals = removals
        self._new_token = new_token
        self._save = save
        self._reporter = reporter
        self.on_compacted: Callable[[PartitionId], None] = _ignore
        self._waiting: deque[tuple[StoredLog, int | None]] = deque()
        self._work: _Work | None = None

    def request(self, stored: StoredLog, now: Instant, age_ns: int | None) -> None:
        """Queue a log for compaction if that can free space.

        Args:
            stored: The log.
            now: Current time.
            age_ns: Unix time for the age of tombstones; `None` while none is old.
        """
        if not stored.cleaning.is_compacting and _is_worthwhile(stored):
            stored.cleaning.is_compacting = True
            self._waiting.append((stored, age_ns))
            self._begin_next(now)

    def _has_key(self, stored: StoredLog) -> bool:
        """Return whether a log can be read; report once if an encrypted one waits for its key."""
        cipher = stored.cipher
        if cipher is None:
            return True
        waits = cipher.is_locked
        if waits and not stored.cleaning.awaits_key:
            self._reporter.report_log(stored, "compaction_waits", reason=cipher.reason)
        stored.cleaning.awaits_key = waits
        return not waits

    def next_deadline(self) -> Instant | None:
        """Return the next time to call `on_timer`, `None` for never."""
        return None if self._work is None else self._work.step_at

    def on_timer(self, now: Instant) -> None:
        """Take a step if it is due."""
        work = self._work
        if work is None or work.steps is None or work.step_at is None or work.step_at > now:
            return
        if work.stored.is_closed:
            work.steps.close()
            self._end(now)
            return
        work.step_at = Instant(now + STEP_PAUSE_NS)
        try:
            next(work.steps)
        except StopIteration as stop:
            self._put_in_place(work, stop.value, now)
        except (CorruptionError, FilesError) as error:
            self._fail(work, error, now)

    def owns(self, token: Token) -> bool:
        """Return whether an event belongs to the compaction in progress."""
        return self._work is not None and self._work.token == token

    def on_event(self, event: FileEvent, now: Instant) -> None:
        """Handle the end of the runner's job."""
        work = self._work
        assert work is not None
        try:
            result = decode_result(event)
        except (CorruptionError, FilesError) as error:
            self._fail(work, error, now)
        else:
            self._put_in_place(work, result, now)

    def stop(self) -> None:
        """Cancel the compaction in progress; the next start removes its leftovers."""
        if self._work is not None and self._work.steps is not None:
            self._work.steps.close()
        self._work = None
        self._waiting.clear()

    def _begin_next(self, now: Instant) -> None:
        while self._work is None and self._waiting:
            stored, age_ns = self._waiting.popleft()
            if stored.is_closed or not self._has_key(stored):
                stored.cleaning.is_compacting = False
                continue
            job = _job_of(stored, age_ns)
            self._work = work = _Work(stored, job, now, stored.cut_count)
            if self._runner is not None:
                work.token = self._new_token()
                self._runner(work.token, job)
            else:
                work.steps = compact(self._files, job)
                work.step_at = now

    def _put_in_place(self, work: _Work, result: CompactionResult, now: Instant) -> None:
        """Swap in the results, oldest first, unless the log has changed there since."""
        stored, job = work.stored, work.job
        is_whole = not stored.is_closed and stored.cut_count == work.cut_count
        try:
            # Even if no record was removed, headers of publishers may have changed.
            if result.replacements and is_whole:
                self._save(stored)
                if job.tombstones_before_ns and result.removed_count:  # guard Log.dropped
                    dropped = max(stored.log.dropped_offset, job.tombstones_until)
                    note_dropped(self._files, stored.log, dropped, stored.log.copied)
            for replacement in result.replacements:
                is_whole = self._swap(work, replacement.segments) and is_whole
        except CorruptionError as error:
            self._fail(work, error, now)
            return
        except FilesError as error:
            self._fail(work, error, now)
            raise
        if is_whole:
            is_complete = result.map_end >= job.until
            if is_complete and not job.map_start:
                stored.log.compacted_offset = job.segments[job.sealed_count - 1].end
                stored.cleaning.tombstones_until = job.tombstones_until
                self.on_compacted(stored.partition_id)
            stored.cleaning.map_start = Offset(0) if is_complete else result.map_end
            stored.cleaning.compacted_bytes = stored.log.size_bytes
            self._reporter.report_log(
                stored,
                "log_compacted",
                removed_messages=result.removed_count,
                before_bytes=result.before_bytes,
                after_bytes=result.after_bytes,
                duration_ms=(now - work.begun) // MILLISECOND_NS,
            )
        self._end(now)

    def _swap(self, work: _Work, group: Sequence[SegmentRef]) -> bool:
        """Swap in one compacted file; return false if the log has changed."""
        stored, log = work.stored, work.stored.log
        # This includes a truncation after these segments: the records that superseded theirs may be
        # lost.
        is_cut = stored.cut_count != work.cut_count  # guard Log.cut
        if stored.is_closed:
            return False
        path = cleaned_path(log.directory, group[0].base)
        present = {info.base: info for info in log.segments() if info.sealed}
        for segment in group:
            info = present.get(segment.base)
            if is_cut or info is None or (info.end, info.bytes) != (segment.end, segment.size):
                self._removals.submit([path])
                return False
        if any(segment.base <= log.log_start_offset for segment in group[1:]):
            # A start after a crash may mistake the merged file for one below the log start.
            self._removals.submit([path])
            return False
        before = log.size_bytes
        self._retire(log, log.replace_segments([segment.base for segment in group], path))
        stored.counted_bytes = max(0, stored.counted_bytes - (before - log.size_bytes))
        return True

    def _retire(self, log: PartitionLog, paths: Sequence[str]) -> None:
        """Durably remove files that were merged into another file, before anything else.

        Otherwise the next start would treat them as segments beside the file that covers them, and
        the log start may have moved into their range by then.
        """
        if not paths:
            return
        retired = [path + CLEANED_SUFFIX for path in paths]
        for path, target in zip(paths, retired, strict=True):
            self._files.rename(path, target)
        self._files.sync_directory(log.directory)
        self._removals.submit(retired)

    def _fail(self, work: _Work, error: CorruptionError | FilesError, now: Instant) -> None:
        """Abort; report the error unless retention or a truncation removed the segments."""
        stored = work.stored
        is_relevant = not stored.is_closed and _is_as_it_was(work)
        if is_relevant:
            self._reporter.report_log(stored, "compaction_failed", reason=error.text)
        self._end(now)
        # The error may concern a file that compaction wrote, which is not part of the log.
        if isinstance(error, CorruptionError) and error.path.endswith(LOG_SUFFIX) and is_relevant:
            stored.on_damaged(error)  # guard Log.compacted

    def _end(self, now: Instant) -> None:
        assert self._work is not None
        self._work.stored.cleaning.is_compacting = False
        self._work = None
        self._begin_next(now)


def _is_as_it_was(work: _Work) -> bool:
    """Return whether the log still has the segments of a job unchanged."""
    present = {(info.base, info.end, info.bytes) for info in work.stored.log.segments()}
    sealed = work.job.segments[: work.job.sealed_count]
    return work.stored.cut_count == work.cut_count and present.issuperset(sealed)


def _bound(stored: StoredLog) -> Offset:
    """Return the first offset that may neither be dropped nor make other records obsolete."""
    return Offset(min(stored.log.high_watermark, stored.log.recovery_point))


def _sealed(stored: StoredLog) -> list[SegmentInfo]:
    """Return the segments that may be rewritten, oldest first."""
    bound = _bound(stored)
    return [info for info in stored.log.segments() if info.sealed and info.end <= bound]


def _is_worthwhile(stored: StoredLog) -> bool:
    sealed = _sealed(stored)
    if not sealed or stored.damage.is_known:
        return False
    size = stored.log.size_bytes
    is_new = sealed[-1].end > stored.log.compacted_offset or stored.cleaning.map_start > 0
    if stored.options.tombstone_retention_ms:
        # Replicas were compacted since: tombstones that no longer hide records may be dropped.
        is_new = is_new or _tombstones_until(stored.log) > stored.cleaning.tombstones_until
    return is_new or (size - stored.cleaning.compacted_bytes) * _WORTHWHILE_PART >= size


def _tombstones_until(log: PartitionLog) -> Offset:
    """Return the first offset whose tombstone may still hide a record in a replica."""
    return min(log.compacted_offset, log.compacted_everywhere)


def _job_of(stored: StoredLog, age_ns: int | None) -> CompactionJob:
    options = stored.options
    infos = [info for info in stored.log.segments() if info.bytes]
    keeps_ns = options.tombstone_retention_ms * MILLISECOND_NS
    return CompactionJob(
        directory=stored.log.directory,
        partition_id=stored.partition_id,
        segments=tuple(SegmentRef(info.base, info.end, info.bytes) for info in infos),
        sealed_count=len(_sealed(stored)),
        until=_bound(stored),
        map_start=stored.cleaning.map_start,
        segment_bytes_max=options.segment_bytes_max,
        tombstones_before_ns=age_ns - keeps_ns if keeps_ns and age_ns is not None else 0,
        tombstones_until=_tombstones_until(stored.log),
        key=b"" if stored.cipher is None else stored.cipher.key,
        salt=b"" if stored.cipher is None else stored.cipher.new_salt(),
    )


def _ignore(_partition: PartitionId) -> None:
    """Ignore the compaction: no listener is set."""
