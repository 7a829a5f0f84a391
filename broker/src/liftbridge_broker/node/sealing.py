"""Making batches of a run: what one caller sent becomes the bytes that one write appends."""

from bisect import bisect_right
from typing import Final

from liftbridge_broker.logformat.batch import ATTRIBUTE_IDEMPOTENT, filler, seal
from liftbridge_broker.logformat.records import RecordEncoder
from liftbridge_broker.model.ids import LeaderEpoch, Offset, PartitionId, PublisherId
from liftbridge_broker.node.runs import PublishRun, batch_ends

BATCH_BYTES_MAX: Final = 256 * 1024
"""Bytes of values and keys sealed into one batch, or one record (replication.md 1.15)."""


class RunSealer:
    """Seals the runs of one partition on its leader.

    Args:
        encoder: Makes its records.
        partition_id: Written into every batch.
    """

    __slots__ = ("_encoder", "_partition_id")

    def __init__(self, encoder: RecordEncoder, partition_id: PartitionId) -> None:
        self._encoder = encoder
        self._partition_id = partition_id

    def seal(
        self, run: PublishRun, epoch: LeaderEpoch, log_end_offset: Offset, timestamp: int
    ) -> list[bytes]:
        """One batch or, when the run is large, several; their offsets adjoin.

        Args:
            run: What to store. A target offset above the log end gets a header-only batch in
                front, because ranges of batches must adjoin.
            epoch: Epoch of this leadership.
            log_end_offset: Offset of the first batch.
            timestamp: Of all records, unless the run has timestamps of its own.
        """
        batches = []
        base_offset = log_end_offset
        if run.target_offset is not None and run.target_offset > log_end_offset:
            base_offset = run.target_offset
            empty = filler(
                partition_id=self._partition_id,
                leader_epoch=epoch,
                base_offset=log_end_offset,
                last_offset=Offset(base_offset - 1),
                timestamp=timestamp if run.timestamps is None else run.timestamps[0],
            )
            batches.append(empty)
        start = 0
        for end in batch_ends(run, BATCH_BYTES_MAX):
            is_whole = end - start == len(run.values)
            part = run if is_whole else run.part(start, end)
            batches.append(self._seal(part, epoch, Offset(base_offset + start), timestamp))
            start = end
        return batches

    def _seal(
        self, run: PublishRun, epoch: LeaderEpoch, base_offset: Offset, timestamp: int
    ) -> bytes:
        times, publisher, count = run.timestamps, run.publisher, len(run.values)
        return seal(
            frames=self._frames(run, base_offset, timestamp),
            partition_id=self._partition_id,
            leader_epoch=epoch,
            base_offset=base_offset,
            last_offset=Offset(base_offset + count - 1),
            count=count,
            first_timestamp=timestamp if times is None else times[0],
            largest_timestamp=timestamp if times is None else times[-1],
            attributes=ATTRIBUTE_IDEMPOTENT if publisher is not None else 0,
            publisher_id=publisher.publisher_id if publisher is not None else PublisherId(0),
            publisher_epoch=publisher.publisher_epoch if publisher is not None else 0,
            first_sequence=publisher.first_sequence if publisher is not None else 0,
        )

    def _frames(self, run: PublishRun, base_offset: Offset, timestamp: int) -> list[bytes]:
        """Frames of all records; neighbouring records with the same timestamp are one run."""
        times = run.timestamps
        if times is None:
            return self._encoder.encode(
                base_offset=base_offset,
                timestamp=timestamp,
                subject=run.subject,
                reply=run.reply,
                values=run.values,
                keys=run.keys,
                headers=run.headers,
            )
        pieces: list[bytes] = []
        start = 0
        while start < len(times):
            end = bisect_right(times, times[start], start)
            pieces += self._encode_part(run, start, end, Offset(base_offset + start), times[start])
            start = end
        return pieces

    def _encode_part(
        self, run: PublishRun, start: int, end: int, base_offset: Offset, timestamp: int
    ) -> list[bytes]:
        """Frames of the records from `start` to `end`, which have one timestamp."""
        keys, headers = run.keys, run.headers
        if end - start == 1 and keys is not None:
            # A page of one record would cost more.
            frame = self._encoder.encode_record(
                offset=base_offset,
                timestamp=timestamp,
                subject=run.subject,
                reply=run.reply,
                value=run.values[start],
                key=keys[start],
                headers=None if headers is None else headers[start],
            )
            return [frame]
        some = slice(start, end)
        return self._encoder.encode(
            base_offset=base_offset,
            timestamp=timestamp,
            subject=run.subject,
            reply=run.reply,
            values=run.values[some],
            keys=None if keys is None else keys[some],
            headers=None if headers is None else headers[some],
        )
