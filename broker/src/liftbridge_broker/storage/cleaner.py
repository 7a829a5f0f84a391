"""The cleaner: rolls by age, applies retention and starts compaction, a log at a time.

One heap of deadlines for all logs, because a timer for each would cost an idle broker with a
thousand streams more than the work itself. As in the original a tick that rolled does nothing
else, and retention comes before compaction (liftbridge 4.4, 4.7, 4.8).
"""

import heapq
from typing import Final, NamedTuple, Protocol

from liftbridge_broker.model.ids import Instant, Offset
from liftbridge_broker.model.streams import MILLISECOND_NS
from liftbridge_broker.storage.flush import StoredLog
from liftbridge_broker.storage.retention import choose_log_start, limits_of

TICKS_MAX: Final = 16
"""Logs looked at in one turn; more that are due wait for the next."""
_SPREAD: Final = 0x9E37_79B9_7F4A_7C15
_SPREAD_BITS: Final = 64


class CleanerHost(Protocol):
    """What the cleaner asks of the store."""

    def roll(self, stored: StoredLog, now: Instant) -> None:
        """Begin a new segment."""
        ...

    def raise_log_start(self, stored: StoredLog, offset: Offset, now: Instant) -> None:
        """Move the log start durably, then remove the segments below it."""
        ...

    def compact(self, stored: StoredLog, now: Instant, wall_ns: int) -> None:
        """Begin to compact, or do nothing when nothing can be gained."""
        ...


class _Tick(NamedTuple):
    """When a log is due; `sequence` tells ticks apart, so that logs are never compared."""

    deadline: Instant
    sequence: int
    stored: StoredLog


class Cleaner:
    """Deadlines of all logs of a store."""

    def __init__(self, host: CleanerHost) -> None:
        self._host = host
        self._ticks: list[_Tick] = []
        self._sequence = 0

    def add(self, stored: StoredLog, now: Instant) -> None:
        """Look after a log from now on; ticks of logs opened together are spread over time."""
        interval_ns = _interval_ns(stored)
        phase = (stored.partition_id * _SPREAD) % (1 << _SPREAD_BITS)
        self._push(stored, Instant(now + (phase * interval_ns >> _SPREAD_BITS) + 1))

    def next_deadline(self) -> Instant | None:
        """When `on_timer` wants to be called, `None` for never."""
        return self._ticks[0].deadline if self._ticks else None

    def on_timer(self, now: Instant, wall_ns: int) -> None:
        """Look after the logs that are due.

        Raises:
            FilesError: The disk failed.
        """
        for _ in range(TICKS_MAX):
            if not self._ticks or self._ticks[0].deadline > now:
                return
            stored = heapq.heappop(self._ticks).stored
            if stored.is_closed:
                continue
            self._push(stored, Instant(now + _interval_ns(stored)))
            self._tick(stored, now, wall_ns)

    def _tick(self, stored: StoredLog, now: Instant, wall_ns: int) -> None:
        log = stored.log
        if log.is_offline:
            return
        if not log.is_dirty:
            log.close_idle()
        if log.needs_roll(wall_ns):
            self._host.roll(stored, now)
            return
        if stored.is_leader:
            log_start = choose_log_start(
                log.segments(),
                log_start=log.log_start_offset,
                high_watermark=log.high_watermark,
                limits=limits_of(stored.options),
                wall_ns=wall_ns,
            )
            if log_start > log.log_start_offset:
                self._host.raise_log_start(stored, log_start, now)
        if stored.options.compact_enabled:
            self._host.compact(stored, now, wall_ns)

    def _push(self, stored: StoredLog, deadline: Instant) -> None:
        self._sequence += 1
        heapq.heappush(self._ticks, _Tick(deadline, self._sequence, stored))


def _interval_ns(stored: StoredLog) -> int:
    # The original takes 0 as its default; a cleaner that never rests is nobody's wish.
    return max(1, stored.options.cleaner_interval_ms) * MILLISECOND_NS
