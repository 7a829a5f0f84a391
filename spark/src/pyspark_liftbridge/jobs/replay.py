"""Replay an archived stream: restore its records at their offsets, or publish them again.

One task writes one partition, because a log has one order. No state is kept between runs: with
offsets preserved, the target's log shows where to continue, and its records must be those of the
archive. Records that are published again are numbered by their position in the selection, and the
brokers know which numbers they have. A compaction by key changes positions, so each compaction
starts a new numbering. Then records published before would be repeated, which is refused unless
allowed; no record is skipped.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from threading import Event, Thread
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from liftbridge_client import (
    LiftbridgeError,
    NotFoundError,
    Numbering,
    PartitionBounds,
    SyncClient,
    SyncStream,
)
from pyspark_liftbridge.archive import fence
from pyspark_liftbridge.archive.delta_log import log
from pyspark_liftbridge.archive.delta_log.schema import SCHEMA, headers_of_client
from pyspark_liftbridge.archive.reading import by_partition, files_of, held_of
from pyspark_liftbridge.archive.records import records
from pyspark_liftbridge.archive.stores.store import Below, Store, opened
from pyspark_liftbridge.jobs.holders import Access
from pyspark_liftbridge.jobs.positions import End, newest, put_back
from pyspark_liftbridge.jobs.selection import Selection
from pyspark_liftbridge.jobs.target import Target, refusal
from pyspark_liftbridge.jobs.works import Progress, RefusedError, Runner, silent
from pyspark_liftbridge.plan.options import OptionError
from pyspark_liftbridge.plan.unified import Held
from pyspark_liftbridge.source import cluster
from pyspark_liftbridge.units import MILLISECOND_NS

WRITE_RETRY_NS: Final = 120_000_000_000
"""Time for which a task looks for a broker that accepts its records."""

PROGRESS_SECONDS: Final = 1.0
"""Time between two reports of progress."""

_ID_BYTES: Final = 8


class Job(NamedTuple):
    """Archive to replay, and its target.

    Attributes:
        table: Folder of the archived stream below the root; ends with `/`.
        target: Name of the stream to write.
        access: Access to brokers and the archive.
        selection: Records to replay.
        keeps_offsets: Whether to restore their offsets, times and subjects.
        allows_repeats: Whether to publish records again that a replay before a compaction by key
            has published.
    """

    table: str
    target: str
    access: Access
    selection: Selection
    keeps_offsets: bool
    allows_repeats: bool = False

    @property
    def store(self) -> Store:
        """The folder of the table."""
        return Below(opened(self.access.root, self.access.store), self.table)


class Part(NamedTuple):
    """Offsets and files of one partition to replay.

    Attributes:
        partition: Number of the partition.
        start: First offset in the archive.
        end: First offset not replayed.
        files: Files with these offsets.
        records_max: Number of records in these files; fewer may be selected.
        target_end: End of the target at the beginning of the run.
        by_key: Identifies the last compaction by key, empty for none.
    """

    partition: int
    start: int
    end: int
    files: int
    records_max: int
    target_end: int
    by_key: str


class Work(NamedTuple):
    """Description of one task.

    Attributes:
        job: The job it belongs to.
        part: Part to replay.
        publisher: Name of the publisher that numbers its records, empty if offsets are preserved.
        only_checks: Whether it only checks the target and writes nothing.
    """

    job: Job
    part: Part
    publisher: str
    only_checks: bool

    def text(self) -> str:
        """Return the task as text, as it is sent to Spark."""
        return json.dumps(self)

    @classmethod
    def of(cls, text: str) -> "Work":
        """Parse what `text` returned."""
        (table, target, access, selection, *how), part, *rest = json.loads(text)
        job = Job(table, target, Access(*access), Selection(*selection), *how)
        return cls(job, Part(*part), *rest)


class Replayed(NamedTuple):
    """Outcome of a partition.

    Attributes:
        partition: Number of the partition.
        start: First offset in the archive.
        end: First offset not replayed.
        target_end: End of the target at the beginning of the run.
        written: Number of records that this run wrote.
        known: Number of records that were already stored, 0 if offsets are preserved.
    """

    partition: int
    start: int
    end: int
    target_end: int
    written: int
    known: int


def do(text: str) -> str:
    """Check the target of a task, or write it.

    Raises:
        LiftbridgeError: No broker could serve or accept records.
        ArchiveError: The archive could not be read.
        RefusedError: The archive was compacted by key since the work was planned.
    """
    work = Work.of(text)
    job, part = work.job, work.part
    if work.only_checks:
        target = Target(
            job.target, part.partition, job.access, job.table, job.selection, part.start
        )
        return json.dumps(_unfit_time(work) or refusal(target))
    client = cluster.client_of(job.access.options(job.target).connection, WRITE_RETRY_NS)
    stream = client.streams.get(job.target)
    return json.dumps(_restore(work, stream) if not work.publisher else _publish(work, stream))


def _unfit_time(work: Work) -> str:
    """Return why brokers would refuse the times of restored records; empty if they accept them.

    Brokers search a log by time, so its times never decrease. Those of an archive may: if another
    server wrote the stream, or if the clock was set back while the log was empty.
    """
    largest = 0
    for batch in _chosen(work, _snapshot(work), work.part.start, ("offset", "timestamp_ns")):
        times = batch.column("timestamp_ns").to_numpy()
        before = np.maximum.accumulate(np.append(largest, times))
        earlier = np.flatnonzero(times < before[:-1])
        if len(earlier):
            at = earlier[0]
            return (
                f"offset {batch.column('offset')[at]} of partition {work.part.partition} of the "
                f"archive has an earlier time than one before it ({times[at]} and {before[at]} ns "
                "since 1970), which no log accepts: choose records whose times do not decrease "
                "(--offsets, --time), or replay without --preserve-offsets"
            )
        largest = before[-1]
    return ""


def _restore(work: Work, stream: SyncStream) -> tuple[int, int]:
    """Restore records after the committed records; return their number."""
    snapshot = _snapshot(work)
    (bounds,) = stream.bounds(work.part.partition)
    count = 0

    def columns() -> Iterator[pa.RecordBatch]:
        nonlocal count
        start = max(work.part.start, bounds.high_watermark)
        for batch in _chosen(work, snapshot, start):
            count += batch.num_rows
            yield pa.record_batch(
                {
                    "offset": batch.column("offset"),
                    "timestamp": batch.column("timestamp_ns"),
                    "key": batch.column("key"),
                    "value": batch.column("value"),
                    "headers": headers_of_client(batch.column("headers")),
                    "subject": batch.column("subject"),
                    "reply_subject": batch.column("reply_subject"),
                }
            )

    stream.restore(work.part.partition, columns())
    return count, 0


def _publish(work: Work, stream: SyncStream) -> tuple[int, int]:
    """Publish records that are not stored yet; return their number, and that of stored records."""
    snapshot = _snapshot(work)

    def columns() -> Iterator[pa.RecordBatch]:
        for batch in _chosen(work, snapshot, work.part.start):
            yield pa.record_batch(
                {
                    "key": batch.column("key"),
                    "value": batch.column("value"),
                    "headers": headers_of_client(batch.column("headers")),
                    "partition": batch.column("partition"),
                }
            )

    done = stream.publish_columns(
        columns(), ack_policy="all", numbering=Numbering(work.publisher, 0)
    )
    return done.acked_count, done.known_count


def _snapshot(work: Work) -> log.Snapshot:
    """Load the snapshot to replay, which later compactions do not affect.

    Raises:
        RefusedError: The archive was compacted by key since the work was planned and the target
            checked.
    """
    snapshot = log.load(work.job.store)
    if _by_key(snapshot, work.part.partition) != work.part.by_key:
        raise RefusedError(
            f"partition {work.part.partition} of the archive was compacted by key meanwhile; start "
            "the replay again"
        )
    return snapshot


def _chosen(
    work: Work, snapshot: log.Snapshot, start: int, columns: Sequence[str] = SCHEMA.names
) -> Iterator[pa.RecordBatch]:
    wanted = work.job.selection.of(work.part.partition, start, work.part.end)
    yield from records(work.job.store, by_partition(snapshot), wanted, columns)


def _by_key(snapshot: log.Snapshot, partition: int) -> str:
    """Return an id of the last compaction by key of a partition, empty for none.

    Its end offset is not enough: a later compaction may remove old tombstones only.
    """
    assert snapshot.metadata is not None, "it was planned"
    done = snapshot.ends.get(fence.by_key_id(snapshot.metadata.stream_id, partition))
    return "" if done is None else f"{done.version}@{done.updated_ms}"


def plan(job: Job) -> list[Part]:
    """List the offsets to replay by partition, without changes.

    Raises:
        RefusedError: The target may already have records that would be published again.
        OptionError: The archive or target does not exist, or the target has too few partitions.
        LiftbridgeError: No broker answers.
        ArchiveError: The archive could not be read.
    """
    snapshot = log.load(job.store)
    if snapshot.metadata is None:
        raise OptionError(f"{job.access.root} has no archived stream in {job.table}")
    held = held_of(snapshot)
    bounds = _bounds(job.access.client(job.target), job.target)
    lacking = sorted(held.keys() - bounds.keys())
    if lacking:
        raise OptionError(
            f"stream {job.target} has {len(bounds)} partitions, the archive needs "
            f"{max(lacking) + 1}: create a stream with that many"
        )
    parts = (_part(job, snapshot, number, held[number], bounds[number]) for number in sorted(held))
    return [part for part in parts if part is not None]


def _bounds(client: SyncClient, target: str) -> Mapping[int, PartitionBounds]:
    if not client.has_data:
        raise OptionError("a replay needs brokers of this project")
    stream = client.streams.get(target)
    try:
        stream.info()
    except NotFoundError:
        raise OptionError(
            f"stream {target} does not exist: create it with the settings that it needs"
        ) from None
    return {bound.partition: bound for bound in stream.bounds()}


def _part(
    job: Job, snapshot: log.Snapshot, number: int, held: Held, bounds: PartitionBounds
) -> Part | None:
    """Determine the part of a partition to replay, `None` for nothing."""
    wanted = job.selection.of(number, held.begin, held.end)
    paths = {file.path for file in files_of(by_partition(snapshot), wanted.span)}
    if not paths:
        return None
    rows = sum(
        add.stats.rows
        for add in snapshot.files.values()
        if add.object_path in paths and add.stats is not None
    )
    end, by_key = bounds.high_watermark, _by_key(snapshot, number)
    if not (job.keeps_offsets or job.allows_repeats) and _is_older(bounds, by_key):
        raise RefusedError(
            f"{job.target}/{number} has records from before the archive was compacted by key: "
            "records of earlier replays would be published again; replay into an empty stream, or "
            "with --allow-repeats"
        )
    return Part(number, wanted.start, wanted.end, len(paths), rows, end, by_key)


def _is_older(bounds: PartitionBounds, by_key: str) -> bool:
    """Return whether a target has records from before a compaction, whose numbers have changed."""
    _, _, done_ms = by_key.partition("@")
    return bool(by_key and bounds.first_timestamp) and not (
        done_ms.isdecimal() and bounds.first_timestamp >= int(done_ms) * MILLISECOND_NS
    )


def replay(job: Job, run: Runner, progress: Progress = silent) -> list[Replayed]:
    """Replay the records that are archived when the run begins.

    Args:
        job: The job.
        run: Runs each task, as `do` does.
        progress: Receives the offsets written to the target in this run, and their total.

    Raises:
        RefusedError: The target's records are not a prefix of the replay, times to restore
            decrease, or as for `plan`; then nothing was written. Or the archive was compacted by
            key during the replay.
        OptionError, LiftbridgeError, ArchiveError: As for `plan`.
    """
    parts = plan(job)
    if job.keeps_offsets:
        refusals = [json.loads(text) for text in run(_works(job, parts, only_checks=True))]
        for text in refusals:
            if text:
                raise RefusedError(text)
    with _reports(job, parts, progress):
        results = [json.loads(text) for text in run(_works(job, parts, only_checks=False))]
    return [
        Replayed(part.partition, part.start, part.end, part.target_end, written, known)
        for part, (written, known) in zip(parts, results, strict=True)
    ]


def set_cursors(job: Job, replayed: Iterable[Replayed]) -> int:
    """Set cursors of the target to their archived positions; return their number.

    Raises:
        OptionError: The archive has no positions.
        LiftbridgeError: The brokers keep no cursors, or do not answer.
        ArchiveError: The log of the archive cannot be read.
    """
    positions = newest(job.store)
    ends = [End(one.partition, one.end) for one in replayed]
    return put_back(job.access.client(job.target), job.target, positions, ends)


def _works(job: Job, parts: Sequence[Part], *, only_checks: bool) -> list[str]:
    return [Work(job, part, _publisher(job, part), only_checks).text() for part in parts]


def _publisher(job: Job, part: Part) -> str:
    """Return the publisher name for numbered records, the same for each run of one selection.

    It does not depend on an end that was not selected: a later run continues with the records
    archived since. It depends on the last compaction by key, after which a number would refer to
    another record.
    """
    if job.keeps_offsets:
        return ""
    metadata = log.load(job.store).metadata
    assert metadata is not None, "it was planned"
    chosen = json.dumps([metadata.table_id, job.selection, part.by_key]).encode()
    return f"replay/{blake2b(chosen, digest_size=_ID_BYTES).hexdigest()}/{part.partition}"


@contextmanager
def _reports(job: Job, parts: Sequence[Part], progress: Progress) -> Iterator[None]:
    """Report the target's progress periodically while a block runs."""
    if progress is silent:
        yield
        return
    all_ = sum(_expected(job, part) for part in parts)
    is_over = Event()

    def report() -> None:
        stream = job.access.client(job.target).streams.get(job.target)
        while not is_over.wait(PROGRESS_SECONDS):
            with suppress(LiftbridgeError):
                ends = {bound.partition: bound.high_watermark for bound in stream.bounds()}
                progress(
                    sum(max(0, ends[part.partition] - part.target_end) for part in parts), all_
                )

    thread = Thread(target=report, name="replay-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _expected(job: Job, part: Part) -> int:
    """Estimate the number of offsets to write to a target."""
    return part.end - max(part.start, part.target_end) if job.keeps_offsets else part.records_max
