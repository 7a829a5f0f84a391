"""Creation of the files of the Raft log, and their recovery after a crash.

The rule of recovery (storage policies 1 and 4): a damaged end of the last file without proof of a
sync is torn; it is truncated, and a copy is kept. Any other damage or gap prevents the start,
because the missing part may have been acknowledged; then nothing is changed.

A directory of the previous version, one voter with files `<first index>.log`, is rewritten as one
file of this version. Until that file has its name, the former files are authoritative; afterwards
they are leftovers.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from liftbridge_broker.errors import CorruptionError, FilesError
from liftbridge_broker.model.metadata_log import (
    Configuration,
    Entry,
    EntryKind,
    HardState,
    Snapshot,
)
from liftbridge_broker.ports.files import FileHandle, Files
from liftbridge_broker.storage.raft_log.former import TERM, read_former
from liftbridge_broker.storage.raft_log.records import (
    FileScan,
    RecordKind,
    encode_file_header,
    encode_record,
    record_at,
    scan,
)
from liftbridge_broker.storage.raft_log.snapshots import SUFFIX, read_snapshot
from liftbridge_broker.storage.raft_log.state import LogState

FORMER_PREFIX: Final = bytes(24)
"""Precedes the commands of the previous version: no origin, no token."""

_NAME: Final = re.compile(r"([0-9]{20})\.(wal|log|snapshot)")
_NEW_SUFFIX: Final = ".new"
_CUT_SUFFIX: Final = ".cut"


class LogFile(NamedTuple):
    """An open log file.

    Attributes:
        handle: Handle for appends.
        number: Number in its name.
        chain: CRC of its last record.
        size: Length in bytes, all of it synced.
    """

    handle: FileHandle
    number: int
    chain: int
    size: int


class Found(NamedTuple):
    """Result of recovery, ready for appends.

    Attributes:
        file: The last log file.
        bases: Number of each log file and the index that it continues from, ascending.
        state: Entries, hard state and configurations.
        snapshots: Indexes of intact snapshots, ascending.
        snapshot: The newest intact snapshot.
        findings: Repairs, for the log of the process.
        is_reset_due: Whether the log must restart after the snapshot.
    """

    file: LogFile
    bases: Sequence[tuple[int, int]]
    state: LogState
    snapshots: Sequence[int]
    snapshot: Snapshot | None
    findings: Sequence[str]
    is_reset_due: bool


class _Tail(NamedTuple):
    """Scan of the last file, with its bytes."""

    path: str
    found: FileScan
    data: bytes

    @property
    def is_torn(self) -> bool:
        """Return whether its end is in doubt."""
        return self.found.end < len(self.data)


def log_path(directory: str, number: int) -> str:
    """Return the path of a log file."""
    return f"{directory}/{number:020}.wal"


def holds_metadata(files: Files, directory: str) -> bool:
    """Return whether a directory belongs or belonged to a member of a metadata group."""
    return any(_NAME.fullmatch(name) for name in files.list(directory))


def create_log_file(
    files: Files, directory: str, number: int, chain: int, state: LogState, kind: RecordKind
) -> LogFile:
    """Create a log file, durable before it gets its name, so that a named file is never torn.

    Args:
        files: The data directory.
        directory: Directory of the metadata.
        number: Number of the previous file plus one.
        chain: CRC of the last record of the previous file.
        state: State of the log; written in the base that opens the file.
        kind: `BASE`, or `RESET` if the file does not continue the previous file.

    Raises:
        FilesError: With `is_full` nothing has changed; otherwise the log cannot continue, because
            the name may or may not exist after a crash.
    """
    header, crc = encode_file_header(number, chain)
    base, crc = encode_record(
        kind, state.last_index, state.last_term, state.base_payload(), synced_bytes=0, chain=crc
    )
    return _place(files, directory, number, header + base, crc)


def _place(files: Files, directory: str, number: int, data: bytes, chain: int) -> LogFile:
    path = log_path(directory, number)
    files.remove(path + _NEW_SUFFIX)
    handle = files.open(path + _NEW_SUFFIX, create=True)
    try:
        files.append(handle, data)
        files.sync(handle)
    finally:
        files.close(handle)
    # From here on, even a full disk is an error: the name may exist or not.
    try:
        files.rename(path + _NEW_SUFFIX, path)
        files.sync_directory(directory)
        return LogFile(files.open(path), number, chain, len(data))
    except FilesError as error:
        raise FilesError(error.text) from error


def remove_log_files(files: Files, directory: str, numbers: Sequence[int]) -> None:
    """Remove log files, the oldest first; a crash may bring the names back.

    The names of snapshots removed before must not come back, because they would need these files.
    """
    if numbers:
        files.sync_directory(directory)
    for number in numbers:
        path = log_path(directory, number)
        files.remove(path)
        files.remove(path + _CUT_SUFFIX)


def recover(files: Files, directory: str, *, index_min: int, bootstrap: Configuration) -> Found:
    """Read a directory, truncate the torn end, make the rest durable.

    Args:
        files: The data directory.
        directory: Directory of the metadata.
        index_min: An index that is known to have been durable.
        bootstrap: Configuration of an empty directory, and of a directory of the previous version.

    Raises:
        CorruptionError: Entries that may have been acknowledged are damaged or missing.
        FilesError: The disk refused.
    """
    if not files.exists(directory):
        files.make_directory(directory)
        files.sync_directory("")
    names = files.list(directory)
    findings: list[str] = []
    snapshots = _read_snapshots(files, directory, names, bootstrap, findings)
    newest = snapshots[-1] if snapshots else None
    oldest = snapshots[0].meta.last_index if snapshots else 0
    known = max(index_min, 0 if newest is None else newest.meta.last_index)
    if not _numbers(names, "wal"):
        file, state = _begin(files, directory, names, bootstrap, findings, oldest, known)
        bases: Sequence[tuple[int, int]] = ((file.number, state.base_index),)
        is_reset_due = False
    else:
        state, bases, tail = _read_log(files, directory, _numbers(names, "wal"), oldest)
        is_reset_due = newest is not None and not state.holds(
            newest.meta.last_index, newest.meta.term
        )
        _require_whole(tail, state, newest, index_min)
        if state.base_index > (0 if newest is None else newest.meta.last_index):
            what = f"no intact snapshot covers entry {state.base_index}"
            raise CorruptionError(f"metadata log: {what}", path=directory)
        handle = files.open(tail.path)
        if tail.is_torn:
            findings.append(_cut(files, directory, handle, tail))
        # Data from the page cache counts from now on, so it must become durable. An earlier failed
        # sync may have left pages that no later sync writes.
        found = tail.found
        files.rewrite(handle, min(found.synced_bytes, found.end))
        files.sync(handle)
        file = LogFile(handle, found.number, found.chain, found.end)
    _remove_leftovers(files, directory, names, [number for number, _ in bases])
    indexes = [snapshot.meta.last_index for snapshot in snapshots]
    return Found(file, bases, state, indexes, newest, findings, is_reset_due)


def _begin(
    files: Files,
    directory: str,
    names: Sequence[str],
    bootstrap: Configuration,
    findings: list[str],
    oldest: int,
    known: int,
) -> tuple[LogFile, LogState]:
    """Create the first file of this version, with the content of files of the previous version."""
    state = LogState(0, 0, bootstrap)
    if not _numbers(names, "log"):
        if known or _numbers(names, "snapshot"):
            raise CorruptionError("metadata log: no log file is left", path=directory)
        return create_log_file(files, directory, 1, 0, state, RecordKind.BASE), state
    former = read_former(files, directory, oldest_snapshot=oldest, index_known=known)
    findings += former.findings
    base_index = former.last_index - len(former.entries)
    state = LogState(base_index, TERM if base_index else 0, bootstrap)
    header, chain = encode_file_header(1, 0)
    record, chain = encode_record(
        RecordKind.BASE,
        base_index,
        state.base_term,
        state.base_payload(),
        synced_bytes=0,
        chain=chain,
    )
    pieces = [header, record]
    for found in former.entries:
        data = FORMER_PREFIX + found.command
        entry = Entry(found.entry_index, found.term, EntryKind.COMMAND, data)
        state.entries.append(entry)
        record, chain = encode_record(
            RecordKind.COMMAND, entry.entry_index, entry.term, data, synced_bytes=0, chain=chain
        )
        pieces.append(record)
    state.hard_state = HardState(TERM, None, state.last_index)
    record, chain = encode_record(
        RecordKind.HARD_STATE, state.last_index, TERM, b"", synced_bytes=0, chain=chain
    )
    return _place(files, directory, 1, b"".join([*pieces, record]), chain), state


def _numbers(names: Sequence[str], kind: str) -> list[int]:
    """Return the numbers in the names of one kind of file, ascending."""
    matches = (_NAME.fullmatch(name) for name in names)
    return sorted(int(match[1]) for match in matches if match and match[2] == kind)


def _read_snapshots(
    files: Files,
    directory: str,
    names: Sequence[str],
    former: Configuration,
    findings: list[str],
) -> list[Snapshot]:
    """Read the intact snapshots, ascending; damaged snapshots are reported and kept."""
    intact: list[Snapshot] = []
    for index in _numbers(names, "snapshot"):
        snapshot = read_snapshot(files, directory, index, former)
        if snapshot is None:
            findings.append(f"snapshot {directory}/{index:020}{SUFFIX} is damaged and not used")
        else:
            intact.append(snapshot)
    return intact


def _read_log(
    files: Files, directory: str, numbers: Sequence[int], oldest: int
) -> tuple[LogState, list[tuple[int, int]], _Tail]:
    """Replay the files that the oldest snapshot does not cover; refuse all but a torn end.

    A crash may bring names of removed files back, so covered files need not be whole.
    """
    tail = _read_file(files, directory, numbers[-1])
    chosen = [tail]
    while _base_of(chosen[0]) > oldest:
        number = chosen[0].found.number - 1
        if number not in numbers:
            what = f"entries from {oldest + 1} to {_base_of(chosen[0])} are missing"
            raise CorruptionError(f"metadata log: {what}", path=directory)
        chosen.insert(0, _read_file(files, directory, number))
        if chosen[0].is_torn:
            raise _rot(chosen[0])
        if chosen[1].found.chain_before != chosen[0].found.chain:
            raise CorruptionError(
                f"metadata log: it does not continue file {number}", path=chosen[1].path
            )
    state: LogState | None = None
    for file in chosen:
        first, *others = file.found.records
        if state is None:
            state = LogState.from_base(first)
        else:
            state.apply(first, file.path)
        for record in others:
            state.apply(record, file.path)
    assert state is not None
    return state, [(file.found.number, _base_of(file)) for file in chosen], tail


def _read_file(files: Files, directory: str, number: int) -> _Tail:
    path = log_path(directory, number)
    handle = files.open(path)
    try:
        data = files.read(handle, 0, files.size(handle))
    finally:
        files.close(handle)
    found = scan(data, path)
    if not found.records or found.records[0].kind not in (RecordKind.BASE, RecordKind.RESET):
        # The base was durable before the file got its name.
        raise CorruptionError("metadata log: damaged base", path=path, position=found.end)
    if found.number != number:
        raise CorruptionError(f"metadata log: file {found.number} under another name", path=path)
    return _Tail(path, found, data)


def _base_of(file: _Tail) -> int:
    """Return the index that a file continues from; entries before a reset are not needed."""
    base = file.found.records[0]
    return 0 if base.kind is RecordKind.RESET else base.entry_index


def _require_whole(tail: _Tail, state: LogState, newest: Snapshot | None, index_min: int) -> None:
    """Refuse a log that lost synced records."""
    if tail.is_torn and tail.found.synced_bytes > tail.found.end:
        raise _rot(tail)
    covered = 0 if newest is None else newest.meta.last_index
    if max(state.last_index, covered) < max(state.hard_state.commit, index_min):
        raise _rot(tail, f"entry {state.last_index + 1} was synced and is missing")


def _rot(tail: _Tail, what: str = "") -> CorruptionError:
    """Create the error for a log that lost synced records."""
    if not what:
        is_whole = record_at(tail.data, tail.found.end) is not None
        what = f"a record was synced and is {'out of place' if is_whole else 'damaged'}"
    return CorruptionError(
        f"metadata log: {what}, so answered changes would be lost",
        path=tail.path,
        position=tail.found.end,
    )


def _cut(files: Files, directory: str, handle: FileHandle, tail: _Tail) -> str:
    """Truncate a torn end and keep a copy of it; return the finding for the operator."""
    end = tail.found.end
    text = f"cut {len(tail.data) - end} torn bytes from {tail.path} at byte {end}"
    copy = tail.path + _CUT_SUFFIX
    try:
        files.remove(copy)
        target = files.open(copy, create=True)
        try:
            files.append(target, tail.data[end:])
            files.sync(target)
        finally:
            files.close(target)
        files.sync_directory(directory)
    except FilesError as error:
        if not error.is_full:
            raise
        text += ", without a copy because the disk is full"
    files.truncate(handle, end)
    return text


def _remove_leftovers(
    files: Files, directory: str, names: Sequence[str], kept: Sequence[int]
) -> None:
    """Remove unfinished files, obsolete log files, and files of the previous version."""
    remove_log_files(
        files, directory, [number for number in _numbers(names, "wal") if number not in kept]
    )
    for name in names:
        match = _NAME.fullmatch(name)
        is_former = match is not None and match[2] == "log"
        if is_former or name.endswith((_NEW_SUFFIX, ".log.cut")):
            files.remove(f"{directory}/{name}")
    files.sync_directory(directory)
