"""Reads metadata of the previous version once: one voter with files `<first index>.log`.

The rule of recovery was that of `raft_recovery`: a damaged end without proof of a sync is ignored,
and any other damage prevents the start. The files stay unchanged.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.model.ids import MetadataIndex
from liftbridge_broker.ports.files import Files
from liftbridge_broker.storage.raft_log.former_file import (
    Entry,
    Scan,
    entry_at,
    read_file_header,
    scan,
)

_NAME: Final = re.compile(r"([0-9]{20})\.log")
TERM: Final = 1
"""Term of every entry of the single voter."""


class Former(NamedTuple):
    """Content of the files.

    Attributes:
        entries: Contiguous entries, starting with the file in which the oldest snapshot ends.
        last_index: Index of the last entry, or of the entry before the first file.
        findings: Descriptions of ignored bytes.
    """

    entries: Sequence[Entry]
    last_index: int
    findings: Sequence[str]


def read_former(files: Files, directory: str, *, oldest_snapshot: int, index_known: int) -> Former:
    """Read the files of the previous version.

    Args:
        files: The data directory.
        directory: Directory of the metadata.
        oldest_snapshot: Index of the oldest intact snapshot, 0 without one.
        index_known: An index that must exist: it was durable.

    Raises:
        CorruptionError: Entries that may have been acknowledged are damaged or missing.
        FilesError: The disk refused.
    """
    matches = (_NAME.fullmatch(name) for name in files.list(directory))
    first_indexes = sorted(int(match[1]) for match in matches if match)
    wanted = [first for first in first_indexes if first <= oldest_snapshot + 1]
    if not wanted:
        raise CorruptionError(
            f"metadata log: entries {oldest_snapshot + 1} to {first_indexes[0] - 1} are missing",
            path=directory,
        )
    entries: list[Entry] = []
    expected, chain = wanted[-1], None
    scanned: Scan | None = None
    data, path = b"", ""
    for first_index in first_indexes[len(wanted) - 1 :]:
        if scanned is not None and scanned.end < len(data):
            raise _rot(path, data, scanned, expected)
        path = f"{directory}/{first_index:020}.log"
        data = _read_all(files, path)
        found_index, found_chain = read_file_header(data, path)
        if found_index != expected or first_index != expected or chain not in (None, found_chain):
            raise CorruptionError(
                f"metadata log: it does not continue entry {expected - 1}", path=path
            )
        scanned = scan(data, MetadataIndex(first_index))
        entries += scanned.entries
        expected, chain = first_index + len(scanned.entries), scanned.chain
    assert scanned is not None
    if expected - 1 < max(index_known, scanned.synced_index):
        raise _rot(path, data, scanned, expected)
    findings: Sequence[str] = ()
    if scanned.end < len(data):
        findings = (f"left out {len(data) - scanned.end} torn bytes of {path}",)
    return Former(entries, expected - 1, findings)


def _rot(path: str, data: bytes, scanned: Scan, index: int) -> CorruptionError:
    """Create the error for a log that lost synced entries."""
    what = "damaged" if entry_at(data, scanned.end) is None else "out of place"
    if scanned.end == len(data):
        what = "missing"
    return CorruptionError(
        f"metadata log: entry {index} was synced and is {what}, so answered changes would be lost",
        path=path,
        position=scanned.end,
    )


def _read_all(files: Files, path: str) -> bytes:
    handle = files.open(path)
    try:
        return files.read(handle, 0, files.size(handle))
    finally:
        files.close(handle)
