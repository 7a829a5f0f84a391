"""Idempotent publishers of a partition: their last records, so that no retry is stored twice.

Follows KIP-98 and KIP-360. A publisher numbers its records per partition without gaps; the batch
header carries publisher id, epoch and first sequence. The state is a function of the headers in log
order, so every replica that replays them has the same state. With a snapshot of it, a start scans
only later headers. The state is bounded by a number of publishers, and by time as measured by
record timestamps, never by a clock.

The table remembers *extents* instead of single batches: ranges of batches with consecutive
sequences and offsets. The last five extents of a publisher therefore cover at least its last five
batches and, while it writes alone, all batches since another publisher wrote.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple

from liftbridge_broker.errors import (
    CorruptionError,
    FencedPublisherError,
    InvalidRequestError,
    NotAppendedError,
    OutOfOrderError,
)
from liftbridge_broker.model.ids import OFFSET_MAX, LeaderEpoch, Offset, PublisherId
from liftbridge_broker.model.units import HOUR_NS
from liftbridge_broker.ports.publishers import Registrations, StampedBatch

HEADER_ID: Final = "Liftbridge-Publisher-Id"
HEADER_EPOCH: Final = "Liftbridge-Publisher-Epoch"
HEADER_SEQUENCE: Final = "Liftbridge-Sequence"

STAMP_HEADERS: Final = frozenset((HEADER_ID, HEADER_EPOCH, HEADER_SEQUENCE))
"""NATS headers of an idempotent publisher's message: id, epoch and sequence."""

EXTENTS_MAX: Final = 5
PUBLISHERS_MAX_DEFAULT: Final = 1_000
TTL_NS_DEFAULT: Final = 168 * HOUR_NS

_ID_MAX: Final = 2**64 - 1
_EPOCH_MAX: Final = 2**32 - 1
_DIGITS_MAX: Final = 20

_MAGIC: Final = b"LBps"
_VERSION: Final = 2
_TABLE: Final = Struct(">4sHHqqI")
_PUBLISHER: Final = Struct(">QIqqI")
_EXTENT: Final = Struct(">qqq")


class PublisherStamp(NamedTuple):
    """Sequence position of consecutive records of one publisher in one partition.

    Attributes:
        publisher_id: Id from `InitPublisher`.
        publisher_epoch: Epoch from `InitPublisher`.
        first_sequence: Sequence of the first record.
        may_skip: Whether earlier sequences may be missing because they were never sent.
    """

    publisher_id: PublisherId
    publisher_epoch: int
    first_sequence: int
    may_skip: bool = False


class StoredPiece(NamedTuple):
    """Records of a run that have consecutive offsets."""

    base_offset: Offset
    record_count: int


class _Extent(NamedTuple):
    """Sequences `first` to `last`, stored without gaps from `base_offset` on."""

    first: int
    last: int
    base_offset: int


@dataclass(slots=True)
class _Publisher:
    """State of one publisher; extents of its epoch, oldest first, at most `EXTENTS_MAX`."""

    publisher_epoch: int
    next_sequence: int
    last_timestamp: int
    extents: list[_Extent] = field(default_factory=list)


class PublisherTable:
    """Idempotent publishers of one partition, the longest silent first.

    Attributes:
        end_offset: Offset up to which the log was replayed; earlier batches are skipped.
        end_epoch: Leader epoch of the record before `end_offset`. A log with another epoch there
            was truncated since, so this state does not belong to it.
    """

    __slots__ = (
        "_publishers",
        "_publishers_max",
        "_registered",
        "_ttl_ns",
        "end_epoch",
        "end_offset",
    )

    def __init__(
        self,
        *,
        publishers_max: int = PUBLISHERS_MAX_DEFAULT,
        ttl_ns: int = TTL_NS_DEFAULT,
        registered: Callable[[], Registrations] | None = None,
    ) -> None:
        """Make an empty table.

        Args:
            publishers_max: Maximum number of publishers; beyond it, the longest silent publisher is
                forgotten.
            ttl_ns: Silence in record time after which a publisher is forgotten.
            registered: Returns the current metadata; with `None`, only epochs seen in batches
                fence.
        """
        assert publishers_max > 0
        assert ttl_ns > 0
        self._publishers: dict[int, _Publisher] = {}
        self._publishers_max = publishers_max
        self._ttl_ns = ttl_ns
        self._registered = registered
        self.end_offset = Offset(0)
        self.end_epoch = LeaderEpoch(0)

    def set_limits(self, *, publishers_max: int, ttl_ns: int) -> None:
        """Apply other bounds; the excess is dropped with the next batch."""
        assert publishers_max > 0
        assert ttl_ns > 0
        self._publishers_max = publishers_max
        self._ttl_ns = ttl_ns

    def __len__(self) -> int:
        """Return the number of publishers remembered."""
        return len(self._publishers)

    def check(
        self,
        publisher_id: int,
        publisher_epoch: int,
        first_sequence: int,
        count: int,
        *,
        may_skip: bool = False,
    ) -> tuple[StoredPiece, ...]:
        """Decide on a run before it is appended; changes nothing.

        Args:
            publisher_id: Id from `InitPublisher`.
            publisher_epoch: Epoch from `InitPublisher`.
            first_sequence: Sequence of the first record.
            count: Records of the run.
            may_skip: As in `PublisherStamp`.

        Returns:
            Positions of its records that are already stored, in order; the rest must be appended.
            Empty for a new run. A leader that stopped may have stored only some batches of the run,
            with records of other publishers in between. Duplicates may be acknowledged only once
            their offsets are committed.

        Raises:
            FencedPublisherError: A newer epoch exists, or the publisher is not registered.
            OutOfOrderError: The sequence leaves a gap, was stored too long ago for its offset to be
                remembered, or was stored by an earlier epoch. In the last case, the leader that
                chose the first sequence of the newer epoch did not know all records, and other
                records may have had these sequences.
            NotAppendedError: This broker's metadata do not have this publisher or epoch yet.
            InvalidRequestError: A number is outside its range.
        """
        if not 0 <= first_sequence <= OFFSET_MAX - count or count < 1:
            raise InvalidRequestError(
                f"Invalid sequence {first_sequence} for {count} records, must be at least 0 and 1"
            )
        known = self._publishers.get(publisher_id)
        self._check_epoch(publisher_id, publisher_epoch, known)
        expected = 0 if known is None else known.next_sequence
        is_next = first_sequence == expected  # guard L2.sequence
        if is_next or (may_skip and first_sequence > expected):
            return ()
        if (
            known is None
            or first_sequence > expected
            # An earlier leader that knew fewer records gave the newer epoch a lower first sequence.
            or publisher_epoch > known.publisher_epoch  # guard L2.renewed
        ):
            raise OutOfOrderError(
                f"sequence {first_sequence} of publisher {publisher_id} is out of order, "
                f"expected {expected}"
            )
        return _pieces_of(known, publisher_id, first_sequence, count)

    def _check_epoch(
        self, publisher_id: int, publisher_epoch: int, known: _Publisher | None
    ) -> None:
        """Refuse a publisher that was replaced, by the metadata or by a batch in the log."""
        current = 0 if known is None else known.publisher_epoch
        if self._registered is not None:
            metadata = self._registered()
            registered = metadata.publisher_epochs.get(PublisherId(publisher_id))
            if registered is None and publisher_id > metadata.applied_index:
                # Another broker registered the publisher, and this broker has not applied it yet.
                text = f"not appended: publisher {publisher_id} is not known here yet"
                raise NotAppendedError(text)
            if registered is None:
                raise FencedPublisherError(f"publisher {publisher_id} is not registered")
            if publisher_epoch > registered:
                raise NotAppendedError(
                    f"not appended: epoch {publisher_epoch} of publisher {publisher_id} is not "
                    "known here yet"
                )
            current = max(current, registered)
        if publisher_epoch < current:
            raise FencedPublisherError(
                f"epoch {publisher_epoch} of publisher {publisher_id} is fenced by epoch {current}"
            )

    def replay(self, batch: StampedBatch) -> None:
        """Apply the header of a batch of the log, in order of offsets; skip others."""
        if batch.base_offset < self.end_offset:
            return
        self.note_end(Offset(batch.last_offset + 1), LeaderEpoch(batch.leader_epoch))
        self._expire(batch.largest_timestamp)
        if batch.publisher_id == 0:
            return
        publisher = self._publishers.pop(batch.publisher_id, None)
        if publisher is None:
            publisher = _Publisher(batch.publisher_epoch, 0, batch.largest_timestamp)
        # Reinserted at the end: the dict is ordered by silence.
        self._publishers[batch.publisher_id] = publisher
        _note(publisher, batch)
        while len(self._publishers) > self._publishers_max:
            del self._publishers[next(iter(self._publishers))]

    def note_end(self, end_offset: Offset, end_epoch: LeaderEpoch) -> None:
        """Mark the log as replayed up to an offset; the record before it has the given epoch."""
        self.end_offset = end_offset
        self.end_epoch = end_epoch

    def _expire(self, timestamp: int) -> None:
        """Forget publishers that were silent for longer than the bound, in record time."""
        limit = timestamp - self._ttl_ns
        while self._publishers:
            oldest = next(iter(self._publishers))
            if self._publishers[oldest].last_timestamp >= limit:
                return
            del self._publishers[oldest]

    def next_sequence(self, publisher_id: int) -> int:
        """Return the next expected sequence of a publisher; 0 when it is not remembered."""
        known = self._publishers.get(publisher_id)
        return 0 if known is None else known.next_sequence

    def end_of(self, publisher_id: int) -> Offset:
        """Return the offset after the last record of a publisher; 0 when it is not remembered."""
        known = self._publishers.get(publisher_id)
        if known is None or not known.extents:
            return Offset(0)
        last = known.extents[-1]
        return Offset(last.base_offset + last.last - last.first + 1)

    def snapshot(self) -> bytes:
        """Encode the state.

        Big-endian: `LBps`, u16 version, u16 zero, i64 end offset, i64 leader epoch before it, u32
        number of publishers; for each, the longest silent first, u64 id, u32 epoch, i64 next
        sequence, i64 last timestamp, u32 number of extents; for each of these i64 first and last
        sequence, i64 base offset. The file around them carries the checksum.
        """
        count = len(self._publishers)
        head = _TABLE.pack(_MAGIC, _VERSION, 0, self.end_offset, self.end_epoch, count)
        pieces = [head]
        for publisher_id, publisher in self._publishers.items():
            pieces.append(
                _PUBLISHER.pack(
                    publisher_id,
                    publisher.publisher_epoch,
                    publisher.next_sequence,
                    publisher.last_timestamp,
                    len(publisher.extents),
                )
            )
            pieces.extend(_EXTENT.pack(*extent) for extent in publisher.extents)
        return b"".join(pieces)

    def restore(self, data: bytes) -> None:
        """Replace the state by that of `snapshot`.

        From a snapshot with too many publishers, the longest silent are dropped.

        Raises:
            CorruptionError: The bytes are not a snapshot; the table stays as it was.
        """
        try:
            magic, version, _, end_offset, end_epoch, count = _TABLE.unpack_from(data)
            if magic != _MAGIC or version != _VERSION or min(end_offset, end_epoch) < 0:
                raise CorruptionError("publisher snapshot: wrong header")
            publishers, position = _read_publishers(data, _TABLE.size, count)
        except struct_error as error:
            raise CorruptionError("publisher snapshot: cut short") from error
        if position != len(data):
            raise CorruptionError("publisher snapshot: bytes after the end")
        for surplus in list(publishers)[: max(0, len(publishers) - self._publishers_max)]:
            del publishers[surplus]
        self._publishers = publishers
        self.note_end(Offset(end_offset), LeaderEpoch(end_epoch))


def _pieces_of(
    known: _Publisher, publisher_id: int, first_sequence: int, count: int
) -> tuple[StoredPiece, ...]:
    """Return the stored positions of a run's records below the expected sequence."""
    pieces: list[StoredPiece] = []
    sequence, end = first_sequence, min(first_sequence + count, known.next_sequence)
    for extent in known.extents:
        if extent.first <= sequence <= extent.last:
            taken = min(end, extent.last + 1) - sequence
            pieces.append(StoredPiece(Offset(extent.base_offset + sequence - extent.first), taken))
            sequence += taken
            if sequence == end:
                return tuple(pieces)
    raise OutOfOrderError(
        f"sequences {first_sequence} to {end - 1} of publisher {publisher_id} are out of order: "
        f"expected {known.next_sequence}, earlier ones are stored but not remembered"
    )


def _note(publisher: _Publisher, batch: StampedBatch) -> None:
    """Record a batch: extend the last extent if the batch continues it, else begin a new extent."""
    first = batch.first_sequence
    # Bounded, because a header from a peer may hold any sequence and a snapshot must hold it too.
    last = min(first + batch.last_offset - batch.base_offset, OFFSET_MAX - 1)
    if batch.publisher_epoch != publisher.publisher_epoch:
        # A sequence is known within its epoch only, see `PublisherTable.check`.
        publisher.extents.clear()
    publisher.publisher_epoch = batch.publisher_epoch
    publisher.next_sequence = last + 1
    publisher.last_timestamp = max(publisher.last_timestamp, batch.largest_timestamp)
    extents = publisher.extents
    if extents:
        before = extents[-1]
        follows = before.last + 1 == first
        if follows and before.base_offset + first - before.first == batch.base_offset:
            extents[-1] = before._replace(last=last)
            return
    extents.append(_Extent(first, last, batch.base_offset))
    del extents[:-EXTENTS_MAX]


def _read_publishers(data: bytes, position: int, count: int) -> tuple[dict[int, _Publisher], int]:
    """Decode the publishers of a snapshot; return them and the position after them."""
    publishers: dict[int, _Publisher] = {}
    for _ in range(count):
        if position + _PUBLISHER.size > len(data):
            raise CorruptionError("publisher snapshot: cut short")
        publisher_id, epoch, next_sequence, timestamp, extents = _PUBLISHER.unpack_from(
            data, position
        )
        position += _PUBLISHER.size
        end = position + extents * _EXTENT.size
        if end > len(data) or extents > EXTENTS_MAX or publisher_id in publishers:
            raise CorruptionError(f"publisher snapshot: wrong entry of publisher {publisher_id}")
        found = [_Extent(*values) for values in _EXTENT.iter_unpack(data[position:end])]
        publishers[publisher_id] = _Publisher(epoch, next_sequence, timestamp, found)
        position = end
    return publishers, position


def parse_headers(headers: Mapping[str, bytes]) -> PublisherStamp | None:
    """Return the stamp in the headers of a plain publish; `None` without any of the three headers.

    Raises:
        InvalidRequestError: A header is missing, no ASCII decimal number, or out of range.
    """
    if not (HEADER_ID in headers or HEADER_EPOCH in headers or HEADER_SEQUENCE in headers):
        return None
    return PublisherStamp(
        PublisherId(_number(headers, HEADER_ID, 1, _ID_MAX)),
        _number(headers, HEADER_EPOCH, 0, _EPOCH_MAX),
        _number(headers, HEADER_SEQUENCE, 0, OFFSET_MAX),
    )


def _number(headers: Mapping[str, bytes], name: str, minimum: int, maximum: int) -> int:
    """Return the value of a required header of ASCII digits."""
    text = headers.get(name, b"")
    # `bytes.isdigit` knows ASCII digits only; the length bounds the conversion.
    if not text.isdigit() or len(text) > _DIGITS_MAX or not minimum <= int(text) <= maximum:
        raise InvalidRequestError(
            f"Invalid header {name}, must be a decimal number of {minimum} to {maximum}"
        )
    return int(text)
