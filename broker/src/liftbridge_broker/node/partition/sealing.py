"""Writes runs to a log: seals the messages of one caller into batches, the bytes of one write."""

from collections.abc import Sequence
from itertools import compress
from operator import ne, sub
from typing import Final

from liftbridge_broker.logformat.batch import (
    ATTRIBUTE_COMPACTED,
    ATTRIBUTE_ENCRYPTED,
    ATTRIBUTE_IDEMPOTENT,
    BatchHeader,
    filler,
    read_header,
    seal,
)
from liftbridge_broker.logformat.cipher import BatchCipher
from liftbridge_broker.logformat.encryption import encode_table
from liftbridge_broker.logformat.records import RecordEncoder
from liftbridge_broker.model.ids import Instant, LeaderEpoch, Offset, PartitionId, PublisherId
from liftbridge_broker.node.context import NodeContext
from liftbridge_broker.node.partition.runs import PublishRun, batch_ends
from liftbridge_broker.replication.publisher_history import PublisherHistory
from liftbridge_broker.storage.log.partition_log import PartitionLog

BATCH_BYTES_MAX: Final = 256 * 1024
"""Bytes of values and keys sealed into one batch, or one record."""


class LogWriter:
    """Appends runs to the log of one partition, and keeps the state of publishers in step with it.

    Every appended batch that names an idempotent publisher is noted, on followers too. The state is
    saved when a segment is complete, so that the next start scans less.

    Attributes:
        cipher: Encrypts and decrypts the batches; `None` for a stream that is not encrypted.
        publishers: State of idempotent publishers.
    """

    __slots__ = ("_context", "_log", "_sealer", "_segment_count", "cipher", "publishers")

    def __init__(
        self,
        context: NodeContext,
        log: PartitionLog,
        sealer: "RunSealer",
        publishers: PublisherHistory,
    ) -> None:
        self._context = context
        self._log = log
        self._sealer = sealer
        self._segment_count = 0
        self.cipher = sealer.cipher
        self.publishers = publishers

    def write(
        self, run: PublishRun, epoch: LeaderEpoch, now: Instant, wall_ns: int
    ) -> tuple[int, Offset, bytes]:
        """Append a run atomically; return its first timestamp, and base offset and bytes.

        Raises:
            FilesError: Nothing was appended.
            KeyUnavailableError: Nothing was appended: the stream is encrypted and locked.
        """
        log = self._log
        timestamp = max(log.largest_timestamp, self._context.clock.stamp(wall_ns, now))
        batches = self._sealer.seal(run, epoch, log.log_end_offset, timestamp)
        headers: list[BatchHeader] = [read_header(batch, 0) for batch in batches]
        data = batches[0] if len(batches) == 1 else b"".join(batches)
        log.append_batches(data, headers, wall_ns)
        if run.publisher is not None:
            for header in headers:
                self.publishers.replay(header)
        if len(self.publishers) and log.segment_count != self._segment_count:
            self._segment_count = log.segment_count
            self._context.store.notes.write_snapshot(self._log.partition_id, self._context.now)
        first = timestamp if run.timestamps is None else run.timestamps[0]
        return first, Offset(headers[0].base_offset), data

    def note_replicated(self, headers: Sequence[BatchHeader], segment_count: int) -> None:
        """Note appended batches of the leader; `segment_count` is the count before."""
        for header in headers:
            if header.publisher_id:
                self.publishers.replay(header)
        if len(self.publishers) and self._log.segment_count != segment_count:
            self._context.store.notes.write_snapshot(self._log.partition_id, self._context.now)


class RunSealer:
    """Seals the runs of one partition on its leader.

    Args:
        encoder: Makes its records.
        partition_id: Written into every batch.
        cipher: Encrypts the batches, `None` to store plain text.
    """

    __slots__ = ("_encoder", "_partition_id", "cipher")

    def __init__(
        self, encoder: RecordEncoder, partition_id: PartitionId, cipher: BatchCipher | None = None
    ) -> None:
        self._encoder = encoder
        self._partition_id = partition_id
        self.cipher = cipher

    def seal(
        self, run: PublishRun, epoch: LeaderEpoch, log_end_offset: Offset, timestamp: int
    ) -> list[bytes]:
        """Encode a run as one batch or, when it is large, several; their ranges adjoin.

        Args:
            run: Records to store. A first offset above the log end gets a header-only batch in
                front, because ranges of batches must adjoin.
            epoch: Epoch of this leadership.
            log_end_offset: Offset of the first batch.
            timestamp: Timestamp of all records, unless the run sets timestamps.
        """
        count = len(run.values)
        batches = []
        offsets = run.offsets or range(log_end_offset, log_end_offset + count)
        if offsets[0] > log_end_offset:
            empty = filler(
                partition_id=self._partition_id,
                leader_epoch=epoch,
                base_offset=log_end_offset,
                last_offset=Offset(offsets[0] - 1),
                timestamp=timestamp if run.timestamps is None else run.timestamps[0],
            )
            batches.append(empty)
        start = 0
        for end in batch_ends(run, BATCH_BYTES_MAX):
            part = run if end - start == count else run.part(start, end)
            base_offset = Offset(offsets[start])
            last_offset = Offset(offsets[end] - 1 if end < count else offsets[-1])
            batches.append(self._seal(part, epoch, base_offset, last_offset, timestamp))
            start = end
        return batches

    def _seal(
        self,
        run: PublishRun,
        epoch: LeaderEpoch,
        base_offset: Offset,
        last_offset: Offset,
        timestamp: int,
    ) -> bytes:
        times, publisher, count = run.timestamps, run.publisher, len(run.values)
        attributes = ATTRIBUTE_IDEMPOTENT if publisher is not None else 0
        if last_offset - base_offset >= count:
            attributes |= ATTRIBUTE_COMPACTED
        first_timestamp = timestamp if times is None else times[0]
        pieces = self._frames(run, base_offset, timestamp)
        frames: list[bytes] | bytes = pieces
        if self.cipher is not None:
            attributes |= ATTRIBUTE_ENCRYPTED
            frames = self.cipher.encrypt(
                b"".join(pieces),
                leader_epoch=epoch,
                base_offset=base_offset,
                last_offset=last_offset,
                count=count,
                first_timestamp=first_timestamp,
                table=_table(run, base_offset, last_offset, timestamp),
            )
        return seal(
            frames=frames,
            partition_id=self._partition_id,
            leader_epoch=epoch,
            base_offset=base_offset,
            last_offset=last_offset,
            count=count,
            first_timestamp=first_timestamp,
            largest_timestamp=timestamp if times is None else times[-1],
            attributes=attributes,
            publisher_id=publisher.publisher_id if publisher is not None else PublisherId(0),
            publisher_epoch=publisher.publisher_epoch if publisher is not None else 0,
            first_sequence=publisher.first_sequence if publisher is not None else 0,
        )

    def _frames(self, run: PublishRun, base_offset: Offset, timestamp: int) -> list[bytes]:
        """Encode all records, adjacent ones with equal timestamps and subjects in one call."""
        if run.timestamps is None and run.offsets is None:
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
        for end in _ends_of_equals(run):
            offset = base_offset + start if run.offsets is None else run.offsets[start]
            pieces += self._encode_part(run, start, end, offset, timestamp)
            start = end
        return pieces

    def _encode_part(
        self, run: PublishRun, start: int, end: int, offset: int, timestamp: int
    ) -> list[bytes]:
        """Encode records `start` to `end`, which may differ only in key, value and headers."""
        keys, headers = run.keys, run.headers
        if run.timestamps is not None:
            timestamp = run.timestamps[start]
        subject = run.subject if run.subjects is None else run.subjects[start]
        reply = run.reply if run.replies is None else run.replies[start]
        if end - start == 1 and keys is not None:
            # `encode` would cost more for a single record.
            frame = self._encoder.encode_record(
                offset=offset,
                timestamp=timestamp,
                subject=subject,
                reply=reply,
                value=run.values[start],
                key=keys[start],
                headers=None if headers is None else headers[start],
            )
            return [frame]
        some = slice(start, end)
        return self._encoder.encode(
            base_offset=offset,
            timestamp=timestamp,
            subject=subject,
            reply=reply,
            values=run.values[some],
            keys=None if keys is None else keys[some],
            headers=None if headers is None else headers[some],
        )


def _table(run: PublishRun, base_offset: Offset, last_offset: Offset, timestamp: int) -> bytes:
    """Return the table of an encrypted batch, empty for the usual run."""
    if run.timestamps is None and run.offsets is None:
        return b""
    count = len(run.values)
    offsets = range(base_offset, base_offset + count) if run.offsets is None else run.offsets
    times = [timestamp] * count if run.timestamps is None else run.timestamps
    return encode_table(list(zip(offsets, times, strict=True)), base_offset, last_offset)


def _ends_of_equals(run: PublishRun) -> list[int]:
    """Return ends of the ranges with consecutive offsets and equal timestamps and subjects."""
    count = len(run.values)
    ends = {count}
    for column in (run.timestamps, run.subjects, run.replies):
        if column is not None:
            ends.update(compress(range(1, count), map(ne, column[1:], column)))
    if run.offsets is not None:
        steps = map(sub, run.offsets[1:], run.offsets)
        ends.update(compress(range(1, count), map((1).__ne__, steps)))
    return sorted(ends)
