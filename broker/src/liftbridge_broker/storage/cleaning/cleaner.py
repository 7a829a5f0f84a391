"""The cleaner: rolls by age, applies retention and requests compaction, one log at a time.

One heap of deadlines for all logs, because a timer for each would cost an idle broker with a
thousand streams more than the work itself. As in the original, a tick that rolls a segment does
nothing else, and retention precedes compaction.
"""

import heapq
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from liftbridge_broker.errors import FilesError
from liftbridge_broker.model.ids import Instant, Offset, PartitionId
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.ports.files import FileEvent, Files, Token
from liftbridge_broker.storage.cleaning.retention import (
    CursorFound,
    CursorUnknown,
    FindCursor,
    choose_log_start,
    first_within,
    limits_of,
)
from liftbridge_broker.storage.disk import Disk
from liftbridge_broker.storage.flush import FlushDriver
from liftbridge_broker.storage.journal import Journal
from liftbridge_broker.storage.reporting import Reporter
from liftbridge_broker.storage.stored_log import StoredLog

TICKS_MAX: Final = 16
"""Maximum number of logs handled in a turn; other due logs wait for the next turn."""
DROPS_MAX: Final = 1_000
"""Maximum number of segments removed in a turn (about 20 us each).

More wait for the next tick of their log.
"""
_SPREAD: Final = 0x9E37_79B9_7F4A_7C15
_SPREAD_BITS: Final = 64


AgeClock = Callable[[Instant], int | None]
"""Returns the Unix time for the age of records; `None` while there is none."""


class Removals:
    """File removals in progress; the loop does not wait for them."""

    def __init__(self, files: Files, new_token: Callable[[], Token]) -> None:
        self._files = files
        self._new_token = new_token
        self._tokens: set[Token] = set()

    def submit(self, paths: Sequence[str]) -> None:
        """Start to remove files that no log refers to."""
        for path in paths:
            token = self._new_token()
            self._tokens.add(token)
            self._files.submit_remove(token, path)

    def owns(self, token: Token) -> bool:
        """Return whether an event belongs to a removal."""
        return token in self._tokens

    def on_event(self, event: FileEvent) -> None:
        """Complete a removal.

        Raises:
            FilesError: The removal failed.
        """
        self._tokens.remove(event.token)
        if event.error is not None:
            raise event.error


class _Tick(NamedTuple):
    """Time at which a log is due; `sequence` orders equal times, so logs are never compared."""

    deadline: Instant
    sequence: int
    stored: StoredLog


class Cleaner:
    """Deadlines of all logs of a store, and the work that is due at them.

    Device errors are raised to the store.

    Attributes:
        find_cursor: Looks up the cursors that hold retention back.
        age_clock: Returns the Unix time for the age of records, `None` while it is unknown. Then
            nothing is removed by age.
    """

    def __init__(
        self,
        journal: Journal,
        flush: FlushDriver,
        removals: Removals,
        *,
        save: Callable[[StoredLog], None],
        to_trash: Callable[[StoredLog, Sequence[str], int, Instant], None],
        compact: Callable[[StoredLog, Instant, int | None], None],
        reporter: Reporter,
        disk: Disk,
    ) -> None:
        """Start without logs.

        Args:
            journal: The journal with the log starts.
            flush: Makes the journal durable.
            removals: Removes files.
            save: Saves state that would be lost with removed batches, such as publishers.
            to_trash: Moves files to the trash, with a date.
            compact: Requests compaction.
            reporter: Reports to the observer.
            disk: Runs disk work in a later turn; handles device errors.
        """
        self._journal = journal
        self._flush = flush
        self._removals = removals
        self._save = save
        self._to_trash = to_trash
        self._compact = compact
        self._reporter = reporter
        self._disk = disk
        self.find_cursor: FindCursor = _find_nothing
        self.age_clock: AgeClock | None = None
        self._ticks: list[_Tick] = []
        self._sequence = 0

    def add(self, stored: StoredLog, now: Instant) -> None:
        """Start to clean a log; ticks of logs opened together are spread over time."""
        interval_ns = _interval_ns(stored)
        phase = (stored.partition_id * _SPREAD) % (1 << _SPREAD_BITS)
        self._push(stored, Instant(now + (phase * interval_ns >> _SPREAD_BITS) + 1))

    def next_deadline(self) -> Instant | None:
        """Return the next time to call `on_timer`, `None` for never."""
        return self._ticks[0].deadline if self._ticks else None

    def on_timer(self, now: Instant, wall_ns: int) -> None:
        """Clean the logs that are due."""
        for _ in range(TICKS_MAX):
            if not self._ticks or self._ticks[0].deadline > now:
                return
            stored = heapq.heappop(self._ticks).stored
            if stored.is_closed:
                continue
            self._push(stored, Instant(now + _interval_ns(stored)))
            self._tick(stored, now, wall_ns, self.age_ns(now, wall_ns))

    def age_ns(self, now: Instant, wall_ns: int) -> int | None:
        """Return the Unix time for ages; `None` while it is unknown."""
        return wall_ns if self.age_clock is None else self.age_clock(now)

    def raise_log_start(self, stored: StoredLog, offset: Offset, reason: str, now: Instant) -> None:
        """Raise the log start durably, then remove the segments below it."""
        if offset <= stored.log.log_start_offset:
            return
        self._save(stored)
        stored.log.set_log_start(offset)
        stored.put_state(self._journal)
        self._flush.require_journal(lambda: self._drop_segments(stored, offset, reason, now), now)
        if stored.on_trimmed is not None:
            stored.on_trimmed()

    def _tick(self, stored: StoredLog, now: Instant, wall_ns: int, age_ns: int | None) -> None:
        log = stored.log
        if not log.is_dirty:
            log.close_idle()
        if log.needs_roll(wall_ns):
            log.roll()
            self._reporter.report_log(stored, "segment_rolled", base_offset=log.log_end_offset)
            return
        self._trim(stored, now, age_ns)
        if stored.options.compact_enabled:
            self._compact(stored, now, age_ns)

    def _trim(self, stored: StoredLog, now: Instant, age_ns: int | None) -> None:
        """Apply retention, and remove segments below the log start whose removal was postponed."""
        log = stored.log
        begin = wanted = log.log_start_offset
        if stored.is_leader:
            wanted = _log_start(stored, age_ns, log.high_watermark)
        is_held = bool(stored.options.retention_cursor)  # guard Retention.cursor
        if wanted > begin and not is_held:
            self.raise_log_start(stored, wanted, "retention", now)
            return
        if log.segment_count > 1 and log.segments()[0].end <= _removable_end(stored, begin):
            drop = partial(self._drop_segments, stored, begin, "retention", now)
            self._flush.require_journal(drop, now)
        if wanted > begin:
            self._look_up(stored, now, age_ns)

    def _look_up(self, stored: StoredLog, now: Instant, age_ns: int | None) -> None:
        """Apply retention once the position of its cursor is known."""
        if stored.cleaning.awaits_cursor:
            return
        stored.cleaning.awaits_cursor = True
        name = stored.options.retention_cursor

        def found(cursor: Offset | CursorUnknown, now: Instant) -> None:
            stored.cleaning.awaits_cursor = False
            is_due = stored.is_leader and not stored.is_closed
            if is_due and stored.options.retention_cursor == name:
                self._disk.run(lambda: self._trim_below(stored, cursor, now, age_ns), now)

        self.find_cursor(stored.partition_id, name, found, now)

    def _trim_below(
        self, stored: StoredLog, cursor: Offset | CursorUnknown, now: Instant, age_ns: int | None
    ) -> None:
        """Apply retention below a cursor, and to segments that the cursor no longer protects."""
        log, options = stored.log, stored.options
        held, unknown = log.log_start_offset, ""
        if isinstance(cursor, CursorUnknown):
            unknown = str(cursor)
        elif cursor > log.log_end_offset:
            unknown = str(CursorUnknown.BEYOND)
        else:
            held = max(held, cursor)
        within = first_within(
            log.segments(),
            committed=log.high_watermark,
            bytes_max=options.retention_cursor_bytes_max,
        )
        wanted = _log_start(stored, age_ns, max(held, within))
        fields = {"cursor": options.retention_cursor, "bytes": log.size_bytes}
        if unknown and unknown != stored.cleaning.unknown_cursor:
            self._reporter.report_log(stored, "retention_waits", reason=unknown, **fields)
        stored.cleaning.unknown_cursor = unknown
        if wanted > held:
            limit = options.retention_cursor_bytes_max
            fields |= {"limit_bytes": limit, "log_start_offset": wanted}
            if cursor is CursorUnknown.UNANSWERED:
                # It may be ahead of everything removed: no loss can be reported.
                self._reporter.report_log(stored, "retention_cursor_ignored", **fields)
            else:
                self._reporter.report_log(
                    stored, "retention_cursor_passed", position=unknown or held, **fields
                )
        self.raise_log_start(stored, wanted, "retention", now)

    def _drop_segments(self, stored: StoredLog, offset: Offset, reason: str, now: Instant) -> None:
        """Remove the files below a durable log start: they are obsolete.

        Segments removed only by age go to the trash: the age depends on a clock.
        """
        if stored.is_closed:
            return
        log = stored.log
        bytes_before, count_before = log.size_bytes, log.segment_count
        last = log.segments()[:DROPS_MAX][-1]
        end = Offset(min(_removable_end(stored, offset), last.end))
        surplus = log.drop_segments_below(Offset(min(end, _surplus_end(stored))))
        self._removals.submit(surplus)
        old = log.drop_segments_below(end)
        if old:
            self._discard(stored, old, now)
        if not surplus and not old:
            return
        freed = bytes_before - log.size_bytes
        stored.counted_bytes = max(0, stored.counted_bytes - freed)
        self._reporter.report_log(
            stored,
            "segments_deleted",
            segments=count_before - log.segment_count,
            bytes=freed,
            reason=reason,
            log_start_offset=offset,
        )

    def _discard(self, stored: StoredLog, paths: Sequence[str], now: Instant) -> None:
        """Move files to the trash, or remove them where the disk is too full for that."""
        newest = stored.log.largest_timestamp
        try:
            date_ns = self.age_ns(now, newest) or newest
            self._to_trash(stored, paths, date_ns, now)  # guard Retention.trash
        except FilesError as error:
            if not error.is_full:
                raise
            self._removals.submit(paths)

    def _push(self, stored: StoredLog, deadline: Instant) -> None:
        self._sequence += 1
        heapq.heappush(self._ticks, _Tick(deadline, self._sequence, stored))


def _log_start(stored: StoredLog, age_ns: int | None, held: Offset) -> Offset:
    """Return the first offset that retention keeps; nothing from `held` on is removed."""
    log = stored.log
    return choose_log_start(
        log.segments(),
        log_start=log.log_start_offset,
        bound=Offset(min(log.high_watermark, log.recovery_point, held)),
        committed=log.high_watermark,
        limits=limits_of(stored.options),
        age_ns=age_ns,
    )


def _surplus_end(stored: StoredLog) -> Offset:
    """Return the end of the segments removed regardless of age.

    The log end without an age limit.
    """
    limits = limits_of(stored.options)
    if not limits.age_ns_max:
        return stored.log.log_end_offset
    return choose_log_start(
        stored.log.segments(),
        log_start=Offset(0),
        bound=stored.log.log_end_offset,
        committed=stored.log.high_watermark,
        limits=limits,
        age_ns=None,
    )


def _find_nothing(_partition: PartitionId, _name: str, found: CursorFound, now: Instant) -> None:
    """Default cursor look-up: no cursor is known."""
    found(CursorUnknown.UNANSWERED, now)


def _removable_end(stored: StoredLog, log_start: Offset) -> Offset:
    """Return the end of the segments that may be removed; unsynced segments wait.

    A power cut may undo a removal and show them torn, which looks like damage.
    """
    return Offset(min(log_start, stored.log.recovery_point))


def _interval_ns(stored: StoredLog) -> int:
    # A cleaner must rest between ticks.
    return max(1, stored.options.cleaner_interval_ms) * MILLISECOND_NS
