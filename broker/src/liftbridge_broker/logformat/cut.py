"""Re-cutting a batch: some of its records under a new header, for truncation and fetches."""

from liftbridge_broker.logformat.batch import (
    ATTRIBUTE_ENCRYPTED,
    ATTRIBUTE_FILLER,
    HEADER_SIZE,
    BatchHeader,
    read_header,
    seal,
    verify,
)
from liftbridge_broker.logformat.encryption import times_of
from liftbridge_broker.logformat.frames import frame_timestamp, iter_frames
from liftbridge_broker.model.ids import Offset


def cut(batch: bytes, first: Offset, end: Offset) -> bytes:
    """The records of a batch at offsets [first, end), as a batch of exactly that range.

    Frames stay unchanged. When compaction left no record in the range, the result is a filler.

    Args:
        batch: One whole batch.
        first: First offset of the result, within the batch.
        end: First offset after the result, at most one after the batch's last.

    Raises:
        CorruptionError: The checksum of the batch is wrong, or its frames are not whole.
    """
    header = read_header(batch, 0)
    verify(batch, 0, header)
    assert header.base_offset <= first < end <= header.last_offset + 1
    if first == header.base_offset and end == header.last_offset + 1:
        return batch[: header.size]
    if header.attributes & ATTRIBUTE_ENCRYPTED:
        return _cut_encrypted(batch, header, first, end)
    start = stop = 0
    count = 0
    timestamps: list[int] = []
    for position, behind, offset in iter_frames(batch, HEADER_SIZE, header.size):
        if first <= offset < end:
            start = start or position
            stop = behind
            count += 1
            timestamps.append(frame_timestamp(batch, position))
    return _reseal(header, batch[start:stop], count, timestamps, first, end)


def _cut_encrypted(batch: bytes, header: BatchHeader, first: Offset, end: Offset) -> bytes:
    """Cut without a key: the range of the header shrinks, the cipher text stays (ADR 0023)."""
    times = [when for offset, when in times_of(batch, header) if first <= offset < end]
    body = batch[HEADER_SIZE : header.size] if times else b""
    return _reseal(header, body, len(times), times, first, end)


def _reseal(
    header: BatchHeader,
    frames: bytes,
    count: int,
    timestamps: list[int],
    first: Offset,
    end: Offset,
) -> bytes:
    """Batch of `frames` with the batch-wide fields of `header`."""
    attributes = header.attributes & ~ATTRIBUTE_FILLER
    if not count:
        attributes = attributes & ~ATTRIBUTE_ENCRYPTED | ATTRIBUTE_FILLER
        timestamps = [header.first_timestamp]
    sequence = header.first_sequence
    if header.publisher_id:
        # One publisher per batch, so sequences count up with the offsets.
        sequence += first - header.base_offset
    return seal(
        frames=frames,
        partition_id=header.partition_id,
        leader_epoch=header.leader_epoch,
        base_offset=first,
        last_offset=Offset(end - 1),
        count=count,
        first_timestamp=timestamps[0],
        largest_timestamp=max(timestamps),
        attributes=attributes,
        publisher_id=header.publisher_id,
        publisher_epoch=header.publisher_epoch,
        first_sequence=sequence,
    )
