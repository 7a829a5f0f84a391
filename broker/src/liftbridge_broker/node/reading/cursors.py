"""Cursor look-ups on the leader of a `__cursors` partition.

The index is built from the log: all records once, at the first look-up, then only new ones. Records
that are not cursors are skipped, because anyone may publish to the subject.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from liftbridge_broker.errors import (
    CorruptionError,
    FilesError,
    LiftbridgeError,
    LimitError,
    NotLeaderError,
)
from liftbridge_broker.groups.cursors import (
    UNKNOWN,
    CursorIndex,
    CursorPosition,
    CursorScan,
    Missing,
    position_of,
)
from liftbridge_broker.logformat.records import FRAME_PREFIX, FRAME_PREFIX_SIZE
from liftbridge_broker.model.ids import Offset, PartitionId
from liftbridge_broker.model.units import MIB
from liftbridge_broker.node.context import NodeContext
from liftbridge_broker.node.partition.partition import NOT_LEADER_TEXT, Partition
from liftbridge_broker.storage.log.reader import LogReader
from liftbridge_broker.wire.cursors import decode_cursor
from liftbridge_proto import api_pb2

READ_BYTES: Final = MIB

STEP_BYTES: Final = 32 * 1024
"""Bytes of records read in a step; the last record may exceed it."""

RECORD_WEIGHT: Final = 7
ANSWER_WEIGHT: Final = 50
WEIGHT_BYTES: Final = 1024
"""Bytes per unit of weight; see `node.scheduling.chores`."""

LOOK_UPS_MAX: Final = 10_000
"""Look-ups that wait for one partition of `__cursors`."""

LookUpDone = Callable[[CursorPosition | LiftbridgeError], None]
FeedDone = Callable[[LiftbridgeError | None], None]
Fed = CursorIndex | CursorScan
"""Receives the records of a cursors partition, in order."""


class CursorTable:
    """Latest cursors of one partition of `__cursors`, while this broker leads it.

    Reads records and answers look-ups in steps, a few per turn.
    """

    def __init__(self, partition: Partition, context: NodeContext) -> None:
        self._partition = partition
        self._context = context
        self._index = CursorIndex(partition.log.log_start_offset)
        self._waiting: list[tuple[bytes, LookUpDone]] = []
        self._waiting_count = 0
        self._is_feeding = False
        self._scanned: dict[bytes, list[LookUpDone]] = {}
        self._to_scan: dict[bytes, list[LookUpDone]] = {}

    def look_up(self, key: bytes, done: LookUpDone) -> None:
        """Find a cursor; `done` gets its position, `UNKNOWN` when it was never set, or the error.

        A new leader that does not know yet what is committed might find an older cursor than the
        one acknowledged, so it waits until it knows (I9).
        """
        if self._waiting_count >= LOOK_UPS_MAX:
            done(LimitError(f"{LOOK_UPS_MAX} look-ups of cursors wait here already"))
            return
        self._waiting_count += 1
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
            partition.readers.wait_for_data(self._begin)
            return
        self._is_feeding = True
        self._feed(self._index, self._answer)

    def _answer(self, error: LiftbridgeError | None) -> None:
        self._is_feeding = False
        waiting, self._waiting = self._waiting, []
        self._context.chores.begin(self._answers(waiting, error))

    def _answers(
        self, waiting: list[tuple[bytes, LookUpDone]], error: LiftbridgeError | None
    ) -> Iterator[int]:
        for key, done in waiting:
            outcome = self._index.look_up(key) if error is None else error
            if outcome is Missing.FORGOTTEN:
                self._scan(key, done)
            else:
                self._finish(done, UNKNOWN if isinstance(outcome, Missing) else outcome)
            yield ANSWER_WEIGHT

    def _finish(self, done: LookUpDone, outcome: CursorPosition | LiftbridgeError) -> None:
        self._waiting_count -= 1
        done(outcome)

    def _scan(self, key: bytes, done: LookUpDone) -> None:
        """Look for a key in the whole partition.

        One scan runs at a time. It ends at the high watermark of that moment, so it covers all
        records committed before its keys were requested. Later requests wait for the next scan,
        which looks for all keys requested meanwhile.
        """
        keys = self._scanned if key in self._scanned else self._to_scan
        keys.setdefault(key, []).append(done)
        if not self._scanned:
            self._begin_scan()

    def _begin_scan(self) -> None:
        self._scanned, self._to_scan = self._to_scan, {}
        if not self._scanned:
            return
        scan = CursorScan(self._scanned, self._partition.log.log_start_offset)

        def ended(error: LiftbridgeError | None) -> None:
            self._context.chores.begin(self._results(self._scanned, scan, error))
            self._begin_scan()

        self._feed(scan, ended)

    def _results(
        self,
        asked: dict[bytes, list[LookUpDone]],
        scan: CursorScan,
        error: LiftbridgeError | None,
    ) -> Iterator[int]:
        for key, waiting in asked.items():
            for done in waiting:
                self._finish(done, scan.results[key] if error is None else error)
                yield ANSWER_WEIGHT

    def _feed(self, target: Fed, done: FeedDone) -> None:
        reader = self._partition.log.reader(target.next_offset)
        self._context.chores.begin(self._steps(reader, target, done))

    def _steps(self, reader: LogReader, target: Fed, done: FeedDone) -> Iterator[int]:
        """Read up to the high watermark; end at a disk read, and restart after it."""
        partition = self._partition
        log, error = partition.log, partition.closed_error
        while error is None and reader.next_offset < log.high_watermark:
            try:
                result = reader.read(READ_BYTES, log.high_watermark)
            except (CorruptionError, FilesError) as unreadable:
                partition.on_unreadable(unreadable)
                error = unreadable
                break
            if result.need is not None:
                read_done = partial(self._read_done, reader, target, done)
                self._context.submit_read(result.need, read_done)
                return
            if not result.slices:
                break
            yield from _feed_frames(b"".join(result.slices), target)
            error = partition.closed_error
        reader.close()
        done(error)

    def _read_done(
        self, reader: LogReader, target: Fed, done: FeedDone, outcome: bytes | LiftbridgeError
    ) -> None:
        error = self._partition.closed_error
        if error is None and isinstance(outcome, bytes):
            reader.feed(outcome)
            self._context.chores.begin(self._steps(reader, target, done))
            return
        if error is None and isinstance(outcome, LiftbridgeError):
            self._partition.on_unreadable(outcome)
            error = outcome
        reader.close()
        done(error)


class CursorTables:
    """Tables of the `__cursors` partitions queried here, each for one leadership."""

    def __init__(self, context: NodeContext) -> None:
        """Start without tables."""
        self._context = context
        self._tables: dict[PartitionId, CursorTable] = {}

    def look_up(self, partition: Partition, key: bytes, done: LookUpDone) -> None:
        """Find the latest cursor under a key in a partition of `__cursors`."""
        table = self._tables.get(partition.partition_id)
        if table is None:
            table = self._tables[partition.partition_id] = CursorTable(partition, self._context)
        table.look_up(key, done)

    def forget(self, partition_id: PartitionId) -> None:
        """Drop the table of a partition that was truncated or deleted."""
        self._tables.pop(partition_id, None)


def _feed_frames(frames: bytes, target: Fed) -> Iterator[int]:
    """Feed every cursor record of consecutive frames to `target`, in steps."""
    at = began = count = 0
    while at < len(frames):
        if at - began >= STEP_BYTES:
            yield count * RECORD_WEIGHT + (at - began) // WEIGHT_BYTES
            began, count = at, 0
        _, length = FRAME_PREFIX.unpack_from(frames, at)
        start = at + FRAME_PREFIX_SIZE
        at = start + length
        count += 1
        message = api_pb2.Message.FromString(frames[start:at])
        if not message.key:
            continue
        try:
            cursor = decode_cursor(message.value) if message.value else None
        except CorruptionError:
            continue
        target.feed(message.key, position_of(cursor), Offset(message.offset))
    yield count * RECORD_WEIGHT + (at - began) // WEIGHT_BYTES
