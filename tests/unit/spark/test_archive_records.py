"""Records of an archive are chosen by offsets and times, and are there once."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_liftbridge.archive.delta_log.delta import Add, Span
from pyspark_liftbridge.archive.delta_log.schema import SCHEMA
from pyspark_liftbridge.archive.errors import DamagedError
from pyspark_liftbridge.archive.files import Chance, Place, write_files
from pyspark_liftbridge.archive.records import Wanted, records
from pyspark_liftbridge.archive.stores.store import open_store


def batch(offsets: Sequence[int]) -> pa.RecordBatch:
    """Records whose times are their offsets, in milliseconds."""
    rows = [
        {
            "stream": "orders",
            "partition": 0,
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


def written(root: Path, start: int, end: int) -> Sequence[Add]:
    place = Place("orders", 17, Span(0, start, end))
    chance = Chance(lambda: f"{start}x{end}", 0)
    return write_files(open_store(str(root)), place, [batch(range(start, end))], chance).adds


def offsets(root: Path, files: Sequence[Add], wanted: Wanted) -> list[int]:
    found = records(open_store(str(root)), {0: files}, wanted)
    return [one for piece in found for one in piece.column("offset").to_pylist()]


def test_offsets_and_times_choose_records(tmp_path: Path) -> None:
    files = [*written(tmp_path, 50, 100), *written(tmp_path, 0, 50)]
    assert offsets(tmp_path, files, Wanted(0)) == list(range(100))
    assert offsets(tmp_path, files, Wanted(0, 45, 55)) == list(range(45, 55))
    assert offsets(tmp_path, files, Wanted(0, start_ns=98 * 10**6)) == [98, 99]
    assert offsets(tmp_path, files, Wanted(0, end_ns=2 * 10**6)) == [0, 1]
    both = Wanted(0, 10, 90, 5 * 10**6, 20 * 10**6)
    assert offsets(tmp_path, files, both) == list(range(10, 20))
    assert offsets(tmp_path, files, Wanted(0, 30, 40, 50 * 10**6)) == []


def test_an_offset_that_is_there_twice_is_an_error(tmp_path: Path) -> None:
    files = [*written(tmp_path, 0, 20), *written(tmp_path, 15, 30)]
    with pytest.raises(DamagedError, match=r"offsets of partition 0 do not increase after 0, in "):
        offsets(tmp_path, files, Wanted(0))
