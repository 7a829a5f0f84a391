"""Read what is archived of a partition, in the order of offsets.

A file of ours holds one partition in order and is read row group by row group. Files that another
writer put together of ours may hold several, in any order; such ones, and ones whose offsets
overlap, are put in order in memory.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pyspark_liftbridge.archive.delta import Add
from pyspark_liftbridge.archive.errors import DamagedError
from pyspark_liftbridge.archive.fields import WHOLE_MAX
from pyspark_liftbridge.archive.schema import SCHEMA
from pyspark_liftbridge.archive.store import Store

FILE_BYTES_MAX: Final = 4 << 30
ROWS: Final = 20_000
"""Records of a batch."""

TIME_MIN: Final = -(2**63)
TIME_MAX: Final = 2**63 - 1


class Wanted(NamedTuple):
    """What is read of a partition; ends are exclusive.

    Attributes:
        partition: Number of the partition.
        start: First offset.
        end: First offset not read.
        start_ns: First time, in nanoseconds since 1970.
        end_ns: First time not read.
    """

    partition: int
    start: int = 0
    end: int = WHOLE_MAX
    start_ns: int = TIME_MIN
    end_ns: int = TIME_MAX

    @property
    def has_times(self) -> bool:
        """Whether times leave out any record."""
        return (self.start_ns, self.end_ns) != (TIME_MIN, TIME_MAX)


class Extent(NamedTuple):
    """Offsets that a file may hold of a partition; the end is exclusive."""

    start: int
    end: int


def extent_of(add: Add, partition: int) -> Extent | None:
    """Offsets that a file may hold of a partition, `None` when it holds none of it."""
    if add.origin is not None:
        _, start, end, _ = add.origin
        return Extent(start, end) if add.origin.partition == partition else None
    if add.stats is None:
        return Extent(0, WHOLE_MAX)
    if add.stats.partitions and not add.stats.partitions[0] <= partition <= add.stats.partitions[1]:
        return None
    least, most = add.stats.offsets or (0, WHOLE_MAX - 1)
    return Extent(least, most + 1)


def files_of(files: Iterable[Add], wanted: Wanted) -> list[Add]:
    """Files that may hold what is wanted, in the order of their offsets."""
    found = [
        (extent, add.path, add)
        for add in files
        if (extent := extent_of(add, wanted.partition)) is not None
        and extent.start < wanted.end
        and extent.end > wanted.start
    ]
    return [add for _, _, add in sorted(found, key=lambda one: one[:2])]


def records(store: Store, files: Iterable[Add], wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """Records of a partition in the order of offsets, with the columns of an archive.

    Args:
        store: The folder of the table.
        files: Its live files.
        wanted: What is read of them.

    Raises:
        DamagedError: A file is not what the log says, or an offset is there twice.
        StoreError: The store does not answer.
    """
    at = wanted.start
    for group in _groups(files_of(files, wanted), wanted.partition):
        for batch in _in_order(store, group, wanted):
            offsets = batch.column("offset").to_numpy()
            if offsets[0] < at or (np.diff(offsets) <= 0).any():
                raise DamagedError(
                    f"{', '.join(add.path for add in group)}: offsets of partition "
                    f"{wanted.partition} do not ascend from {at} on: `spark verify` tells more"
                )
            at = int(offsets[-1]) + 1
            yield batch


def _groups(files: Sequence[Add], partition: int) -> Iterator[list[Add]]:
    """Files in groups, of which none overlaps with another."""
    group: list[Add] = []
    end = 0
    for add in files:
        extent = extent_of(add, partition)
        assert extent is not None, "it was chosen by its offsets"
        if group and extent.start >= end:
            yield group
            group = []
        group.append(add)
        end = max(end, extent.end)
    if group:
        yield group


def _in_order(store: Store, group: Sequence[Add], wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """Records of files that overlap."""
    if len(group) == 1 and group[0].origin is not None:
        yield from _batches(store, group[0], wanted)
        return
    found = [batch for add in group for batch in _batches(store, add, wanted)]
    whole = pa.Table.from_batches(found, SCHEMA)
    yield from whole.sort_by("offset").combine_chunks().to_batches(ROWS)


def _batches(store: Store, add: Add, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """Records of a file that are wanted, as they stand there.

    Raises:
        DamagedError: It is not what the log says.
    """
    data = store.read(add.object_path, bytes_max=FILE_BYTES_MAX)
    if data is None:
        raise DamagedError(f"{add.path}: the file is missing")
    if len(data) != add.size:
        raise DamagedError(f"{add.path}: {len(data)} bytes, the log says {add.size}")
    try:
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        groups = [one for one in range(file.num_row_groups) if _may_hold(file, one, wanted)]
        for batch in file.iter_batches(ROWS, row_groups=groups):
            rows = _chosen(batch.cast(SCHEMA), wanted)
            if rows.num_rows:
                yield rows
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DamagedError(f"{add.path}: no Parquet file of an archive ({error})") from error


def _may_hold(file: pq.ParquetFile, group: int, wanted: Wanted) -> bool:
    """Whether a row group may hold offsets that are wanted, by its statistics."""
    columns = file.metadata.row_group(group).to_dict()["columns"]
    (statistics,) = (one["statistics"] for one in columns if one["path_in_schema"] == "offset")
    if statistics is None or not statistics["has_min_max"]:
        return True
    return bool(statistics["min"] < wanted.end and statistics["max"] >= wanted.start)


def _chosen(batch: pa.RecordBatch, wanted: Wanted) -> pa.RecordBatch:
    is_wanted = pc.and_(
        pc.equal(batch.column("partition"), wanted.partition),
        _within(batch.column("offset"), wanted.start, wanted.end),
    )
    if wanted.has_times:
        times = _within(batch.column("timestamp_ns"), wanted.start_ns, wanted.end_ns)
        is_wanted = pc.and_(is_wanted, times)
    return batch if pc.all(is_wanted).as_py() else batch.filter(is_wanted)


def _within(column: pa.Array, start: int, end: int) -> pa.Array:
    return pc.and_(pc.greater_equal(column, start), pc.less(column, end))
