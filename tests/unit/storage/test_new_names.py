"""Names of new log files are durable before a record in them counts, and in order."""

from contextlib import suppress
from random import Random

import pytest

from liftbridge_broker.errors import FilesError
from liftbridge_broker.model.ids import Offset
from liftbridge_broker.storage.log.types import LogLimits
from liftbridge_testkit.log_bench import DIRECTORY, LogBench, log_path, sync_log
from liftbridge_testkit.memory_files import Fault, PowerCutError

ROLLING = LogLimits(500, 0)


def operations(bench: LogBench, since: int) -> list[str]:
    """Return what was done to the disk since a number of points."""
    return [operation for operation, _ in list(bench.files.power.log)[since:]]


def test_first_record_waits_for_no_sync_and_the_first_sync_includes_its_name() -> None:
    bench = LogBench()
    before = bench.files.power.points
    bench.append(b"a")
    assert operations(bench, before) == ["create", "append"]
    assert bench.log.unsynced().directories == (DIRECTORY,)
    sync_log(bench.files, bench.log)
    bench.journal = bench.log.state
    bench.append(b"b")
    assert bench.log.unsynced().directories == ()
    bench.files.crash(keep=None)
    bench.open()
    assert bench.values() == {0: b"a"}


def test_clean_stop_includes_the_name_of_the_first_segment() -> None:
    bench = LogBench()
    bench.append(b"a")
    bench.stop()
    bench.files.crash(keep=None)
    bench.open(clean=True)
    assert bench.values() == {0: b"a"}


def test_clean_stop_includes_the_name_of_a_file_whose_first_record_was_refused() -> None:
    bench = LogBench()
    bench.files.fail(Fault("append", log_path(0), count=1))
    with pytest.raises(FilesError):
        bench.append(b"a")
    bench.stop()
    bench.open(clean=True)
    bench.append(b"b")
    bench.sync()
    bench.files.crash(keep=None)
    bench.open()
    assert bench.values() == {0: b"b"}


@pytest.mark.parametrize("is_synced", [False, True])
def test_name_that_a_killed_process_left_counts_only_after_the_next_sync(is_synced: bool) -> None:
    """A name of a process that was killed is as new to the disk as it was to that process."""
    bench = LogBench()
    bench.append(b"a")
    if is_synced:
        bench.sync()
    bench.files.kill()
    bench.open()
    assert bench.log.unsynced().directories == (() if is_synced else (DIRECTORY,))
    bench.stop()
    bench.files.crash(keep=None)
    bench.open(clean=True)
    assert bench.values() == {0: b"a"}


def test_all_names_are_durable_before_another_segment_follows() -> None:
    bench = LogBench(ROLLING)
    bench.append(b"x" * 500)
    before = bench.files.power.points
    bench.append(b"y")
    done = list(bench.files.power.log)[before:]
    assert done.index(("sync_directory", DIRECTORY)) < done.index(("create", log_path(1)))


def test_power_cut_leaves_no_gap_between_segments() -> None:
    for seed in range(200):
        bench = LogBench(ROLLING)
        bench.files.power.cut_at = bench.files.power.points + 1 + seed % 20
        with suppress(PowerCutError):
            for number in range(6):
                bench.append(b"%d" % number * 500)
        bench.files.crash(Random(seed))
        report = bench.open()
        assert "a segment begins" not in report.reason
        assert sorted(bench.values()) == list(range(bench.log.log_end_offset))


def test_name_that_came_during_a_sync_joins_the_next() -> None:
    """A cut removed the first file meanwhile, and another took its place."""
    bench = LogBench()
    bench.append(b"a", b"b")
    bench.log.unsynced()
    bench.log.truncate(Offset(0))
    bench.append(b"c", epoch=2)
    bench.log.mark_synced(Offset(2))
    assert bench.log.unsynced().directories == (DIRECTORY,)
    assert bench.log.segments()[0].path == log_path(0)
