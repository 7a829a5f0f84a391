"""The log as its owner uses it: appending, rolling, syncing, moving its start, closing."""

import pytest

from liftbridge_broker.errors import CorruptionError, FilesError
from liftbridge_broker.logformat.index_blocks import RELATIVE_MAX
from liftbridge_broker.model.ids import LeaderEpoch, Offset, PartitionId
from liftbridge_broker.storage.log import lookup
from liftbridge_broker.storage.log.partition_log import PartitionLog
from liftbridge_broker.storage.log.rewrite import write_index_file
from liftbridge_broker.storage.log.types import EMPTY_STATE, NO_TIMESTAMP, LogLimits, RecoveryReport
from liftbridge_testkit.batches import PARTITION, Batches, header_of
from liftbridge_testkit.log_bench import (
    DIRECTORY,
    UNLIMITED,
    LogBench,
    damaged,
    index_path,
    log_path,
    snapshot,
)
from liftbridge_testkit.memory_files import Fault, MemoryFiles

# Appending and rolling.


def test_new_log_is_empty_and_has_no_files() -> None:
    bench = LogBench()
    log = bench.log
    assert bench.report == RecoveryReport()
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (0, 0, 0)
    assert (log.size_bytes, log.segment_count, log.largest_timestamp) == (0, 1, NO_TIMESTAMP)
    assert (lookup.first_timestamp(log), lookup.last_timestamp(log)) == (None, None)
    assert log.state == EMPTY_STATE
    assert bench.paths() == []
    assert bench.frames() == []


def test_directory_is_made_when_there_is_none() -> None:
    files = MemoryFiles()
    PartitionLog.open(files, "a/b/c", PARTITION, UNLIMITED, EMPTY_STATE, clean=True, commit=False)
    assert files.exists("a/b/c")


def test_file_holds_exactly_the_batches() -> None:
    bench = LogBench()
    batches = [bench.append(b"a", b"b"), bench.append(b"c")]
    assert bench.files.content(log_path(0)) == b"".join(batches)
    assert (bench.log.log_end_offset, bench.log.size_bytes) == (3, sum(map(len, batches)))


def test_several_batches_are_one_write() -> None:
    bench = LogBench()
    bench.append(b"first")
    batches = [Batches().make(1, [b"a"], epoch=2), Batches().make(2, [b"b", b"c"], epoch=5)]
    before = bench.files.power.points
    bench.log.append_batches(b"".join(batches), [header_of(b) for b in batches], 0)
    assert bench.files.power.points == before + 1
    assert list(bench.values()) == [0, 1, 2, 3]
    assert bench.log.epochs.entries == ((1, 0), (2, 1), (5, 2))


@pytest.mark.parametrize(
    "batch",
    [
        Batches().make(1, [b"x"], epoch=5),
        Batches().make(3, [b"x"], epoch=5),
        Batches().make(2, [b"x"], epoch=4),
        Batches(PartitionId(1)).make(2, [b"x"], epoch=5),
    ],
)
def test_batch_that_does_not_follow_stops(batch: bytes) -> None:
    bench = LogBench()
    bench.append(b"a", b"b", epoch=5)
    with pytest.raises(AssertionError):
        bench.append_raw(batch)


def test_batches_that_do_not_follow_are_noticed_before_they_are_written() -> None:
    bench = LogBench()
    bench.append(b"a", epoch=5)
    before = bench.files.content(log_path(0))
    good = Batches().make(1, [b"b"], epoch=5)
    for second in (Batches().make(3, [b"c"], epoch=5), Batches().make(2, [b"c"], epoch=4)):
        headers = [header_of(good), header_of(second)]
        with pytest.raises(AssertionError):
            bench.log.append_batches(good + second, headers, 0)
    with pytest.raises(AssertionError):
        bench.log.append_batches(good + b"x", [header_of(good)], 0)
    assert bench.files.content(log_path(0)) == before


def test_index_that_cannot_be_read_refuses_a_batch_before_it_is_written() -> None:
    bench = LogBench()
    bench.append(b"a")
    bench.log._active._index = None  # as after a start, before anybody needed it
    before = bench.files.content(log_path(0))
    bench.files.fail(Fault("read", log_path(0)))
    with pytest.raises(FilesError, match="read"):
        bench.append(b"b")
    assert bench.files.content(log_path(0)) == before
    assert bench.log.log_end_offset == 1
    bench.append(b"b")
    assert list(bench.values()) == [0, 1]


def test_segment_is_rolled_before_the_append_that_finds_it_full() -> None:
    bench = LogBench(LogLimits(1000, 0))
    bench.append(b"x" * 800)
    bench.append(b"x" * 10)
    assert bench.log.segment_count == 1
    assert bench.log.size_bytes >= 1000
    bench.append(b"x" * 10)
    assert [(s.base, s.end, s.sealed) for s in bench.log.segments()] == [
        (0, 2, True),
        (2, 3, False),
    ]


def test_segment_is_rolled_by_the_age_of_its_first_append() -> None:
    bench = LogBench(LogLimits(0, 100))
    assert not bench.log.needs_roll(10**18)
    bench.append(b"a", wall_ns=1000)
    assert not bench.log.needs_roll(1099)
    assert bench.log.needs_roll(1100)
    bench.append(b"b", wall_ns=1099)
    bench.append(b"c", wall_ns=1100)
    assert [s.base for s in bench.log.segments()] == [0, 2]
    assert not bench.log.needs_roll(1199)


def test_restored_old_records_do_not_roll_at_each_append() -> None:
    bench = LogBench(LogLimits(0, 100))
    for _ in range(5):
        bench.append(b"old", timestamp=5, wall_ns=10**18)
    assert bench.log.segment_count == 1


def test_limits_of_nothing_never_roll() -> None:
    bench = LogBench(UNLIMITED)
    for number in range(20):
        bench.append(b"x" * 5000, wall_ns=number * 10**18)
    assert bench.log.segment_count == 1


def test_segment_is_rolled_before_its_index_could_not_name_an_offset() -> None:
    bench = LogBench()
    bench.append_raw(bench.made.filler(0, RELATIVE_MAX))
    bench.append(b"a")
    bench.append(b"b")
    bench.append(b"c")
    assert [s.base for s in bench.log.segments()] == [0, RELATIVE_MAX + 1]
    assert [f.value for f in bench.frames()] == [b"a", b"b", b"c"]


def test_rolling_an_empty_segment_does_nothing() -> None:
    bench = LogBench()
    bench.log.roll()
    bench.append(b"a")
    bench.log.roll()
    bench.log.roll()
    assert bench.log.segment_count == 2


def test_epoch_that_was_assigned_before_keeps_its_start() -> None:
    bench = LogBench()
    bench.append(b"a", epoch=1)
    bench.log.epochs.assign(LeaderEpoch(3), Offset(1))
    version = bench.log.epochs.version
    bench.append(b"b", epoch=3)
    assert bench.log.epochs.entries == ((1, 0), (3, 1))
    assert bench.log.epochs.version == version


def test_largest_timestamp_never_falls() -> None:
    bench = LogBench()
    for timestamp in (5, 9, 7):
        bench.append(b"x", timestamp=timestamp)
    assert bench.log.largest_timestamp == 9
    assert bench.log.segments()[0].largest_timestamp == 9


# Failures while appending.


@pytest.mark.parametrize("is_full", [False, True])
def test_append_that_the_disk_refuses_changes_nothing(is_full: bool) -> None:
    bench = LogBench()
    bench.append(b"a")
    before, state, segments = snapshot(bench.files), bench.log.state, bench.log.segments()
    bench.files.fail(Fault("append", log_path(0), is_full=is_full))
    with pytest.raises(FilesError) as caught:
        bench.append(b"b", epoch=9)
    assert caught.value.is_full == is_full
    assert snapshot(bench.files) == before
    assert (bench.log.state, bench.log.segments()) == (state, segments)
    bench.append(b"b")
    assert bench.values() == {0: b"a", 1: b"b"}


@pytest.mark.parametrize("operation", ["open", "sync_directory", "append"])
@pytest.mark.parametrize("path", ["*.log", "*.index", "*"])
def test_first_append_to_a_segment_can_fail_and_be_tried_again(operation: str, path: str) -> None:
    bench = LogBench(LogLimits(100, 0))
    bench.append(b"x" * 100)
    bench.files.fail(Fault(operation, path))
    try:
        bench.append(b"y")
    except FilesError:
        assert bench.log.log_end_offset == 1
        bench.append(b"y")
    bench.files.heal()
    assert bench.log.log_end_offset == 2
    bench.stop()
    assert bench.files.open_count == 0
    assert bench.open(clean=True).quarantined == ()
    assert list(bench.values()) == [0, 1]


def test_index_that_cannot_be_written_costs_only_a_rebuild() -> None:
    bench = LogBench(LogLimits(100_000, 0))
    bench.append(b"x" * 5000)
    bench.files.fail(Fault("append", "*.index", count=-1, is_full=True))
    for number in range(600):
        bench.append(b"x" * 5000, timestamp=number)
    assert bench.log.index_failures >= 20
    bench.files.heal()
    bench.stop()
    report = bench.open(clean=True)
    assert report.quarantined == ()
    assert report.rebuilt_indexes > 20
    assert lookup.offset_for_timestamp(bench.log, 300) == 301


def test_block_of_index_that_failed_leaves_look_ups_right() -> None:
    bench = LogBench()
    bench.files.fail(Fault("append", "*.index", count=1))
    for number in range(700):
        bench.append(b"x" * 5000, timestamp=number)
    assert bench.log.index_failures == 1
    bench.stop()
    bench.open(clean=True)
    times = list(range(0, 700, 50))
    assert [lookup.offset_for_timestamp(bench.log, time) for time in times] == times


def test_blocks_of_index_are_written_while_the_log_grows() -> None:
    bench = LogBench()
    for _ in range(300):
        bench.append(b"x" * 5000)
    assert len(bench.files.content(index_path(0))) > 256 * 16


# Syncing.


def test_records_are_synced_when_the_sync_says_so() -> None:
    bench = LogBench()
    assert not bench.log.is_dirty
    bench.append(b"a", b"b")
    assert bench.log.is_dirty
    handles = bench.log.unsynced().handles
    bench.append(b"c")
    for handle in handles:
        bench.files.sync(handle)
    bench.log.mark_synced(Offset(2))
    assert (bench.log.recovery_point, bench.log.is_dirty) == (2, True)
    bench.sync()
    assert (bench.log.recovery_point, bench.log.is_dirty) == (3, False)
    assert bench.log.unsynced() == ((), ())


def test_sync_names_every_file_with_unsynced_records_and_sealed_indexes() -> None:
    bench = LogBench(LogLimits(500, 0))
    bench.append(b"x" * 500)
    bench.sync()
    for _ in range(3):
        bench.append(b"x" * 500)
    paths = [bench.files._handles[handle].path for handle in bench.log.unsynced().handles]
    sealed = [index_path(0), index_path(1), index_path(2)]
    assert paths == [log_path(1), log_path(2), log_path(3), *sealed]
    bench.log.mark_synced(Offset(4))
    assert bench.log.unsynced() == ((), ())


def test_sync_in_flight_does_not_vouch_for_what_replaced_a_cut_tail() -> None:
    bench = LogBench()
    bench.append(b"a", b"b", b"c")
    bench.log.unsynced()
    bench.log.truncate(Offset(1))
    bench.append(b"other", b"other", epoch=2)
    bench.log.mark_synced(Offset(3))
    assert bench.log.recovery_point == 1
    bench.sync()
    assert bench.log.recovery_point == 3


def test_sync_never_lowers_the_recovery_point() -> None:
    bench = LogBench()
    bench.append(b"a", b"b")
    bench.sync()
    bench.log.unsynced()
    bench.log.mark_synced(Offset(1))
    assert bench.log.recovery_point == 2


def test_files_of_a_sync_in_flight_stay_open_until_it_is_over() -> None:
    bench = LogBench(LogLimits(100, 0))
    bench.append(b"x" * 100)
    bench.append(b"y" * 100)
    handles = bench.log.unsynced().handles
    bench.log.set_log_start(Offset(1))
    bench.log.drop_segments_below(Offset(1))
    bench.log.truncate(Offset(1))
    assert bench.log.close_idle() == 0
    for handle in handles:
        bench.files.sync(handle)
    bench.log.mark_synced(Offset(2))
    assert bench.files.open_count == 0


def test_log_that_is_never_synced_keeps_few_index_files_open() -> None:
    bench = LogBench(LogLimits(100, 0))
    for _ in range(50):
        bench.append(b"x" * 100)
    opened = [file.path for file in bench.files._handles.values() if file.path.endswith("x")]
    assert opened == [index_path(base) for base in range(41, 49)]


def test_roll_in_commit_mode_syncs_what_it_seals() -> None:
    for commit in (False, True):
        bench = LogBench()
        bench.log.commit = commit
        bench.append(b"a")
        bench.log.roll()
        synced = bench.files.durable_content(log_path(0)) == bench.files.content(log_path(0))
        assert synced == commit


def test_roll_whose_sync_fails_is_told() -> None:
    bench = LogBench()
    bench.log.commit = True
    bench.append(b"a")
    bench.files.fail(Fault("sync", log_path(0)))
    with pytest.raises(FilesError):
        bench.log.roll()
    assert bench.log.segment_count == 1


# The start of the log.


def filled(count: int = 5) -> LogBench:
    """Segments of one record each."""
    bench = LogBench(LogLimits(100, 0))
    for number in range(count):
        bench.append(b"%d" % number * 100, timestamp=10 * number, epoch=1 + number // 2)
    return bench


def test_start_of_the_log_hides_records_and_their_epochs() -> None:
    bench = filled()
    bench.log.set_log_start(Offset(3))
    assert list(bench.values()) == [3, 4]
    assert bench.log.epochs.entries == ((2, 3), (3, 4))
    bench.log.set_log_start(Offset(2))
    assert bench.log.log_start_offset == 3
    with pytest.raises(AssertionError):
        bench.log.set_log_start(Offset(6))


def test_whole_segments_below_the_start_are_dropped() -> None:
    bench = filled()
    bench.log.set_log_start(Offset(3))
    paths = bench.log.drop_segments_below(Offset(3))
    assert paths == [p for base in range(3) for p in (log_path(base), index_path(base))]
    assert [s.base for s in bench.log.segments()] == [3, 4]
    assert bench.log.drop_segments_below(Offset(3)) == []
    with pytest.raises(AssertionError):
        bench.log.drop_segments_below(Offset(4))


def test_active_segment_is_never_dropped() -> None:
    bench = filled()
    bench.log.set_log_start(Offset(5))
    bench.log.drop_segments_below(Offset(5))
    assert [s.base for s in bench.log.segments()] == [4]
    assert bench.values() == {}
    bench.append(b"next", epoch=9)
    assert bench.values() == {5: b"next"}


def test_log_that_restarts_elsewhere_is_empty_there() -> None:
    bench = filled()
    bench.log.restart_at(Offset(50))
    assert bench.log.state == (50, 50, 50, ())
    assert bench.paths() == []
    assert bench.files.open_count == 0
    bench.append(b"x", epoch=9)
    assert bench.values() == {50: b"x"}
    assert bench.log.epochs.entries == ((9, 50),)


# Compaction.


def swap(bench: LogBench, count: int, *, indexed: bool, keep: int) -> list[str]:
    """Replace the first segments by one with every record dropped but one."""
    infos = bench.log.segments()[:count]
    values = bench.values()
    batches = [
        bench.made.sparse(
            info.base,
            info.end,
            {o: values[o] for o in range(info.base, info.end) if o == keep},
            timestamp=info.largest_timestamp,
            epoch=1 + info.base // 2,
        )
        for info in infos
    ]
    cleaned = infos[0].path + ".cleaned"
    bench.files.put(cleaned, b"".join(batches))
    if indexed:
        path = index_path(infos[0].base) + ".cleaned"
        write_index_file(bench.files, cleaned, path, PARTITION, infos[0].base)
    return bench.log.replace_segments([info.base for info in infos], cleaned)


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_compacted_file_takes_the_place_of_its_segments(indexed: bool, count: int) -> None:
    bench = filled()
    before = bench.values()
    paths = swap(bench, count, indexed=indexed, keep=0)
    assert paths == [p for base in range(1, count) for p in (log_path(base), index_path(base))]
    for path in paths:
        bench.files.remove(path)
    expected = {o: v for o, v in before.items() if o == 0 or o >= count}
    assert bench.values() == expected
    assert bench.log.segments()[0].records == 1
    assert bench.log.segments()[0].end == count
    bench.stop()
    assert bench.open(clean=True).rebuilt_indexes == 0
    assert bench.values() == expected


@pytest.mark.parametrize("removed", range(5))
def test_crash_before_merged_segments_are_removed_is_put_right(removed: int) -> None:
    bench = filled()
    bench.sync()
    paths = swap(bench, 3, indexed=False, keep=1)
    for path in paths[:removed]:
        bench.files.remove(path)
    bench.files.kill()
    report = bench.open()
    assert report.quarantined == ()
    assert list(bench.values()) == [1, 3, 4]
    assert [s.base for s in bench.log.segments()] == [0, 3, 4]
    assert not [p for p in paths if bench.files.exists(p)]


@pytest.mark.parametrize("is_clean", [False, True])
@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("log_start", [0, 1, 2])
def test_merged_file_stays_when_a_stale_one_begins_at_the_log_start(
    log_start: int, is_known: bool, is_clean: bool
) -> None:
    bench = filled()
    bench.sync()
    swap(bench, 3, indexed=False, keep=2)
    bench.log.set_log_start(Offset(log_start))
    bench.journal = bench.log.state if is_known else None
    bench.files.kill()
    report = bench.open(clean=is_clean)
    assert report.quarantined == ()
    assert list(bench.values()) == [2, 3, 4]
    assert [s.base for s in bench.log.segments()] == [0, 3, 4]


@pytest.mark.parametrize("kept", [(1,), (1, 2)])
def test_merged_file_of_one_damaged_batch_is_set_aside_and_not_lost(kept: tuple[int, ...]) -> None:
    """Nothing tells any more how far it reached, so nothing tells that it may go."""
    bench = filled()
    bench.sync()
    bench.log.set_log_start(Offset(1))
    bench.journal = bench.log.state
    data = damaged(Batches().filler(0, 3), 0)
    bench.files.put(log_path(0), data)
    bench.files.remove(index_path(0))
    for base in {1, 2}.difference(kept):
        bench.files.remove(log_path(base))
    bench.files.kill()
    report = bench.open()
    assert bench.files.content(log_path(0) + ".1.cut") == data
    if kept == (1, 2):
        assert list(bench.values()) == [1, 2, 3, 4]
        assert not bench.log.is_offline
    else:
        assert report.quarantined


def test_compacted_file_of_another_range_is_refused() -> None:
    bench = filled()
    cleaned = log_path(0) + ".cleaned"
    bench.files.put(cleaned, Batches().filler(0, 2))
    before = snapshot(bench.files)
    with pytest.raises(CorruptionError, match="ends at offset 2, not at 1"):
        bench.log.replace_segments([Offset(0)], cleaned)
    assert snapshot(bench.files) == before
    assert list(bench.values()) == [0, 1, 2, 3, 4]


def test_active_segment_is_never_replaced() -> None:
    bench = filled()
    with pytest.raises(AssertionError):
        bench.log.replace_segments([Offset(4)], log_path(4) + ".cleaned")


def test_index_beside_a_compacted_file_that_is_not_its_own_is_dropped() -> None:
    bench = filled()
    bench.files.put(index_path(0) + ".cleaned", bench.files.content(index_path(0)))
    swap(bench, 1, indexed=False, keep=9)
    assert not bench.files.exists(index_path(0) + ".cleaned")
    bench.stop()
    assert bench.open(clean=True).rebuilt_indexes == 0
    assert list(bench.values()) == [1, 2, 3, 4]


def test_summary_that_points_at_no_batch_is_not_believed() -> None:
    bench = filled()
    bench.stop()
    info = bench.log.segments()[0]
    data = bench.files.content(info.path)
    bench.files.put(info.path, b"\0" * 20 + data[20:])
    assert bench.open(clean=True).quarantined == (info.path,)


# Closing.


def test_closed_log_is_durable_and_starts_without_a_scan() -> None:
    bench = filled()
    bench.stop()
    assert bench.files.open_count == 0
    assert bench.journal == bench.log.state
    assert bench.log.recovery_point == 5
    bench.files.crash(None)
    report = bench.open(clean=True)
    assert (report.quarantined, report.cut_offset, report.scanned_bytes) == ((), None, 0)
    assert list(bench.values()) == [0, 1, 2, 3, 4]


def test_stop_that_cannot_sync_is_not_clean() -> None:
    bench = filled()
    bench.files.fail(Fault("sync", "*.log"))
    with pytest.raises(FilesError):
        bench.log.close()
    assert bench.log.recovery_point == 0
    bench.log.abandon()
    assert bench.files.open_count == 0


def test_idle_handles_are_closed_but_not_those_with_unsynced_records() -> None:
    bench = filled()
    assert bench.log.close_idle() == 0
    bench.sync()
    assert bench.log.close_idle() == 5
    assert bench.files.open_count == 0
    assert len(bench.values()) == 5
    bench.append(b"x", epoch=9)
    bench.log.close_idle()
    assert [file.path for file in bench.files._handles.values()] == [index_path(4), log_path(5)]
    bench.log.abandon()
    assert bench.files.open_count == 0


def test_index_of_an_idle_segment_is_read_again() -> None:
    bench = LogBench(LogLimits(20_000, 0))
    for number in range(40):
        bench.append(b"x" * 1000, timestamp=number)
    bench.sync()
    bench.log.close_idle()
    bench.files.fail(Fault("read", index_path(0), count=1))
    assert [lookup.offset_for_timestamp(bench.log, n) for n in range(40)] == list(range(40))


def test_segment_is_found_by_any_offset_of_its_range() -> None:
    bench = filled()
    found = [bench.log.segment_at(Offset(offset)) for offset in range(-1, 7)]
    bases = [None if segment is None else segment.base_offset for segment in found]
    assert bases == [None, 0, 1, 2, 3, 4, None, None]


def test_state_is_what_the_journal_needs() -> None:
    bench = filled()
    bench.log.high_watermark = Offset(4)
    bench.sync()
    bench.log.set_log_start(Offset(1))
    assert bench.log.state == (1, 5, 4, ((1, 1), (2, 2), (3, 4)))
    assert bench.log.directory == DIRECTORY
