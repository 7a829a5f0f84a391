"""Cursor look-ups on the leader of a `__cursors` partition (spec 1.11, 6.8).

The index is fed from the log: everything once, at the first look-up, then only what is new. A
record that is no cursor is skipped, because anyone may publish to the subject.
"""

from collections.abc import Callable
from typing import Final, Protocol

from liftbridge_broker.errors import (
    CorruptionError,
    FilesError,
    LiftbridgeError,
    NotLeaderError,
)
from liftbridge_broker.groups.cursors import (
    UNKNOWN,
    CursorIndex,
    CursorPosition,
    CursorScan,
    Missing,
)
from liftbridge_broker.logformat.records import FRAME_PREFIX, FRAME_PREFIX_SIZE
from liftbridge_broker.model.ids import Offset, PartitionId
from liftbridge_broker.node.partition import NOT_LEADER_TEXT, Partition
from liftbridge_broker.node.subscription import ReadHost
from liftbridge_broker.storage.reader import LogReader
from liftbridge_broker.wire.cursors import decode_cursor
from liftbridge_proto import api_pb2

READ_BYTES: Final = 1024 * 1024

LookUpDone = Callable[[CursorPosition | LiftbridgeError], None]


class _Fed(Protocol):
    """What takes the records of a cursors partition in order."""

    next_offset: Offset

    def feed(self, key: bytes, position: CursorPosition | None, offset: Offset) -> None:
        """Take one record."""
        ...


class CursorTable:
    """Latest cursors of one partition of `__cursors`, as long as it is led here."""

    def __init__(self, partition: Partition, host: ReadHost) -> None:
        self._partition = partition
        self._host = host
        self._index = CursorIndex(partition.log.log_start_offset)
        self._waiting: list[tuple[bytes, LookUpDone]] = []
        self._is_feeding = False
        self._scans: dict[bytes, list[LookUpDone]] = {}

    def look_up(self, key: bytes, done: LookUpDone) -> None:
        """Find a cursor; `done` gets its position, `UNKNOWN` when it was never set, or the error.

        A new leader that does not know yet what is committed might find an older one than was
        acknowledged: it waits until it knows (I9).
        """
        self._waiting.append((key, done))
        self._begin()

    def _begin(self) -> None:
        partition = self._partition
        if self._is_feeding or not self._waiting:
            return
        if not partition.is_led:
            self._answer(partition.closed_error or NotLeaderError(NOT_LEADER_TEXT))
            return
        if not partition.is_latest_known:
            partition.wait_for_data(self._begin)
            return
        self._is_feeding = True
        self._feed(self._index, self._answer)

    def _answer(self, error: LiftbridgeError | None) -> None:
        self._is_feeding = False
        waiting, self._waiting = self._waiting, []
        for key, done in waiting:
            if error is not None:
                done(error)
                continue
            found = self._index.look_up(key)
            match found:
                case Missing.ABSENT:
                    done(UNKNOWN)
                case Missing.FORGOTTEN:
                    self._scan(key, done)
                case _:
                    done(found)

    def _scan(self, key: bytes, done: LookUpDone) -> None:
        """Look for a key in the whole partition; who asks for it meanwhile gets the same answer.

        A scan ends with all that is committed then, so with all that was when any of them asked.
        """
        if key in self._scans:
            self._scans[key].append(done)
            return
        self._scans[key] = [done]
        scan = CursorScan(key, self._partition.log.log_start_offset)

        def ended(error: LiftbridgeError | None) -> None:
            for one in self._scans.pop(key):
                one(scan.result if error is None else error)

        self._feed(scan, ended)

    def _feed(self, target: _Fed, done: Callable[[LiftbridgeError | None], None]) -> None:
        reader = self._partition.log.reader(target.next_offset)
        self._continue(reader, target, done)

    def _continue(
        self,
        reader: LogReader,
        target: _Fed,
        done: Callable[[LiftbridgeError | None], None],
    ) -> None:
        """Read up to the high watermark; go on in a later turn when the disk must be asked."""
        log = self._partition.log
        while reader.next_offset < log.high_watermark:
            try:
                result = reader.read(READ_BYTES, log.high_watermark)
            except (CorruptionError, FilesError) as error:
                self._partition.on_unreadable(error)
                reader.close()
                done(error)
                return
            if result.need is not None:

                def read_done(outcome: bytes | LiftbridgeError) -> None:
                    closed = self._partition.closed_error
                    if closed is not None:
                        reader.close()
                        done(closed)
                    elif isinstance(outcome, LiftbridgeError):
                        self._partition.on_unreadable(outcome)
                        reader.close()
                        done(outcome)
                    else:
                        reader.feed(outcome)
                        self._continue(reader, target, done)

                self._host.submit_read(result.need, read_done)
                return
            for piece in result.slices:
                _feed_frames(bytes(piece), target)
            if not result.slices:
                break
        reader.close()
        done(None)


class CursorTables:
    """Tables of the partitions of `__cursors` that are asked here, each for one leadership."""

    def __init__(self, host: ReadHost) -> None:
        """Begin with none."""
        self._host = host
        self._tables: dict[PartitionId, CursorTable] = {}

    def look_up(self, partition: Partition, key: bytes, done: LookUpDone) -> None:
        """Latest cursor stored under a key in a partition of `__cursors`."""
        table = self._tables.get(partition.partition_id)
        if table is None:
            table = self._tables[partition.partition_id] = CursorTable(partition, self._host)
        table.look_up(key, done)

    def forget(self, partition_id: PartitionId) -> None:
        """What a table was fed is not in the log any more, or the partition is gone."""
        self._tables.pop(partition_id, None)


def _feed_frames(frames: bytes, target: _Fed) -> None:
    """Give every cursor record of a run of frames to `target`."""
    at = 0
    while at < len(frames):
        _, length = FRAME_PREFIX.unpack_from(frames, at)
        start = at + FRAME_PREFIX_SIZE
        at = start + length
        message = api_pb2.Message.FromString(frames[start:at])
        if not message.key:
            continue
        try:
            cursor = decode_cursor(message.value) if message.value else None
        except CorruptionError:
            continue
        position = None if cursor is None else CursorPosition(cursor.offset, cursor.stream_id)
        target.feed(message.key, position, Offset(message.offset))
