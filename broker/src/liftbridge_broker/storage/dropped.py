"""Up to where a log may lack tombstones, in a small file beside it.

Whoever copies a log must know it, whatever became of the broker that dropped them: it is written
before the first tombstone below goes, and before the first record of a copy comes. A file that is
too old or cannot be read counts as all that the log holds: too much costs a copy, too little would
bring deleted keys back.

Payload: offset i64, big-endian.
"""

from struct import Struct
from typing import Final

from liftbridge_broker.model.ids import Offset
from liftbridge_broker.ports.files import Files
from liftbridge_broker.storage.log import PartitionLog
from liftbridge_broker.storage.smallfile import (
    PREVIOUS_SUFFIX,
    read_small_file,
    write_small_file,
)

DROPPED: Final = "tombstones"
_OFFSET: Final = Struct(">q")


def note_dropped(files: Files, log: PartitionLog, offset: Offset) -> None:
    """Store another dropped offset of a log durably, unless it is the present one.

    Blocks for two syncs.

    Raises:
        FilesError: The present one stays.
    """
    if offset != log.dropped_offset:
        write_small_file(files, _path(log), _OFFSET.pack(offset))
        log.dropped_offset = offset


def read_dropped(files: Files, log: PartitionLog) -> Offset:
    """The dropped offset of a log that was opened.

    Raises:
        FilesError: The disk refused to read.
    """
    path = _path(log)
    found = read_small_file(files, path)
    if found is not None and not found.is_previous and len(found.payload) == _OFFSET.size:
        return Offset(_OFFSET.unpack(found.payload)[0])
    is_there = files.exists(path) or files.exists(path + PREVIOUS_SUFFIX)
    return log.log_end_offset if is_there else Offset(0)


def _path(log: PartitionLog) -> str:
    return f"{log.directory}/{DROPPED}"
