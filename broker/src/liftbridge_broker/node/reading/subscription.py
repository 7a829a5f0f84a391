"""One subscription: where it starts and stops, and the frames it reads.

A subscription is pulled: the API asks for frames while the client accepts them, and is woken when
more are available. Frames are slices of stored bytes, ready to be sent.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple, cast

from liftbridge_broker.errors import (
    CorruptionError,
    EndOfStreamError,
    FailedPreconditionError,
    FilesError,
    InternalError,
    InvalidRequestError,
    KeyUnavailableError,
    LiftbridgeError,
    ReverseEndError,
)
from liftbridge_broker.model.ids import Instant, Offset
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.partition.roles import Role
from liftbridge_broker.node.reading.answers import Question, check
from liftbridge_broker.node.reading.client_reads import ClientReads, ReadSlot
from liftbridge_broker.node.reading.readonly_end import ReadonlyEnd
from liftbridge_broker.storage.log import lookup
from liftbridge_broker.storage.log.opened import OpenedReader
from liftbridge_broker.storage.log.reader import LogReader
from liftbridge_broker.storage.log.reverse import ReverseReader
from liftbridge_broker.storage.log.types import ReadNeed

Buffer = bytes | memoryview

VIEW_BYTES_MIN: Final = 1024
"""Mean size of slices below which a copy takes less memory than the views, 200 bytes each."""


class StartPosition(IntEnum):
    """Start of a subscription; values of `proto.StartPosition`."""

    NEW_ONLY = 0
    OFFSET = 1
    EARLIEST = 2
    LATEST = 3
    TIMESTAMP = 4


class StopPosition(IntEnum):
    """End of a subscription; values of `proto.StopPosition`."""

    ON_CANCEL = 0
    OFFSET = 1
    LATEST = 2
    TIMESTAMP = 3


class Position(NamedTuple):
    """Start or stop that a client requested; `kind` determines whether another field is used."""

    kind: int
    offset: int
    timestamp: int


class Pulled(NamedTuple):
    """Result of a pull.

    Attributes:
        slices: gRPC frames of whole messages, in order.
        message_count: Number of those messages.
        end: Reason of the end of the subscription, `None` while it is open.
        waits: Whether no more frames are available until `wake` is called.
    """

    slices: list[Buffer]
    message_count: int
    end: LiftbridgeError | None
    waits: bool


def question_of(
    partition: Partition,
    start: Position,
    stop: Position,
    *,
    is_reverse: bool,
    reads_replica: bool = False,
) -> Question:
    """Return the question to answer before positions can be resolved.

    An offset below the local high watermark needs no other answer. Above it, a leader must know
    what is committed, so that a reader that continues there gets no record again. On a follower, a
    forward reader waits at that offset, and a reverse reader must not miss records before it.
    """
    log = partition.log
    is_last = start.kind in (
        StartPosition.NEW_ONLY,
        StartPosition.LATEST,
        StartPosition.TIMESTAMP,
    )
    if is_last or stop.kind in (StopPosition.LATEST, StopPosition.TIMESTAMP):
        return Question.END
    if stop.kind == StopPosition.ON_CANCEL and partition.is_readonly:
        return Question.END  # a read-only partition ends where its log does
    if start.kind == StartPosition.OFFSET:
        if is_reverse and start.offset >= log.high_watermark:  # guard A.reverse
            return Question.END
        if start.offset > log.high_watermark and not reads_replica:  # guard A.beyond
            return Question.END
    return Question.RECORDS


def start_offset(partition: Partition, start: Position) -> int:
    """Return the first offset requested, before it is bounded by the log.

    Raises:
        InvalidRequestError: The kind of position is unknown.
    """
    log = partition.log
    match start.kind:
        case StartPosition.NEW_ONLY:
            offset = int(log.log_end_offset)
        case StartPosition.OFFSET:
            offset = start.offset
        case StartPosition.EARLIEST:
            offset = int(log.log_start_offset)
        case StartPosition.LATEST:
            offset = log.log_end_offset - 1
        case StartPosition.TIMESTAMP:
            offset = int(lookup.offset_for_timestamp(log, start.timestamp))
        case _:
            raise InvalidRequestError(f"Unknown StartPosition {start.kind}")
    return max(offset, 0)


def _begin(partition: Partition, start: Position, first: int) -> Offset:
    """Return the first offset of a reader of committed records; it may have to wait there.

    A reader that names an offset never gets earlier records just because the high watermark here is
    lower than elsewhere, or than before a restart: it may have read them (KIP-392). No
    reader ever received records beyond the end of a leader's log, so delivery begins there with the
    next record, as in the original; a follower cannot know that end.
    """
    log = partition.log
    names_place = start.kind in (StartPosition.OFFSET, StartPosition.TIMESTAMP)
    may_exist = first <= log.log_end_offset or partition.role is Role.FOLLOWER
    if not (names_place and may_exist):
        first = min(first, log.high_watermark)
    return Offset(max(first, log.log_start_offset))


def stop_end(partition: Partition, stop: Position) -> int | None:
    """Return the exclusive end of the subscription, `None` for never.

    Raises:
        InvalidRequestError: The kind of position is unknown.
        EndOfStreamError: STOP_LATEST on an empty log.
        InternalError: STOP_TIMESTAMP before the first record.
    """
    log = partition.log
    match stop.kind:
        case StopPosition.ON_CANCEL:
            return int(log.log_end_offset) if partition.is_readonly else None
        case StopPosition.OFFSET:
            return None if stop.offset == -1 else stop.offset + 1
        case StopPosition.LATEST:
            if log.log_end_offset == log.log_start_offset:
                raise EndOfStreamError("Stream is empty")
            return int(log.log_end_offset)
        case StopPosition.TIMESTAMP:
            last = lookup.last_offset_at_or_before(log, stop.timestamp)
            if last is None:
                raise InternalError(
                    "Failed to lookup offset for timestamp: no message at or before it"
                )
            return last + 1
        case _:
            raise InvalidRequestError(f"Unknown StopPosition {stop.kind}")


@dataclass(slots=True, eq=False)
class Subscription:
    """An open subscription.

    Invariant: at most one of {waiting for data, waiting for a read, ready} holds.

    Attributes:
        partition: Partition to read.
        reads: Reads for clients of this broker.
        reads_replica: Whether it continues when this broker no longer leads.
        wake: Called, while nothing is held, when `pull` may return more.
    """

    partition: Partition
    reads: ClientReads
    wake: Callable[[], None]
    _reader: LogReader | OpenedReader | ReverseReader
    _stop_end: int | None
    _is_reverse: bool
    reads_replica: bool = False
    _end: LiftbridgeError | None = None
    _is_open: bool = True
    _readonly_end: ReadonlyEnd = field(init=False)
    _slot: ReadSlot = field(init=False)

    def __post_init__(self) -> None:
        self._slot = ReadSlot(self.reads)
        replica = self.reads_replica
        self._readonly_end = ReadonlyEnd(self.partition, self.reads, self.wake, as_replica=replica)
        self.partition.readers.attach(self)

    @property
    def next_offset(self) -> Offset:
        """First offset not delivered yet; the high watermark for a reverse subscription."""
        if isinstance(self._reader, ReverseReader):
            return self.partition.log.high_watermark
        return self._reader.next_offset

    @classmethod
    def open(
        cls,
        partition: Partition,
        reads: ClientReads,
        wake: Callable[[], None],
        *,
        start: Position,
        stop: Position,
        is_reverse: bool,
        reads_replica: bool = False,
    ) -> "Subscription":
        """Resolve the positions and attach to the partition.

        The question of `question_of` must have been answered in this turn (`answers.ask`).

        Raises:
            LiftbridgeError: As `start_offset` and `stop_end`, or the stop lies before the start, or
                this broker may not answer, or lacks the key of the stream.
        """
        question = question_of(
            partition, start, stop, is_reverse=is_reverse, reads_replica=reads_replica
        )
        check(partition, question, as_replica=reads_replica)
        log, cipher = partition.log, partition.writer.cipher
        if cipher is not None:
            cipher.check()
        first = start_offset(partition, start)
        end = stop_end(partition, stop)
        if is_reverse:
            return cls._open_reverse(
                partition, reads, wake, first, end, reads_replica=reads_replica
            )
        if end is not None and end - 1 < first and not _is_empty_readonly(partition, end):
            raise InvalidRequestError(f"Stop offset is before start offset: {end - 1} < {first}")
        begin = _begin(partition, start, first)
        if partition.is_readonly and end == log.log_end_offset == begin:
            end = None  # nothing to deliver: ends as a read-only partition does
        return cls(
            partition,
            reads,
            wake,
            log.reader(begin) if cipher is None else OpenedReader(log, begin, cipher),
            end,
            _is_reverse=False,
            reads_replica=reads_replica,
        )

    @classmethod
    def _open_reverse(
        cls,
        partition: Partition,
        reads: ClientReads,
        wake: Callable[[], None],
        first: int,
        end: int | None,
        *,
        reads_replica: bool,
    ) -> "Subscription":
        log = partition.log
        if log.high_watermark == log.log_start_offset:
            raise InternalError("segment not found")
        newest = Offset(min(first, log.high_watermark - 1))
        has_stop = end is not None and not partition.is_readonly
        oldest = end - 1 if has_stop and end is not None else int(log.log_start_offset)
        if oldest > newest:
            raise InvalidRequestError(
                f"Stop offset is after start offset of a reverse subscription: {oldest} > {newest}"
            )
        reader = ReverseReader(log, newest, Offset(oldest), partition.writer.cipher)
        return cls(
            partition,
            reads,
            wake,
            reader,
            oldest if has_stop else None,
            _is_reverse=True,
            reads_replica=reads_replica,
        )

    def pull(self, bytes_max: int) -> Pulled:
        """Return at most about `bytes_max` bytes of frames; never block.

        After a pull with `waits`, no frames follow until `wake`; after an `end`, none at all.
        """
        if self._end is not None:
            return Pulled([], 0, self._end, waits=False)
        if self._slot.is_busy:
            return Pulled([], 0, None, waits=True)
        if self.partition.is_paused:
            self._end = FailedPreconditionError("commit log was closed")
            return Pulled([], 0, self._end, waits=False)
        self._slot.free()
        try:
            return self._pull_reverse(bytes_max) if self._is_reverse else self._pull(bytes_max)
        except (CorruptionError, FilesError) as error:
            # A publish may have woken this reader: its records are stored regardless of this error.
            self.partition.on_unreadable(error)
            self._end = error
        except KeyUnavailableError as error:
            self._end = error
        return Pulled([], 0, self._end, waits=False)

    def release(self) -> None:
        """Release what is held for the next pull, until the client accepts more."""
        if not self._slot.is_busy:
            self._slot.free()
        self._reader.release()

    def _pull(self, bytes_max: int) -> Pulled:
        partition, reader = self.partition, self._reader
        assert not isinstance(reader, ReverseReader)
        log = partition.log
        stop = self._stop_end
        end = log.high_watermark
        if stop is not None and stop < end:
            end = Offset(stop)
        if reader.next_offset < end:
            result = reader.read(bytes_max, end)
            if result.need is not None:
                return self._read_later(result.need)
            partition.activity.delivered_count += result.count
            if reader.next_offset < end or result.slices:
                return Pulled(self._delivered(result.slices), result.count, None, waits=False)
        if stop is not None and reader.next_offset >= stop:
            self._end = EndOfStreamError("Stop offset reached")
        elif partition.is_readonly and reader.next_offset >= log.log_end_offset:
            self._end = self._readonly_end.look()  # guard A.readonly
        if self._end is None:
            partition.readers.wait_for_data(self.wake)
            return Pulled([], 0, None, waits=True)
        return Pulled([], 0, self._end, waits=False)

    def _pull_reverse(self, bytes_max: int) -> Pulled:
        reader = self._reader
        assert isinstance(reader, ReverseReader)
        result = reader.read(bytes_max)
        if result.need is not None:
            return self._read_later(result.need)
        if result.slices:
            self.partition.activity.delivered_count += result.count
            return Pulled(self._delivered(result.slices), result.count, None, waits=False)
        if self._stop_end is not None:
            self._end = EndOfStreamError("Stop offset reached")
        else:
            self._end = ReverseEndError("EOF")
        return Pulled([], 0, self._end, waits=False)

    def _delivered(self, slices: list[Buffer]) -> list[Buffer]:
        """Count the bytes, and copy slices that are small, or a small part of their blocks.

        A view keeps a whole block in memory, perhaps for long, but only its bytes count as held.
        """
        if not slices:
            return slices
        size = sum(map(len, slices))
        self.partition.activity.delivered_bytes += size
        # The blocks between the first and the last one are used from end to end.
        first, last = _block_of(slices[0]), _block_of(slices[-1])
        held = len(first) + (0 if first is last else len(last))
        if 2 * size < held or size < VIEW_BYTES_MIN * len(slices):
            return [b"".join(slices)]
        return slices

    def _read_later(self, need: ReadNeed) -> Pulled:
        self._slot.read(need, self._read_done)
        return Pulled([], 0, None, waits=True)

    def _read_done(self, outcome: bytes | LiftbridgeError) -> None:
        if isinstance(outcome, LiftbridgeError):
            self.partition.on_unreadable(outcome)
            self._end = outcome
        else:
            self._reader.feed(outcome)
        self.wake()

    def on_closed(self, error: LiftbridgeError) -> None:
        """End with the partition's error, once the frames already read are delivered."""
        if self._end is None:
            self._end = error
            self.wake()

    def close(self, now: Instant) -> None:
        """Detach; no callback follows."""
        if self._is_open:
            self._is_open = False
            self._slot.free()
            self.partition.readers.stop_waiting(self.wake)
            self.partition.detach(self, now)
            self._reader.close()


def _block_of(piece: Buffer) -> bytes:
    """Return the block that a slice keeps in memory."""
    return piece if isinstance(piece, bytes) else cast("bytes", piece.obj)


def _is_empty_readonly(partition: Partition, end: int) -> bool:
    """Return whether the partition is empty and read-only: it then ends at once at any position."""
    log = partition.log
    return partition.is_readonly and end == log.log_end_offset == log.log_start_offset
