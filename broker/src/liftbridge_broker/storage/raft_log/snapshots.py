"""Snapshots of the metadata: small files with a header that validates their state.

Payload of `<index>.snapshot` (`smallfile`), big-endian: magic `LBSN`, version u16 = 2, reserved
u16, index u64, term u64, SHA-256 of the state (32 bytes), length of the configuration u32, the
configuration (`raft_state.encode_configuration`), the state. The previous version had only index
u64, term u64 and the state. It had one voter, whose identity the opener of the log supplies.
"""

from collections.abc import Sequence
from hashlib import sha256
from struct import Struct
from typing import Final

from liftbridge_broker.errors import CorruptionError, FilesError
from liftbridge_broker.model.metadata_log import Configuration, Snapshot, SnapshotMeta
from liftbridge_broker.model.units import MIB
from liftbridge_broker.ports.files import Files
from liftbridge_broker.storage.raft_log.state import decode_configuration, encode_configuration
from liftbridge_broker.storage.smallfile import (
    NEW_SUFFIX,
    PREVIOUS_SUFFIX,
    SMALL_FILE_BYTES_MAX,
    read_version,
    write_small_file,
)

_HEAD: Final = Struct(">4sHHQQ32sI")
_MAGIC: Final = b"LBSN"
_VERSION: Final = 2
_FORMER: Final = Struct(">QQ")
_CONFIGURATION_BYTES_MAX: Final = MIB

STATE_BYTES_MAX: Final = SMALL_FILE_BYTES_MAX - _HEAD.size - _CONFIGURATION_BYTES_MAX
"""Maximum length of a state."""

SUFFIX: Final = ".snapshot"


def snapshot_path(directory: str, index: int) -> str:
    """Return the path of a snapshot."""
    return f"{directory}/{index:020}{SUFFIX}"


def snapshot_of(index: int, term: int, configuration: Configuration, state: bytes) -> Snapshot:
    """Create the snapshot of a state, with its length and hash."""
    digest = sha256(state).digest()
    return Snapshot(SnapshotMeta(index, term, configuration, len(state), digest), state)


def is_whole(snapshot: Snapshot) -> bool:
    """Return whether a state matches the length and hash in its metadata."""
    meta, state = snapshot
    return meta.size_bytes == len(state) and meta.sha256 == sha256(state).digest()


def write_snapshot(files: Files, directory: str, snapshot: Snapshot) -> None:
    """Make a snapshot durable.

    Raises:
        FilesError: With `is_full` nothing has changed.
    """
    meta, state = snapshot
    assert len(state) <= STATE_BYTES_MAX
    path = snapshot_path(directory, meta.last_index)
    configuration = encode_configuration(meta.configuration)
    head = _HEAD.pack(
        _MAGIC, _VERSION, 0, meta.last_index, meta.term, meta.sha256, len(configuration)
    )
    try:
        write_small_file(files, path, head + configuration + state)
    except FilesError as error:
        if error.is_full:
            files.remove(path + NEW_SUFFIX)
        raise


def read_snapshot(
    files: Files, directory: str, index: int, former: Configuration
) -> Snapshot | None:
    """Read a snapshot, `None` if it is damaged.

    Args:
        files: The data directory.
        directory: Directory of the metadata.
        index: Index in its name.
        former: Configuration for snapshots of the previous format version.

    Raises:
        FilesError: The disk failed to read.
    """
    path = snapshot_path(directory, index)
    payload = read_version(files, path, path.rpartition("/")[2])
    if payload is None or len(payload) < _FORMER.size:
        return None
    if not payload.startswith(_MAGIC):
        covered, term = _FORMER.unpack_from(payload)
        snapshot = snapshot_of(covered, term, former, payload[_FORMER.size :])
        return snapshot if covered == index else None
    if len(payload) < _HEAD.size:
        return None
    _, version, _, covered, term, digest, length = _HEAD.unpack_from(payload)
    try:
        configuration = decode_configuration(payload[_HEAD.size : _HEAD.size + length])
    except CorruptionError:
        return None
    state = payload[_HEAD.size + length :]
    snapshot = Snapshot(SnapshotMeta(covered, term, configuration, len(state), digest), state)
    is_sound = version == _VERSION and covered == index and is_whole(snapshot)
    return snapshot if is_sound else None


def remove_snapshots(files: Files, directory: str, indexes: Sequence[int]) -> None:
    """Remove snapshots; a crash may bring the names back."""
    for index in indexes:
        path = snapshot_path(directory, index)
        files.remove(path)
        files.remove(path + PREVIOUS_SUFFIX)
