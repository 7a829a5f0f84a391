"""Compact an archived stream: tasks write new files, and the driver commits them.

Compaction and archiving, and several compactions, may work on one table at once: a rewrite is
committed only while all files that it was made from are part of the table (`archive.fence`).
"""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from uuid import uuid4

from pyspark_liftbridge.archive.commit import Compaction, commit_rewrites
from pyspark_liftbridge.archive.compaction import Group, key_groups, small_groups
from pyspark_liftbridge.archive.delta_log import delta, log
from pyspark_liftbridge.archive.errors import ContentionError
from pyspark_liftbridge.archive.fence import Rewrite, Verdict
from pyspark_liftbridge.archive.files import Chance, Sizes
from pyspark_liftbridge.archive.rewriting import Target, join_files, keep_last_of_keys
from pyspark_liftbridge.archive.stores.store import Below, open_store, opened
from pyspark_liftbridge.archive.table import folder_named
from pyspark_liftbridge.jobs.works import Runner
from pyspark_liftbridge.plan.options import OptionError
from pyspark_liftbridge.units import MILLISECOND_NS

ROUNDS_MAX: Final = 100
"""Maximum number of plans of a run.

After another writer won, for more files than an entry can list, or to join files again. Without
other runs, each round leaves fewer small files.
"""


class Job(NamedTuple):
    """Stream to compact, with options.

    Attributes:
        stream: Name of the stream, or `<stream>@<id>` for a recreated stream.
        root: Address of the archive.
        store: Options of an object store.
        target_bytes: Size at which a file ends.
        keep_tombstones_ms: Compact by key, and keep tombstones for so long; `None` to join small
            files.
    """

    stream: str
    root: str
    store: Mapping[str, str]
    target_bytes: int
    keep_tombstones_ms: int | None

    @property
    def table(self) -> str:
        """Folder of the table below the root."""
        return folder_named(self.stream)

    @property
    def is_by_key(self) -> bool:
        """Return whether only the last record of each key is kept."""
        return self.keep_tombstones_ms is not None

    @property
    def sizes(self) -> Sizes:
        """Return the sizes at which files end."""
        return Sizes(file=self.target_bytes)


class Work(NamedTuple):
    """Description of one task.

    Attributes:
        job: The job it belongs to.
        metadata: Name of the stream, and its id.
        group: Files that it rewrites.
        now_ms: Time at which the job was planned, so that tombstones have the same age for all
            tasks.
    """

    job: Job
    metadata: tuple[str, int]
    group: Group
    now_ms: int

    def text(self) -> str:
        """Return the task as text, as it is sent to Spark."""
        files = delta.encode(self.group.files).decode()
        return json.dumps([list(self.job), self.metadata, self.group.partition, files, self.now_ms])

    @classmethod
    def of(cls, text: str) -> "Work":
        """Parse what `text` returned."""
        job, (stream, stream_id), partition, files, now_ms = json.loads(text)
        return cls(Job(*job), (stream, stream_id), Group(partition, delta.adds_of(files)), now_ms)


class Compacted(NamedTuple):
    """Result of a run.

    Attributes:
        stream: Stream of the job.
        table: Folder of the table below the root.
        version: Latest entry of its log.
        files_before: Number of replaced files.
        files_after: Number of new files.
        bytes_before: Size of the replaced files.
        bytes_after: Size of the new files.
        records_removed: Number of records that are no longer in the table.
    """

    stream: str
    table: str
    version: int
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    records_removed: int


def do(text: str) -> str:
    """Rewrite the files of a task, and return its report to the driver.

    Raises:
        ArchiveError: The files could not be read or written.
    """
    work = Work.of(text)
    job = work.job
    target = Target(
        Below(opened(job.root, job.store), job.table),
        *work.metadata,
        Chance(lambda: uuid4().hex, _now_ms()),
        job.sizes,
    )
    if job.keep_tombstones_ms is None:
        rewrite: Rewrite | None = join_files(target, work.group)
    else:
        from_us = (work.now_ms - job.keep_tombstones_ms) * 1_000
        rewrite = keep_last_of_keys(target, work.group, tombstones_from_us=from_us)
    if rewrite is None:
        return ""
    return json.dumps(
        [[remove.path for remove in rewrite.removes], delta.encode(rewrite.adds).decode()]
    )


def compact(job: Job, run: Runner) -> Compacted:
    """Compact the state of a table at the beginning of the run.

    Args:
        job: The job.
        run: Runs each task, as `do` does.

    Raises:
        OptionError: There is no such table.
        UnsupportedTableError: The table cannot be compacted by key; nothing was changed.
        ContentionError: Other writers won all `ROUNDS_MAX` rounds.
        ArchiveError: The archive could not be read or written.
    """
    store = Below(open_store(job.root, job.store), job.table)
    snapshot = log.load(store)
    sum_ = Compacted(job.stream, job.table, snapshot.version, 0, 0, 0, 0, 0)
    for _ in range(ROUNDS_MAX):
        metadata = snapshot.metadata
        if metadata is None:
            raise OptionError(
                f"{job.root} holds no archive of stream {job.stream!r}: check the name and the root"
            )
        groups = (key_groups if job.is_by_key else small_groups)(snapshot, job.target_bytes)
        named = (metadata.stream, metadata.stream_id)
        works = [Work(job, named, group, _now_ms()).text() for group in groups]
        results = run(works) if works else []
        made = [_rewrite(job, *one) for one in zip(groups, results, strict=True)]
        rewrites = [one for one in made if one is not None]
        if not rewrites:
            return sum_
        compaction = Compaction(
            run_id=uuid4().hex,
            stream_id=metadata.stream_id,
            rewrites=rewrites,
            now_ms=_now_ms(),
        )
        outcome = commit_rewrites(store, snapshot, compaction)
        snapshot = log.with_checkpoint(store, outcome.snapshot, now_ms=_now_ms())
        held = [
            one
            for at, one in enumerate(rewrites)
            if outcome.version is not None and outcome.verdicts[at] is Verdict.COMMITTED
        ]
        sum_ = _added(sum_, snapshot, held)
        if job.is_by_key and len(held) == len(rewrites):
            return sum_
        snapshot = log.follow(store, snapshot)
    raise ContentionError(
        f"stream {job.stream}: other runs won all {ROUNDS_MAX} rounds; let fewer of them "
        "compact one stream"
    )


def _rewrite(job: Job, group: Group, text: str) -> Rewrite | None:
    """Parse the rewrite that a task reports, `None` if it had nothing to do."""
    if not text:
        return None
    paths, adds = json.loads(text)
    gone = set(paths)
    removes = tuple(file for file in group.files if file.path in gone)
    return Rewrite(group.span, removes, delta.adds_of(adds), job.is_by_key)


def _added(sum_: Compacted, snapshot: log.Snapshot, held: Sequence[Rewrite]) -> Compacted:
    """Add the rewrites of one more entry to the result of a run."""
    removes = [add for one in held for add in one.removes]
    adds = [add for one in held for add in one.adds]
    return sum_._replace(
        version=snapshot.version,
        files_before=sum_.files_before + len(removes),
        files_after=sum_.files_after + len(adds),
        bytes_before=sum_.bytes_before + sum(remove.size for remove in removes),
        bytes_after=sum_.bytes_after + sum(one.size for one in adds),
        records_removed=sum_.records_removed + _rows(removes) - _rows(adds),
    )


def _rows(adds: Sequence[delta.Add]) -> int:
    return sum(add.stats.rows for add in adds if add.stats is not None)


def _now_ms() -> int:
    return time.time_ns() // MILLISECOND_NS
