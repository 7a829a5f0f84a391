"""Read records of an archive by offset: find their files, and read them.

Files are chosen by the log's metadata, never by their names. Files of this package hold one
partition in the order of offsets and are read piece by piece. Files joined by another writer may
hold several partitions in any order, and are sorted in memory.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pyspark_liftbridge.archive import fence
from pyspark_liftbridge.archive.contents import ROWS_MAX, decoded
from pyspark_liftbridge.archive.delta_log import delta
from pyspark_liftbridge.archive.delta_log.fields import WHOLE_MAX
from pyspark_liftbridge.archive.delta_log.log import Snapshot
from pyspark_liftbridge.archive.errors import DamagedError, FileGoneError
from pyspark_liftbridge.archive.stores.store import Store
from pyspark_liftbridge.plan.histories import Read
from pyspark_liftbridge.plan.unified import Held
from pyspark_liftbridge.units import MILLISECOND_NS

_BUFFER_BYTES: Final = 1 << 16
_APP: Final = re.compile(
    r"(liftbridge/[0-9]+/([0-9]+))(?:/begin|/gap/([0-9]+)|/history/([0-9]+)/([0-9]+))?"
)
_PLACE: Final = ("partition", "offset")


class File(NamedTuple):
    """A file with records of a partition.

    Attributes:
        path: Path below the table.
        start: First offset of the partition that it may hold.
        end: First offset that it does not hold.
        is_ordered: Whether all its records are of the partition, in the order of offsets.
    """

    path: str
    start: int
    end: int
    is_ordered: bool


class Part(NamedTuple):
    """Archived part of a range, as passed to a task.

    Attributes:
        table: Folder of the table below the root.
        held: Offsets of the partition in the table.
        files: Files with offsets of the range, in order.
    """

    table: str
    held: Held
    files: tuple[File, ...]


def held_of(snapshot: Snapshot) -> Mapping[int, Held]:
    """Summarize the archived offsets of a table by partition."""
    metadata = snapshot.metadata
    if metadata is None:
        return {}
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    gaps: dict[int, list[tuple[int, int]]] = {}
    reads: dict[int, Read] = {}
    for txn in snapshot.ends.values():
        match = _APP.fullmatch(txn.app_id)
        if match is None or match[1] != fence.app_id(metadata.stream_id, int(match[2])):
            continue
        partition = int(match[2])
        if match[3] is not None:
            gaps.setdefault(partition, []).append((int(match[3]), txn.version))
        elif match[4] is not None:
            read = Read(int(match[4]), int(match[5]), txn.version)
            reads[partition] = max(reads.get(partition, read), read)
        elif txn.app_id == match[1]:
            ends[partition] = txn.version
        else:
            begins[partition] = txn.version
    return {
        one: Held(begins.get(one, 0), end, tuple(sorted(gaps.get(one, ()))), reads.get(one))
        for one, end in ends.items()
    }


def by_partition(snapshot: Snapshot) -> dict[int | None, list[delta.Add]]:
    """Group a table's files by the one partition that they hold.

    `None` for files of several or unknown partitions.
    """
    adds_by_partition: dict[int | None, list[delta.Add]] = {}
    for add in snapshot.files.values():
        one = add.origin.partition if add.origin is not None else None
        adds_by_partition.setdefault(one, []).append(add)
    return adds_by_partition


def files_of(files: Mapping[int | None, Sequence[delta.Add]], span: delta.Span) -> tuple[File, ...]:
    """Choose files that may hold offsets of a span, in order, by the log's metadata.

    Args:
        files: Result of `by_partition`.
        span: Offsets to read.
    """
    adds = (*files.get(span.partition, ()), *files.get(None, ()))
    found = (_file(add, span.partition) for add in adds)
    return tuple(
        sorted(
            (one for one in found if one and one.start < span.end and span.start < one.end),
            key=lambda one: (one.start, one.end, one.path),
        )
    )


def _file(add: delta.Add, partition: int) -> File | None:
    """Describe a file, `None` if it holds nothing of a partition."""
    path, origin, stats = add.object_path, add.origin, add.stats
    if origin is not None:
        is_own = origin.partition == partition
        return File(path, origin.start, origin.end, is_ordered=True) if is_own else None
    if stats is not None and stats.partitions is not None:
        least, most = stats.partitions
        if not least <= partition <= most:
            return None
    if stats is None or stats.offsets is None:
        return File(path, 0, WHOLE_MAX, is_ordered=False)
    return File(path, stats.offsets[0], stats.offsets[1] + 1, is_ordered=False)


def records_of(
    store: Store, files: Sequence[File], span: delta.Span, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Read records of a span in the order of offsets.

    Args:
        store: The folder of the table.
        files: Result of `files_of` for this span or a larger span.
        span: Offsets to read; compaction may have removed some.
        columns: Columns of the archive, `offset` among them.

    Raises:
        FileGoneError: A file no longer exists.
        DamagedError: A file does not match the log.
        StoreError: The store does not answer.
    """
    wanted = [file for file in files if file.start < span.end and span.start < file.end]
    for group in _groups(wanted):
        if len(group) == 1 and group[0].is_ordered:
            yield from _records(store, group[0], span, columns)
            continue
        pieces = [piece for one in group for piece in _records(store, one, span, columns)]
        if pieces:
            table = pa.Table.from_batches(pieces).sort_by("offset").combine_chunks()
            yield from table.to_batches(max_chunksize=ROWS_MAX)


def _groups(files: Sequence[File]) -> Iterator[list[File]]:
    """Iterate over files in order, grouped if their offsets overlap."""
    group: list[File] = []
    end = 0
    for file in files:
        if group and file.start >= end:
            yield group
            group = []
        end = max(end, file.end) if group else file.end
        group.append(file)
    if group:
        yield group


def _records(
    store: Store, wanted: File, span: delta.Span, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Read records of a span in one file, in the order of the file."""
    source = store.open(wanted.path)
    if source is None:
        raise FileGoneError(f"{wanted.path} no longer exists, although the log names it")
    names = tuple(dict.fromkeys((*columns, *_PLACE)))
    for batch in decoded(
        source,
        wanted.path,
        names,
        is_wanted=lambda group: _may_hold(group, span),
        buffer_bytes=_BUFFER_BYTES,
    ):
        kept = _within(batch, span, wanted)
        if kept.num_rows:
            yield kept.select(list(columns))


def _may_hold(group: pq.RowGroupMetaData, span: delta.Span) -> bool:
    """Return whether a row group may hold offsets of a span, by its statistics."""
    for at in range(group.num_columns):
        column = group.column(at)
        statistics = column.statistics
        if column.path_in_schema == "offset" and statistics is not None and statistics.has_min_max:
            return bool(statistics.min < span.end and span.start <= statistics.max)
    return True


def _within(batch: pa.RecordBatch, span: delta.Span, wanted: File) -> pa.RecordBatch:
    offsets = batch.column("offset").to_numpy()
    if not wanted.is_ordered:
        of_partition = batch.column("partition").to_numpy() == span.partition
        return batch.filter(pa.array(of_partition & (span.start <= offsets) & (offsets < span.end)))
    first, last = np.searchsorted(offsets, (span.start, span.end))
    kept = batch.slice(first, last - first)
    is_own = pc.equal(kept.column("partition"), span.partition)
    if not pc.all(is_own, min_count=0).as_py():
        raise DamagedError(f"{wanted.path}: it holds a partition other than {span.partition}")
    return kept


def first_at(
    store: Store,
    files: Mapping[int | None, Sequence[delta.Add]],
    partition: int,
    time_ns: int,
) -> int | None:
    """Find the offset of the first record of a partition at or after a time.

    Args:
        store: The folder of the table.
        files: Result of `by_partition`.
        partition: Number of the partition.
        time_ns: Unix nanoseconds.

    Returns:
        `None` if all records are earlier.

    Raises:
        FileGoneError, DamagedError, StoreError: As for `records_of`.
    """
    late = {
        add.object_path
        for add in (*files.get(partition, ()), *files.get(None, ()))
        if add.stats is None or add.stats.timestamps is None
        # Other writers round times down to milliseconds.
        or _ns(add.stats.timestamps[1]) + MILLISECOND_NS >= time_ns
    }  # fmt: skip
    whole = delta.Span(partition, 0, WHOLE_MAX)
    chosen = [file for file in files_of(files, whole) if file.path in late]
    for batch in records_of(store, chosen, whole, ("offset", "timestamp_ns")):
        rows = np.flatnonzero(batch.column("timestamp_ns").to_numpy() >= time_ns)
        if len(rows):
            return int(batch.column("offset")[int(rows[0])].as_py())
    return None


def time_behind(snapshot: Snapshot, partition: int) -> datetime | None:
    """Return a time after that of the last archived record of a partition.

    Returns:
        `None` if unknown: no file has the last offset, another writer recorded no times, or a
        compaction by key may have removed the last record.
    """
    assert snapshot.metadata is not None, "the table is there"
    stream_id, ends = snapshot.metadata.stream_id, snapshot.ends
    end = ends.get(fence.app_id(stream_id, partition))
    by_key = ends.get(fence.by_key_id(stream_id, partition))
    files = by_partition(snapshot)
    stats = [add.stats for one in (partition, None) for add in files.get(one, ())]
    times = [
        stat.timestamps[1] for stat in stats if stat is not None and stat.timestamps is not None
    ]
    offsets = [stat.offsets[1] for stat in stats if stat is not None and stat.offsets is not None]
    if end is None or max(offsets, default=-1) < end.version - 1:
        return None
    is_compacted = by_key is not None and by_key.version >= end.version
    latest_ns = max(map(_ns, times), default=WHOLE_MAX)
    if is_compacted or len(times) < len(stats) or latest_ns == WHOLE_MAX:
        return None
    # Other writers round times down to milliseconds.
    return datetime.fromtimestamp((latest_ns // MILLISECOND_NS + 2) / 1_000, UTC)


def _ns(text: str) -> int:
    """Parse a time of statistics; an unreadable time counts as the latest possible."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return WHOLE_MAX
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return int(time.timestamp() * 1_000) * MILLISECOND_NS
