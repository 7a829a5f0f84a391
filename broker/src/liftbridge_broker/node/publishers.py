"""Rebuilding the state of idempotent publishers from a snapshot and the log (replication 1.15)."""

from collections.abc import Callable
from typing import Final

from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.logformat.batch import walk
from liftbridge_broker.model.ids import LeaderEpoch, Offset
from liftbridge_broker.replication.publishers import PublisherTable
from liftbridge_broker.storage.log import PartitionLog

SCAN_BYTES: Final = 4 * 1024 * 1024


def restored_publishers(
    make_table: Callable[[], PublisherTable], log: PartitionLog, snapshot: bytes | None
) -> PublisherTable:
    """State of the publishers at the end of a log.

    A snapshot that is missing, damaged, or of a log that was cut below it, is left aside: then all
    headers are read. Only streams with registered publishers pay for this.

    Raises:
        FilesError: The disk refused to read.
        CorruptionError: A batch is damaged.
    """
    table = make_table()
    if snapshot is not None:
        try:
            table.restore(snapshot)
        except CorruptionError:
            table = make_table()
        if not _is_of(table, log):
            table = make_table()
    offset = Offset(max(table.end_offset, log.log_start_offset))
    while offset < log.log_end_offset:
        data = log.read_batches(offset, SCAN_BYTES, log.log_end_offset)
        for _, header in walk(data, 0, len(data)):
            if header.publisher_id:
                table.replay(header)
            offset = Offset(header.last_offset + 1)
    return table


def snapshot_of(table: PublisherTable, log: PartitionLog) -> bytes:
    """A snapshot at the end of a log, of whose batches the table has taken in every one."""
    end = log.log_end_offset
    epoch = log.epochs.epoch_at(Offset(end - 1)) if end else None
    table.note_end(end, epoch or LeaderEpoch(0))
    return table.snapshot()


def _is_of(table: PublisherTable, log: PartitionLog) -> bool:
    """Whether a log still holds what a table was made of.

    Equal epochs at one offset mean equal logs up to it (Raft, section 5.3). Below the log start
    there is nothing to compare with, and nothing there is ever cut.
    """
    end = table.end_offset
    if end <= log.log_start_offset:
        return True
    return end <= log.log_end_offset and log.epochs.epoch_at(Offset(end - 1)) == table.end_epoch
