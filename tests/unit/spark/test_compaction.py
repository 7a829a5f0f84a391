"""Compaction: which files are rewritten, what they hold then, and what the log says of it."""

import io
from dataclasses import replace
from itertools import count

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from liftbridge_testkit.archive_runs import NOW_MS, STREAM, STREAM_ID, MemoryStore, records
from pyspark_liftbridge.archive import compaction, fence, gc, last_of_keys
from pyspark_liftbridge.archive.commit import Compaction, Proposal, commit, commit_rewrites
from pyspark_liftbridge.archive.compaction import Group, key_groups, small_groups
from pyspark_liftbridge.archive.delta_log import delta, log
from pyspark_liftbridge.archive.delta_log.schema import SCHEMA
from pyspark_liftbridge.archive.digest import Digest
from pyspark_liftbridge.archive.errors import (
    ArchiveError,
    ClaimError,
    DamagedError,
    OtherStreamError,
    UnsupportedTableError,
)
from pyspark_liftbridge.archive.fence import Claim, Rewrite, Verdict
from pyspark_liftbridge.archive.files import Chance, Place, write_files
from pyspark_liftbridge.archive.rewriting import Target, join_files, keep_last_of_keys
from pyspark_liftbridge.archive.stores.folder import LocalFolder
from pyspark_liftbridge.archive.table import Making, open_table
from pyspark_liftbridge.archive.verify import verify

DAY_US = 86_400_000_000
MIDNIGHT = 20_000 * DAY_US
MINUTE_US = 60_000_000
LARGE = 1 << 20
MAKING = Making("7a3c2f52-6f0e-4a3e-9d0e-0c1f4f5b6a7d", NOW_MS)
NEVER = 0
"""Tombstones of any age stay."""


def table_with(store, batches, *, partition=0):
    """A table with a file for each batch of records, which adjoin."""
    table = open_table(store, STREAM, STREAM_ID, MAKING)
    names = map("{:04}".format, count())
    snapshot = table.snapshot
    at = 0
    for number, batch in enumerate(batches):
        end = batch.column("offset")[-1].as_py() + 1
        span = delta.Span(partition, at, end)
        written = write_files(
            table.store,
            Place(STREAM, STREAM_ID, span),
            [batch],
            Chance(lambda: f"w{partition}-{next(names)}", NOW_MS),
        )
        proposal = Proposal(
            run_id=f"archive {partition} {number}",
            stream_id=STREAM_ID,
            claims=[Claim((written,))],
            now_ms=NOW_MS,
        )
        snapshot = commit(table.store, snapshot, proposal).snapshot
        at = end
    return table.store, snapshot


def target(store):
    names = map("{:04}".format, count())
    return Target(store, STREAM, STREAM_ID, Chance(lambda: f"c{next(names)}", NOW_MS))


def committed(store, snapshot, rewrites, *, run_id="compaction", now_ms=NOW_MS):
    return commit_rewrites(
        store,
        snapshot,
        Compaction(run_id=run_id, stream_id=STREAM_ID, rewrites=rewrites, now_ms=now_ms),
    )


def rows(store, snapshot):
    """All records of the files that the log names, in order."""
    tables = [
        pq.read_table(io.BytesIO(store.read(one.object_path, bytes_max=1 << 30)))
        for one in snapshot.files.values()
    ]
    whole = pa.concat_tables([SCHEMA.empty_table(), *tables])
    return whole.sort_by([("partition", "ascending"), ("offset", "ascending")])


def ranges(groups):
    return [
        [(one.origin.partition, one.origin.start, one.origin.end) for one in group.files]
        for group in groups
    ]


def minutes(*spans, partition=0):
    """Records of some offsets, of which 1,440 is the first of a new day."""
    return [records(range(*span), partition=partition, day_us=MIDNIGHT) for span in spans]


def test_neighbours_of_one_day_are_joined():
    store = MemoryStore()
    table, _ = table_with(store, minutes((0, 10), (10, 700), (1_430, 1_450), (1_450, 1_500)))
    table, snapshot = table_with(store, minutes((0, 5), (5, 9), partition=1), partition=1)
    assert ranges(small_groups(snapshot, LARGE)) == [
        [(0, 0, 10), (0, 10, 700), (0, 700, 1_440)],
        [(0, 1_440, 1_450), (0, 1_450, 1_500)],
        [(1, 0, 5), (1, 5, 9)],
    ]
    rewrites = [join_files(target(table), one) for one in small_groups(snapshot, LARGE)]
    outcome = committed(table, snapshot, rewrites)
    assert set(outcome.verdicts.values()) == {Verdict.COMMITTED}
    after = outcome.snapshot
    assert sorted(one.origin[:3] for one in after.files.values()) == [
        (0, 0, 1_440),
        (0, 1_440, 1_500),
        (1, 0, 9),
    ]
    assert after.ends == snapshot.ends
    assert rows(table, after).equals(rows(table, snapshot))
    assert small_groups(after, LARGE) == []
    assert verify(table) == []


def test_joined_file_is_as_one_that_was_archived():
    table, snapshot = table_with(MemoryStore(), minutes((0, 7), (7, 9)))
    rewrite = join_files(target(table), *small_groups(snapshot, LARGE))
    archived, before = table_with(MemoryStore(), minutes((0, 9)))
    (one,), (other,) = rewrite.adds, before.files.values()
    assert replace(one, path="", size=0) == replace(other, path="", size=0)
    data = table.read(one.path, bytes_max=1 << 20)
    assert data == archived.read(other.path, bytes_max=1 << 20)


def test_entry_says_that_nothing_changed():
    table, snapshot = table_with(MemoryStore(), minutes((0, 7), (7, 9)))
    rewrite = join_files(target(table), *small_groups(snapshot, LARGE))
    outcome = committed(table, snapshot, [rewrite])
    info, *actions = log.read_entry(table, outcome.version)
    assert (info.operation, info.run) == ("OPTIMIZE", delta.Run("compaction"))
    assert [type(one) for one in actions] == [delta.Remove, delta.Remove, delta.Add]
    assert not any(one.is_change for one in actions)
    assert [one.path for one in actions[:2]] == list(snapshot.files)


@pytest.mark.parametrize(
    ("sizes", "joined"),
    [
        ([10, 10, 10], [[0, 1, 2]]),
        ([10, 75, 10, 10], [[2, 3]]),
        ([74, 75], []),
        ([60, 60, 60, 30], [[0, 1], [2, 3]]),
        ([60, 60, 60], [[0, 1]]),
        ([10], []),
        ([], []),
    ],
)
def test_files_are_joined_up_to_the_target(sizes, joined):
    table, snapshot = table_with(MemoryStore(), minutes((0, 1)))
    (some,) = snapshot.files.values()
    files = {
        f"data/{at}": replace(
            some, path=f"data/{at}", size=size, origin=delta.Origin(0, at, at + 1, Digest(1))
        )
        for at, size in enumerate(sizes)
    }
    found = small_groups(replace(snapshot, files=files), 100)
    assert [[one.origin.start for one in group.files] for group in found] == joined
    assert table.read("data/0", bytes_max=1) is None


def test_files_of_one_entry_are_bounded(monkeypatch):
    _, snapshot = table_with(MemoryStore(), minutes((0, 1), (1, 2), (2, 3), (1_440, 1_441)))
    _, snapshot = table_with(MemoryStore(), minutes((0, 1), (1, 2), (2, 3), (1_440, 1_450)))
    assert len(small_groups(snapshot, LARGE)) == 1
    monkeypatch.setattr(compaction, "FILES_MAX", 2)
    assert small_groups(snapshot, LARGE) == []


def with_origin(add, **members):
    return replace(add, origin=add.origin._replace(**members))


def test_hole_between_files_is_passed_over_only_below_the_end_of_a_compaction_by_key():
    _, snapshot = table_with(MemoryStore(), minutes((0, 5), (5, 9), (9, 12)))
    first, _, last = snapshot.files.values()
    holed = replace(snapshot, files={first.path: first, last.path: last})
    assert small_groups(holed, LARGE) == []
    for end, count_ in ((8, 0), (9, 1)):
        txn = delta.Txn(fence.by_key_id(STREAM_ID, 0), end, None)
        known = replace(holed, ends={**holed.ends, txn.app_id: txn})
        assert len(small_groups(known, LARGE)) == count_


def test_files_of_several_days_and_of_other_writers_stay_as_they_are():
    _, snapshot = table_with(MemoryStore(), minutes((0, 5), (5, 9)))
    first, second = snapshot.files.values()
    times = ("2024-10-03T00:00:00.000Z", "2024-10-04T00:00:00.001Z")
    mixed = replace(second, stats=second.stats._replace(timestamps=times))
    for other in (
        mixed,
        replace(second, stats=second.stats._replace(timestamps=None)),
        replace(second, stats=second.stats._replace(timestamps=("x", "y"))),
        replace(second, stats=None),
        replace(second, origin=None),
    ):
        files = {first.path: first, other.path: other}
        assert small_groups(replace(snapshot, files=files), LARGE) == []


def test_archiving_goes_on_beside_a_compaction():
    table, snapshot = table_with(MemoryStore(), minutes((0, 7), (7, 9)))
    rewrite = join_files(target(table), *small_groups(snapshot, LARGE))
    more = write_files(
        table,
        Place(STREAM, STREAM_ID, delta.Span(0, 9, 12)),
        minutes((9, 12)),
        Chance(lambda: "late", NOW_MS),
    )
    proposal = Proposal(run_id="late", stream_id=STREAM_ID, claims=[Claim((more,))], now_ms=NOW_MS)
    commit(table, snapshot, proposal)
    outcome = committed(table, snapshot, [rewrite])
    assert outcome.verdicts == {0: Verdict.COMMITTED}
    assert sorted(one.origin[1:3] for one in outcome.snapshot.files.values()) == [(0, 9), (9, 12)]
    assert verify(table) == []


def test_second_rewrite_of_a_file_is_made_again_and_the_others_are_committed():
    table, snapshot = table_with(
        MemoryStore(), minutes((0, 7), (7, 9), (1_440, 1_445), (1_445, 1_450))
    )
    groups = small_groups(snapshot, LARGE)
    first, second = (join_files(target(table), one) for one in groups)
    committed(table, snapshot, [first], run_id="other")
    outcome = committed(table, snapshot, [first, second])
    assert outcome.verdicts == {0: Verdict.PLAN_AGAIN, 1: Verdict.COMMITTED}
    again = committed(table, snapshot, [first])
    assert (again.verdicts, again.version) == ({0: Verdict.PLAN_AGAIN}, None)
    assert rows(table, outcome.snapshot).equals(rows(table, snapshot))


def test_deltalake_reads_the_same_rows_before_and_after(tmp_path):
    table, snapshot = table_with(LocalFolder(tmp_path), minutes((0, 300), (300, 310), (310, 400)))
    columns = ["offset", "timestamp_ns", "key", "value", "subject", "headers"]

    def read():
        found = DeltaTable(tmp_path / STREAM)
        whole = found.to_pyarrow_table(columns=columns).sort_by("offset")
        return found.version(), len(found.file_uris()), whole

    before = read()
    rewrite = join_files(target(table), *small_groups(snapshot, LARGE))
    after = committed(table, snapshot, [rewrite]).snapshot
    assert (before[:2], read()[:2]) == ((3, 3), (4, 1))
    assert read()[2].equals(before[2])
    written = log.write_checkpoint(table, after, now_ms=NOW_MS)
    assert log.load(table) == written
    assert DeltaTable(tmp_path / STREAM).transaction_version("liftbridge/7/0") == 400


# Keys of `records`: every third offset has "key <offset modulo 7>", the others have none; the value
# of every fifth is empty.
def last_offsets(offsets):
    found = {}
    for at in offsets:
        if at % 3 == 0:
            found[at % 7] = at
    return set(found.values())


def compacted(table, snapshot, *, from_us=NEVER, run_id="by key"):
    found = [
        keep_last_of_keys(target(table), one, tombstones_from_us=from_us)
        for one in key_groups(snapshot)
    ]
    rewrites = [one for one in found if one is not None]
    return committed(table, snapshot, rewrites, run_id=run_id) if rewrites else None


def test_last_record_of_each_key_stays_and_those_without_a_key():
    table, snapshot = table_with(MemoryStore(), minutes((0, 40), (40, 41), (41, 100)))
    outcome = compacted(table, snapshot)
    offsets = rows(table, outcome.snapshot).column("offset").to_pylist()
    last = last_offsets(range(100))
    assert len(last) == 7
    assert offsets == [at for at in range(100) if at % 3 or at in last]
    before = rows(table, snapshot)
    kept = before.filter(pc.is_in(before.column("offset"), pa.array(offsets)))
    assert rows(table, outcome.snapshot).equals(kept)
    # The file in the middle holds no record with a key, and is the same.
    assert [one.origin[1:3] for one in snapshot.files.values()][1] == (40, 41)
    middle = list(snapshot.files)[1]
    assert middle in outcome.snapshot.files
    assert verify(table) == []
    assert compacted(table, outcome.snapshot) is None


def test_log_says_how_far_a_partition_was_compacted_by_key():
    table, snapshot = table_with(MemoryStore(), minutes((0, 40), (40, 100)))
    outcome = compacted(table, snapshot)
    actions = log.read_entry(table, outcome.version)
    assert actions[0].run.compacted == (delta.Span(0, 0, 100),)
    assert all(one.is_change for one in actions if isinstance(one, delta.Add | delta.Remove))
    written = log.write_checkpoint(table, outcome.snapshot, now_ms=NOW_MS)
    for version in range(outcome.version + 1):
        table.delete(log.entry_path(version))
    found = log.load(table)
    assert found == written
    assert found.ends[fence.by_key_id(STREAM_ID, 0)].version == 100
    assert found.ends[fence.app_id(STREAM_ID, 0)].version == 100


def test_compaction_by_key_that_comes_late_does_not_move_the_end_back():
    table, snapshot = table_with(MemoryStore(), minutes((0, 40)))
    slow = keep_last_of_keys(target(table), *key_groups(snapshot), tombstones_from_us=NEVER)
    txn = delta.Txn(fence.by_key_id(STREAM_ID, 0), 90, None)
    log.append(table, snapshot, [delta.CommitInfo(0, "", "", delta.Run("other")), txn])
    outcome = committed(table, snapshot, [slow])
    assert outcome.verdicts == {0: Verdict.COMMITTED}
    assert outcome.snapshot.ends[txn.app_id].version == 90


def keyed(*found, day_us=MIDNIGHT):
    """Records of some keys and values, a minute apart."""
    batch = records(range(len(found)), day_us=day_us)
    columns = {name: batch.column(name) for name in SCHEMA.names}
    columns["key"] = pa.array([key for key, _ in found], pa.binary())
    columns["value"] = pa.array([value for _, value in found], pa.binary())
    return pa.record_batch(list(columns.values()), schema=SCHEMA)


def test_tombstones_stay_for_a_while_and_go_with_all_records_of_their_key():
    found = [(b"a", b"1"), (b"b", b"1"), (None, b""), (b"a", b""), (b"b", b""), (b"c", b"")]
    found += [(b"c", b"2"), (b"d", b"")]
    batch = keyed(*found)
    table, snapshot = table_with(MemoryStore(), [batch.slice(0, 2), batch.slice(2)])

    def kept(from_us):
        again, before = table_with(MemoryStore(), [batch.slice(0, 2), batch.slice(2)])
        outcome = compacted(again, before, from_us=from_us)
        assert verify(again) == []
        return rows(again, outcome.snapshot).column("offset").to_pylist()

    assert kept(NEVER) == [2, 3, 4, 6, 7]
    assert kept(MIDNIGHT + 4 * MINUTE_US) == [2, 4, 6, 7]
    assert kept(MIDNIGHT + 8 * MINUTE_US) == [2, 6]
    # What stayed goes when it is old enough; the file in which nothing is left is not replaced.
    first = compacted(table, snapshot)
    assert len(first.snapshot.files) == 1
    second = compacted(table, first.snapshot, from_us=MIDNIGHT + DAY_US, run_id="later")
    assert rows(table, second.snapshot).column("offset").to_pylist() == [2, 6]
    assert verify(table) == []


def test_partition_of_which_nothing_stays_keeps_its_end():
    table, snapshot = table_with(MemoryStore(), [keyed((b"a", b"1"), (b"a", b""))])
    outcome = compacted(table, snapshot, from_us=MIDNIGHT + DAY_US)
    assert outcome.snapshot.files == {}
    assert outcome.snapshot.ends[fence.app_id(STREAM_ID, 0)].version == 2
    assert verify(table) == []


@pytest.mark.parametrize("rows_at_a_time", [1, 7, 1_000])
@pytest.mark.parametrize("memory", [60, 100, 1 << 20])
def test_keys_are_looked_at_in_shares_when_they_are_too_many(monkeypatch, memory, rows_at_a_time):
    monkeypatch.setattr(last_of_keys, "_REDUCE_ROWS", rows_at_a_time)
    table, snapshot = table_with(MemoryStore(), minutes((0, 40), (40, 100)))
    files = list(snapshot.files.values())
    found = last_of_keys.last_of_keys(table, files, tombstones_from_us=NEVER, memory=memory)
    assert set(found.offsets.tolist()) == last_offsets(range(100))
    assert found.keyed == (14, 20)


def test_keys_that_never_fit_are_told():
    table, snapshot = table_with(MemoryStore(), minutes((0, 40)))
    with pytest.raises(ArchiveError, match=r"1/64 of its keys needs more than 3 bytes"):
        last_of_keys.last_of_keys(
            table, list(snapshot.files.values()), tombstones_from_us=NEVER, memory=3
        )


def test_small_files_that_a_compaction_by_key_left_are_joined():
    found = [(b"a", b"1"), (b"b", b"1"), (b"c", b"1"), (b"b", b"2"), (b"d", b"1")]
    batch = keyed(*found)
    table, snapshot = table_with(MemoryStore(), [batch.slice(at, 1) for at in range(5)])
    after = compacted(table, snapshot).snapshot
    assert ranges(small_groups(after, LARGE)) == [[(0, 0, 1), (0, 2, 3), (0, 3, 4), (0, 4, 5)]]
    rewrite = join_files(target(table), *small_groups(after, LARGE))
    joined = committed(table, after, [rewrite], run_id="join").snapshot
    assert rows(table, joined).column("offset").to_pylist() == [0, 2, 3, 4]
    assert verify(table) == []


def test_table_with_files_of_another_writer_is_not_compacted_by_key(tmp_path):
    table_with(LocalFolder(tmp_path), minutes((0, 7), (7, 9)))
    other = DeltaTable(tmp_path / STREAM)
    other.optimize.compact()
    table, _ = table_with(LocalFolder(tmp_path), [])
    with pytest.raises(
        UnsupportedTableError,
        match="only a table whose files all come from this package can be compacted by key",
    ):
        key_groups(log.load(table))
    assert small_groups(log.load(table), LARGE) == []


@pytest.mark.parametrize("damage", ["missing", "cut", "garbage", "other records"])
def test_damage_does_not_become_part_of_a_new_file(damage):
    table, snapshot = table_with(MemoryStore(), minutes((0, 7), (7, 9)))
    path = next(iter(snapshot.files))
    data = table.read(path, bytes_max=1 << 20)
    if damage == "missing":
        table.delete(path)
    elif damage == "cut":
        table.replace(path, data[:-1])
    elif damage == "garbage":
        table.replace(path, bytes(len(data)))
    else:
        add = snapshot.files[path]
        wrong = with_origin(add, digest=Digest(add.origin.digest.records, 1, 2))
        snapshot = replace(snapshot, files={**snapshot.files, path: wrong})
    told = {
        "missing": "the file is missing",
        "cut": "bytes, but the log says",
        "garbage": "not a Parquet file of an archive",
        "other records": "are not those that were written",
    }
    with pytest.raises(DamagedError, match=told[damage]):
        join_files(target(table), *small_groups(snapshot, LARGE))
    if damage != "other records":
        with pytest.raises(DamagedError, match=told[damage]):
            keep_last_of_keys(target(table), *key_groups(snapshot), tombstones_from_us=NEVER)


def some_rewrite(**members):
    table, snapshot = table_with(MemoryStore(), minutes((0, 7), (7, 9)))
    return replace_in(join_files(target(table), *small_groups(snapshot, LARGE)), **members)


def replace_in(rewrite, **members):
    return rewrite._replace(**{name: change(rewrite) for name, change in members.items()})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"removes": lambda _: ()}, "must take the place of some file"),
        ({"removes": lambda one: one.removes[::-1]}, "hand files over in order"),
        ({"removes": lambda one: one.removes[:1]}, "must hold the same records"),
        ({"adds": lambda _: ()}, "must hold the same records"),
        ({"adds": lambda one: (with_origin(one.adds[0], digest=Digest(9)),)}, "the same records"),
        ({"adds": lambda one: (with_origin(one.adds[0], end=10),)}, "it must lie within 0/0 to 9"),
        ({"adds": lambda one: (with_origin(one.adds[0], partition=1),)}, "written for 1/0"),
        ({"adds": lambda one: (replace(one.adds[0], origin=None),)}, "without range"),
        ({"adds": lambda one: (replace(one.adds[0], modified_ms=0),)}, "more than 12 hours ago"),
        (
            {
                "adds": lambda one: (with_origin(one.adds[0], digest=Digest(10)),),
                "is_by_key": lambda _: True,
            },
            "must hold the same records",
        ),
    ],
)
def test_rewrite_that_does_not_hold_together_is_refused(change, text):
    table, snapshot = table_with(MemoryStore(), minutes((0, 7), (7, 9)))
    with pytest.raises(ClaimError, match=text):
        committed(table, snapshot, [some_rewrite(**change)])
    assert log.load(table) == snapshot


def test_two_rewrites_of_one_file_are_refused_and_those_of_another_stream():
    table, snapshot = table_with(MemoryStore(), minutes((0, 7), (7, 9)))
    one = some_rewrite()
    by_key = one._replace(is_by_key=True)
    for both in ([one, one], [by_key, by_key._replace(removes=one.removes[:1])]):
        with pytest.raises(ClaimError, match=r"two rewrites of the same|the same records"):
            committed(table, snapshot, both)
    with pytest.raises(
        OtherStreamError, match="of stream id 7, but the records are of stream id 8"
    ):
        commit_rewrites(
            table,
            snapshot,
            Compaction(run_id="x", stream_id=8, rewrites=[one], now_ms=NOW_MS),
        )


def forged(table, snapshot, *, adds, removes, run, is_change=False):
    log.append(
        table,
        snapshot,
        [
            delta.CommitInfo(NOW_MS, "OPTIMIZE", delta.ENGINE, run),
            *(delta.Remove(one, NOW_MS, is_change=is_change, size=1) for one in removes),
            *(replace(one, is_change=is_change) for one in adds),
        ],
    )


def test_entry_that_loses_records_is_found():
    table, snapshot = table_with(MemoryStore(), minutes((0, 7), (7, 9)))
    rewrite = join_files(target(table), *small_groups(snapshot, LARGE))
    first, second = snapshot.files
    forged(table, snapshot, adds=[], removes=[first], run=delta.Run("x"))
    texts = " | ".join(one.text for one in verify(table))
    assert "new files hold 0:" in texts
    assert "archived records to 9:" in texts
    table, snapshot = table_with(MemoryStore(), minutes((0, 7), (7, 9)))
    forged(table, snapshot, adds=rewrite.adds, removes=[second, "data/x"], run=delta.Run("x"))
    texts = " | ".join(one.text for one in verify(table))
    assert "data/x is removed, but is not part of the table" in texts
    assert "replaced ones 2:" in texts


def test_entry_by_key_that_brings_records_is_found():
    table, snapshot = table_with(MemoryStore(), minutes((0, 7), (7, 9)))
    rewrite = join_files(target(table), *small_groups(snapshot, LARGE))
    run = delta.Run("x", compacted=(delta.Span(0, 0, 9),))
    forged(
        table,
        snapshot,
        adds=rewrite.adds,
        removes=list(snapshot.files)[:1],
        run=run,
        is_change=True,
    )
    texts = " | ".join(one.text for one in verify(table))
    assert "new files hold 9:" in texts


def removed_files(table, now_ms):
    return sorted(one.path for one in gc.orphans(table, now_ms=now_ms))


def test_files_that_were_replaced_go_a_day_after_that():
    store = MemoryStore()
    table, snapshot = table_with(store, minutes((0, 7), (7, 9)))
    rewrite = join_files(target(table), *small_groups(snapshot, LARGE))
    later = NOW_MS + 5 * 3_600_000
    after = commit_rewrites(
        table,
        snapshot,
        Compaction(
            run_id="late",
            stream_id=STREAM_ID,
            rewrites=[
                rewrite._replace(
                    adds=tuple(replace(one, modified_ms=later) for one in rewrite.adds)
                )
            ],
            now_ms=later,
        ),
    ).snapshot
    for _ in range(2):
        # Files are older than a day already, but were part of the table until later.
        assert removed_files(table, later + gc.AGE_MS_MIN) == []
        assert removed_files(table, later + gc.AGE_MS_MIN + 1) == sorted(snapshot.files)
        log.write_checkpoint(table, after, now_ms=later)
    # Where others have removed the entries, what the checkpoint tells is enough.
    copy = MemoryStore()
    copy.objects = {
        path.removeprefix("orders/"): data
        for path, data in store.objects.items()
        if not path.endswith(".json")
    }
    assert removed_files(copy, later + gc.AGE_MS_MIN) == []
    assert removed_files(copy, later + gc.AGE_MS_MIN + 1) == sorted(snapshot.files)
    gc.remove_orphans(table, now_ms=later + gc.AGE_MS_MIN + 1)
    assert rows(table, log.load(table)).num_rows == 9
    assert verify(table) == []


def test_file_that_came_back_or_went_nobody_knows_when_stays():
    table, snapshot = table_with(MemoryStore(), minutes((0, 7), (7, 9)))
    back, unknown = snapshot.files
    snapshot = log.append(
        table,
        snapshot,
        [
            delta.Remove(back, NOW_MS, is_change=False, size=1),
            delta.Remove(unknown, 0, is_change=False, size=1),
        ],
    )
    log.append(table, snapshot, [replace(delta_add(back), is_change=False)])
    assert removed_files(table, NOW_MS + 10 * gc.AGE_MS_MIN) == []


def delta_add(path):
    return delta.Add(path, 1, NOW_MS, True, "", None, None)  # noqa: FBT003 - as the log has it


def test_group_and_rewrite_are_of_the_same_offsets():
    _, snapshot = table_with(MemoryStore(), minutes((0, 7), (7, 9)))
    group = Group(0, tuple(snapshot.files.values()))
    assert group.span == some_rewrite().span == delta.Span(0, 0, 9)
    assert isinstance(some_rewrite(), Rewrite)
