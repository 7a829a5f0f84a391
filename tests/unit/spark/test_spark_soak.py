"""What `make spark-soak` would notice: a record that is lost, kept twice or changed, an orphan."""

import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa

from liftbridge_testkit.archive_runs import NOW_MS, STREAM, STREAM_ID
from liftbridge_testkit.archive_runs import records as made_up
from liftbridge_testkit.spark_soak import checks
from liftbridge_testkit.spark_soak.records import counts, pieces, values
from liftbridge_testkit.spark_soak.runners import kill_session, living
from pyspark_liftbridge.archive.commit import Proposal, commit
from pyspark_liftbridge.archive.delta_log import delta
from pyspark_liftbridge.archive.digest import digest_of
from pyspark_liftbridge.archive.fence import Claim
from pyspark_liftbridge.archive.files import Chance, Place, write_files
from pyspark_liftbridge.archive.stores.folder import LocalFolder
from pyspark_liftbridge.archive.table import Making, Table, open_table

WANTED = {0: 40, 1: 25}


def records(partition: int, offsets: range) -> pa.RecordBatch:
    batch = made_up(offsets, partition=partition)
    at = batch.schema.get_field_index("value")
    return batch.set_column(at, batch.schema.field(at), values(partition, np.array(offsets)))


def archived(folder: Path) -> Table:
    table = open_table(LocalFolder(folder), STREAM, STREAM_ID, Making(str(uuid4()), NOW_MS))
    claims = []
    for partition, count in WANTED.items():
        place = Place(STREAM, STREAM_ID, delta.Span(partition, 0, count))
        chance = Chance(lambda: uuid4().hex, NOW_MS)
        batch = records(partition, range(count))
        claims.append(Claim((write_files(table.store, place, [batch], chance),)))
    proposal = Proposal(run_id=uuid4().hex, stream_id=STREAM_ID, claims=claims, now_ms=NOW_MS)
    return table._replace(snapshot=commit(table.store, table.snapshot, proposal).snapshot)


def counted(*batches: pa.RecordBatch) -> tuple[int, int, int]:
    ledger = checks.Ledger(WANTED).filled(batches)
    return ledger.lost, ledger.twice, ledger.wrong


def test_a_whole_table_is_found_whole(tmp_path: Path) -> None:
    archived(tmp_path)
    found = checks.by_deltalake(str(tmp_path / STREAM), {})
    ledger = checks.Ledger(WANTED).filled(found)
    assert (ledger.lost, ledger.twice, ledger.wrong) == (0, 0, 0)
    whole = (digest_of(records(one, range(count))) for one, count in WANTED.items())
    assert ledger.digest == next(whole).joined(next(whole))


def test_lost_repeated_and_changed_records_are_counted() -> None:
    whole = records(0, range(40)), records(1, range(25))
    assert counted(*whole) == (0, 0, 0)
    assert counted(whole[0], records(1, range(3, 25))) == (3, 0, 0)
    assert counted(*whole, records(1, range(2, 4))) == (0, 2, 0)
    assert counted(*whole, records(0, range(40, 41))) == (0, 0, 1)
    elsewhere = whole[1].column("value")
    at = whole[0].schema.get_field_index("value")
    changed = pa.concat_arrays([elsewhere.slice(0, 1), whole[0].column("value").slice(1)])
    assert counted(whole[0].set_column(at, whole[0].schema.field(at), changed), whole[1]) == (
        0,
        0,
        1,
    )


def test_a_file_in_no_entry_is_a_stranger(tmp_path: Path) -> None:
    store = archived(tmp_path).store
    assert checks.strangers(store) == []
    store.create("data/0/2025-01-01/0-1-abc.parquet", b"left")
    assert checks.strangers(store) == ["data/0/2025-01-01/0-1-abc.parquet"]


def test_all_records_are_published_once_in_the_order_of_their_offsets() -> None:
    wanted = counts(10_001, 3)
    assert sum(wanted.values()) == 10_001
    found: dict[int, list[bytes]] = {one: [] for one in wanted}
    for piece in pieces(wanted):
        (partition,) = set(piece.column("partition").to_pylist())
        found[partition] += piece.column("value").to_pylist()
    for partition, count in wanted.items():
        assert found[partition] == values(partition, np.arange(count)).to_pylist()
    assert len({one for part in found.values() for one in part}) == 10_001


def test_a_killed_session_leaves_no_process_of_any_group() -> None:
    code = "import os, time; os.fork() or os.setpgid(0, 0); os.write(1, b'.'); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.read(2) == b".."
            assert len({os.getpgid(one) for one in living(process.pid)}) == 2
        finally:
            kill_session(process.pid)
        assert living(process.pid) == []
