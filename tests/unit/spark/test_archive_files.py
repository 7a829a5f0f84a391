"""Files of an archive: what is in them, where they end, and that damage is seen."""

import io
import json
from datetime import UTC, datetime
from itertools import count

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from liftbridge_testkit.archive_runs import NOW_MS, STREAM, STREAM_ID, MemoryStore, records
from pyspark_liftbridge.archive import files
from pyspark_liftbridge.archive.commit import Proposal, commit
from pyspark_liftbridge.archive.delta_log import delta
from pyspark_liftbridge.archive.delta_log.schema import SCHEMA
from pyspark_liftbridge.archive.digest import Digest, digest_of, record_hashes
from pyspark_liftbridge.archive.errors import RecordsError, StoreError
from pyspark_liftbridge.archive.fence import Claim
from pyspark_liftbridge.archive.files import Chance, Place, Sizes, write_files
from pyspark_liftbridge.archive.table import Making, open_table
from pyspark_liftbridge.archive.verify import verify

DAY_US = 86_400_000_000
MIDNIGHT = 20_000 * DAY_US
LARGE = Sizes()


def written(store, batches, start, end, *, sizes=LARGE, partition=0):
    names = map("{:04}".format, count())
    chance = Chance(lambda: next(names), NOW_MS)
    place = Place(STREAM, STREAM_ID, delta.Span(partition, start, end))
    return write_files(store, place, batches, chance, sizes)


def read(store, add):
    return pq.ParquetFile(io.BytesIO(store.objects[add.path]))


def test_file_ends_at_midnight_and_tells_all_about_itself():
    store = MemoryStore()
    # A minute for each offset: the day ends before 100.
    batch = records([*range(90, 99), *range(103, 110)], day_us=MIDNIGHT - 100 * 60_000_000)
    found = written(store, [batch.slice(0, 3), batch.slice(3)], 88, 120)
    assert [add.path for add in found.adds] == [
        "data/0/2024-10-03/88-103-0000.parquet",
        "data/0/2024-10-04/103-120-0001.parquet",
    ]
    first = found.adds[0]
    assert json.loads(first.stats_text) == {
        "numRecords": 9,
        "minValues": {"partition": 0, "offset": 90, "timestamp": "2024-10-03T23:50:00.000Z"},
        "maxValues": {"partition": 0, "offset": 98, "timestamp": "2024-10-03T23:58:00.000Z"},
    }
    assert first.origin == delta.Origin(0, 88, 103, digest_of(batch.slice(0, 9)))
    file = read(store, first)
    assert file.schema_arrow.equals(SCHEMA)
    assert file.read().to_batches()[0].equals(batch.slice(0, 9))
    metadata = {key.decode(): value.decode() for key, value in file.metadata.metadata.items()}
    assert {key: value for key, value in metadata.items() if key.startswith("liftbridge.")} == {
        "liftbridge.stream": STREAM,
        "liftbridge.streamId": str(STREAM_ID),
        "liftbridge.partition": "0",
        "liftbridge.start": "88",
        "liftbridge.end": "103",
        "liftbridge.digest": first.origin.digest.text(),
    }


def test_columns_are_stored_as_they_are_read_best():
    store = MemoryStore()
    (add,) = written(store, [records(range(1_000))], 0, 1_000).adds
    group = read(store, add).metadata.row_group(0)
    columns = [group.column(at) for at in range(group.num_columns)]
    assert {one.compression for one in columns} == {"ZSTD"}
    assert {one.path_in_schema for one in columns if one.has_dictionary_page} == {
        "stream",
        "subject",
        "reply_subject",
    }


def test_row_groups_and_files_have_their_sizes():
    store = MemoryStore()
    value = bytes(range(256)) * 16
    batch = records(range(1_000))
    at = SCHEMA.get_field_index("value")
    batch = batch.set_column(at, SCHEMA.field(at), pa.array([value] * 1_000))
    sizes = Sizes(file=30_000, group_least=200_000, group_most=400_000)
    found = written(store, [batch.slice(0, 700), batch.slice(700)], 0, 1_000, sizes=sizes)
    assert found.adds[0].origin.start == 0
    assert len(found.adds) > 1
    for add in found.adds:
        metadata = read(store, add).metadata
        rows = [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)]
        assert all(200_000 <= count * (len(value) + 60) <= 400_000 for count in rows[:-1])
    assert sum(add.stats.rows for add in found.adds) == 1_000


def test_days_that_change_over_and_over_do_not_make_files_without_end():
    store = MemoryStore()
    batch = records(range(files.MIDNIGHTS_MAX + 50))
    days = [MIDNIGHT + (at % 2) * DAY_US for at in range(batch.num_rows)]
    at = SCHEMA.get_field_index("timestamp")
    batch = batch.set_column(at, SCHEMA.field(at), pa.array(days, SCHEMA.field(at).type))
    found = written(store, [batch], 0, batch.num_rows)
    assert len(found.adds) == files.MIDNIGHTS_MAX + 1
    assert found.adds[-1].stats.rows == 50
    assert found.adds[-1].stats.timestamps == (
        "2024-10-04T00:00:00.000Z",
        "2024-10-05T00:00:00.000Z",
    )


@pytest.mark.parametrize("time_us", [0, -1, 1_999, -62_000_000_001, 2**63 // 1_000 - 1])
def test_statistics_of_times_hold_every_record(time_us):
    batch = records([5], day_us=time_us - 5 * 60_000_000)
    (add,) = written(MemoryStore(), [batch], 5, 6).adds
    low, high = (
        (datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC))
        for text in add.stats.timestamps
    )
    assert low.total_seconds() * 1e6 <= time_us <= high.total_seconds() * 1e6
    assert (high - low).total_seconds() <= 0.001


@pytest.mark.parametrize(
    ("batches", "text"),
    [
        ([records([4])], "within 5 to 20"),
        ([records([20])], "within 5 to 20"),
        ([records([6, 6])], "do not increase"),
        ([records([7]), records([7])], "within 8 to 20"),
        ([records([7], partition=1)], "records of another partition"),
        ([records([7]).drop_columns(["key"])], "are not those of an archive"),
    ],
)
def test_records_of_elsewhere_are_refused(batches, text):
    with pytest.raises(RecordsError, match=text):
        written(MemoryStore(), batches, 5, 20)


def test_span_without_records_makes_no_file():
    store = MemoryStore()
    assert written(store, [], 5, 20).adds == ()
    assert written(store, [records([])], 5, 20).adds == ()
    assert store.objects == {}


class Failing(MemoryStore):
    """A store that fails so many times when something is created."""

    def __init__(self, failures):
        super().__init__()
        self.failures = failures

    def create(self, path, data):
        super().create(path, data)
        if self.failures:
            self.failures -= 1
            raise StoreError("answer lost")
        return True


def test_file_whose_fate_is_not_known_is_written_under_another_name():
    store = Failing(2)
    (add,) = written(store, [records([7])], 5, 20).adds
    assert add.path.endswith("-0002.parquet")
    assert len(store.objects) == 3
    with pytest.raises(StoreError, match="not written in 3 attempts"):
        written(Failing(3), [records([7])], 5, 20)


class Repeating(MemoryStore):
    """A store that hears no answer, tries again by itself, and meets what it has written."""

    def create(self, path, data):
        super().create(path, data)
        return False


def test_file_that_is_there_as_it_was_written_is_the_own_one():
    store = Repeating()
    found = written(store, [records(range(5))], 0, 5)
    assert [add.path for add in found.adds] == list(store.objects)


@pytest.mark.parametrize("other", [b"", b"another" * 10_000])
def test_name_that_another_file_has_is_given_up(other):
    store = MemoryStore()
    store.create("data/0/1970-01-01/0-5-0000.parquet", other)
    found = written(store, [records(range(5))], 0, 5)
    assert [add.path for add in found.adds] == ["data/0/1970-01-01/0-5-0001.parquet"]
    for number in range(1, 3):
        store.objects[f"data/0/1970-01-01/0-5-{number:04}.parquet"] = other
    with pytest.raises(StoreError, match=r"not written in 3 attempts \(each name was taken\)"):
        written(store, [records(range(5))], 0, 5)


def test_digest_does_not_depend_on_where_files_end():
    batch = records(range(300))
    whole = digest_of(batch)
    for size in (1, 7, 100, 299):
        joined = Digest()
        for start in range(0, 300, size):
            joined = joined.joined(digest_of(batch.slice(start, size)))
        assert joined == whole
    assert Digest.parse(whole.text()) == whole
    assert len(set(record_hashes(batch).tolist())) == 300


def test_digest_of_large_values_is_that_of_their_records():
    at = SCHEMA.get_field_index("value")
    values = [b"a" * 70_000, b"", b"b" * 200_000, b"b" * 65_536, b"c"]
    batch = records(range(5)).set_column(at, SCHEMA.field(at), pa.array(values))
    alone = [record_hashes(batch.slice(row, 1))[0] for row in range(5)]
    assert record_hashes(batch).tolist() == alone


@pytest.mark.parametrize(
    "column",
    [
        name
        for name in SCHEMA.names
        if name not in ("stream", "partition", "leader_epoch", "timestamp")
    ],
)
def test_digest_sees_a_change_of_any_column(column):
    rows = records(range(40)).to_pylist()
    other = {
        "offset": 1_000,
        "timestamp_ns": 1,
        "key": b"",
        "value": b"other",
        "subject": "other",
        "reply_subject": "other",
        "headers": [{"key": "h", "value": b""}],
    }
    seen = {digest_of(records(range(40)))}
    for row in range(40):
        mutated = [dict(one) for one in rows]
        mutated[row][column] = other[column]
        seen.add(digest_of(pa.RecordBatch.from_pylist(mutated, SCHEMA)))
    swapped = [dict(one) for one in rows]
    swapped[3]["key"], swapped[3]["value"] = swapped[3]["value"], swapped[3]["key"]
    seen.add(digest_of(pa.RecordBatch.from_pylist(swapped, SCHEMA)))
    assert len(seen) == 42


@pytest.fixture
def table():
    store = MemoryStore()
    table = open_table(store, STREAM, STREAM_ID, Making("id", NOW_MS))
    snapshot = table.snapshot
    for start, end in [(0, 50), (50, 120)]:
        found = written(table.store, [records(range(start, end))], start, end)
        proposal = Proposal(
            run_id=str(start), stream_id=STREAM_ID, claims=[Claim((found,))], now_ms=NOW_MS
        )
        snapshot = commit(table.store, snapshot, proposal).snapshot
    return table._replace(snapshot=snapshot)


def objects(table):
    return table.store.store.objects


def data_path(table, start):
    (add,) = [one for one in table.snapshot.files.values() if one.origin.start == start]
    return add, f"orders/{add.path}"


def test_whole_archive_has_no_finding(table):
    assert len(table.snapshot.files) == 2
    assert verify(table.store) == []


def test_missing_file_is_found(table):
    _, path = data_path(table, 50)
    del objects(table)[path]
    (finding,) = verify(table.store)
    assert f"orders/{finding.place}" == path
    assert finding.text.startswith("the file is missing; ")


def test_cut_file_is_found(table):
    _, path = data_path(table, 50)
    objects(table)[path] = objects(table)[path][:-1]
    assert "the log says" in verify(table.store)[0].text


def test_damage_anywhere_in_a_file_is_found_or_changes_no_record(table):
    """Checksums of pages hold all columns, the digest what was decoded."""
    _, path = data_path(table, 50)
    whole = objects(table)[path]
    records_of = pq.read_table(io.BytesIO(whole))
    found = 0
    for at in range(0, len(whole), 29):
        damaged = bytearray(whole)
        damaged[at] ^= 0x10
        objects(table)[path] = bytes(damaged)
        findings = verify(table.store)
        is_same = bool(findings) or pq.read_table(io.BytesIO(damaged)).equals(records_of)
        assert is_same, at
        found += bool(findings)
    assert found > 50


def replace_entry(table, version, change):
    path = f"orders/_delta_log/{version:020}.json"
    lines = [json.loads(line) for line in objects(table)[path].splitlines()]
    change({name: members for line in lines for name, members in line.items()})
    objects(table)[path] = b"".join(json.dumps(line).encode() + b"\n" for line in lines)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda line: line["txn"].update(version=119), "is at 119, its ranges at 120"),
        (lambda line: line["commitInfo"]["liftbridge"].update(ranges=[]), "is in no range"),
        (lambda line: line["commitInfo"].pop("liftbridge"), "another writer has changed"),
        (
            lambda line: line["commitInfo"]["liftbridge"]["ranges"][0].update(start=60),
            "continues at 60, but ended at 50",
        ),
        (
            lambda line: line["add"]["tags"].update({"liftbridge.start": "40"}),
            "a file from 40 to 120 is in no range",
        ),
        (lambda line: line["add"]["tags"].update({"liftbridge.end": "119"}), "files end at 119"),
        (lambda line: line["add"].update(size=1), "the log says 1"),
        (
            lambda line: line["add"]["tags"].update({"liftbridge.digest": f"70:{0:016}:{0:016}"}),
            "the records are not those",
        ),
        (
            lambda line: line["add"].update(stats='{"numRecords":3}'),
            "70 records, but the log says 3",
        ),
    ],
)
def test_entry_that_does_not_fit_is_found(table, change, text):
    replace_entry(table, 2, change)
    assert text in " | ".join(one.text for one in verify(table.store))


def test_missing_entry_is_found(table):
    del objects(table)["orders/_delta_log/00000000000000000001.json"]
    (finding,) = verify(table.store)
    assert "00000000000000000001.json is missing, but entry 2 exists" in finding.text


def test_file_that_is_named_twice_under_two_names_is_found(table):
    add, path = data_path(table, 50)
    copied = {**delta.as_members(add), "path": "data/copy.parquet", "tags": None}
    objects(table)["orders/data/copy.parquet"] = objects(table)[path]
    entry = json.dumps({"add": copied}).encode()
    objects(table)["orders/_delta_log/00000000000000000003.json"] = entry
    text = " | ".join(one.text for one in verify(table.store))
    assert "offset 50 is in data/" in text
    assert "another writer has changed what the table holds" in text
