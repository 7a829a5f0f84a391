"""State of idempotent publishers, stored beside the log from whose batches it derives.

The node keeps the state and supplies it as bytes. It is saved before batches are removed and at
shutdown, because a start cannot read removed headers ("Idempotent publishers" in
docs/spec/replication.md).
"""

from typing import Final

from liftbridge_broker.ports.files import Files
from liftbridge_broker.storage.smallfile import read_small_file, write_small_file
from liftbridge_broker.storage.stored_log import StoredLog

PUBLISHERS: Final = "publishers"


def save_publishers(files: Files, stored: StoredLog) -> None:
    """Save the current state from the log's source; no-op without a source. Blocks for two syncs.

    Raises:
        FilesError: The previous state stays.
    """
    if stored.snapshot_source is not None:
        write_small_file(files, f"{stored.log.directory}/{PUBLISHERS}", stored.snapshot_source())


def read_publishers(files: Files, stored: StoredLog) -> bytes | None:
    """Read the last saved state, `None` if none is intact.

    Raises:
        FilesError: The disk failed to read.
    """
    data = read_small_file(files, f"{stored.log.directory}/{PUBLISHERS}")
    return None if data is None else data.payload
