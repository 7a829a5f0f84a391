"""Sealed batches for tests of the log, and what is in the bytes that readers give out."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count

from liftbridge_broker.logformat.batch import BatchHeader, filler, read_header, seal
from liftbridge_broker.logformat.cipher import KEY_SIZE, BatchCipher
from liftbridge_broker.logformat.encryption import SALT_SIZE
from liftbridge_broker.logformat.frames import Frame, decode_frame, frame_end, iter_frames
from liftbridge_broker.logformat.records import RecordEncoder
from liftbridge_broker.model.ids import LeaderEpoch, Offset, PartitionId, PublisherId

PARTITION = PartitionId(7 << 24 | 3)


def _salts() -> Callable[[], bytes]:
    numbers = count(1)
    return lambda: next(numbers).to_bytes(SALT_SIZE, "big")


def cipher(
    partition_id: PartitionId = PARTITION,
    *,
    key: bytes = b"k" * KEY_SIZE,
    new_salt: Callable[[], bytes] | None = None,
) -> BatchCipher:
    """Return an unlocked cipher of a partition, with salts that count from 1."""
    made = BatchCipher(partition_id, new_salt or _salts())
    made.unlock(key)
    return made


class Batches:
    """Makes batches of one partition; times are seconds in nanoseconds.

    Attributes:
        partition_id: Partition of the batches.
        subject: NATS subject of all records.
    """

    def __init__(self, partition_id: PartitionId = PARTITION, subject: str = "foo") -> None:
        self.partition_id = partition_id
        self.subject = subject
        self._encoder = RecordEncoder("foo", partition_id & 0xFFFFFF)

    def make(
        self,
        base: int,
        values: Sequence[bytes],
        *,
        keys: Sequence[bytes] | None = None,
        headers: Sequence[Mapping[str, bytes] | None] | None = None,
        timestamp: int = 1,
        epoch: int = 1,
        publisher: tuple[int, int, int] = (0, 0, 0),
    ) -> bytes:
        """Return a batch of records with offsets that follow each other.

        Args:
            base: Offset of the first record.
            values: Values of the records, at least one.
            keys: Their keys.
            headers: Their headers.
            timestamp: Timestamp of all.
            epoch: Leader epoch.
            publisher: Publisher id, epoch, first sequence.
        """
        pieces = self._encoder.encode(
            base_offset=base,
            timestamp=timestamp,
            subject=self.subject,
            reply="",
            values=values,
            keys=keys,
            headers=headers,
        )
        return seal(
            frames=pieces,
            partition_id=self.partition_id,
            leader_epoch=LeaderEpoch(epoch),
            base_offset=Offset(base),
            last_offset=Offset(base + len(values) - 1),
            count=len(values),
            first_timestamp=timestamp,
            largest_timestamp=timestamp,
            publisher_id=PublisherId(publisher[0]),
            publisher_epoch=publisher[1],
            first_sequence=publisher[2],
        )

    def sparse(
        self, base: int, end: int, kept: Mapping[int, bytes], *, timestamp: int = 1, epoch: int = 1
    ) -> bytes:
        """Return a batch as compaction leaves it: the range [base, end) with some records of it.

        Args:
            base: First offset of the range.
            end: First offset behind it.
            kept: Values of what is kept, by offset; none makes a filler.
            timestamp: Timestamp of all.
            epoch: Leader epoch.
        """
        if not kept:
            return self.filler(base, end, timestamp=timestamp, epoch=epoch)
        pieces = [
            self._encoder.encode_record(
                offset=offset,
                timestamp=timestamp,
                subject=self.subject,
                reply="",
                value=kept[offset],
            )
            for offset in sorted(kept)
        ]
        return seal(
            frames=pieces,
            partition_id=self.partition_id,
            leader_epoch=LeaderEpoch(epoch),
            base_offset=Offset(base),
            last_offset=Offset(end - 1),
            count=len(pieces),
            first_timestamp=timestamp,
            largest_timestamp=timestamp,
            attributes=1,
        )

    def filler(self, base: int, end: int, *, timestamp: int = 1, epoch: int = 1) -> bytes:
        """Return a batch without records that keeps the range [base, end)."""
        return filler(
            partition_id=self.partition_id,
            leader_epoch=LeaderEpoch(epoch),
            base_offset=Offset(base),
            last_offset=Offset(end - 1),
            timestamp=timestamp,
        )


def header_of(batch: bytes) -> BatchHeader:
    """Return the header of a batch."""
    return read_header(batch, 0)


def frame_bounds(piece: bytes | memoryview) -> Iterator[tuple[int, int]]:
    """Yield start and end of whole frames in order; offsets decrease in reverse subscriptions."""
    at = 0
    while at < len(piece):
        behind = frame_end(piece, at, len(piece))
        yield at, behind
        at = behind


def frames_of(slices: Iterable[bytes | memoryview]) -> list[Frame]:
    """Records in what a reader gave out."""
    data = b"".join(slices)
    return [decode_frame(data, start, end) for start, end, _ in iter_frames(data, 0, len(data))]


def offsets_of(slices: Iterable[bytes | memoryview]) -> list[Offset]:
    """Offsets in what a reader gave out."""
    data = b"".join(slices)
    return [offset for _, _, offset in iter_frames(data, 0, len(data))]
