"""Logs and tables: snapshots, checkpoints, roots, orphans; and the same as deltalake reads them."""

import json
from itertools import count

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from liftbridge_testkit.archive_runs import NOW_MS, STREAM, MemoryStore, records
from pyspark_liftbridge.archive import gc
from pyspark_liftbridge.archive.commit import Proposal, commit
from pyspark_liftbridge.archive.delta_log import checkpoint, delta, log
from pyspark_liftbridge.archive.errors import (
    DamagedError,
    OtherStreamError,
    StoreError,
    UnknownOutcomeError,
)
from pyspark_liftbridge.archive.fence import Claim
from pyspark_liftbridge.archive.files import Chance, Place, write_files
from pyspark_liftbridge.archive.stores.folder import LocalFolder
from pyspark_liftbridge.archive.table import (
    Making,
    find_table,
    folder_named,
    folder_of,
    open_table,
    parts_named,
)
from pyspark_liftbridge.archive.verify import verify
from pyspark_liftbridge.plan.options import OptionError

MAKING = Making("7a3c2f52-6f0e-4a3e-9d0e-0c1f4f5b6a7d", NOW_MS)
HOUR_MS = 3_600_000


def grown(store, commits, *, size=10, stream_id=7):
    """A table of so many commits of one partition, and as many empty ranges of another."""
    table = open_table(store, STREAM, stream_id, MAKING)
    snapshot = table.snapshot
    names = map("{:04}".format, count())
    for at in range(0, commits * size, size):
        span = delta.Span(0, at, at + size)
        found = write_files(
            table.store,
            Place(STREAM, stream_id, span),
            [records(range(at, at + size))],
            Chance(lambda: next(names), NOW_MS),
        )
        other = write_files(
            table.store,
            Place(STREAM, stream_id, span._replace(partition=1)),
            [],
            Chance(lambda: next(names), NOW_MS),
        )
        proposal = Proposal(
            run_id=str(at),
            stream_id=stream_id,
            claims=[Claim((found,)), Claim((other,))],
            cursors={"billing": {0: at}},
            now_ms=NOW_MS,
        )
        snapshot = commit(table.store, snapshot, proposal).snapshot
    return table._replace(snapshot=snapshot)


def as_deltalake_reads(folder):
    """Version, offsets of all records, and ends of applications."""
    table = DeltaTable(str(folder))
    offsets = [
        (row["partition"], row["offset"])
        for uri in table.file_uris()
        for row in pq.read_table(uri, columns=["partition", "offset"]).to_pylist()
    ]
    ends = {name: table.transaction_version(name) for name in ("liftbridge/7/0", "liftbridge/7/1")}
    assert table.count() == len(offsets)
    return table.version(), sorted(offsets), ends


def test_deltalake_reads_entries(tmp_path):
    table = grown(LocalFolder(tmp_path), 3)
    assert as_deltalake_reads(tmp_path / "orders") == (
        3,
        [(0, at) for at in range(30)],
        {"liftbridge/7/0": 30, "liftbridge/7/1": 30},
    )
    found = DeltaTable(str(tmp_path / "orders"))
    assert found.protocol().min_reader_version == delta.READER_VERSION
    assert found.protocol().min_writer_version == delta.WRITER_VERSION
    assert found.metadata().configuration["liftbridge.streamId"] == "7"
    newest = found.history(1)[0]
    assert newest["liftbridge"]["cursors"] == {"billing": {"0": 20}}
    assert [one.name for one in found.schema().fields] == [
        one["name"] for one in json.loads(delta.SCHEMA_STRING)["fields"]
    ]
    assert log.load(table.store) == table.snapshot


def test_deltalake_and_we_read_our_checkpoint_alike(tmp_path):
    table = grown(LocalFolder(tmp_path), 4)
    written = log.write_checkpoint(table.store, table.snapshot, now_ms=NOW_MS)
    assert written.checkpoint_version == 4
    for version in range(5):
        table.store.delete(log.entry_path(version))
    assert as_deltalake_reads(tmp_path / "orders")[1] == [(0, at) for at in range(40)]
    assert as_deltalake_reads(tmp_path / "orders")[2] == {
        "liftbridge/7/0": 40,
        "liftbridge/7/1": 40,
    }
    assert log.load(table.store) == written


def test_checkpoint_and_compaction_of_deltalake_are_read(tmp_path):
    table = grown(LocalFolder(tmp_path), 5)
    other = DeltaTable(str(tmp_path / "orders"))
    assert other.optimize.compact()["numFilesRemoved"] == 5
    other.create_checkpoint()
    snapshot = log.load(table.store)
    assert (snapshot.version, snapshot.checkpoint_version) == (6, 6)
    assert (len(snapshot.files), len(snapshot.removed)) == (1, 5)
    assert snapshot.ends == table.snapshot.ends
    assert snapshot.metadata == table.snapshot.metadata
    assert verify(table.store) == []
    # And the archive goes on behind it.
    proposal = Proposal(run_id="on", stream_id=7, claims=[claim(50, 60)], now_ms=NOW_MS)
    assert commit(table.store, snapshot, proposal).version == 7
    assert DeltaTable(str(tmp_path / "orders")).transaction_version("liftbridge/7/0") == 60


def test_rows_that_deltalake_deletes_are_found(tmp_path):
    table = grown(LocalFolder(tmp_path), 2)
    DeltaTable(str(tmp_path / "orders")).delete("offset = 5")
    text = " | ".join(one.text for one in verify(table.store))
    assert "another writer has changed what the table holds" in text
    assert "archived records to" in text


def claim(start, end):
    from_nothing = write_files(
        MemoryStore(),
        Place(STREAM, 7, delta.Span(0, start, end)),
        [],
        Chance(lambda: "x", NOW_MS),
    )
    return Claim((from_nothing,))


def test_log_is_the_same_with_and_without_checkpoints():
    table = grown(MemoryStore(), 8)
    plain = log.load(table.store)
    for version in (2, 5, 8):
        snapshot = log.Snapshot().after(
            log.read_entry(table.store, number) for number in range(version + 1)
        )
        written = log.write_checkpoint(table.store, snapshot, now_ms=NOW_MS)
        found = log.load(table.store)
        assert found.checkpoint_version == written.checkpoint_version == version
        assert (found.files, found.ends, found.metadata) == (
            plain.files,
            plain.ends,
            plain.metadata,
        )


@pytest.mark.parametrize(
    "hint",
    [
        b"",
        b"{}",
        b"[]",
        b'{"version":-1}',
        b'{"version":"5"}',
        b'{"version":9}',
        b'{"version":999999999999999}',
        b'{"version":99999999999999999999}',
        b"x" * (2 << 20),
    ],
)
def test_hint_that_leads_nowhere_misleads_nobody(hint):
    table = grown(MemoryStore(), 6)
    written = log.write_checkpoint(table.store, table.snapshot, now_ms=NOW_MS)
    table.store.replace(log.LAST_CHECKPOINT, hint)
    assert log.load(table.store) == written


def test_entry_that_is_missing_in_the_middle_is_damage():
    table = grown(MemoryStore(), 6)
    table.store.delete(log.entry_path(3))
    with pytest.raises(DamagedError, match=r"0003\.json is missing, but entry 4 exists"):
        log.load(table.store)
    table.store.delete(log.entry_path(0))
    with pytest.raises(DamagedError, match=r"0000\.json is missing, but entry 1 exists"):
        log.load(table.store)


def test_first_entry_must_say_what_the_table_is():
    store = MemoryStore()
    store.create(log.entry_path(0), delta.encode([delta.Txn("x", 1, None)]))
    with pytest.raises(DamagedError, match="entry 0: no protocol or no metaData"):
        log.load(store)


def test_checkpoint_is_due_every_hundred_entries():
    table = grown(MemoryStore(), 0)
    snapshot = table.snapshot
    due = []
    for _ in range(2 * checkpoint.EVERY + 50):
        snapshot = log.append(table.store, snapshot, [delta.Txn("other", snapshot.version, None)])
        if log.is_checkpoint_due(snapshot):
            due.append(snapshot.version)
            snapshot = log.write_checkpoint(table.store, snapshot, now_ms=NOW_MS)
    assert due == [99, 199]
    assert log.load(table.store) == snapshot


def test_removed_files_are_forgotten_after_a_week():
    table = grown(MemoryStore(), 2)
    removed = [
        delta.Remove("data/a", NOW_MS - checkpoint.FORGET_AFTER_MS, is_change=False, size=1),
        delta.Remove("data/b", NOW_MS - checkpoint.FORGET_AFTER_MS + 1, is_change=False, size=1),
    ]
    snapshot = log.append(table.store, table.snapshot, removed)
    log.write_checkpoint(table.store, snapshot, now_ms=NOW_MS)
    assert sorted(log.load(table.store).removed) == ["data/b"]


def test_stream_that_was_made_anew_has_its_own_table():
    store = MemoryStore()
    assert find_table(store, STREAM, 7) is None
    first = open_table(store, STREAM, 7, MAKING)
    again = open_table(store, STREAM, 9, MAKING)
    assert (first.root, again.root) == ("orders/", "orders@9/")
    assert find_table(store, STREAM, 7).root == "orders/"
    assert find_table(store, STREAM, 9).root == "orders@9/"
    assert find_table(store, STREAM, 10) is None
    assert again.snapshot.metadata.stream_id == 9
    assert open_table(store, STREAM, 9, MAKING) == again


def test_table_that_was_moved_to_a_name_of_another_is_not_taken():
    store = MemoryStore()
    open_table(store, STREAM, 7, MAKING)
    other = open_table(store, "other", 3, MAKING)
    entry = other.store.read(log.entry_path(0), bytes_max=1 << 20)
    store.create(f"orders@9/{log.entry_path(0)}", entry)
    with pytest.raises(OtherStreamError, match="orders@9/ holds stream other of id 3"):
        open_table(store, STREAM, 9, MAKING)


def test_names_of_folders_stay_apart():
    names = ["orders", "orders.eu", "a/b", "a@2", "ü", "a=b", "..", "a,2Fb", "a%2Fb"]
    folders = [folder_of(name) for name in names]
    assert folders[6] == ",2E,2E"
    assert folders[2:6] == ["a,2Fb", "a,402", ",C3,BC", "a,3Db"]
    # A comma is in no name of a stream.
    assert folder_of("a,2Fb") != folder_of("a/b")
    assert len(set(folders)) == len(names)
    assert all("/" not in one and "=" not in one and "@" not in one for one in folders)


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("orders", "orders/"),
        ("orders@9", "orders@9/"),
        ("a@b", "a,40b/"),
        ("a@b@9", "a,40b@9/"),
        ("orders@../x", "orders,40..,2Fx/"),
        ("orders@\N{ARABIC-INDIC DIGIT NINE}", "orders,40,D9,A9/"),
        ("orders@", "orders,40/"),
        ("..", ",2E,2E/"),
        (".@9", ",2E@9/"),
        ("...", ".../"),
        ("../x", "..,2Fx/"),
        ("a\n", "a,0A/"),
        ("orders,409", "orders,409/"),
        ("orders,409@8", "orders,409@8/"),
        ("a,FFb,4", "a,EF,BF,BDb,2C4/"),
    ],
)
def test_names_are_single_folders(name, folder):
    assert folder_named(name) == folder


@pytest.mark.parametrize(
    ("name", "stream"), [("orders@9", "orders"), ("a@b", "a@b"), ("a@b@9", "a@b"), ("a,409", "a@9")]
)
def test_a_name_tells_its_stream(name, stream):
    assert parts_named(name)[0] == stream


@pytest.mark.parametrize("stream", ["orders", "orders@9", "orders@9@8", "@", "\N{SNOWMAN}", ".."])
def test_the_folder_of_a_table_is_its_name(stream):
    for folder in (folder_of(stream), f"{folder_of(stream)}@7"):
        assert folder_named(folder) == f"{folder}/"
        assert parts_named(folder)[0] == stream


@pytest.mark.parametrize("name", ["", "@9"])
def test_nothing_is_no_name(name):
    with pytest.raises(OptionError, match="is not a stream"):
        folder_named(name)


class Down(MemoryStore):
    """A store that creates nothing."""

    def create(self, path, data):
        raise StoreError(f"down: {path} of {len(data)} bytes")


def test_table_that_cannot_be_made_is_told():
    with pytest.raises(
        UnknownOutcomeError, match=r"could not be created in 5 attempts \(down: orders/_delta_log/"
    ):
        open_table(Down(), STREAM, 7, MAKING)


def test_orphans_are_old_data_in_no_entry_and_halves_of_files():
    store = MemoryStore()
    table = grown(store, 2)
    (kept, *_) = table.snapshot.files
    log.append(
        table.store,
        table.snapshot,
        [delta.Remove(kept, NOW_MS + 1, is_change=False, size=1)],
    )
    half = f"{log.entry_path(9)}.tmp-{0:016x}"
    for path in ("data/0/orphan.parquet", half, "part-0.parquet", "_delta_log/notes.json"):
        table.store.create(path, b"x")
    assert gc.orphans(table.store, now_ms=NOW_MS + gc.AGE_MS_MIN) == []
    removed = gc.remove_orphans(table.store, now_ms=NOW_MS + gc.AGE_MS_MIN + 1)
    assert [one.path for one in removed] == [half, "data/0/orphan.parquet"]
    assert f"orders/{kept}" in store.objects
    assert "orders/part-0.parquet" in store.objects


def test_without_a_log_nothing_is_an_orphan():
    store = MemoryStore()
    store.create("data/0/a.parquet", b"x")
    with pytest.raises(OptionError, match="there is no archive here"):
        gc.remove_orphans(store, now_ms=NOW_MS + 100 * HOUR_MS)
    assert list(store.objects) == ["data/0/a.parquet"]


class CommitsMeanwhile(MemoryStore):
    """A store in which a file is committed right after the data were listed."""

    def __init__(self):
        super().__init__()
        self.then = None

    def listing(self, prefix, *, after=""):
        found = super().listing(prefix, after=after)
        if self.then is not None and not prefix.endswith("_delta_log/"):
            act, self.then = self.then, None
            act()
        return found


def test_file_that_is_committed_while_orphans_are_looked_for_stays():
    store = CommitsMeanwhile()
    table = grown(store, 1)
    path = "data/0/late.parquet"
    table.store.create(path, b"x")
    late = delta.Add(path, 1, NOW_MS, True, "", None, None)  # noqa: FBT003 - as the log has it
    store.then = lambda: log.append(table.store, table.snapshot, [late])
    assert gc.orphans(table.store, now_ms=NOW_MS + 30 * HOUR_MS) == []
