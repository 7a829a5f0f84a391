"""Opening a log after a stop whose nature decides what may be believed.

A process that was killed leaves names and bytes that are visible and not durable. What is decided
on the strength of them, here or in recovery, must not outlive them: a power cut soon after would
show a directory that no order of writes explains.
"""

from liftbridge_broker.model.ids import PartitionId, StreamName
from liftbridge_broker.model.streams import FsyncPolicy, StreamOptions
from liftbridge_broker.ports.files import Files
from liftbridge_broker.storage.flush import StoredLog, effective_policy, limits_of_log
from liftbridge_broker.storage.log import PartitionLog
from liftbridge_broker.storage.state import LogState
from liftbridge_broker.storage.types import LogLimits, RecoveryReport


def open_stored(
    files: Files,
    path: str,
    partition: PartitionId,
    name: StreamName,
    options: StreamOptions,
    state: LogState | None,
    *,
    was_clean: bool,
    is_strict: bool,
    is_new: bool,
    is_unknown: bool,
) -> tuple[StoredLog, RecoveryReport]:
    """Open the log of a partition as its flushing needs it.

    Fsync policy `auto` counts as `commit`, as it is right for a single replica.

    `is_new` says that the log is made now; `is_unknown` that it was made so shortly before the stop
    that the journal, which is whole, does not know it: then it had one policy only, its present
    one. See `_open_log` for the other arguments.
    """
    log, report = _open_log(
        files,
        path,
        partition,
        limits_of_log(options),
        state,
        was_clean=was_clean,
        is_strict=is_strict,
    )
    policy = effective_policy(options.fsync_policy)
    log.commit = policy is FsyncPolicy.COMMIT
    stored = StoredLog(
        partition,
        name,
        log,
        options,
        policy,
        is_strict=log.commit and is_strict,
        strict_from=log.log_end_offset,
        was_strict=is_strict or (is_unknown and log.commit),
        is_fresh=is_new,
        counted_bytes=log.size_bytes,
    )
    return stored, report


def _open_log(
    files: Files,
    path: str,
    partition: PartitionId,
    limits: LogLimits,
    state: LogState | None,
    *,
    was_clean: bool,
    is_strict: bool,
) -> tuple[PartitionLog, RecoveryReport]:
    """Open the log of a partition and recover it when the stop was not clean.

    Args:
        files: The data directory.
        path: Folder of the log.
        partition: Its partition.
        limits: When it rolls.
        state: What the journal says, durably; `None` when the journal lost it.
        was_clean: Whether the last broker stopped in order.
        is_strict: Whether all above the recovery point was written under policy `commit`.

    Raises:
        FilesError: The files cannot be read or made; nothing was lost.
    """
    if not was_clean:
        files.sync_directory(path)
    log, report = PartitionLog.open(
        files,
        path,
        partition,
        limits,
        state,
        clean=was_clean,
        commit=state is None or is_strict,
    )
    if was_clean:
        return log, report
    if state is not None:
        # A log start that was raised says nothing of the batch it lies in.
        log.recovery_point = min(log.recovery_point, state.recovery_point)
    if report.removed:
        # Else they are back after a power cut, torn, and below a recovery point that moved on.
        files.sync_directory(path)
    return log, report
