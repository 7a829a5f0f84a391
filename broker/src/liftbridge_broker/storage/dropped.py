"""A small file beside a log that says what compaction may have removed from it.

A replica that copies a log must know up to where it may lack tombstones, whatever became of the
broker that dropped them. So the file is written before the first tombstone below is dropped, and
before the first record of a copy arrives. A copy must also know which offset it must reach
(`Copied`). A file that is too old or unreadable counts as the maximum: too much costs a copy, too
little would bring deleted keys back, or leave a key without any message.

Payload, big-endian: `dropped_offset` i64, then of `Copied` `whole_from` i64 and `leader_epoch` u64.
Files of former versions have only the first field.
"""

from struct import Struct
from typing import Final

from liftbridge_broker.model.ids import OFFSET_MAX, LeaderEpoch, Offset
from liftbridge_broker.model.partitions import NOT_COPIED, Copied
from liftbridge_broker.ports.files import Files
from liftbridge_broker.storage.log import PartitionLog
from liftbridge_broker.storage.smallfile import (
    PREVIOUS_SUFFIX,
    read_small_file,
    write_small_file,
)

DROPPED: Final = "tombstones"
_FORMER: Final = Struct(">q")
_PAYLOAD: Final = Struct(">qqQ")


def note_dropped(files: Files, log: PartitionLog, dropped: Offset, copied: Copied) -> None:
    """Store durably what a log may lack, unless it is stored already.

    Blocks for two syncs.

    Raises:
        FilesError: The previous file stays.
    """
    if (dropped, copied) != (log.dropped_offset, log.copied):
        write_small_file(files, _path(log), _PAYLOAD.pack(dropped, *copied))
        log.dropped_offset, log.copied = dropped, copied


def lower_dropped(files: Files, log: PartitionLog, end: Offset) -> None:
    """Remove durably what no longer holds of a log that was cut at `end`.

    Blocks and raises like `note_dropped`.
    """
    has_gaps = not log.is_empty and log.compacted_from < log.log_end_offset
    dropped = min(end, log.dropped_offset)
    note_dropped(files, log, dropped, log.copied if has_gaps else NOT_COPIED)


def read_dropped(files: Files, log: PartitionLog) -> tuple[Offset, Copied]:
    """Read what a log that was opened may lack.

    Raises:
        FilesError: The disk refused to read.
    """
    path = _path(log)
    found = read_small_file(files, path)
    if found is not None and not found.is_previous:
        if len(found.payload) == _FORMER.size:
            return Offset(*_FORMER.unpack(found.payload)), NOT_COPIED
        if len(found.payload) == _PAYLOAD.size:
            dropped, whole_from, epoch = _PAYLOAD.unpack(found.payload)
            return Offset(dropped), Copied(Offset(whole_from), LeaderEpoch(epoch))
    if files.exists(path) or files.exists(path + PREVIOUS_SUFFIX):
        return log.log_end_offset, Copied(Offset(OFFSET_MAX))
    return Offset(0), NOT_COPIED


def _path(log: PartitionLog) -> str:
    return f"{log.directory}/{DROPPED}"
