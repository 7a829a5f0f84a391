"""An archive of a real broker's stream is compacted, by tasks that run in this process."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from deltalake import DeltaTable

from liftbridge_client import SyncClient
from liftbridge_testkit.processes import Broker
from pyspark_liftbridge.archive.delta_log import log
from pyspark_liftbridge.archive.errors import ContentionError
from pyspark_liftbridge.archive.gc import orphans
from pyspark_liftbridge.archive.stores.store import Below, open_store
from pyspark_liftbridge.archive.verify import verify
from pyspark_liftbridge.jobs import archive, audit, compact
from pyspark_liftbridge.jobs.archive import archive_once
from pyspark_liftbridge.jobs.holders import Access
from pyspark_liftbridge.plan.options import OptionError

Rows = list[tuple[int, int, bytes | None, bytes]]


def compacting(works: Sequence[str]) -> list[str]:
    return [compact.do(one) for one in works]


def archiving(works: Sequence[str]) -> list[str]:
    return [archive.do(one) for one in works]


def archived(broker: Broker, stream: str, root: Path) -> int:
    job = archive.Job(stream, str(root), {"servers": broker.address}, {}, fails_on_loss=True)
    return archive_once(job, archiving).records


def job(stream: str, root: Path, *, keep_tombstones_ms: int | None = None) -> compact.Job:
    return compact.Job(stream, str(root), {}, 1 << 27, keep_tombstones_ms)


def publish(lb: SyncClient, stream: str, partition: int, *records: tuple[bytes, bytes]) -> None:
    for key, value in records:
        lb.streams.get(stream).publish(value, key=key, partition=partition)


def rows(root: Path, stream: str) -> Rows:
    table = DeltaTable(root / stream).to_pyarrow_table(
        columns=["partition", "offset", "key", "value"]
    )
    return sorted(zip(*table.to_pydict().values(), strict=True))


def grown(broker: Broker, lb: SyncClient, stream: str, root: Path, *, times: int = 3) -> None:
    """An archive of so many files in each of two partitions."""
    lb.streams.create(stream, partitions=2)
    for number in range(times):
        for partition in (0, 1):
            publish(lb, stream, partition, (b"a", b"%d" % number), (b"b", b"%d" % number))
        archived(broker, stream, root)


def table_of(root: Path, stream: str) -> Below:
    return Below(open_store(str(root)), f"{stream}/")


def test_small_files_become_one_for_each_partition_and_the_archive_goes_on(
    broker: Broker, lb: SyncClient, tmp_path: Path, name: str
) -> None:
    grown(broker, lb, name, tmp_path)
    before = rows(tmp_path, name)
    done = compact.compact(job(name, tmp_path), compacting)
    assert (done.files_before, done.files_after, done.records_removed) == (6, 2, 0)
    assert rows(tmp_path, name) == before
    again = compact.compact(job(name, tmp_path), compacting)
    assert (again.version, again.files_before) == (done.version, 0)
    publish(lb, name, 0, (b"a", b"3"))
    assert archived(broker, name, tmp_path) == 1
    assert rows(tmp_path, name) == sorted([*before, (0, 6, b"a", b"3")])
    assert verify(table_of(tmp_path, name)) == []
    day = 24 * 3_600_000
    table = table_of(tmp_path, name)
    late = max(one.modified_ms for one in table.listing("")) + day + 1_000
    assert len(orphans(table, now_ms=late)) == 6


def test_archiving_between_plan_and_commit_is_not_in_the_way(
    broker: Broker, lb: SyncClient, tmp_path: Path, name: str
) -> None:
    grown(broker, lb, name, tmp_path)
    rounds = 0

    def disturbed(works: Sequence[str]) -> list[str]:
        nonlocal rounds
        rounds += 1
        texts = compacting(works)
        if rounds == 1:
            publish(lb, name, 0, (b"c", b"9"))
            assert archived(broker, name, tmp_path) == 1
        return texts

    done = compact.compact(job(name, tmp_path), disturbed)
    # The second round joins what was archived meanwhile.
    assert (rounds, done.files_before, done.files_after) == (2, 8, 3)
    assert len(log.load(table_of(tmp_path, name)).files) == 2
    assert len(rows(tmp_path, name)) == 13
    assert verify(table_of(tmp_path, name)) == []


def test_other_compaction_in_between_is_planned_upon(
    broker: Broker, lb: SyncClient, tmp_path: Path, name: str
) -> None:
    grown(broker, lb, name, tmp_path)
    before = rows(tmp_path, name)
    others = 0

    def beaten(works: Sequence[str]) -> list[str]:
        nonlocal others
        texts = compacting(works)
        if not others:
            others = compact.compact(job(name, tmp_path), compacting).files_before
        return texts

    done = compact.compact(job(name, tmp_path), beaten)
    assert (done.files_before, others) == (0, 6)
    assert rows(tmp_path, name) == before
    assert verify(table_of(tmp_path, name)) == []


def test_a_run_that_others_always_beat_gives_up(
    broker: Broker, lb: SyncClient, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compact, "ROUNDS_MAX", 3)
    grown(broker, lb, name, tmp_path, times=2)

    def beaten(works: Sequence[str]) -> list[str]:
        texts = compacting(works)
        compact.compact(job(name, tmp_path), compacting)
        publish(lb, name, 0, (b"a", b"x"))
        publish(lb, name, 1, (b"a", b"x"))
        archived(broker, name, tmp_path)
        return texts

    with pytest.raises(ContentionError, match="other runs won all 3 rounds"):
        compact.compact(job(name, tmp_path), beaten)
    assert verify(table_of(tmp_path, name)) == []


def test_the_last_record_of_each_key_stays(
    broker: Broker, lb: SyncClient, tmp_path: Path, name: str
) -> None:
    grown(broker, lb, name, tmp_path)
    publish(lb, name, 0, (b"", b"without"), (b"b", b""))
    archived(broker, name, tmp_path)
    hour = 3_600_000
    done = compact.compact(job(name, tmp_path, keep_tombstones_ms=hour), compacting)
    last = [(1, 4, b"a", b"2"), (1, 5, b"b", b"2")]
    assert done.records_removed == 9
    assert rows(tmp_path, name) == [
        (0, 4, b"a", b"2"),
        (0, 6, None, b"without"),
        (0, 7, b"b", b""),
        *last,
    ]
    assert compact.compact(job(name, tmp_path, keep_tombstones_ms=hour), compacting)[3:] == (
        *(0,) * 5,
    )
    done = compact.compact(job(name, tmp_path, keep_tombstones_ms=0), compacting)
    assert done.records_removed == 1
    assert rows(tmp_path, name) == [(0, 4, b"a", b"2"), (0, 6, None, b"without"), *last]
    # The archive goes on where it was.
    publish(lb, name, 1, (b"b", b"3"))
    assert archived(broker, name, tmp_path) == 1
    assert verify(table_of(tmp_path, name)) == []


def test_an_audit_knows_what_a_compaction_by_key_left_out(
    broker: Broker, lb: SyncClient, tmp_path: Path, name: str
) -> None:
    grown(broker, lb, name, tmp_path)
    access = Access({"servers": broker.address}, str(tmp_path), {})

    def audited() -> audit.Audited:
        return audit.audit(
            audit.Job(name, access, ""), lambda works: [audit.do(one) for one in works]
        )

    assert (audited().differences, audited().superseded) == ((), 0)
    compact.compact(job(name, tmp_path, keep_tombstones_ms=0), compacting)
    found = audited()
    assert (found.differences, found.superseded) == ((), 8)


def test_what_was_not_archived_is_not_compacted(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="holds no archive of stream 'nowhere'"):
        compact.compact(job("nowhere", tmp_path), compacting)
    assert list(tmp_path.iterdir()) in ([], [tmp_path / "_probe"])
