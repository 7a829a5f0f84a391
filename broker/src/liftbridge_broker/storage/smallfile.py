"""Atomic small files: identity, clean marker, publisher snapshots (storage policy 10).

A file is written beside the old one, synced, and renamed into place; the previous version stays as
`<name>.previous`. Contents carry a CRC that also covers the file's name, so that a file restored or
moved under another name is not trusted. Readers get the newest intact version, or nothing; without
a version, the owner rebuilds it from the log or refuses to start.

Layout, big-endian: magic `LBSF` (4 bytes), length of the payload u32, CRC-32C u32 over name and
payload, payload.
"""

from struct import Struct
from typing import Final, NamedTuple

from liftbridge_broker.logformat.checksum import crc32c
from liftbridge_broker.model.units import MIB
from liftbridge_broker.ports.files import Files

_HEADER: Final = Struct(">4sII")
_MAGIC: Final = b"LBSF"
NEW_SUFFIX: Final = ".new"
PREVIOUS_SUFFIX: Final = ".previous"
SMALL_FILE_BYTES_MAX: Final = 64 * MIB


class SmallFile(NamedTuple):
    """Result of `read_small_file`.

    Attributes:
        payload: Contents as written.
        is_previous: Whether this is the previous version, because the newest is missing or damaged.
    """

    payload: bytes
    is_previous: bool


def write_small_file(files: Files, path: str, payload: bytes) -> None:
    """Replace a file durably; whenever a crash happens, one intact version exists.

    Blocks for two syncs.

    Raises:
        FilesError: Nothing has changed for readers, or the new version is in place but perhaps not
            durable.
    """
    assert len(payload) <= SMALL_FILE_BYTES_MAX
    directory, _, name = path.rpartition("/")
    # Leftovers of an interrupted write must not be appended to.
    files.remove(path + NEW_SUFFIX)
    handle = files.open(path + NEW_SUFFIX, create=True)
    try:
        files.append(handle, _sealed(name, payload))
        files.sync(handle)
    finally:
        files.close(handle)
    if read_version(files, path, name) is not None:
        # A damaged version is not kept: the previous version may be intact.
        files.rename(path, path + PREVIOUS_SUFFIX)
    files.rename(path + NEW_SUFFIX, path)
    files.sync_directory(directory)


def read_small_file(files: Files, path: str) -> SmallFile | None:
    """Read the newest intact version of a file, `None` if there is none.

    Raises:
        FilesError: The disk refused to read, which says nothing about the contents.
    """
    name = path.rpartition("/")[2]
    for candidate, is_previous in ((path, False), (path + PREVIOUS_SUFFIX, True)):
        payload = read_version(files, candidate, name)
        if payload is not None:
            return SmallFile(payload, is_previous)
    return None


def remove_small_file(files: Files, path: str) -> None:
    """Remove a file durably with all its versions, the newest last, so no old one is trusted.

    Raises:
        FilesError: The newest version may still exist.
    """
    files.remove(path + NEW_SUFFIX)
    forget_previous(files, path)
    if files.exists(path):
        files.remove(path)
        files.sync_directory(path.rpartition("/")[0])


def forget_previous(files: Files, path: str) -> None:
    """Remove the previous version durably, so that it is never trusted.

    Raises:
        FilesError: It may still exist.
    """
    if files.exists(path + PREVIOUS_SUFFIX):
        files.remove(path + PREVIOUS_SUFFIX)
        files.sync_directory(path.rpartition("/")[0])


def read_version(files: Files, path: str, name: str) -> bytes | None:
    """Read the payload of one version, `None` if it is missing or damaged.

    Args:
        files: Files that contain it.
        path: The version to read.
        name: Name it must have been written under.

    Raises:
        FilesError: The disk refused to read.
    """
    if not files.exists(path):
        return None
    handle = files.open(path)
    try:
        length_max = _HEADER.size + SMALL_FILE_BYTES_MAX
        data = files.read(handle, 0, min(files.size(handle), length_max + 1))
    finally:
        files.close(handle)
    if len(data) < _HEADER.size:
        return None
    magic, length, crc = _HEADER.unpack_from(data)
    payload = data[_HEADER.size :]
    if magic != _MAGIC or length != len(payload) or crc != crc32c(name.encode() + b"\0" + payload):
        return None
    return payload


def _sealed(name: str, payload: bytes) -> bytes:
    crc = crc32c(name.encode() + b"\0" + payload)
    return _HEADER.pack(_MAGIC, len(payload), crc) + payload
