"""Inspection of a data directory's metadata log, including the rules of the next start.

The files are copied into memory and opened there as at a start, so the tools apply the same rules
of recovery and the directory stays unchanged. A metadata log is small: a snapshot and
some thousand commands.
"""

from typing import Final, NamedTuple

from liftbridge_broker.adapters.memory.files import MemoryFiles
from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.node.metadata.consensus import recovered_metadata
from liftbridge_broker.node.metadata.driver import restore
from liftbridge_broker.ports.files import Files
from liftbridge_broker.storage.raft_log.log import RaftLog

METADATA_DIRECTORY: Final = "metadata"
_RESERVE: Final = "reserve"


class MetadataReport(NamedTuple):
    """A metadata log.

    Attributes:
        bytes: Length of its files, without the reserve.
        first_index: Index of the first stored entry; above `last_index` for an empty log.
        last_index: Index of the last entry.
        snapshot_index: Index that the newest snapshot covers, 0 without one.
        streams: Streams after the last command known to be committed.
        partitions: Their partitions.
        findings: Damage that the next start repairs.
        damage: Reason why the next start fails, empty if it does not; with a reason, nothing else
            is known.
        path: File with the damage.
        position: Byte of the damage in that file.
    """

    bytes: int
    first_index: int = 0
    last_index: int = 0
    snapshot_index: int = 0
    streams: int = 0
    partitions: int = 0
    findings: tuple[str, ...] = ()
    damage: str = ""
    path: str = METADATA_DIRECTORY
    position: int = 0


def read_metadata(files: Files, proven_index: int) -> MetadataReport:
    """Read the metadata log without changes.

    Args:
        files: The data directory.
        proven_index: Greatest index that other files prove, such as the id of a stream.

    Raises:
        FilesError: The disk refused to read.
    """
    copy, size = copy_of_metadata(files)
    try:
        log = RaftLog.open(copy, directory=METADATA_DIRECTORY, index_min=proven_index)
        if len(log.configuration.voters) == 1:
            # As in a start of the only voter: durable entries are committed.
            log.mark(log.last_index)
        state, _ = restore(recovered_metadata(log))
    except CorruptionError as error:
        what = error.text.removesuffix(f" ({error.path} at byte {error.position})")
        path = error.path or METADATA_DIRECTORY
        return MetadataReport(size, damage=what, path=path, position=error.position)
    return MetadataReport(
        size,
        log.first_index,
        log.last_index,
        log.snapshot_meta.last_index,
        len(state.streams),
        state.partition_count,
        tuple(log.findings),
    )


def copy_of_metadata(files: Files) -> tuple[MemoryFiles, int]:
    """Copy the metadata log to memory; return it and the length of its files without the reserve.

    Raises:
        FilesError: The disk refused to read.
    """
    copy = MemoryFiles()
    size = 0
    names = files.list(METADATA_DIRECTORY) if files.exists(METADATA_DIRECTORY) else ()
    for name in names:
        path = f"{METADATA_DIRECTORY}/{name}"
        data = _read(files, path)
        size += len(data) if name != _RESERVE else 0
        copy.put(path, data)
    return copy, size


def _read(files: Files, path: str) -> bytes:
    handle = files.open(path)
    try:
        return files.read(handle, 0, files.size(handle))
    finally:
        files.close(handle)
