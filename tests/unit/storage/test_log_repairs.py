"""What opening a log spares, repairs and completes: indexes, left-overs, small state."""

from collections.abc import Callable

import pytest

from liftbridge_broker.errors import FilesError
from liftbridge_broker.model.ids import LeaderEpoch, Offset
from liftbridge_broker.storage.log import lookup
from liftbridge_broker.storage.log.recovery import CUT_COPIES_MAX
from liftbridge_broker.storage.log.state import LogState
from liftbridge_broker.storage.log.types import LogLimits, RecoveryReport
from liftbridge_testkit.batches import Batches
from liftbridge_testkit.log_bench import (
    DIRECTORY,
    LogBench,
    ReadCounter,
    damaged,
    index_path,
    log_path,
    segmented,
    snapshot,
    starts_of,
    three_batches,
)
from liftbridge_testkit.memory_files import Fault, PowerCutError

# What is not read.


def big_log(*, synced_to: int) -> LogBench:
    """2.5 MB in one segment, of which the first part is synced."""
    bench = LogBench(files=ReadCounter())
    for number in range(1200):
        bench.append(b"v" * 2000, timestamp=number)
        if number + 1 == synced_to:
            bench.sync()
    bench.files.kill()
    return bench


def bytes_read(bench: LogBench, act: Callable[[], object]) -> int:
    assert isinstance(bench.files, ReadCounter)
    before = bench.files.read_bytes
    act()
    return bench.files.read_bytes - before


def test_only_what_is_above_the_recovery_point_is_scanned() -> None:
    bench = big_log(synced_to=1100)
    size = len(bench.files.content(log_path(0)))
    assert bytes_read(bench, bench.open) < size // 2
    assert 100 * 2000 < bench.report.scanned_bytes < size // 2
    assert bench.log.log_end_offset == 1200
    assert [info.records for info in bench.log.segments()] == [1200]
    assert lookup.offset_for_timestamp(bench.log, 700) == 700
    assert bench.log.largest_timestamp == 1199


def test_sealed_segments_below_the_recovery_point_are_not_read() -> None:
    bench = LogBench(LogLimits(100_000, 0), files=ReadCounter())
    for number in range(500):
        bench.append(b"v" * 2000, timestamp=number)
    bench.sync()
    bench.files.kill()
    sealed = bench.log.segment_count - 1
    assert sealed > 8
    last = bench.log.segments()[-1].bytes
    assert bytes_read(bench, bench.open) <= sealed * 88 + 2 * last
    assert bench.report.scanned_bytes == last


def test_clean_start_reads_one_header_for_each_segment() -> None:
    bench = LogBench(LogLimits(100_000, 0), files=ReadCounter())
    for number in range(500):
        bench.append(b"v" * 2000, timestamp=number)
    bench.stop()
    before = bench.log.segments()
    assert bytes_read(bench, lambda: bench.open(clean=True)) == len(before) * 88
    assert bench.report == RecoveryReport()
    assert bench.log.segments() == before


def test_idle_log_is_not_scanned_after_a_kill() -> None:
    bench = big_log(synced_to=1200)
    bench.open()
    bench.stop()
    bench.files.kill()
    assert bytes_read(bench, bench.open) == 88
    bench.append(b"more", timestamp=5000)
    assert lookup.offset_for_timestamp(bench.log, 5000) == 1200


# Indexes.


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("fault", ["missing", "empty", "torn", "flipped", "junk", "foreign"])
def test_index_that_is_missing_or_wrong_is_made_anew(fault: str, clean: bool) -> None:
    bench = LogBench(LogLimits(20_000, 0))
    for number in range(40):
        bench.append(b"v" * 1000, timestamp=10 * number)
    bench.stop()
    good = bench.files.content(index_path(0))
    other = bench.files.content(index_path(bench.log.segments()[1].base))
    match fault:
        case "missing":
            bench.files.remove(index_path(0))
        case "empty":
            bench.files.put(index_path(0), b"")
        case "torn":
            bench.files.put(index_path(0), good[:-5])
        case "flipped":
            bench.files.put(index_path(0), damaged(good, len(good) - 30))
        case "junk":
            bench.files.put(index_path(0), b"junk" * 100)
        case _:
            bench.files.put(index_path(0), other)
    report = bench.open(clean=clean)
    assert (report.quarantined, report.rebuilt_indexes) == ((), 1)
    for number in range(40):
        assert lookup.offset_for_timestamp(bench.log, 10 * number - 5) == number
    bench.stop()
    assert bench.open(clean=clean).rebuilt_indexes == 0
    assert len(bench.values()) == 40


def test_entries_damaged_before_a_good_summary_are_made_anew_when_used() -> None:
    bench = LogBench(LogLimits(20_000, 0))
    for number in range(40):
        bench.append(b"v" * 1000, timestamp=10 * number)
    bench.stop()
    bench.files.put(index_path(0), damaged(bench.files.content(index_path(0)), 50))
    assert bench.open(clean=True).rebuilt_indexes == 0
    assert [lookup.offset_for_timestamp(bench.log, 10 * n) for n in range(40)] == list(range(40))
    assert len(bench.log.live_segments()[0].index) == 5
    assert [frame.offset for frame in bench.frames(7)] == list(range(7, 40))


def test_index_of_another_version_of_the_log_is_not_believed() -> None:
    bench = LogBench()
    for number in range(20):
        bench.append(b"v" * 1000, timestamp=200 + number)
    bench.stop()
    old, size = bench.files.content(index_path(0)), bench.log.size_bytes
    bench.open(clean=True)
    bench.log.truncate(Offset(10))
    for number in range(10):
        bench.append(b"w" * 1000, timestamp=1000 + number)
    bench.stop()
    assert bench.log.size_bytes == size
    bench.files.put(index_path(0), old)
    assert bench.open(clean=True).rebuilt_indexes == 1
    assert lookup.offset_for_timestamp(bench.log, 500) == 10
    assert bench.log.largest_timestamp == 1009


def log_of_one_shape(first: bytes) -> LogBench:
    """A synced log of 2.5 MB that begins with a filler and the given batch."""
    bench = LogBench()
    bench.append_raw(bench.made.filler(0, 200))
    bench.append_raw(first)
    for number in range(1200):
        bench.append(b"v" * 2000, timestamp=200 + number)
    bench.sync()
    bench.files.kill()
    return bench


def test_place_to_resume_at_that_does_not_fit_the_log_is_not_used() -> None:
    bench = log_of_one_shape(Batches().make(200, [b"v" * 2000]))
    index = bench.files.content(index_path(0))
    assert len(index) > 4 * 1024
    for first in (b"v" * 2000, b"v" * 2100):
        other = log_of_one_shape(Batches().sparse(200, 205, {200: first}))
        end = other.log.log_end_offset
        other.files.put(index_path(0), index)
        report = other.open()
        assert (report.quarantined, report.cut_offset) == ((), None)
        assert other.log.log_end_offset == end
        assert len(other.values()) == 1201
        assert lookup.offset_for_timestamp(other.log, 900) == 905


def test_power_cut_brings_back_no_index_entries_of_records_that_were_cut() -> None:
    bench = LogBench()
    for number in range(20):
        bench.append(b"v" * 5000, timestamp=1000 + number)
    bench.log.roll()
    bench.sync()
    bench.journal = bench.log.state._replace(recovery_point=Offset(5))
    bench.log.truncate(Offset(5))
    for number in range(15):
        bench.append(b"w" * 5000, timestamp=5000 + number)
    bench.sync()
    bench.files.crash(None)
    bench.open()
    assert lookup.offset_for_timestamp(bench.log, 1015) == 5
    assert lookup.offset_for_timestamp(bench.log, 5014) == 19


# Left-overs.


def test_files_of_an_unfinished_compaction_are_removed() -> None:
    bench = segmented(2, synced=2)
    bench.files.put(log_path(0) + ".cleaned", b"half")
    bench.files.put(index_path(0) + ".cleaned", b"half")
    report = bench.open()
    assert set(report.removed) == {log_path(0) + ".cleaned", index_path(0) + ".cleaned"}
    assert len(bench.values()) == 4


def test_index_without_log_is_removed() -> None:
    bench = segmented(2, synced=2)
    bench.files.put(index_path(77), b"old")
    assert bench.open().removed == (index_path(77),)


def test_unknown_files_are_left_alone() -> None:
    bench = segmented(2, synced=2)
    names = ("notes.txt", "publishers", "12.log", f"{5:021d}.log", "x" * 20 + ".log")
    for name in names:
        bench.files.put(f"{DIRECTORY}/{name}", b"mine")
    assert bench.open().removed == ()
    assert set(names) <= set(bench.paths())


def test_segments_below_the_log_start_are_removed_at_the_start() -> None:
    bench = segmented(4, synced=4)
    bench.files.remove(log_path(2))
    bench.journal = bench.log.state._replace(log_start=Offset(5), recovery_point=Offset(8))
    report = bench.open()
    assert report.quarantined == ()
    assert log_path(0) in report.removed
    assert list(bench.values()) == [5, 6, 7]


def merged(*, stale: int, log_start: int, ends: bool = False) -> LogBench:
    """Segments [0, 2), [2, 4), [4, 6) merged into one, and one of them left beside it.

    Args:
        stale: Base offset of the one that was left.
        log_start: Log start offset in the journal.
        ends: Whether the log ends there; else a segment follows.
    """
    bench = segmented(4, synced=4)
    parts = [bench.files.content(log_path(base)) for base in (0, 2, 4)]
    bench.files.put(log_path(0), b"".join(parts))
    for base in {2, 4} - {stale}:
        bench.files.remove(log_path(base))
    if ends:
        bench.files.remove(log_path(6))
    end = Offset(6 if ends else 8)
    bench.journal = bench.log.state._replace(log_start=Offset(log_start), recovery_point=end)
    return bench


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("log_start", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("stale", [2, 4])
def test_merged_segment_outlives_a_stale_one_that_it_covers(
    stale: int, log_start: int, ends: bool
) -> None:
    bench = merged(stale=stale, log_start=log_start, ends=ends)
    report = bench.open()
    assert report.quarantined == ()
    assert log_path(stale) in report.removed
    assert log_path(0) not in report.removed
    assert list(bench.values()) == list(range(log_start, 6 if ends else 8))


def test_merged_segment_below_the_log_start_goes_with_what_it_covers() -> None:
    bench = merged(stale=2, log_start=6)
    assert {log_path(0), log_path(2)} <= set(bench.open().removed)
    assert list(bench.values()) == [6, 7]


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_damaged_merged_segment_is_kept_for_an_operator(batch: int) -> None:
    bench = merged(stale=2, log_start=2)
    data = bench.files.content(log_path(0))
    bench.files.put(log_path(0), damaged(data, batch * len(data) // 3, 4))
    before = bench.files.content(log_path(0))
    report = bench.open()
    assert bench.files.content(log_path(0)) == before
    assert log_path(0) not in report.removed
    assert report.quarantined == (log_path(0),)


def test_torn_segment_below_the_log_start_is_removed() -> None:
    bench = segmented(3, synced=3)
    bench.files.put(log_path(0), bench.files.content(log_path(0))[:-30])
    bench.journal = bench.log.state._replace(log_start=Offset(2), recovery_point=Offset(6))
    report = bench.open()
    assert report.quarantined == ()
    assert log_path(0) in report.removed
    assert list(bench.values()) == [2, 3, 4, 5]


def test_log_whose_unsynced_end_was_below_the_log_start_begins_there() -> None:
    bench = segmented(2, synced=1)
    bench.files.put(log_path(2), b"")
    bench.journal = LogState(Offset(3), Offset(2), Offset(4), ((LeaderEpoch(1), Offset(0)),))
    report = bench.open()
    assert report.quarantined == ()
    assert bench.log.state == LogState(
        Offset(3), Offset(3), Offset(3), ((LeaderEpoch(1), Offset(3)),)
    )
    bench.append(b"here")
    assert bench.values() == {3: b"here"}
    assert bench.paths() == [f"{3:020d}.log"]


def test_whole_redo_file_is_completed_and_a_torn_one_dropped() -> None:
    bench, batches = three_batches(synced=3)
    before = snapshot(bench.files)
    bench.open()
    bench.journal = bench.log.state._replace(recovery_point=Offset(3))
    stops = bench.files.power.points
    bench.files.fail(Fault("truncate", log_path(0)))
    with pytest.raises(FilesError):
        bench.log.truncate(Offset(3))
    assert bench.files.power.points > stops
    redo = bench.files.content(log_path(0) + ".truncated")
    bench.files.kill()
    report = bench.open()
    assert report.removed == (log_path(0) + ".truncated",)
    assert list(bench.values()) == [0, 1, 2]
    for cut in range(len(redo)):
        again = LogBench()
        for path, data in before.items():
            again.files.put(path, data)
        again.journal = bench.journal
        again.files.put(log_path(0) + ".truncated", redo[:cut])
        again.open()
        assert list(again.values()) == [0, 1, 2, 3, 4, 5]
        assert again.files.content(log_path(0)) == b"".join(batches)


@pytest.mark.parametrize("point", range(1, 10))
def test_completing_a_cut_may_be_interrupted_too(point: int) -> None:
    bench, _ = three_batches(synced=3)
    bench.open()
    bench.journal = bench.log.state._replace(recovery_point=Offset(3))
    bench.files.fail(Fault("truncate", log_path(0)))
    with pytest.raises(FilesError):
        bench.log.truncate(Offset(3))
    bench.files.crash(None)
    bench.files.power.cut_at = bench.files.power.points + point
    is_opened(bench)
    bench.files.crash(None)
    assert bench.open().quarantined == ()
    assert list(bench.values()) == [0, 1, 2]


def test_redo_file_of_a_log_that_lost_its_end_changes_nothing() -> None:
    bench, batches = three_batches(synced=1)
    bench.open()
    bench.files.fail(Fault("truncate", log_path(0)))
    with pytest.raises(FilesError):
        bench.log.truncate(Offset(5))
    bench.files.kill()
    bench.files.put(log_path(0), batches[0])
    bench.open()
    assert bench.files.content(log_path(0)) == batches[0]


def test_copies_of_cut_tails_are_bounded() -> None:
    bench, batches = three_batches(synced=3)
    tails = [b"junk%d" % number for number in range(CUT_COPIES_MAX + 3)]
    for tail in tails:
        bench.files.put(log_path(0), b"".join(batches) + tail)
        bench.open()
        bench.log.abandon()
    copies = [path for path in bench.files.paths() if path.endswith(".cut")]
    assert len(copies) == CUT_COPIES_MAX
    assert {bench.files.content(path) for path in copies} == {*tails[:7], tails[-1]}


def test_copy_is_durable_before_the_log_is_cut() -> None:
    bench, batches = three_batches(synced=2)
    data = b"".join(batches)[:-9]
    for point in range(1, 20):
        bench.files.put(log_path(0), data)
        bench.files.power.cut_at = bench.files.power.points + point
        bench.journal = LogState(Offset(0), Offset(4), Offset(4), ())
        survived = is_opened(bench)
        bench.files.crash(None)
        copies = [p for p in bench.files.paths() if p.endswith(".cut")]
        kept = {bench.files.content(path) for path in copies}
        is_cut = bench.files.content(log_path(0)) == b"".join(batches[:2])
        assert not is_cut or data[len(b"".join(batches[:2])) :] in kept
        if survived:
            return
    pytest.fail("recovery has more write points than were tried")


def is_opened(bench: LogBench) -> bool:
    try:
        bench.open()
    except PowerCutError:
        return False
    return True


# Small state.


def test_epochs_that_began_behind_the_end_are_forgotten() -> None:
    bench, batches = three_batches(synced=2)
    epochs = ((LeaderEpoch(1), Offset(0)), (LeaderEpoch(3), Offset(4)), (LeaderEpoch(5), Offset(6)))
    bench.journal = LogState(Offset(0), Offset(4), Offset(6), epochs)
    bench.files.put(log_path(0), b"".join(batches)[:-1])
    bench.open()
    assert bench.log.epochs.entries == epochs[:2]
    assert bench.log.high_watermark == 4


def test_epochs_missing_in_the_journal_are_found_in_the_log() -> None:
    bench = LogBench()
    bench.append(b"a", epoch=2)
    bench.sync()
    bench.append(b"b", epoch=4)
    bench.append(b"c", epoch=9)
    bench.files.kill()
    bench.open()
    assert bench.log.epochs.entries == ((2, 0), (4, 1), (9, 2))


def test_epochs_below_the_log_start_do_not_come_back() -> None:
    bench = LogBench()
    bench.append(b"a", b"b", epoch=2)
    bench.append(b"c", b"d", epoch=4)
    bench.log.set_log_start(Offset(3))
    bench.journal = bench.log.state
    bench.files.kill()
    bench.open()
    assert bench.log.epochs.entries == ((4, 3),)


def test_high_watermark_stays_within_the_log() -> None:
    bench, _ = three_batches(synced=3)
    bench.journal = LogState(Offset(2), Offset(6), Offset(0), ())
    bench.open()
    assert bench.log.high_watermark == 2
    bench.journal = LogState(Offset(0), Offset(6), Offset(5), ())
    bench.open()
    assert bench.log.high_watermark == 5


# Failures of the file system.


@pytest.mark.parametrize("operation", ["list", "open", "read", "make_directory"])
def test_failure_while_opening_is_told_and_leaves_no_handle(operation: str) -> None:
    bench = segmented(3, synced=1)
    refused = 0
    for skip in range(6):
        bench.files.fail(Fault(operation, skip=skip))
        try:
            bench.open()
        except FilesError:
            assert bench.files.open_count == 0
            refused += 1
        bench.files.heal()
        bench.files.kill()
    assert refused
    assert bench.open().quarantined == ()
    assert len(bench.values()) == 6


def test_damage_is_told_with_file_and_position() -> None:
    bench, batches = three_batches(synced=3)
    position = starts_of(batches)[1]
    bench.files.put(log_path(0), batches[0] + damaged(batches[1], 100) + batches[2])
    assert bench.open().reason == (
        f"checksum of the batch is wrong ({log_path(0)} at byte {position})"
    )
