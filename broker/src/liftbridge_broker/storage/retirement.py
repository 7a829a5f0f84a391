"""Data directories whose broker left its cluster: they never belong to a voter again.

The marker names the directory that left. A broker started on it later joins as a new member with an
empty metadata log, as on a wiped disk. It keeps its partition logs, which are truncated where they
differ from their leaders'. It never founds a cluster, so the marker stays until a cluster admits it
and it has that cluster's metadata.
"""

from collections.abc import Sequence
from typing import Final

from liftbridge_broker.ports.files import Files
from liftbridge_broker.storage.directory import (
    CLEAN,
    IDENTITY,
    RETIRED,
    Identity,
    read_identity,
    write_identity,
)
from liftbridge_broker.storage.smallfile import (
    forget_previous,
    read_small_file,
    remove_small_file,
    write_small_file,
)

_ENCODING: Final = "utf-8"


def retire(files: Files, identity: Identity) -> None:
    """Mark a directory as retired, durably; idempotent.

    Raises:
        FilesError: The marker may exist or not.
    """
    if not is_retired(files, identity):
        write_small_file(files, RETIRED, identity.data_dir_id.encode(_ENCODING))


def is_retired(files: Files, identity: Identity) -> bool:
    """Return whether the directory was marked under its current identity."""
    return _marked(files) == identity.data_dir_id


def renew_retired(files: Files, data_dir_id: str, member_directories: Sequence[str]) -> bool:
    """Remove the membership from a marked directory; no-op for any other directory.

    Every step leaves a state from which the next start can continue.

    Args:
        files: The data directory, locked.
        data_dir_id: New identity of the directory.
        member_directories: Directories of its metadata.

    Returns:
        Whether the broker may join only by admission.

    Raises:
        FilesError: The disk failed; the next start tries again.
    """
    marked = _marked(files)
    if marked is None:
        return False
    stored = read_identity(files)
    if stored is not None and stored.data_dir_id == marked:
        for directory in member_directories:
            for name in files.list(directory):
                files.remove(f"{directory}/{name}")
            files.sync_directory(directory)
        remove_small_file(files, CLEAN)
        write_identity(files, Identity(data_dir_id, stored.broker_id))
        return True
    forget_previous(files, IDENTITY)  # a crash may have left the former identity
    if any(files.list(directory) for directory in member_directories):
        remove_small_file(files, RETIRED)
        return False
    return True


def _marked(files: Files) -> str | None:
    data = read_small_file(files, RETIRED)
    return None if data is None else data.payload.decode(_ENCODING, errors="replace")
