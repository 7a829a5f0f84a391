"""Cursors: positions of consumers in partitions, kept in the stream `__cursors`.

A cursor is a record whose key is `<cursorId>,<stream>,<partition>` and whose value holds the
offset; compaction keeps the last record of each key. The broker that leads the responsible
partition answers from a `CursorIndex`, which its owner feeds with the committed records of that
partition in order: all of them once, at the first use, and then only what is new.
"""

from collections import OrderedDict
from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple
from zlib import crc32

from liftbridge_broker.errors import FailedPreconditionError, InvalidRequestError
from liftbridge_broker.model.ids import Offset, PartitionNumber
from liftbridge_broker.model.subjects import CURSOR_ID_BYTES_MAX

CURSORS_MAX_DEFAULT: Final = 100_000
"""Cursors kept in memory for one partition of `__cursors`, about 350 bytes each."""

UNKNOWN_OFFSET: Final = -1
"""Offset that a client gets for a cursor that was never set."""


class Cursor(NamedTuple):
    """Position of one consumer in one partition; it may go backwards.

    Attributes:
        stream: Stream the consumer reads; it need not exist.
        partition: Number of the partition.
        cursor_id: Name of the consumer.
        offset: Offset that the consumer stored, usually that of the last record it processed.
        stream_id: Id that the stream had when it was stored; 0 when that is not known.
        unclean_epoch: Epoch of the last unclean election of the partition then; 0 for none.
    """

    stream: str
    partition: int
    cursor_id: str
    offset: int
    stream_id: int = 0
    unclean_epoch: int = 0

    @property
    def key(self) -> bytes:
        """Key of its record."""
        return cursor_key(self.stream, self.partition, self.cursor_id)


class CursorPosition(NamedTuple):
    """Stored position of a cursor: its offset, and the stream that the offset refers to.

    Attributes:
        offset: See `Cursor.offset`.
        stream_id: See `Cursor.stream_id`: a recreated stream of the same name has another id.
        unclean_epoch: See `Cursor.unclean_epoch`: the election may have replaced the records there.
    """

    offset: int
    stream_id: int = 0
    unclean_epoch: int = 0


def position_of(cursor: Cursor | None) -> CursorPosition | None:
    """Return the position in a cursor record, `None` for a record that removes the cursor."""
    if cursor is None:
        return None
    return CursorPosition(cursor.offset, cursor.stream_id, cursor.unclean_epoch)


UNKNOWN: Final = CursorPosition(UNKNOWN_OFFSET)
"""Position of a cursor that was never set."""


def position_in(stored: CursorPosition, present: int) -> CursorPosition:
    """Return what a stored position means to those who read the stream of its name.

    Args:
        stored: Latest position of the cursor.
        present: Present id of the stream of that name, 0 for none.

    Returns:
        `UNKNOWN` for a position in a former stream of that name: a reader would skip as many
        records of the present one.
    """
    if 0 not in (stored.stream_id, present) and stored.stream_id != present:  # guard Cursor.former
        return UNKNOWN
    return stored


def check_cursor(stream: str, cursor_id: str) -> None:
    """Refuse a request whose key would be empty, ambiguous or without bound.

    Raises:
        InvalidRequestError: `No stream provided` or `No cursorId provided`, as the original; or
            the stream contains `,`, which no stream's name does, or the id is too long.
    """
    if not stream:
        raise InvalidRequestError("No stream provided")
    if not cursor_id:
        raise InvalidRequestError("No cursorId provided")
    if "," in stream:
        raise InvalidRequestError("Invalid stream: it contains ','")
    if max(len(stream.encode()), len(cursor_id.encode())) > CURSOR_ID_BYTES_MAX:
        raise InvalidRequestError(
            f"Invalid cursor: stream or cursorId is longer than {CURSOR_ID_BYTES_MAX} bytes"
        )


def stamp(
    cursor: Cursor, present: int, unclean_epoch: int, *, read_in: int | None = None
) -> Cursor:
    """Return a cursor as stored: with the stream and the history that its offset refers to.

    Args:
        cursor: The cursor to store; its `stream_id` is the intended one, 0 for any.
        present: Present id of the stream of that name, 0 for none.
        unclean_epoch: Epoch of the last unclean election of its partition, 0 for none.
        read_in: The same epoch when the caller began to read; `None` if not given.

    Raises:
        FailedPreconditionError: Another stream is intended, or another history of the partition.
            Its offset would let retention remove records of this one that the consumer has not
            read.
    """
    if cursor.stream_id not in (0, present):  # guard Cursor.stream
        now = f"has id {present}, not {cursor.stream_id}: it was recreated"
        if present == 0:
            now = f"with id {cursor.stream_id} does not exist"
        raise FailedPreconditionError(
            f"cursor {cursor.cursor_id} is not set: stream {cursor.stream} {now}; "
            "fetch the bounds of the present one, then set the cursor again"
        )
    if read_in not in (None, unclean_epoch):  # guard Cursor.history
        raise FailedPreconditionError(
            f"cursor {cursor.cursor_id} is not set: {cursor.stream}/{cursor.partition} was read in "
            f"history {read_in}, and {unclean_epoch} is current: an unclean election may have put "
            "other records below the cursor; fetch the bounds again, read again from the end of "
            "the common history, then set the cursor"
        )
    return cursor._replace(stream_id=present, unclean_epoch=unclean_epoch)


def cursor_key(stream: str, partition: int, cursor_id: str) -> bytes:
    """Key of a cursor; distinct cursors have distinct keys because no stream contains `,`."""
    return f"{cursor_id},{stream},{partition}".encode()


def cursors_partition(key: bytes, partition_count: int) -> PartitionNumber:
    """Partition of `__cursors` that keeps a key: CRC-32 (IEEE) modulo their number."""
    assert partition_count > 0
    return PartitionNumber(crc32(key) % partition_count)


class IndexState(Enum):
    """State of an index."""

    LOADING = "loading"
    """Some committed records are not fed yet."""
    READY = "ready"
    """Every committed record was fed."""


class Missing(Enum):
    """Reason why a look-up found nothing."""

    ABSENT = "absent"
    """No such cursor is stored: answer `UNKNOWN`."""
    FORGOTTEN = "forgotten"
    """The cursors exceed the memory bound: scan the partition with a `CursorScan`."""


class CursorIndex:
    """Latest position of each cursor in one partition of `__cursors`, bounded in number.

    The owner keeps it for one leadership, and before each look-up feeds it newly committed records:
    records from `next_offset` up to the high watermark.

    Attributes:
        next_offset: First offset of the partition not fed yet.
    """

    __slots__ = ("_cursors", "_cursors_max", "_has_forgotten", "next_offset")

    def __init__(self, log_start: Offset, *, cursors_max: int = CURSORS_MAX_DEFAULT) -> None:
        """Make an empty index of a partition.

        Args:
            log_start: First offset of the partition, where feeding begins.
            cursors_max: Cursors kept; beyond it the least recently used is dropped.
        """
        assert cursors_max > 0
        self.next_offset = log_start
        # A plain dict would search for its first entry among all removed before it.
        self._cursors: OrderedDict[bytes, CursorPosition] = OrderedDict()
        self._cursors_max = cursors_max
        self._has_forgotten = False

    def __len__(self) -> int:
        """Cursors kept."""
        return len(self._cursors)

    def state(self, high_watermark: Offset) -> IndexState:
        """Return whether everything committed was fed; reloading takes only the new records."""
        return IndexState.READY if self.next_offset >= high_watermark else IndexState.LOADING

    def feed(self, key: bytes, position: CursorPosition | None, offset: Offset) -> None:
        """Feed a committed record; skip it if it was fed before.

        Args:
            key: Key of the record.
            position: Position in its value; `None` for an empty value, which removes the cursor.
            offset: Offset of the record in `__cursors`.
        """
        if offset < self.next_offset:
            return
        self.next_offset = Offset(offset + 1)
        self._cursors.pop(key, None)
        if position is None:
            return
        self._cursors[key] = position
        if len(self._cursors) > self._cursors_max:
            self._cursors.popitem(last=False)
            self._has_forgotten = True

    def skip_to(self, offset: Offset) -> None:
        """Note that no record lies between `next_offset` and `offset` (compaction, retention)."""
        self.next_offset = max(self.next_offset, offset)

    def look_up(self, key: bytes) -> CursorPosition | Missing:
        """Return the latest position of a cursor, or why none is known; valid only if `READY`."""
        position = self._cursors.get(key)
        if position is None:
            return Missing.FORGOTTEN if self._has_forgotten else Missing.ABSENT
        if self._has_forgotten:
            # Order entries by use only once some were dropped; until then reads stay cheap.
            self._cursors.move_to_end(key)
        return position


class CursorScan:
    """Search of the partition for cursors that the index has dropped.

    Attributes:
        next_offset: First offset not scanned yet.
        results: Latest positions found so far, by key; `UNKNOWN` until then.
    """

    __slots__ = ("next_offset", "results")

    def __init__(self, keys: Iterable[bytes], log_start: Offset) -> None:
        self.next_offset = log_start
        self.results = dict.fromkeys(keys, UNKNOWN)

    def feed(self, key: bytes, position: CursorPosition | None, offset: Offset) -> None:
        """Scan a committed record; records arrive in order up to the high watermark."""
        self.next_offset = Offset(offset + 1)
        if key in self.results:
            self.results[key] = UNKNOWN if position is None else position
