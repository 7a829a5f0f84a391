"""Truncates logs, and restarts them at another offset, safely across crashes.

The journal lowers its claims before a log gets shorter, and records the new end afterwards.
"""

from collections.abc import Callable, Sequence

from liftbridge_broker.model.ids import Offset
from liftbridge_broker.storage.journal import Journal
from liftbridge_broker.storage.log.state import LogState
from liftbridge_broker.storage.reporting import Reporter
from liftbridge_broker.storage.stored_log import StoredLog

Cuts = Sequence[tuple[StoredLog, Offset]]


def announce_cuts(journal: Journal, cuts: Cuts) -> None:
    """Update the journal before logs are truncated; its owner then flushes it.

    Truncated epochs are removed immediately. If records of older epochs took their place, the next
    start would assign these to the removed epochs. If the log is not truncated after all, the next
    start finds the epochs in the log.
    """
    for stored, end in cuts:
        state = stored.log.state
        state = state._replace(
            recovery_point=min(state.recovery_point, end),
            epochs=tuple(entry for entry in state.epochs if entry[1] < end),
        )
        journal.put(stored.partition_id, state, is_strict=stored.is_strict)


def cut_logs(journal: Journal, reporter: Reporter, cuts: Cuts) -> None:
    """Truncate logs whose truncations are durable in the journal.

    Raises:
        FilesError: The device failed; the next start finds each log either truncated or not.
    """
    for stored, end in cuts:
        removed = stored.log.log_end_offset - end
        stored.log.truncate(end)
        _settle(stored, end)
        stored.put_state(journal)
        reporter.report_log(stored, "log_truncated", log_end_offset=end, removed_messages=removed)


def restart_log(
    journal: Journal,
    reporter: Reporter,
    stored: StoredLog,
    offset: Offset,
    flush: Callable[[], None],
) -> None:
    """Drop the whole content of a log and continue at an offset.

    Args:
        journal: Journal with the state of the log.
        reporter: Reports the restart.
        stored: The log.
        offset: New log start and end; below the current start only for a log without records.
        flush: Makes the journal durable; raises `FilesError`.

    Raises:
        FilesError: The disk failed; if the journal was not flushed, nothing was dropped.
    """
    log = stored.log
    removed = log.log_end_offset - log.log_start_offset
    is_below = offset < log.log_start_offset
    if is_below:
        # Remove files of hidden records first: with a lower log start they would look like rot.
        log.restart_at(offset)
    journal.put(
        stored.partition_id, LogState(offset, offset, offset, ()), is_strict=stored.is_strict
    )
    flush()
    if not is_below:
        log.restart_at(offset)
    _settle(stored, offset)
    stored.put_state(journal)
    reporter.report_log(stored, "log_truncated", log_end_offset=offset, removed_messages=removed)


def _settle(stored: StoredLog, end: Offset) -> None:
    stored.counted_bytes = min(stored.counted_bytes, stored.log.size_bytes)
    stored.strict_from = min(stored.strict_from, end)
    stored.cut_count += 1
