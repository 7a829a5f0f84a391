"""Records of an archive are read in the order of offsets, whoever wrote the files."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyspark_liftbridge.archive.delta import Add, Span, Stats
from pyspark_liftbridge.archive.errors import DamagedError
from pyspark_liftbridge.archive.files import Chance, Place, Sizes, write_files
from pyspark_liftbridge.archive.records import Wanted, files_of, records
from pyspark_liftbridge.archive.schema import SCHEMA
from pyspark_liftbridge.archive.store import open_store


def batch(partition: int, offsets: Sequence[int]) -> pa.RecordBatch:
    """Records whose times are their offsets, in milliseconds."""
    rows = [
        {
            "stream": "orders",
            "partition": partition,
            "offset": one,
            "timestamp": one * 1_000,
            "timestamp_ns": one * 1_000_000,
            "value": b"%d" % one,
            "subject": "orders",
            "reply_subject": "",
            "headers": [],
        }
        for one in offsets
    ]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def ours(root: Path, start: int, end: int, *, partition: int = 0) -> list[Add]:
    """Files of ours with row groups of a few records."""
    span = Span(partition, start, end)
    pieces = [batch(partition, range(at, min(at + 10, end))) for at in range(start, end, 10)]
    ids = iter(range(100))
    chance = Chance(lambda: f"{start}x{next(ids)}", 0)
    place = Place("orders", 17, span)
    sizes = Sizes(group_least=1, group_most=2)
    return list(write_files(open_store(str(root)), place, pieces, chance, sizes).adds)


def foreign(root: Path, name: str, *pieces: pa.RecordBatch, has_stats: bool = True) -> Add:
    """A file that another writer made."""
    pq.write_table(pa.Table.from_batches(pieces), root / name)
    partitions = [one for piece in pieces for one in piece.column("partition").to_pylist()]
    offsets = [one for piece in pieces for one in piece.column("offset").to_pylist()]
    stats = Stats(
        len(offsets), (min(partitions), max(partitions)), (min(offsets), max(offsets)), None
    )
    size = (root / name).stat().st_size
    return Add(
        path=name,
        size=size,
        modified_ms=0,
        is_change=False,
        stats_text="",
        stats=stats if has_stats else None,
        origin=None,
    )


def offsets(root: Path, files: Sequence[Add], wanted: Wanted) -> list[int]:
    found = records(open_store(str(root)), files, wanted)
    return [one for piece in found for one in piece.column("offset").to_pylist()]


def test_offsets_and_times_choose_records(tmp_path: Path) -> None:
    files = [*ours(tmp_path, 50, 100), *ours(tmp_path, 0, 50), *ours(tmp_path, 0, 9, partition=1)]
    assert offsets(tmp_path, files, Wanted(0)) == list(range(100))
    assert offsets(tmp_path, files, Wanted(1)) == list(range(9))
    assert offsets(tmp_path, files, Wanted(0, 45, 55)) == list(range(45, 55))
    chosen = Wanted(0, 10, 90, 5 * 10**6, 20 * 10**6)
    assert offsets(tmp_path, files, chosen) == list(range(10, 20))
    assert offsets(tmp_path, files, Wanted(2)) == []


def test_only_files_that_may_hold_what_is_wanted_are_read(tmp_path: Path) -> None:
    files = [*ours(tmp_path, 50, 100), *ours(tmp_path, 0, 50)]
    (first, second) = files_of(files, Wanted(0))
    (tmp_path / second.object_path).unlink()
    assert offsets(tmp_path, files, Wanted(0, 0, 50)) == list(range(50))
    assert first.origin is not None
    with pytest.raises(DamagedError, match="the file is missing"):
        offsets(tmp_path, files, Wanted(0))


@pytest.mark.parametrize("has_stats", [True, False])
def test_files_of_others_are_put_in_order(tmp_path: Path, has_stats: bool) -> None:
    mixed = foreign(
        tmp_path,
        "mixed.parquet",
        batch(1, [4, 2]),
        batch(0, [9, 7, 30]),
        batch(1, [40]),
        has_stats=has_stats,
    )
    files = [*ours(tmp_path, 10, 30), mixed]
    assert offsets(tmp_path, files, Wanted(0)) == [7, 9, *range(10, 31)]
    assert offsets(tmp_path, files, Wanted(1)) == [2, 4, 40]
    assert offsets(tmp_path, files, Wanted(1, 3, 40)) == [4]


def test_an_offset_that_is_there_twice_is_an_error(tmp_path: Path) -> None:
    files = [*ours(tmp_path, 0, 20), foreign(tmp_path, "again.parquet", batch(0, [5]))]
    with pytest.raises(DamagedError, match=r"again.parquet: offsets of partition 0 do not ascend"):
        offsets(tmp_path, files, Wanted(0))


def test_a_file_that_is_not_what_the_log_says_is_named(tmp_path: Path) -> None:
    (add,) = ours(tmp_path, 0, 20)
    with pytest.raises(DamagedError, match=r"\.parquet: \d+ bytes, the log says 1"):
        offsets(tmp_path, [replace(add, size=1)], Wanted(0))
    (tmp_path / add.object_path).write_bytes(bytes(add.size))
    with pytest.raises(DamagedError, match=r"\.parquet: no Parquet file of an archive"):
        offsets(tmp_path, [add], Wanted(0))
