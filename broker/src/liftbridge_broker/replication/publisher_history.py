"""State of idempotent publishers with rollback, for logs that may still be truncated.

A `PublisherTable` is a function of the batch headers, some of which compaction and retention
remove. So the history also keeps the *settled* state: the state at an offset below which nothing
will be truncated any more. It adds the stamps of the batches after that offset. Records lost by a
truncation or a crash are above the offset. So the state at any possible log end is the settled
state plus the stamps up to there.

    the log    [ compacted | committed and synced | committed | not committed )
    in here      settled ------------------------> stamps --------------------->
    saved        settled ------------------------> stamps ----> read from the log

An unclean election may truncate below the settled offset; then only the remaining headers give the
state. The same holds after a restart when the log start was raised beyond the synced end, by more
stamps than are held; and a replica that copies a log knows only its headers. Compaction keeps the
last header of each publisher; retention does not.
"""

from collections import deque
from collections.abc import Callable
from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple

from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.model.ids import OFFSET_MAX, LeaderEpoch, Offset
from liftbridge_broker.ports.publishers import PublisherLog, StampedBatch
from liftbridge_broker.replication.publishers import PublisherStamp, PublisherTable, StoredPiece

STAMPS_MAX: Final = 8_192
"""Headers held, about 400 bytes each; further headers are read from the log on demand."""

DRAIN_STAMPS: Final = 256
"""Number of headers between two checks for stamps that can be settled."""

_MAGIC: Final = b"LBph"
_VERSION: Final = 1
_HEAD: Final = Struct(">4sHHII")
_STAMP: Final = Struct(">QIqqqqq")


class _Stamp(NamedTuple):
    """Fields of a batch header that replay needs."""

    publisher_id: int
    publisher_epoch: int
    first_sequence: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    largest_timestamp: int


class PublisherHistory:
    """Idempotent publishers of a partition, restorable at every offset it may be truncated to.

    Invariants: `table` is the state at the end of the log; `_settled` followed by `_stamps` equals
    it unless stamps were omitted, from `_left_out` on.

    Attributes:
        table: State at the end of the log.
    """

    __slots__ = (
        "_committed",
        "_drain_at",
        "_left_out",
        "_log",
        "_make_table",
        "_settled",
        "_stamps",
        "_stamps_max",
        "table",
    )

    def __init__(
        self,
        make_table: Callable[[], PublisherTable],
        log: PublisherLog,
        *,
        stamps_max: int = STAMPS_MAX,
    ) -> None:
        """Start without publishers.

        Args:
            make_table: Makes an empty table.
            log: The log whose headers are replayed here.
            stamps_max: Maximum number of headers held above the settled offset.
        """
        assert stamps_max > 0
        self._make_table = make_table
        self._log = log
        self._stamps_max = stamps_max
        self._clear(make_table())

    def _clear(self, settled: PublisherTable) -> None:
        """Restart at a settled state without stamps."""
        self._settled = settled
        self._stamps: deque[StampedBatch] = deque()
        self._drain_at = min(DRAIN_STAMPS, self._stamps_max)
        self._left_out: Offset | None = None
        self._committed = settled.end_offset
        self.table = self._copy_of_settled()

    def _copy_of_settled(self) -> PublisherTable:
        table = self._make_table()
        table.restore(self._settled.snapshot())
        return table

    def __len__(self) -> int:
        """Return the number of publishers remembered."""
        return len(self.table)

    def set_limits(self, *, publishers_max: int, ttl_ns: int) -> None:
        """Apply other bounds, see `PublisherTable.set_limits`."""
        for table in (self.table, self._settled):
            table.set_limits(publishers_max=publishers_max, ttl_ns=ttl_ns)

    def next_sequence(self, publisher_id: int) -> int:
        """Return the next sequence of a publisher; 0 when it is not remembered."""
        return self.table.next_sequence(publisher_id)

    def end_of(self, publisher_id: int) -> Offset:
        """Return the offset after the last record of a publisher; 0 when it is not remembered."""
        return self.table.end_of(publisher_id)

    def check(self, stamp: PublisherStamp, count: int) -> tuple[StoredPiece, ...]:
        """Decide on a run before it is appended, see `PublisherTable.check`."""
        return self.table.check(
            stamp.publisher_id,
            stamp.publisher_epoch,
            stamp.first_sequence,
            count,
            may_skip=stamp.may_skip,
        )

    # -- forward ------------------------------------------------------------------------------

    def replay(self, batch: StampedBatch) -> None:
        """Apply the header of an appended batch, in order of offsets."""
        if batch.base_offset >= self.table.end_offset:
            self.table.replay(batch)
            self._keep(batch)

    def _keep(self, batch: StampedBatch) -> None:
        """Keep a stamp, or note the offset from which stamps are omitted."""
        if self._left_out is not None:
            return
        if len(self._stamps) >= self._drain_at:
            # No further: while a log is being read, its later headers are still to come.
            self._drain(Offset(batch.base_offset))
            self._drain_at = min(len(self._stamps) + DRAIN_STAMPS, self._stamps_max)
        if len(self._stamps) >= self._stamps_max:
            self._left_out = Offset(batch.base_offset)
            return
        self._stamps.append(batch)

    def _drain(self, end: Offset) -> None:
        """Settle stamps below an offset that can no longer be truncated and are not omitted."""
        end = min(end, self._log.settled_offset)
        if self._left_out is not None:
            end = min(end, self._left_out)
        settled, stamps = self._settled, self._stamps
        if end <= settled.end_offset:
            return
        while stamps and stamps[0].base_offset < end:
            stamp = stamps.popleft()
            if stamp.last_offset >= end:
                stamps.appendleft(_part(stamp, end, stamp.last_offset + 1))
                stamp = _part(stamp, stamp.base_offset, end)
            settled.replay(stamp)
        settled.note_end(end, self._log.epoch_before(end))

    def settle(self) -> None:
        """Settle all stamps that can be settled, and load as many later stamps as fit.

        Raises:
            FilesError: The disk refused to read.
            CorruptionError: A batch is damaged. Both only if stamps were left out.
        """
        self._drain(self._log.log_end_offset)
        if self._left_out is not None:
            start, self._left_out = self._left_out, None
            for batch in self._log.stamped(start):
                self._keep(batch)
            self._drain(self._log.log_end_offset)
        self._committed = max(self._settled.end_offset, self._log.high_watermark)

    # -- back ---------------------------------------------------------------------------------

    def roll_back(self) -> bool:
        """Restore the state at the end of the log, after a truncation or restart.

        Returns:
            Whether the state at the log end is known; if not, nothing has changed.

        Raises:
            FilesError: The disk refused to read.
            CorruptionError: A batch is damaged. Both only if stamps were left out.
        """
        log, stamps = self._log, self._stamps
        start, end = log.log_start_offset, log.log_end_offset
        is_known = start < end or start <= self._committed
        if self._settled.end_offset > end or not is_known:
            return False
        while stamps and stamps[-1].last_offset >= end:
            stamp = stamps.pop()
            if stamp.base_offset < end:
                stamps.append(_part(stamp, stamp.base_offset, end))
        if self._left_out is not None and self._left_out >= end:
            self._left_out = None
        self._committed = min(self._committed, end)
        self._drain(self._log.log_end_offset)
        self.table = self._copy_of_settled()
        for stamp in stamps:
            self.table.replay(stamp)
        if self._left_out is not None:
            for batch in log.stamped(self._left_out):
                self.table.replay(batch)
        return True

    # -- over restarts ------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Encode the settled state, and the stamps of committed batches after it.

        Big-endian: `LBph`, u16 version, u16 zero, u32 length of the snapshot of the settled table
        (`PublisherTable.snapshot`), u32 number of stamps; that snapshot; for each stamp u64
        publisher id, u32 its epoch, i64 first sequence, i64 base offset, i64 last offset, i64
        leader epoch, i64 largest timestamp. The stamps serve a log that begins above the settled
        offset; otherwise they are read from the log. The file around it carries the checksum.
        """
        committed = self._log.high_watermark
        table = self._settled.snapshot()
        stamps = []
        for stamp in self._stamps:
            if stamp.base_offset >= committed:
                break
            stamps.append(_STAMP.pack(*_part(stamp, stamp.base_offset, committed)))
        return b"".join((_HEAD.pack(_MAGIC, _VERSION, 0, len(table), len(stamps)), table, *stamps))

    def take_up(self, snapshot: bytes | None) -> None:
        """Restore the state at the log end from a snapshot and the headers after it.

        A snapshot that is missing, damaged, or of a log truncated below it, is ignored, and all
        headers are read. Former versions saved only a table, at the end of the log.

        Raises:
            FilesError: The disk refused to read.
            CorruptionError: A batch is damaged.
        """
        log = self._log
        settled = self._make_table()
        if snapshot is not None:
            try:
                stamps = _read_snapshot(settled, snapshot)
            except CorruptionError:
                settled = self._make_table()
            else:
                for stamp in stamps:
                    if stamp.base_offset < log.log_start_offset:
                        settled.replay(_part(stamp, stamp.base_offset, log.log_start_offset))
            if not self._is_of_log(settled):
                settled = self._make_table()
        if settled.end_offset < log.log_start_offset:
            # The headers of earlier publishers are gone.
            settled.note_end(log.log_start_offset, LeaderEpoch(0))
        self._clear(settled)
        for batch in log.stamped(settled.end_offset):
            self.replay(batch)

    def _is_of_log(self, table: PublisherTable) -> bool:
        """Return whether the log still holds the batches that a table is based on.

        Equal epochs at one offset mean equal logs up to it (Raft, section 5.3). Below the log start
        no epoch is left to compare, but nothing there is ever truncated.
        """
        end, log = table.end_offset, self._log
        if end <= log.log_start_offset:
            return True
        return end <= log.log_end_offset and log.epoch_before(end) == table.end_epoch


def _part(batch: StampedBatch, start: int, end: int) -> _Stamp:
    """Return the stamp of a batch's part in an overlapping range of offsets."""
    base_offset = max(start, batch.base_offset)
    sequence = batch.first_sequence + base_offset - batch.base_offset
    return _Stamp(
        batch.publisher_id,
        batch.publisher_epoch,
        # Bounded, because a header from a peer may hold any sequence.
        min(sequence, OFFSET_MAX),
        base_offset,
        min(batch.last_offset, end - 1),
        batch.leader_epoch,
        batch.largest_timestamp,
    )


def _read_snapshot(table: PublisherTable, data: bytes) -> list[_Stamp]:
    """Load the settled state into a table; return the stamps after it.

    Raises:
        CorruptionError: The bytes are not a snapshot; the table stays as it was.
    """
    if data[: len(_MAGIC)] != _MAGIC:
        table.restore(data)
        return []
    try:
        _, version, _, length, count = _HEAD.unpack_from(data)
    except struct_error as error:
        raise CorruptionError("publisher history: cut short") from error
    start = _HEAD.size + length
    if version != _VERSION or len(data) != start + count * _STAMP.size:
        raise CorruptionError("publisher history: wrong header")
    stamps = [_Stamp._make(values) for values in _STAMP.iter_unpack(data[start:])]
    for stamp in stamps:
        if min(stamp.first_sequence, stamp.leader_epoch) < 0:
            raise CorruptionError("publisher history: a negative number")
        if not 0 <= stamp.base_offset <= stamp.last_offset < OFFSET_MAX:
            raise CorruptionError("publisher history: offsets out of order")
    table.restore(data[_HEAD.size : start])
    return stamps
