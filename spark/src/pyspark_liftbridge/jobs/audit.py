"""Audit a stream: compare every replica, and an archive or another stream, record by record.

A task reads a range of one partition at each holder. Each holder is compared with the first holder
that could be read, at offsets that both must have: records that retention removed at one of them
are not missing, nor are records that compaction removed and whose key a later record has.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from liftbridge_client import (
    LiftbridgeError,
    NotFoundError,
    OutOfRangeError,
    PartitionBounds,
    PartitionInfo,
    RetriableError,
    SyncClient,
)
from pyspark_liftbridge.archive import fence
from pyspark_liftbridge.archive.errors import ArchiveError, StoreError
from pyspark_liftbridge.archive.reading import held_of
from pyspark_liftbridge.archive.stores.store import opened
from pyspark_liftbridge.archive.table import Table, find_table
from pyspark_liftbridge.jobs.comparing import (
    BUCKET,
    Copy,
    Numbers,
    appear_later,
    compare,
    lacking,
    runs,
)
from pyspark_liftbridge.jobs.holders import (
    ARCHIVE,
    REPLICA,
    STREAM,
    Access,
    Holder,
    batches_of,
    copy_at,
    is_compacted,
)
from pyspark_liftbridge.jobs.works import Progress, Runner, silent
from pyspark_liftbridge.plan.options import OptionError

TASK_OFFSETS: Final = 50 * BUCKET
"""Number of offsets of a task, which needs 34 bytes for each record of each holder."""

WAVE: Final = 16
"""Number of tasks between two reports of progress."""

ROWS_MAX: Final = 100
"""Maximum number of differences of two holders that a task lists; then it counts the rest."""


class Job(NamedTuple):
    """Copies to compare.

    Attributes:
        stream: Name of the stream.
        access: Access to the stream, and to its archive if that is compared as well.
        other: Name of another stream that must hold the same records, empty for none.
    """

    stream: str
    access: Access
    other: str


class Difference(NamedTuple):
    """A difference, or a range that could not be compared.

    Attributes:
        partition: Number of the partition.
        start: First offset.
        end: First offset after it.
        holder: The holder that differs.
        text: Description of the difference.
        is_unread: Whether the range was not read because the holder is unavailable; it may be the
            same.
    """

    partition: int
    start: int
    end: int
    holder: str
    text: str
    is_unread: bool = False


class Audited(NamedTuple):
    """Result of an audit.

    Attributes:
        differences: Differences by partition and offset; none if all copies are equal.
        records: Number of records read, each counted once per holder.
        holders: Holders that were read.
        superseded: Number of records that a holder lacks because compaction may have removed them.
    """

    differences: tuple[Difference, ...]
    records: int
    holders: tuple[str, ...]
    superseded: int

    @property
    def is_unlike(self) -> bool:
        """Return whether any copies that were read differ."""
        return any(not difference.is_unread for difference in self.differences)


class Work(NamedTuple):
    """Description of one task.

    Attributes:
        access: Access to holders.
        partition: Number of the partition.
        start: First offset.
        end: First offset not compared.
        holders: Holders of the range.
    """

    access: Access
    partition: int
    start: int
    end: int
    holders: tuple[Holder, ...]

    def text(self) -> str:
        """Return the task as text, as it is sent to Spark."""
        return json.dumps(self)

    @classmethod
    def of(cls, text: str) -> "Work":
        """Parse what `text` returned."""
        access, partition, start, end, holders = json.loads(text)
        return cls(
            Access(*access), partition, start, end, tuple(Holder(*holder) for holder in holders)
        )


class RangeResult(NamedTuple):
    """Result of a task.

    Attributes:
        records: Number of records that it read.
        superseded: As in `Audited`.
        differences: Differences of the copies.
    """

    records: int
    superseded: int
    differences: tuple[Difference, ...]


def do(text: str) -> str:
    """Compare a range of a partition at all its holders."""
    return json.dumps(_compare(Work.of(text)))


def _compare(work: Work) -> RangeResult:
    copies: dict[Holder, Copy] = {}
    differences: list[Difference] = []
    for holder in work.holders:
        try:
            copies[holder] = copy_at(work.access, holder, work.partition, work.start, work.end)
        except (LiftbridgeError, ArchiveError) as error:
            text = f"could not be read: {' '.join(str(error).split())}"
            # Damaged data, such as a broken file, is a difference; an unavailable holder is not.
            is_away = isinstance(error, RetriableError | StoreError)
            place = work.partition, work.start, work.end, holder.label
            differences.append(Difference(*place, text, is_unread=is_away))
    superseded = 0
    first, *others = copies or (None,)
    for other in others:
        assert first is not None, "there are others"
        pair = _Pair(work, (first, copies[first]), (other, copies[other]))
        differences += pair.differences()
        superseded += pair.superseded
    return RangeResult(
        sum(len(copy.offsets) for copy in copies.values()), superseded, tuple(differences)
    )


class _Pair:
    """Two holders; the second is reported if they differ."""

    def __init__(self, work: Work, first: tuple[Holder, Copy], second: tuple[Holder, Copy]) -> None:
        self._work = work
        self._first, self._second = first, second
        self.superseded = 0

    def differences(self) -> Iterator[Difference]:
        """Iterate over at most `ROWS_MAX` differences, then the count of the rest."""
        count = more = 0
        end = self._work.start
        for one in self._all():
            if count < ROWS_MAX:
                count += 1
                yield one
            else:
                more, end = more + 1, one.end
        if more:
            yield self._row(self._work.start, end, f"and {more} more in this range")

    def _all(self) -> Iterator[Difference]:
        (_, first), (_, second) = self._first, self._second
        for unlike in compare(first, second):
            for start, end in self._lost(self._first, self._second, unlike.lacks_second):
                yield self._row(start, end, f"lacks what {first.name} has")
            for start, end in self._lost(self._second, self._first, unlike.lacks_first):
                yield self._row(start, end, f"has what {first.name} lacks")
            for start, end in runs(unlike.contents):
                what = self._unlike_columns(start)
                yield self._row(start, end, f"differs from {first.name}: {what}")
            for start, end in runs(unlike.epochs):
                yield self._row(start, end, f"has another leader epoch than at {first.name}")

    def _row(self, start: int, end: int, text: str) -> Difference:
        return Difference(self._work.partition, start, end, self._second[1].name, text)

    def _lost(
        self, has: tuple[Holder, Copy], lacks: tuple[Holder, Copy], offsets: Numbers
    ) -> list[tuple[int, int]]:
        """List ranges that one copy lacks, without those that compaction may have removed."""
        holder, work = has[0], self._work
        if not (lacks[0].may_lack and len(offsets)):
            return runs(offsets)
        # A holder that lacks a record must have had the later one of its key.
        end = min(holder.end, lacks[0].end)
        missing = lacking(has[1].within(work.start, end), offsets)

        def read(start: int, stop: int) -> Copy:
            return copy_at(work.access, holder, work.partition, start, stop)

        left = missing.open[~appear_later(missing, read, work.end, end, TASK_OFFSETS)]
        self.superseded += len(offsets) - len(left)
        return runs(left)

    def _unlike_columns(self, offset: int) -> str:
        """Name the columns that differ in a record that both had."""
        one, other = self._record(self._first[0], offset), self._record(self._second[0], offset)
        if one is None or other is None:
            return _GONE
        return ", ".join(name for name in _COMPARED if one.column(name)[0] != other.column(name)[0])

    def _record(self, holder: Holder, offset: int) -> pa.RecordBatch | None:
        """Read one record of a holder, `None` if it was removed since it was compared."""
        work = self._work
        try:
            batches = batches_of(work.access, holder, work.partition, offset, offset + 1)
            return next((batch for batch in batches if batch.num_rows), None)
        except OutOfRangeError:
            return None


_GONE: Final = "the record was removed before its columns could be compared"

_COMPARED: Final = ("timestamp_ns", "key", "value", "subject", "reply_subject", "headers")


def audit(job: Job, run: Runner, report: Progress = silent) -> Audited:
    """Compare the records that are committed when the run begins.

    Args:
        job: Copies to compare.
        run: Runs each task, as `do` does.
        report: Receives progress.

    Raises:
        OptionError: The stream, the other stream or the archive does not exist, or there is nothing
            to compare.
        LiftbridgeError: No broker answers.
        ArchiveError: The archive could not be read.
    """
    client = job.access.client(job.stream)
    if not client.has_data:
        raise OptionError(
            "an audit reads stored batches, which the original server does not provide"
        )
    held = _Held(client, job)
    works = held.works()
    if not works and not held.differences:
        raise OptionError(
            f"stream {job.stream} has nothing to compare: it is empty, or has one "
            "replica; name an archive or another stream"
        )
    results: list[RangeResult] = []
    for at in range(0, len(works), WAVE):
        report(at, len(works))
        results += map(_result, run(works[at : at + WAVE]))
    report(len(works), len(works))
    rows = [*held.differences, *(row for result in results for row in result.differences)]
    return Audited(
        tuple(sorted(rows)),
        sum(result.records for result in results),
        tuple(sorted({one.label for all_ in held.by_partition.values() for one in all_})),
        sum(result.superseded for result in results),
    )


def _result(text: str) -> RangeResult:
    count, superseded, differences = json.loads(text)
    return RangeResult(
        count, superseded, tuple(Difference(*difference) for difference in differences)
    )


class _Held:
    """All holders, and differences that are visible before records are read.

    Attributes:
        by_partition: Holders of each partition, the leader first.
        differences: Differences found so far.
    """

    def __init__(self, client: SyncClient, job: Job) -> None:
        self._client = client
        self._job = job
        self.differences: list[Difference] = []
        self._partitions = _partitions(client, job.stream)
        self._is_compacted = is_compacted(client, job.stream)
        stream = client.streams.get(job.stream)
        self._leaders = {bound.partition: bound for bound in stream.bounds()}
        self.by_partition: dict[int, list[Holder]] = {leader: [] for leader in self._leaders}
        self._add_replicas()
        if job.access.root:
            self._add_archive()
        if job.other:
            self._add_other()

    def works(self) -> list[str]:
        """Build the tasks, one for each range to compare."""
        texts = []
        for number, holders in self.by_partition.items():
            if len(holders) < 2:
                continue
            at, end = min(holder.start for holder in holders), max(holder.end for holder in holders)
            while at < end:
                after = min(end, (at // TASK_OFFSETS + 1) * TASK_OFFSETS)
                work = Work(self._job.access, number, at, after, tuple(holders))
                texts.append(work.text())
                at = after
        return texts

    def _add_replicas(self) -> None:
        numbers: dict[str, list[int]] = {}
        for number, partition in self._partitions.items():
            for broker in partition.replicas:
                if broker in partition.isr:
                    numbers.setdefault(broker, []).append(number)
                else:
                    self._unread(number, broker, "it is not in sync")
        for broker in sorted(numbers):
            for number, bounds in self._bounds_at(broker, numbers[broker]).items():
                leader = self._leaders[number]
                self.by_partition[number].append(
                    Holder(
                        REPLICA,
                        broker,
                        self._job.stream,
                        leader.stream_id,
                        bounds.log_start,
                        leader.high_watermark,
                        self._is_compacted,
                    )
                )
        for number, holders in self.by_partition.items():
            holders.sort(key=lambda one: one.name != self._partitions[number].leader)

    def _bounds_at(self, broker: str, numbers: Sequence[int]) -> Mapping[int, PartitionBounds]:
        """Fetch bounds of partitions at a broker, none if it does not answer."""
        try:
            bounds = self._client.streams.get(self._job.stream).bounds(*numbers, broker=broker)
        except LiftbridgeError as error:
            for number in numbers:
                self._unread(number, broker, " ".join(str(error).split()))
            return {}
        return {bound.partition: bound for bound in bounds}

    def _unread(self, number: int, broker: str, cause: str) -> None:
        text = f"was not compared: {cause}"
        self._note(number, f"{REPLICA} {broker}", text, is_unread=True)

    def _note(self, number: int, holder: str, text: str, *, is_unread: bool = False) -> None:
        bounds = self._leaders[number]
        place = number, bounds.log_start, bounds.high_watermark, holder
        self.differences.append(Difference(*place, text, is_unread))

    def _add_archive(self) -> None:
        access, name = self._job.access, self._job.stream
        stream_id = next(iter(self._leaders.values())).stream_id
        table = find_table(opened(access.root, access.store), name, stream_id)
        if table is None:
            raise OptionError(f"{access.root} has no archive of stream {name} of id {stream_id}")
        for number, bounds in self._leaders.items():
            holder = _archived(table, name, number, may_lack=self._is_compacted)
            if holder is None:
                continue
            self.by_partition[number].append(holder)
            if holder.end > bounds.high_watermark:
                self._note(
                    number,
                    holder.label,
                    f"ends at {holder.end}, the log at {bounds.high_watermark}: an unclean "
                    "election removed archived records",
                )

    def _add_other(self) -> None:
        other = self._job.other
        partitions = _partitions(self._client, other)
        # Records restored to the stream may come from a compacted log.
        may_lack = self._is_compacted or is_compacted(self._client, other)
        found = {bound.partition: bound for bound in self._client.streams.get(other).bounds()}
        for number in sorted(partitions.keys() - self._leaders.keys()):
            text = f"has a partition that stream {self._job.stream} lacks"
            ends = found[number].log_start, found[number].high_watermark
            self.differences.append(Difference(number, *ends, f"{STREAM} {other}", text))
        for number, leader in self._leaders.items():
            bounds = found.get(number)
            if bounds is None:
                self._note(number, f"{STREAM} {other}", "has no such partition")
                continue
            ends = bounds.log_start, bounds.high_watermark
            holder = Holder(STREAM, "", other, bounds.stream_id, *ends, may_lack)
            self.by_partition[number].append(holder)
            if bounds.high_watermark != leader.high_watermark:
                text = f"ends at {bounds.high_watermark}, the other at {leader.high_watermark}"
                self._note(number, holder.label, text)


def _archived(table: Table, stream: str, number: int, *, may_lack: bool) -> Holder | None:
    """Return the archived part of a partition, `None` for nothing."""
    snapshot = table.snapshot
    held = held_of(snapshot).get(number)
    if held is None:
        return None
    assert snapshot.metadata is not None, "it holds something"
    stream_id = snapshot.metadata.stream_id
    may_lack |= fence.by_key_id(stream_id, number) in snapshot.ends
    return Holder(ARCHIVE, table.root, stream, stream_id, held.begin, held.end, may_lack)


def _partitions(client: SyncClient, stream: str) -> Mapping[int, PartitionInfo]:
    try:
        return client.streams.get(stream).info().partitions
    except NotFoundError:
        raise OptionError(f"stream {stream} does not exist") from None
