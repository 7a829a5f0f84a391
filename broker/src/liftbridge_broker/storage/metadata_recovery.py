"""Files of the metadata log: how they are made, and what is left of them after a crash.

The rule of recovery (storage policies 1 and 4): a damaged end of the last file that nothing proves
to have been synced is torn and cut, with a copy kept. Any other damage or gap refuses to start,
because what is missing may have been answered; nothing is changed then.
"""

import re
from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from liftbridge_broker.errors import CorruptionError, FilesError
from liftbridge_broker.model.ids import MetadataIndex
from liftbridge_broker.ports.files import FileHandle, Files
from liftbridge_broker.ports.metadata import Committed, ProposalToken, RecoveredMetadata
from liftbridge_broker.storage.metadata_file import (
    Entry,
    Scan,
    encode_file_header,
    entry_at,
    read_file_header,
    scan,
)
from liftbridge_broker.storage.smallfile import (
    PREVIOUS_SUFFIX,
    read_version,
    write_small_file,
)

SNAPSHOTS_KEPT: Final = 2
"""Snapshots kept by default: one damaged snapshot costs nothing then."""

_SNAPSHOT: Final = Struct(">QQ")
_NAME: Final = re.compile(r"([0-9]{20})\.(log|snapshot)")
_NEW_SUFFIX: Final = ".new"
_CUT_SUFFIX: Final = ".cut"
_NO_INDEX: Final = MetadataIndex(0)
_NOBODY: Final = ProposalToken(0)


class LogFile(NamedTuple):
    """An open log file and the chain its next entry continues."""

    handle: FileHandle
    chain: int


class RecoveredLog(NamedTuple):
    """What recovery found, ready to be written on.

    Attributes:
        handle: The last log file.
        chain: CRC of its last entry or mark.
        last_index: Index of its last entry, which is durable now.
        first_indexes: First index of every log file, rising.
        snapshots: Indexes of intact snapshots, rising.
        recovered: State and commands for the owner.
    """

    handle: FileHandle
    chain: int
    last_index: MetadataIndex
    first_indexes: Sequence[MetadataIndex]
    snapshots: Sequence[MetadataIndex]
    recovered: RecoveredMetadata


class _Snapshot(NamedTuple):
    covered_index: MetadataIndex
    state: bytes


class _Tail(NamedTuple):
    """What the log files say: entries, the last file as it was scanned, and its bytes."""

    entries: Sequence[Entry]
    last_index: MetadataIndex
    path: str
    found: Scan
    data: bytes


def log_path(directory: str, first_index: MetadataIndex) -> str:
    """Path of a log file."""
    return f"{directory}/{first_index:020}.log"


def snapshot_path(directory: str, index: MetadataIndex) -> str:
    """Path of a snapshot."""
    return f"{directory}/{index:020}.snapshot"


def create_log_file(
    files: Files, directory: str, first_index: MetadataIndex, chain: int
) -> LogFile:
    """Make a log file durable before it has its name, so that a named file is never torn.

    Raises:
        FilesError: With `is_full` nothing has changed; otherwise the log cannot go on, because
            the name may or may not be there after a crash.
    """
    path = log_path(directory, first_index)
    files.remove(path + _NEW_SUFFIX)
    header = encode_file_header(first_index, chain)
    handle = files.open(path + _NEW_SUFFIX, create=True)
    try:
        files.append(handle, header)
        files.sync(handle)
    finally:
        files.close(handle)
    # From here on even a full disk is no refusal: the name might be there or not.
    try:
        files.rename(path + _NEW_SUFFIX, path)
        files.sync_directory(directory)
        return LogFile(files.open(path), scan(header, first_index).chain)
    except FilesError as error:
        raise FilesError(error.text) from error


def write_snapshot(
    files: Files, directory: str, index: MetadataIndex, term: int, state: bytes
) -> None:
    """Make a snapshot durable: u64 index, u64 term, state, in a small file with checksum."""
    path = snapshot_path(directory, index)
    try:
        write_small_file(files, path, _SNAPSHOT.pack(index, term) + state)
    except FilesError as error:
        if error.is_full:
            files.remove(path + _NEW_SUFFIX)
        raise


def remove_older(
    files: Files,
    directory: str,
    first_indexes: list[MetadataIndex],
    snapshots: list[MetadataIndex],
    snapshots_kept: int,
) -> None:
    """Remove all but the last `snapshots_kept` snapshots, and log files the oldest left covers.

    Both lists are shortened. The names may come back in a crash; recovery does not read them.
    """
    while len(snapshots) > snapshots_kept:
        path = snapshot_path(directory, snapshots.pop(0))
        files.remove(path)
        files.remove(path + PREVIOUS_SUFFIX)
    floor = snapshots[0] if len(snapshots) == snapshots_kept else _NO_INDEX
    while len(first_indexes) > 1 and first_indexes[1] <= floor + 1:
        path = log_path(directory, first_indexes.pop(0))
        files.remove(path)
        files.remove(path + _CUT_SUFFIX)


def recover(files: Files, directory: str, index_min: MetadataIndex) -> RecoveredLog:
    """Read a directory, cut what is torn, make the rest durable.

    Args:
        files: The data directory.
        directory: Where the metadata lie.
        index_min: An index that is known to have been durable.

    Raises:
        CorruptionError: What may have been answered is damaged or missing.
        FilesError: The disk refused.
    """
    if not files.exists(directory):
        files.make_directory(directory)
        files.sync_directory("")
    names = files.list(directory)
    findings: list[str] = []
    snapshots = _read_snapshots(files, directory, names, findings)
    newest = snapshots[-1] if snapshots else _Snapshot(_NO_INDEX, b"")
    first_indexes = _indexes(names, "log")
    if not first_indexes:
        if index_min or _indexes(names, "snapshot"):
            raise CorruptionError("metadata log: no log file is left", path=directory)
        made = create_log_file(files, directory, MetadataIndex(1), 0)
        empty = RecoveredMetadata(_NO_INDEX, b"", (), ())
        return RecoveredLog(made.handle, made.chain, _NO_INDEX, (MetadataIndex(1),), (), empty)
    tail = _read_tail(files, directory, first_indexes, newest.covered_index, index_min)
    handle = files.open(tail.path)
    if tail.found.end < len(tail.data):
        findings.append(_cut(files, directory, handle, tail))
    # Entries that were only in the page cache are told as committed now, so they must last.
    files.sync(handle)
    for name in names:
        if name.endswith(_NEW_SUFFIX):
            files.remove(f"{directory}/{name}")
    files.sync_directory(directory)
    entries = [
        Committed(entry.entry_index, entry.command, _NOBODY)
        for entry in tail.entries
        if entry.entry_index > newest.covered_index
    ]
    return RecoveredLog(
        handle,
        tail.found.chain,
        tail.last_index,
        first_indexes,
        [snapshot.covered_index for snapshot in snapshots],
        RecoveredMetadata(newest.covered_index, newest.state, entries, findings),
    )


def _indexes(names: Sequence[str], kind: str) -> list[MetadataIndex]:
    """Indexes in the names of one kind of file, rising."""
    found = (_NAME.fullmatch(name) for name in names)
    return sorted(MetadataIndex(int(match[1])) for match in found if match and match[2] == kind)


def _read_snapshots(
    files: Files, directory: str, names: Sequence[str], findings: list[str]
) -> list[_Snapshot]:
    """Intact snapshots, rising; damaged ones are told and left."""
    intact: list[_Snapshot] = []
    for index in _indexes(names, "snapshot"):
        path = snapshot_path(directory, index)
        payload = read_version(files, path, path.rpartition("/")[2])
        if payload is None or payload[:8] != index.to_bytes(8, "big"):
            findings.append(f"snapshot {path} is damaged and not used")
        else:
            intact.append(_Snapshot(index, payload[_SNAPSHOT.size :]))
    return intact


def _read_tail(
    files: Files,
    directory: str,
    first_indexes: Sequence[MetadataIndex],
    snapshot_index: MetadataIndex,
    index_min: MetadataIndex,
) -> _Tail:
    """Read the files with entries behind the snapshot, and refuse any damage but a torn end."""
    wanted = [first for first in first_indexes if first <= snapshot_index + 1]
    if not wanted:
        raise CorruptionError(
            f"metadata log: entries {snapshot_index + 1} to {first_indexes[0] - 1} are missing",
            path=log_path(directory, first_indexes[0]),
        )
    known_index = max(snapshot_index, index_min)
    entries: list[Entry] = []
    expected = wanted[-1]
    chain: int | None = None
    tail: _Tail | None = None
    for first_index in first_indexes[len(wanted) - 1 :]:
        path = log_path(directory, first_index)
        if tail is not None and tail.found.end < len(tail.data):
            raise _rot(tail)
        data = _read_all(files, path)
        found_index, found_chain = read_file_header(data, path)
        if found_index != expected or first_index != expected or chain not in (None, found_chain):
            raise CorruptionError(
                f"metadata log: it does not continue entry {expected - 1}", path=path
            )
        found = scan(data, first_index)
        entries += found.entries
        expected = MetadataIndex(first_index + len(found.entries))
        chain = found.chain
        tail = _Tail(entries, MetadataIndex(expected - 1), path, found, data)
    assert tail is not None
    if tail.last_index < max(known_index, tail.found.synced_index):
        raise _rot(tail)
    return tail


def _rot(tail: _Tail) -> CorruptionError:
    """Why a log does not start that lost what was synced."""
    what = "damaged" if entry_at(tail.data, tail.found.end) is None else "out of place"
    if tail.found.end == len(tail.data):
        what = "missing"
    return CorruptionError(
        f"metadata log: entry {tail.last_index + 1} was synced and is {what}, "
        "so answered changes would be lost",
        path=tail.path,
        position=tail.found.end,
    )


def _read_all(files: Files, path: str) -> bytes:
    handle = files.open(path)
    try:
        return files.read(handle, 0, files.size(handle))
    finally:
        files.close(handle)


def _cut(files: Files, directory: str, handle: FileHandle, tail: _Tail) -> str:
    """Cut a torn end and keep a copy of it; returns what to tell the operator."""
    end = tail.found.end
    told = f"cut {len(tail.data) - end} torn bytes from {tail.path} at byte {end}"
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
        told += ", without a copy because the disk is full"
    files.truncate(handle, end)
    return told
