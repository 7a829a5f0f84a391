"""Archive a stream: tasks write committed records to files, and the driver commits the files.

Any number of runs may work on one stream: the table's log accepts each offset once
(`archive.fence`). No other state is kept between runs, so a killed run leaves only files that no
entry names.
"""

import json
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import uuid4

from liftbridge_client import RetriableError, SyncClient
from pyspark_liftbridge.archive import reading
from pyspark_liftbridge.archive.commit import Proposal, commit
from pyspark_liftbridge.archive.delta_log import delta, log
from pyspark_liftbridge.archive.errors import ContentionError
from pyspark_liftbridge.archive.fence import Claim, Verdict, Written
from pyspark_liftbridge.archive.files import Chance, Place, write_files
from pyspark_liftbridge.archive.root import root_id
from pyspark_liftbridge.archive.stores.store import Below, open_store, opened
from pyspark_liftbridge.archive.table import Making, Table, open_table
from pyspark_liftbridge.jobs.cursor import Shown, name_of, show
from pyspark_liftbridge.jobs.positions import Positions, take
from pyspark_liftbridge.jobs.works import Runner
from pyspark_liftbridge.plan.archiving import REMEDY, MissingError, Part, check_histories, parts_of
from pyspark_liftbridge.plan.offsets import PartitionId
from pyspark_liftbridge.plan.options import OptionError, SourceOptions, Split, read_source
from pyspark_liftbridge.plan.places import Known
from pyspark_liftbridge.plan.ranges import Range, tasks_of
from pyspark_liftbridge.plan.unified import Held
from pyspark_liftbridge.source import cluster
from pyspark_liftbridge.source.reading import DataLossError, records_of
from pyspark_liftbridge.source.schema import layout_of
from pyspark_liftbridge.units import MILLISECOND_NS

ROUNDS_MAX: Final = 10
"""Maximum number of plans of a run, after another run won or records were removed."""

TASK_OFFSETS_MAX: Final = 1_000_000
"""Maximum number of offsets of a task; a failed task is repeated as a whole."""

BEHIND_SECONDS_MAX: Final = 5.0
"""Seconds for which the log may end before the archive until it counts as truncated."""

TASK_OFFSETS_MIN: Final = 10_000
"""Number of offsets below which a partition shares a task with others."""

_POLL_SECONDS: Final = 0.1


class Job(NamedTuple):
    """Stream to archive, and the archive.

    Attributes:
        stream: Name of the stream.
        root: Address of the archive.
        source: Options of the data source for the connection to brokers.
        store: Options of an object store.
        fails_on_loss: Whether missing records end the job.
        cursors: Cursors whose positions are recorded with the archived records.
        cursor: Cursor for the end of the archive in each partition; empty for the root's.
    """

    stream: str
    root: str
    source: Mapping[str, str]
    store: Mapping[str, str]
    fails_on_loss: bool
    cursors: tuple[str, ...] = ()
    cursor: str = ""

    @property
    def options(self) -> SourceOptions:
        """Options for reading.

        Missing records are always reported, and the job decides what to do.
        """
        return read_source(
            {**self.source, "subscribe": self.stream, "includeHeaders": "true"}, is_stream=False
        )


class Work(NamedTuple):
    """Description of one task.

    Attributes:
        job: The job it belongs to.
        table: Folder of the table below the root.
        ranges: Offsets to read and to write.
    """

    job: Job
    table: str
    ranges: tuple[Range, ...]

    def text(self) -> str:
        """Return the task as text, as sent to Spark."""
        return json.dumps([self.job, self.table, self.ranges])

    @classmethod
    def of(cls, text: str) -> "Work":
        """Parse the result of `text`."""
        job, table, ranges = json.loads(text)
        return cls(Job(*job), table, tuple(Range(*one) for one in ranges))


class Archived(NamedTuple):
    """Result of a run.

    Attributes:
        stream: Name of the stream.
        table: Folder of the table below the root.
        version: Latest entry of its log.
        records: Records that this run archived.
        files: Files with these records.
        bytes: Size of the files.
        lost: Offsets that were lost.
        cursor: Cursor for the end of the archive in each partition.
    """

    stream: str
    table: str
    version: int
    records: int
    files: int
    bytes: int
    lost: int
    cursor: str


def do(text: str) -> str:
    """Write the offsets of a task to files, and return its report to the driver.

    The report may also name missing records; the driver decides how to proceed.

    Raises:
        LiftbridgeError: No broker could serve the records within the timeout, or the response is
            damaged.
        ArchiveError: The records could not be written.
    """
    work = Work.of(text)
    options = work.job.options
    client = cluster.client_of(options.connection, options.fetch.timeout_ns)
    store = Below(opened(work.job.root, work.job.store), work.table)
    pieces = []
    try:
        for wanted in work.ranges:
            span = delta.Span(wanted.partition, wanted.start, wanted.end)
            written = write_files(
                store,
                Place(wanted.stream, wanted.stream_id, span),
                records_of(client, [wanted], layout_of(options.shape), options),
                Chance(lambda: uuid4().hex, _now_ms()),
            )
            pieces.append([span, delta.encode(written.adds).decode()])
    except DataLossError as error:
        return json.dumps({"missing": str(error)})
    return json.dumps({"pieces": pieces})


def written_by(text: str) -> list[Written]:
    """Parse the report of a task: files written for each of its ranges.

    Raises:
        DataLossError: Records are missing.
    """
    values = json.loads(text)
    if "missing" in values:
        raise DataLossError(values["missing"])
    return [Written(delta.Span(*span), delta.adds_of(text)) for span, text in values["pieces"]]


def archive_once(job: Job, run: Runner, shown: Shown | None = None) -> Archived:
    """Archive the records that are committed when the run begins.

    Args:
        job: The job.
        run: Runs each task, as `do` does.
        shown: State of the cursor from earlier runs of this process.

    Raises:
        MissingError: Records are missing, and `fails_on_loss` is set.
        OptionError: The stream does not exist, or an option is wrong.
        ContentionError: Other runs won each of `ROUNDS_MAX` rounds.
        LiftbridgeError: The brokers could not serve.
        ArchiveError: The archive could not be read or written.
    """
    options = job.options
    client = cluster.planner_of(options)
    bounds = _bounds(client, options)
    if options.subscription.streams != (job.stream,) or not bounds:
        raise OptionError(f"stream {job.stream!r} cannot be archived: name one stream, not '__...'")
    stream_id = next(iter(bounds.values())).stream_id
    root = open_store(job.root, job.store)
    table = open_table(root, job.stream, stream_id, Making(str(uuid4()), _now_ms()))
    shown = Shown() if shown is None else shown
    name = job.cursor or name_of(root_id(root))
    sum_ = Archived(job.stream, table.root, table.snapshot.version, 0, 0, 0, 0, name)
    for _ in range(ROUNDS_MAX):
        held = _held(table, bounds)
        ends = {one: known.end for one, known in held.items()}
        bounds = _not_behind(client, job.stream, options, bounds, ends)
        check_histories(job.stream, bounds, held, fails_on_loss=job.fails_on_loss)
        parts = parts_of(job.stream, bounds, ends, fails_on_loss=job.fails_on_loss)
        news = ends.keys() - shown.same(ends, bounds)
        _check_same(client, table, ends, news | {part.partition for part in parts})
        # Set the cursor only now, because lost offsets are assigned to other records, which
        # retention must keep. Always set it, because an earlier run may have been killed before
        # this step, or a deleted stream of the name may have left its cursor.
        show(client, name, table, bounds, shown)
        if not parts:
            return sum_
        cursors = take(client, job.stream, job.cursors, bounds)
        try:
            works = _works(job, table.root, stream_id, parts, _leaders(client, job.stream))
            written = [one for text in run(works) for one in written_by(text)]
        except DataLossError:
            now = _bounds(client, options)
            is_same = all(one.stream_id == stream_id for one in now.values())
            again = {one: _again(known, now[one]) for one, known in bounds.items()}
            if not is_same or again == bounds:
                raise
            bounds = again
            continue
        table, sum_ = _commit(table, stream_id, parts, written, sum_, cursors)
    raise ContentionError(
        f"stream {job.stream}: other runs won all {ROUNDS_MAX} rounds; let fewer of them "
        "archive one stream"
    )


def _bounds(client: SyncClient, options: SourceOptions) -> dict[int, Known]:
    bounds = cluster.bounds_at_start(client, options)
    return {one.number: known for one, known in bounds.items()}


def _again(known: Known, now: Known) -> Known:
    """Return bounds for the next round, after records were missing."""
    if now.unclean_epoch != known.unclean_epoch:
        return now
    # Retention was faster: the next round begins at the current log start offset.
    return known._replace(earliest=min(now.earliest, known.latest))


def _not_behind(
    client: SyncClient,
    stream: str,
    options: SourceOptions,
    bounds: dict[int, Known],
    ends: Mapping[int, int],
) -> dict[int, Known]:
    """Return bounds that include all archived records, if the log has them.

    Another run may have begun later and archived more, and a new leader may know a lower high
    watermark until its followers have reported.

    Raises:
        RetriableError: The log has the archived records, but has not committed them yet.
    """
    deadline = time.monotonic() + BEHIND_SECONDS_MAX
    while any(end > bounds[one].latest for one, end in ends.items()):
        now = _bounds(client, options)
        is_same = all(
            one in now and now[one].stream_id == known.stream_id for one, known in bounds.items()
        )
        if not is_same:
            break
        bounds = {bound: now[bound] for bound in bounds}
        if time.monotonic() > deadline:
            _check_stored(client, stream, bounds, ends)
            break
        time.sleep(_POLL_SECONDS)
    return bounds


def _check_stored(
    client: SyncClient, stream: str, bounds: Mapping[int, Known], ends: Mapping[int, int]
) -> None:
    """Check that the log lacks archived records; otherwise nothing is lost, and waiting helps.

    Raises:
        RetriableError: The log has all archived records.
    """
    if not client.has_data:
        return  # such a server does not report its log end offset
    stored = {bound.partition: bound.log_end for bound in client.streams.get(stream).bounds()}
    behind = [one for one, end in ends.items() if end > bounds[one].latest]
    if all(ends[one] <= stored.get(one, 0) for one in behind):
        first = behind[0]
        raise RetriableError(
            f"{stream}/{first}: offsets up to {ends[first] - 1} are archived, but its leader has "
            f"committed them only up to {bounds[first].latest}: a replica is away; try again"
        )


def _check_same(
    client: SyncClient, table: Table, ends: Mapping[int, int], partitions: Collection[int]
) -> None:
    """Check that the log continues the archive.

    A log that has lost archived records assigns their offsets to other records, and a log of
    another cluster may have the same id: such a log has later records below the end of the archive.

    Raises:
        MissingError: The log has such records.
    """
    metadata = table.snapshot.metadata
    assert metadata is not None, "the table is there"
    for one in sorted(ends.keys() & set(partitions)):
        time = reading.time_behind(table.snapshot, one) if client.has_data else None
        if time is None:
            continue
        (found,) = client.streams.get(metadata.stream).bounds(one, time=time)
        later = found.timestamp_offset
        if later is not None and later < ends[one]:  # guard Archive.same
            raise MissingError(
                f"{metadata.stream}/{one}: offsets up to {ends[one] - 1} are archived, but from "
                f"{later} on the log holds records of after that time: an unclean election removed "
                f"archived records, or this is the stream of another cluster; {REMEDY}"
            )


def _held(table: Table, partitions: Mapping[int, Known]) -> dict[int, Held]:
    held = reading.held_of(table.snapshot)
    return {partition: held[partition] for partition in partitions if partition in held}


def _works(
    job: Job,
    table: str,
    stream_id: int,
    parts: Sequence[Part],
    leaders: Mapping[PartitionId, str],
) -> list[str]:
    ranges = [
        Range(
            job.stream,
            stream_id,
            part.partition,
            part.start,
            part.end,
            None if part.read is None else part.read.unclean_epoch,  # guard Archive.range
        )
        for part in parts
    ]
    tasks = tasks_of(ranges, Split(None, TASK_OFFSETS_MAX, TASK_OFFSETS_MIN), leaders)
    return [Work(job, table, tuple(task)).text() for task in tasks]


def _leaders(client: SyncClient, stream: str) -> dict[PartitionId, str]:
    """Find the leaders of partitions: small ranges with the same leader share a task."""
    partitions = client.streams.get(stream).info().partitions
    return {PartitionId(stream, number): one.leader for number, one in partitions.items()}


def _commit(
    table: Table,
    stream_id: int,
    parts: Sequence[Part],
    written: Sequence[Written],
    sum_: Archived,
    cursors: Positions,
) -> tuple[Table, Archived]:
    """Commit the files of tasks; return the new table, and the result of the run so far."""
    claims = [
        Claim(
            tuple(sorted(one for one in written if one.span.partition == part.partition)),
            part.begins_at,
            part.lost_from,
            part.read,
        )
        for part in parts
    ]
    proposal = Proposal(
        run_id=uuid4().hex, stream_id=stream_id, claims=claims, cursors=cursors, now_ms=_now_ms()
    )
    outcome = commit(table.store, table.snapshot, proposal)
    snapshot = log.with_checkpoint(table.store, outcome.snapshot, now_ms=_now_ms())
    held = [
        (part, claim)
        for part, claim in zip(parts, claims, strict=True)
        if outcome.version is not None and outcome.verdicts[part.partition] is Verdict.COMMITTED
    ]
    adds = [add for _, claim in held for piece in claim.pieces for add in piece.adds]
    lost = [part.start - part.lost_from for part, _ in held if part.lost_from is not None]
    return table._replace(snapshot=snapshot), sum_._replace(
        version=snapshot.version,
        records=sum_.records + sum(add.stats.rows for add in adds if add.stats is not None),
        files=sum_.files + len(adds),
        bytes=sum_.bytes + sum(add.size for add in adds),
        lost=sum_.lost + sum(lost),
    )


def _now_ms() -> int:
    return time.time_ns() // MILLISECOND_NS
