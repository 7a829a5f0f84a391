"""State of idempotent publishers, stored beside the log whose batches told it.

The node keeps it and gives it as bytes; it is saved before batches are removed and at the end, so
that a start need not read headers that are gone (replication 1.15, "Idempotence").
"""

from typing import Final

from liftbridge_broker.ports.files import Files
from liftbridge_broker.storage.flush import StoredLog
from liftbridge_broker.storage.smallfile import read_small_file, write_small_file

PUBLISHERS: Final = "publishers"


def save_publishers(files: Files, stored: StoredLog) -> None:
    """Save what the source of a log tells now; nothing without a source. Blocks for two syncs.

    Raises:
        FilesError: What was saved before stays.
    """
    if stored.snapshot_source is not None:
        write_small_file(files, f"{stored.log.directory}/{PUBLISHERS}", stored.snapshot_source())


def read_publishers(files: Files, stored: StoredLog) -> bytes | None:
    """What was saved last, `None` when there is nothing intact.

    Raises:
        FilesError: The disk refused to read.
    """
    found = read_small_file(files, f"{stored.log.directory}/{PUBLISHERS}")
    return None if found is None else found.payload
