"""A small file beside a log with the offsets below which compaction may have removed tombstones.

A replica that copies a log must know up to which offset it may lack tombstones, even if the broker
that dropped them is gone. So the file is written before the first tombstone below that offset is
dropped, and before the first record of a copy arrives. A copy must also know the offset that it
must reach (`Copied`). A file that is too old or unreadable counts as the maximum. A value that is
too high costs a copy; a value that is too low would bring deleted keys back, or leave a key without
any message.

Payload, big-endian: `dropped_offset` i64, then of `Copied` `whole_from` i64 and `leader_epoch` u64.
Files of former versions have only the first field.
"""

from struct import Struct
from typing import Final

from liftbridge_broker.model.ids import OFFSET_MAX, LeaderEpoch, Offset
from liftbridge_broker.model.partitions import NOT_COPIED, Copied
from liftbridge_broker.ports.files import Files
from liftbridge_broker.storage.log.partition_log import PartitionLog
from liftbridge_broker.storage.smallfile import (
    PREVIOUS_SUFFIX,
    read_small_file,
    write_small_file,
)

DROPPED: Final = "tombstones"
_FORMER: Final = Struct(">q")
_PAYLOAD: Final = Struct(">qqQ")


def note_dropped(files: Files, log: PartitionLog, dropped: Offset, copied: Copied) -> None:
    """Store the dropped offset and the copy state of a log durably, if they changed.

    Blocks for two syncs.

    Raises:
        FilesError: The previous file stays.
    """
    if (dropped, copied) != (log.dropped_offset, log.copied):
        write_small_file(files, _path(log), _PAYLOAD.pack(dropped, *copied))
        log.dropped_offset, log.copied = dropped, copied


def lower_dropped(files: Files, log: PartitionLog, end: Offset) -> None:
    """Lower the stored offsets of a log that was truncated at `end`, durably.

    Blocks and raises like `note_dropped`.
    """
    has_gaps = not log.is_empty and log.compacted_from < log.log_end_offset
    dropped = min(end, log.dropped_offset)
    note_dropped(files, log, dropped, log.copied if has_gaps else NOT_COPIED)


def read_dropped(files: Files, log: PartitionLog) -> tuple[Offset, Copied]:
    """Read the dropped offset and the copy state of a log.

    Raises:
        FilesError: The disk failed to read.
    """
    path = _path(log)
    data = read_small_file(files, path)
    if data is not None and not data.is_previous:
        if len(data.payload) == _FORMER.size:
            return Offset(*_FORMER.unpack(data.payload)), NOT_COPIED
        if len(data.payload) == _PAYLOAD.size:
            dropped, whole_from, epoch = _PAYLOAD.unpack(data.payload)
            return Offset(dropped), Copied(Offset(whole_from), LeaderEpoch(epoch))
    if files.exists(path) or files.exists(path + PREVIOUS_SUFFIX):
        return log.log_end_offset, Copied(Offset(OFFSET_MAX))
    return Offset(0), NOT_COPIED


def _path(log: PartitionLog) -> str:
    return f"{log.directory}/{DROPPED}"
