"""The time behind what is archived of a partition: known, or not told at all."""

from datetime import UTC, datetime, timedelta

import pytest

from liftbridge_testkit.archive_runs import NOW_MS, STREAM, STREAM_ID
from pyspark_liftbridge.archive import fence
from pyspark_liftbridge.archive.delta_log import delta
from pyspark_liftbridge.archive.delta_log.log import Snapshot
from pyspark_liftbridge.archive.digest import Digest
from pyspark_liftbridge.archive.reading import time_behind

DAY = datetime(2026, 1, 1, tzinfo=UTC)


def add_of(path, seconds, *, last=8, partition=0, is_ours=True, has_times=True):
    """A file whose last record is of so many seconds after the day began."""
    time = (DAY + timedelta(seconds=seconds)).isoformat()
    stats = delta.Stats(1, (partition, partition), (0, last), (time, time) if has_times else None)
    origin = delta.Origin(partition, 0, 1, Digest()) if is_ours else None
    return delta.Add(path, 1, NOW_MS, is_change=True, stats_text="", stats=stats, origin=origin)


def snapshot_of(*adds, end=9, by_key=None):
    metadata = delta.Metadata("", {delta.STREAM: STREAM, delta.STREAM_ID: f"{STREAM_ID}"}, NOW_MS)
    versions = {fence.app_id(STREAM_ID, 0): end, fence.by_key_id(STREAM_ID, 0): by_key}
    return Snapshot(
        0,
        metadata=metadata,
        files={one.path: one for one in adds},
        ends={
            name: delta.Txn(name, version, NOW_MS)
            for name, version in versions.items()
            if version is not None
        },
    )


@pytest.mark.parametrize("by_key", [None, 8])
def test_it_is_that_of_the_latest_record_and_a_little_more(by_key):
    adds = add_of("a", 7), add_of("b", 5), add_of("c", 60, partition=1)
    found = time_behind(snapshot_of(*adds, by_key=by_key), 0)
    assert timedelta(0) < found - (DAY + timedelta(seconds=7)) < timedelta(milliseconds=3)


def test_files_that_another_writer_has_put_together_count_for_all_partitions():
    adds = add_of("a", 7), add_of("b", 9, partition=1, is_ours=False)
    assert time_behind(snapshot_of(*adds), 0) > DAY + timedelta(seconds=9)


@pytest.mark.parametrize(
    "snapshot",
    [
        snapshot_of(),
        snapshot_of(add_of("a", 7), add_of("b", 9, has_times=False)),
        snapshot_of(add_of("a", 7), by_key=9),
        snapshot_of(add_of("a", 7, last=7)),
    ],
    ids=["nothing", "no times", "compacted", "nothing of the last offset"],
)
def test_it_is_not_told_where_it_is_not_known(snapshot):
    assert time_behind(snapshot, 0) is None
