"""Bounds of what works on archives: files of an entry, and memory."""

import io
import os
from itertools import count

import pyarrow as pa
import pytest

from liftbridge_testkit.archive_runs import NOW_MS, STREAM, STREAM_ID, MemoryStore, records
from pyspark_liftbridge.archive import compaction, fence
from pyspark_liftbridge.archive.compaction import key_groups
from pyspark_liftbridge.archive.contents import read_columns, read_records
from pyspark_liftbridge.archive.delta_log import delta
from pyspark_liftbridge.archive.delta_log.log import Snapshot
from pyspark_liftbridge.archive.delta_log.schema import SCHEMA
from pyspark_liftbridge.archive.digest import Digest
from pyspark_liftbridge.archive.errors import UnsupportedTableError
from pyspark_liftbridge.archive.files import Chance, Place, Sizes, write_files
from pyspark_liftbridge.archive.last_of_keys import last_of_keys


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
    with pytest.raises(UnsupportedTableError, match=r"3 files are too many .* merge small files"):
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


class CountingStore(MemoryStore):
    """A store that counts what is read.

    Attributes:
        opened: Objects that were opened, each time.
        bytes: Bytes that were read of them.
    """

    def __init__(self):
        super().__init__()
        self.opened = 0
        self.bytes = 0

    def read(self, path, *, bytes_max):
        data = super().read(path, bytes_max=bytes_max)
        self.opened += 1
        self.bytes += len(data)
        return data

    def open(self, path):
        self.opened += 1
        return _Counted(self, self.objects[path])


class _Counted(io.BytesIO):
    def __init__(self, store, data):
        super().__init__(data)
        self.store = store

    def read(self, size=-1):
        data = super().read(size)
        self.store.bytes += len(data)
        return data


def with_columns(batch, **columns):
    """Records with other keys and values."""
    for name, found in columns.items():
        at = SCHEMA.names.index(name)
        batch = batch.set_column(at, SCHEMA.field(at), pa.array(found, SCHEMA.field(at).type))
    return batch


def written(store, batches, **sizes):
    """Files of records, those of a batch in one."""
    names = map("{:04}".format, count())
    return [
        add
        for batch in batches
        for add in write_files(
            store,
            Place(STREAM, STREAM_ID, delta.Span(0, batch["offset"][0].as_py(), 1 << 40)),
            [batch.slice(at, 100) for at in range(0, batch.num_rows, 100)],
            Chance(lambda: next(names), NOW_MS),
            Sizes(**sizes),
        ).adds
    ]


def test_batches_are_no_larger_than_a_row_group_however_small_it_is_in_the_file():
    store = MemoryStore()
    batch = with_columns(records(range(1_400)), value=[b"the same again " * 600] * 1_400)
    (add,) = written(store, [batch], group_least=1 << 20, group_most=2 << 20)
    assert add.size * 50 < batch.nbytes
    found = list(read_records(store, add))
    assert max(one.nbytes for one in found) <= 2 << 20
    assert pa.Table.from_batches(found).equals(pa.Table.from_batches([batch]))


def test_columns_are_read_without_the_others():
    store = CountingStore()
    batch = with_columns(records(range(400)), value=[os.urandom(10_000) for _ in range(400)])
    (add,) = written(store, [batch])
    assert add.size > 4_000_000
    offsets = [at for one in read_columns(store, add, ["offset"]) for at in one[0].to_pylist()]
    assert offsets == list(range(400))
    assert store.bytes < 200_000


def test_keys_that_do_not_fit_are_noticed_before_all_of_them_are_read():
    store = CountingStore()
    batches = [
        with_columns(records(range(at, at + 50)), key=[os.urandom(1_000) for _ in range(50)])
        for at in range(0, 1_400, 50)
    ]
    adds = written(store, batches)
    assert len(adds) == 28
    kept = last_of_keys(store, adds, tombstones_from_us=0, memory=1 << 18)
    assert len(kept.offsets) == 1_400
    # Eight shares and a look at tombstones, after a part of the first try with all keys at once.
    assert 9 * 28 < store.opened <= 9 * 28 + 10
