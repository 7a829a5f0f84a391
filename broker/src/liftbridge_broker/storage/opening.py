"""Opens a log after a stop, and recovers it depending on the kind of stop.

A killed process leaves names and bytes that are visible and not durable. A decision based on them,
in this module or in recovery, must not outlive them. Otherwise a power cut soon after would leave a
directory that no order of writes explains.
"""

from collections.abc import Callable, Container

from liftbridge_broker.model.ids import PartitionId, StreamName
from liftbridge_broker.model.streams import FsyncPolicy, StreamOptions
from liftbridge_broker.ports.files import Files
from liftbridge_broker.storage.cleaning.dropped import read_dropped
from liftbridge_broker.storage.directory import DataDirectory
from liftbridge_broker.storage.flush import effective_policy, limits_of_log
from liftbridge_broker.storage.journal import Journal, LoadedJournal
from liftbridge_broker.storage.last_stop import LastStop
from liftbridge_broker.storage.log.partition_log import PartitionLog
from liftbridge_broker.storage.log.state import LogState
from liftbridge_broker.storage.log.types import EMPTY_STATE, LogLimits, RecoveryReport
from liftbridge_broker.storage.stored_log import StoredLog


class Opener:
    """Opens the logs of a data directory by what its journal contained at the start.

    Attributes:
        in_session: Whether the metadata group knows the result of this process's recovery.
    """

    def __init__(
        self,
        files: Files,
        directory: DataDirectory,
        journal: Journal,
        loaded: LoadedJournal,
        last_stop: LastStop,
    ) -> None:
        self.in_session = False
        self._last_stop = last_stop
        self._files = files
        self._directory = directory
        self._journal = journal
        self._states = loaded.states
        self._strict = loaded.strict

    def open(
        self, partition: PartitionId, name: StreamName, options: StreamOptions
    ) -> tuple[StoredLog, RecoveryReport]:
        """Open the log of a partition with its flush state; create it if it is missing.

        Fsync policy `auto` counts as `commit`, which is right for a single replica.

        Raises:
            FilesError: The files cannot be read or created; nothing was lost.
        """
        state = self._states.pop(partition, None)
        is_strict = partition in self._strict
        is_new = self._directory.is_unused(partition)
        # If an intact journal lacks a log, nothing in the log was synced. The log was also created
        # so shortly before the stop that it had only one policy, the current one.
        is_unknown = not is_new and state is None and self._last_stop.is_journal_whole
        has_doubt = False

        def doubt() -> None:
            nonlocal has_doubt
            has_doubt = True
            if state is not None:
                # Otherwise a later start would treat the log as complete.
                self._journal.put(partition, state, is_strict=False)
                self._journal.flush()

        log, report = _open_log(
            self._files,
            self._directory.make_log(partition, name),
            partition,
            limits_of_log(options),
            EMPTY_STATE if is_new or is_unknown else state,
            was_clean=self._last_stop.was_clean,
            is_new=is_new,
            is_strict=is_strict,
            on_doubt=doubt,
        )
        policy = effective_policy(options.fsync_policy)
        log.commit = policy is FsyncPolicy.COMMIT
        if not is_new:
            found = read_dropped(self._files, log)
            log.dropped_offset, log.copied = found  # guard Log.dropped_kept
        is_proven = self._last_stop.is_journal_whole and not has_doubt  # guard Log.doubt
        is_whole = is_strict and is_proven
        stored = StoredLog(
            partition,
            name,
            log,
            options,
            policy,
            is_strict=log.commit and is_whole,
            strict_from=log.log_end_offset,
            was_strict=is_whole or (is_unknown and log.commit),
            in_session=self.in_session,
            is_fresh=is_new,
            counted_bytes=log.size_bytes,
        )
        return stored, report

    def forget_others(self, kept: Container[PartitionId]) -> None:
        """Remove logs that were not opened from the journal, except those in `kept`."""
        for partition in list(self._states):
            if partition not in kept:
                del self._states[partition]
                self._journal.forget(partition)


def _open_log(
    files: Files,
    path: str,
    partition: PartitionId,
    limits: LogLimits,
    state: LogState | None,
    *,
    was_clean: bool,
    is_new: bool,
    is_strict: bool,
    on_doubt: Callable[[], object],
) -> tuple[PartitionLog, RecoveryReport]:
    """Open the log of a partition and recover it if the stop was not clean.

    Args:
        files: The data directory.
        path: Folder of the log.
        partition: Its partition.
        limits: Limits at which it rolls.
        state: State in the journal, durable; `None` if the journal lost it.
        was_clean: Whether the last broker stopped in order.
        is_new: Whether its folder, which is durable, was never written to.
        is_strict: Whether everything above the recovery point was written under policy `commit`.
        on_doubt: Records durably that truncated records may have counted.

    Raises:
        FilesError: The files cannot be read or created; nothing was lost.
    """
    if not was_clean and not is_new:
        files.sync_directory(path)
    log, report = PartitionLog.open(
        files,
        path,
        partition,
        limits,
        state,
        clean=was_clean,
        commit=state is None or is_strict,
        on_doubt=on_doubt,
    )
    if state is not None:
        # A raised log start says nothing about the batch it lies in.
        log.recovery_point = min(log.recovery_point, state.recovery_point)
    if report.removed:
        # Otherwise a power cut may bring them back, torn, and below a recovery point that has
        # advanced.
        files.sync_directory(path)
    return log, report
