"""State of idempotent publishers, stored beside the log whose batches carry it.

The node keeps it and supplies it as bytes. It is saved before batches are removed and at the end,
so that a start need not read deleted headers ("Idempotent publishers" in docs/spec/replication.md).
"""

from typing import Final

from liftbridge_broker.ports.files import Files
from liftbridge_broker.storage.flush import StoredLog
from liftbridge_broker.storage.smallfile import read_small_file, write_small_file

PUBLISHERS: Final = "publishers"


def save_publishers(files: Files, stored: StoredLog) -> None:
    """Save the present state from the log's source; no-op without one. Blocks for two syncs.

    Raises:
        FilesError: The previous state stays.
    """
    if stored.snapshot_source is not None:
        write_small_file(files, f"{stored.log.directory}/{PUBLISHERS}", stored.snapshot_source())


def read_publishers(files: Files, stored: StoredLog) -> bytes | None:
    """The last saved state, `None` when there is none intact.

    Raises:
        FilesError: The disk refused to read.
    """
    found = read_small_file(files, f"{stored.log.directory}/{PUBLISHERS}")
    return None if found is None else found.payload
