"""Check an archive: first its log, then its files against the log.

All findings are reported; nothing is changed. Files that another writer has joined have no range:
their records are read, and must be the same in total. Records that a compaction by key left out are
subtracted from the expected ones.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from pyspark_liftbridge.archive import fence
from pyspark_liftbridge.archive.contents import read_records
from pyspark_liftbridge.archive.delta_log import delta, log
from pyspark_liftbridge.archive.digest import Digest, digest_of
from pyspark_liftbridge.archive.errors import ArchiveError, DamagedError, StoreError
from pyspark_liftbridge.archive.stores.store import Store


class Finding(NamedTuple):
    """A fault of an archive.

    Attributes:
        place: Name of an entry, a file or a partition.
        text: Description of the fault.
    """

    place: str
    text: str


def verify(store: Store) -> list[Finding]:
    """List all faults of a table; empty if there are none.

    Args:
        store: The folder of the table.

    Raises:
        StoreError: The store does not answer.
    """
    try:
        snapshot = log.load(store)
        if snapshot.metadata is None:
            return [Finding("log", "there is no archive here: check the name and the root")]
        history = _read_history(store, snapshot)
    except StoreError:
        raise
    except ArchiveError as error:
        return [Finding("log", str(error))]
    return [*history.findings, *_files_findings(store, snapshot, history)]


@dataclass
class _History:
    """State of a table while its entries are checked one after another.

    Attributes:
        is_whole: Whether the entries begin with the first.
        ends: End of each partition.
        digests: Digests of all records that were added and not left out by a compaction, by
            partition.
        origins: Ranges and digests of files that were not removed since, by path.
        findings: Faults found.
    """

    is_whole: bool
    ends: dict[int, int] = field(default_factory=dict)
    digests: dict[int, Digest] = field(default_factory=dict)
    origins: dict[str, delta.Origin] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def _read_history(store: Store, snapshot: log.Snapshot) -> _History:
    there = log.versions_there(store)
    history = _History(is_whole=there[:1] == [0])
    for before, version in pairwise([there[0] - 1 if there else -1, *there]):
        place = f"entry {version}"
        if version != before + 1:
            history.findings.append(
                Finding(place, f"entries {before + 1} to {version - 1} are missing before it")
            )
        if version <= snapshot.version:
            actions = log.read_entry(store, version) or ()
            history.findings += [Finding(place, text) for text in _apply(history, actions)]
    return history


def _apply(history: _History, actions: Sequence[delta.Action]) -> Iterator[str]:
    """List the faults of an entry, given the entries before it."""
    run = next(
        (action.run for action in actions if isinstance(action, delta.CommitInfo) and action.run),
        delta.Run(""),
    )
    adds = [action for action in actions if isinstance(action, delta.Add)]
    for span in run.beginnings:
        if span.partition in history.ends:
            yield f"partition {span.partition} begins at {span.start}, but is archived before"
        history.ends[span.partition] = span.start
    for span in (*run.gaps, *run.ranges):
        known = history.ends.get(span.partition, 0 if history.is_whole else span.start)
        if span.start != known:
            yield f"partition {span.partition} continues at {span.start}, but ended at {known}"
        history.ends[span.partition] = span.end
    yield from _txn_faults(history, actions, run)
    yield from _tiling_faults(run, adds)
    if not run.run_id and any(
        action.is_change for action in actions if isinstance(action, delta.Add | delta.Remove)
    ):
        yield "another writer has changed what the table holds"
    if run.run_id and history.is_whole:
        yield from _rewriting_faults(history, actions, run)
    _sum_up(history, actions, run)


def _sum_up(history: _History, actions: Sequence[delta.Action], run: delta.Run) -> None:
    """Add the records of an entry to the digests, and subtract those that a compaction left out."""
    digests = history.digests
    for action in actions:
        if isinstance(action, delta.Remove):
            origin = history.origins.pop(action.path, None)
            if origin is not None and action.is_change and run.run_id:
                before = digests.get(origin.partition, Digest())
                digests[origin.partition] = before.without(origin.digest)
        elif isinstance(action, delta.Add) and action.origin is not None:
            history.origins[action.path] = action.origin
            if action.is_change:
                before = digests.get(action.origin.partition, Digest())
                digests[action.origin.partition] = before.joined(action.origin.digest)


def _rewriting_faults(
    history: _History, actions: Sequence[delta.Action], run: delta.Run
) -> Iterator[str]:
    """Check that files that replace others hold the same records; by key, no more."""
    removed = {action.path for action in actions if isinstance(action, delta.Remove)}
    yield from (
        f"{path} is removed, but is not part of the table"
        for path in sorted(removed - history.origins.keys())
    )
    gone = _sums(history.origins[path] for path in removed & history.origins.keys())
    come = _sums(
        action.origin for action in actions if isinstance(action, delta.Add) and action.origin
    )
    by_key = {span.partition for span in run.compacted}
    for partition, before in sorted(gone.items()):
        after = come.get(partition, Digest())
        if after.records > before.records if partition in by_key else after != before:
            yield (
                f"partition {partition}: new files hold {after.text()}, replaced ones "
                f"{before.text()}"
            )


def _sums(origins: Iterable[delta.Origin]) -> dict[int, Digest]:
    sums: dict[int, Digest] = {}
    for origin in origins:
        sums[origin.partition] = sums.get(origin.partition, Digest()).joined(origin.digest)
    return sums


def _txn_faults(
    history: _History, actions: Sequence[delta.Action], run: delta.Run
) -> Iterator[str]:
    """Check that ends of partitions are those of their ranges."""
    moved = {span.partition for span in run.ranges}
    for txn in (action for action in actions if isinstance(action, delta.Txn)):
        partition = fence.partition_of(txn.app_id)
        if partition is None:
            continue
        moved.discard(partition)
        if txn.version != history.ends.get(partition):
            yield f"{txn.app_id} is at {txn.version}, its ranges at {history.ends.get(partition)}"
    if moved:
        yield f"ranges of partitions {sorted(moved)} without a txn"


def _tiling_faults(run: delta.Run, adds: Sequence[delta.Add]) -> Iterator[str]:
    """Check that files cover the ranges that hold records, each offset once."""
    origins = sorted(
        (add.origin for add in adds if add.origin and add.is_change),
        key=lambda one: (one.partition, one.start),
    )
    for span in run.ranges:
        at = span.start
        for origin in origins:
            if origin.partition == span.partition and span.start <= origin.start < span.end:
                if origin.start != at:
                    yield f"partition {origin.partition}: a file from {origin.start}, not from {at}"
                at = origin.end
        if at not in (span.start, span.end):
            yield f"partition {span.partition}: files end at {at}, their range at {span.end}"
    for origin in origins:
        if not any(
            span.partition == origin.partition
            and span.start <= origin.start
            and origin.end <= span.end
            for span in (*run.ranges, *run.compacted)
        ):
            place = f"from {origin.start} to {origin.end}"
            yield f"partition {origin.partition}: a file {place} is in no range"


@dataclass
class _Contents:
    """Contents of files of one partition.

    Attributes:
        digest: Digest of all records.
        runs: First offset and end of adjacent records, and the file.
    """

    digest: Digest = field(default_factory=Digest)
    runs: list[tuple[int, int, str]] = field(default_factory=list)


def _files_findings(store: Store, snapshot: log.Snapshot, history: _History) -> Iterator[Finding]:
    contents: dict[int, _Contents] = {}
    is_read = True
    for add in snapshot.files.values():
        try:
            for partition, found in _read(store, add).items():
                whole = contents.setdefault(partition, _Contents())
                whole.digest = whole.digest.joined(found.digest)
                whole.runs += found.runs
        except DamagedError as error:
            is_read = False
            yield Finding(add.path, str(error).removeprefix(f"{add.path}: "))
    for partition, found in sorted(contents.items()):
        yield from _overlaps(f"partition {partition}", found.runs)
        end = snapshot.ends.get(_app_of(snapshot, partition))
        last = max(run[1] for run in found.runs)
        if end is None or last > end.version:
            txn_end = "nothing" if end is None else end.version
            yield Finding(
                f"partition {partition}", f"files hold up to {last}, its txn says {txn_end}"
            )
    if not (is_read and history.is_whole):
        return
    for partition in sorted({*contents, *history.digests}):
        read = contents.get(partition, _Contents()).digest
        wanted = history.digests.get(partition, Digest())
        if read != wanted:
            yield Finding(
                f"partition {partition}",
                f"files add up to {read.text()}, archived records to {wanted.text()}",
            )


def _app_of(snapshot: log.Snapshot, partition: int) -> str:
    assert snapshot.metadata is not None, "a table with files has metadata"
    return fence.app_id(snapshot.metadata.stream_id, partition)


def _overlaps(place: str, runs: Iterable[tuple[int, int, str]]) -> Iterator[Finding]:
    for one, other in pairwise(sorted(runs)):
        if other[0] < one[1]:
            yield Finding(place, f"offset {other[0]} is in {one[2]} and in {other[2]}")


def _read(store: Store, add: delta.Add) -> dict[int, _Contents]:
    """Read the contents of a file, by partition.

    Raises:
        DamagedError: The file does not match its action.
    """
    contents: dict[int, _Contents] = {}
    for records in read_records(store, add):
        for partition in pc.unique(records.column("partition")).to_pylist():
            own = records.filter(pc.equal(records.column("partition"), partition))
            one = contents.setdefault(partition, _Contents())
            one.digest = one.digest.joined(digest_of(own))
            offsets = own.column("offset").to_numpy()
            cuts = np.flatnonzero(np.diff(offsets) != 1) + 1
            for part in np.split(offsets, cuts):
                one.runs.append((int(part[0]), int(part[-1]) + 1, add.path))
    count = sum(content.digest.records for content in contents.values())
    if add.stats is not None and add.stats.rows != count:
        raise DamagedError(f"{count} records, but the log says {add.stats.rows}")
    if add.origin is not None:
        _check_origin(add.origin, contents)
    return contents


def _check_origin(origin: delta.Origin, contents: dict[int, _Contents]) -> None:
    if set(contents) != {origin.partition}:
        raise DamagedError(f"records of partitions {sorted(contents)}, not of {origin.partition}")
    runs = contents[origin.partition].runs
    is_sorted = all(one[1] <= other[0] for one, other in pairwise(runs))
    if not is_sorted or runs[0][0] < origin.start or runs[-1][1] > origin.end:
        raise DamagedError(f"offsets do not increase within {origin.start} to {origin.end}")
