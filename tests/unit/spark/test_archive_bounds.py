"""Bounds of what works on archives: files of an entry, and memory."""

import pytest

from liftbridge_testkit.archive_runs import NOW_MS
from pyspark_liftbridge.archive import compaction, delta, fence
from pyspark_liftbridge.archive.compaction import key_groups
from pyspark_liftbridge.archive.digest import Digest
from pyspark_liftbridge.archive.errors import UnsupportedTableError
from pyspark_liftbridge.archive.log import Snapshot


def add_of(path, *, partition=0, start=0, end=1, size=1):
    stats = delta.Stats(
        end - start,
        (partition, partition),
        (start, end - 1),
        ("2026-01-01T00:00:00.000Z", "2026-01-01T00:00:00.000Z"),
    )
    return delta.Add(
        path=path,
        size=size,
        modified_ms=NOW_MS,
        is_change=True,
        stats_text=stats.text(),
        stats=stats,
        origin=delta.Origin(partition, start, end, Digest(end - start, 2**64 - 1, 2**64 - 1)),
    )


def test_compaction_by_key_of_too_many_files_is_refused_before_any_work(monkeypatch):
    adds = [add_of(f"data/{at}", start=at, end=at + 1, size=100) for at in range(3)]
    snapshot = Snapshot(files={one.path: one for one in adds})
    monkeypatch.setattr(compaction, "KEY_FILES_MAX", 4)
    assert [len(group.files) for group in key_groups(snapshot, 300)] == [3]
    with pytest.raises(UnsupportedTableError, match=r"3 files are too many .* join small files"):
        key_groups(snapshot, 150)
    monkeypatch.setattr(compaction, "KEY_FILES_MAX", 2)
    with pytest.raises(UnsupportedTableError, match="3 files are too many for one entry"):
        key_groups(snapshot)


def test_as_many_files_as_a_compaction_by_key_takes_are_within_one_entry():
    most = 2**62
    path = f"data/{2**24}/2026-01-01/{most}-{most}-{'0' * 32}.parquet"
    add = add_of(path, partition=2**24, start=0, end=most, size=most)
    # At worst each file is alone in its partition, which has a span and a txn of its own.
    run = delta.Run("", compacted=(delta.Span(2**24, most, most),))
    each = [
        add,
        delta.Remove(path, NOW_MS, is_change=True, size=most),
        delta.Txn(fence.by_key_id(most, 2**24), most, NOW_MS),
        delta.CommitInfo(NOW_MS, "OPTIMIZE", delta.ENGINE, run),
    ]
    assert compaction.KEY_FILES_MAX * len(delta.encode(each)) < delta.ENTRY_BYTES_MAX
    assert compaction.KEY_FILES_MAX * 3 + 1 < delta.ENTRY_ACTIONS_MAX
