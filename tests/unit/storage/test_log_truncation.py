"""Cutting the end of a log: every place, with readers, times, counts and restarts right after."""

import pytest

from liftbridge_broker.errors import CorruptionError, FilesError
from liftbridge_broker.logformat.batch import HEADER_SIZE, seal, walk_verified
from liftbridge_broker.model.ids import LeaderEpoch, Offset
from liftbridge_broker.storage.log import lookup
from liftbridge_broker.storage.log.types import LogLimits
from liftbridge_testkit.batches import PARTITION
from liftbridge_testkit.log_bench import (
    LogBench,
    damaged,
    index_path,
    log_path,
    snapshot,
)
from liftbridge_testkit.memory_files import Fault

END = 12


def filled() -> LogBench:
    """Segments [0, 5), [5, 9), [9, 12) of batches of one to three records."""
    bench = LogBench(LogLimits(1300, 0))
    for epoch, values in enumerate(
        ([b"a" * 300] * 3, [b"b" * 300] * 2, [b"c" * 300] * 3, [b"d" * 700], [b"e"] * 3), start=1
    ):
        bench.append(*values, epoch=epoch, timestamp=100 * epoch)
    assert [s.base for s in bench.log.segments()] == [0, 5, 9]
    bench.sync()
    return bench


@pytest.mark.parametrize("end", range(END + 1))
@pytest.mark.parametrize("restart", ["none", "kill", "power", "clean"])
def test_what_is_before_the_cut_stays(end: int, restart: str) -> None:
    bench = filled()
    before, frames = bench.values(), bench.frames()
    assert bench.journal is not None
    bench.journal = bench.journal._replace(recovery_point=Offset(min(end, END)))
    bench.log.truncate(Offset(end))
    match restart:
        case "kill":
            bench.files.kill()
            bench.open()
        case "power":
            bench.files.crash(None)
            bench.open()
        case "clean":
            bench.stop()
            bench.open(clean=True)
        case _:
            bench.sync()
    assert bench.values() == {o: v for o, v in before.items() if o < end}
    assert (bench.log.log_end_offset, bench.log.is_offline) == (end, False)
    assert sum(info.records for info in bench.log.segments()) == end
    times = [frame.timestamp for frame in frames[:end]]
    assert bench.log.largest_timestamp == max(times, default=-(1 << 63))
    assert lookup.last_timestamp(bench.log) == (times[-1] if times else None)
    for info in bench.log.segments():
        data = bench.files.content(info.path) if info.bytes else b""
        headers = [header for _, header in walk_verified(data, 0, len(data))]
        assert sum(header.size for header in headers) == info.bytes
    bench.append(b"next", epoch=50, timestamp=999)
    assert bench.frames()[-1].value == b"next"
    assert lookup.offset_for_timestamp(bench.log, 900) == end


def test_cut_forgets_epochs_also_when_no_record_goes() -> None:
    bench = filled()
    starts = [0, 3, 5, 8, 9]
    assert [start for _, start in bench.log.epochs.entries] == starts
    bench.log.epochs.assign(LeaderEpoch(9), Offset(END))
    bench.log.truncate(Offset(END))
    assert [start for _, start in bench.log.epochs.entries] == starts
    bench.log.truncate(Offset(8))
    assert [start for _, start in bench.log.epochs.entries] == starts[:3]


def test_cut_lowers_recovery_point_and_high_watermark() -> None:
    bench = filled()
    bench.log.high_watermark = Offset(10)
    bench.log.truncate(Offset(4))
    assert (bench.log.recovery_point, bench.log.high_watermark) == (4, 4)


def test_cut_behind_the_end_changes_nothing() -> None:
    bench = filled()
    before, generation = snapshot(bench.files), bench.log.generation
    bench.log.truncate(Offset(END + 5))
    assert (snapshot(bench.files), bench.log.generation) == (before, generation)


def test_cut_below_the_log_start_stops() -> None:
    bench = filled()
    bench.log.set_log_start(Offset(3))
    with pytest.raises(AssertionError):
        bench.log.truncate(Offset(2))


def test_damaged_batch_at_the_cut_is_told_and_nothing_is_changed() -> None:
    bench = filled()
    bench.log.truncate(Offset(9))
    data = bench.files.content(log_path(5))
    bench.files.put(log_path(5), damaged(data, 200))
    before = snapshot(bench.files)
    with pytest.raises(CorruptionError) as caught:
        bench.log.truncate(Offset(6))
    assert (caught.value.path, caught.value.position) == (log_path(5), 0)
    assert snapshot(bench.files) == before


@pytest.mark.parametrize("operation", ["sync", "truncate", "append", "remove", "sync_directory"])
def test_failed_cut_is_completed_or_had_not_begun_after_a_restart(operation: str) -> None:
    for skip in range(4):
        bench = filled()
        assert bench.journal is not None
        before = bench.values()
        bench.journal = bench.journal._replace(recovery_point=Offset(7))
        bench.files.fail(Fault(operation, skip=skip))
        try:
            bench.log.truncate(Offset(7))
        except FilesError:
            bench.files.kill()
            bench.files.heal()
            assert bench.open().quarantined == ()
        end = bench.log.log_end_offset
        assert end >= 7
        assert bench.values() == {o: v for o, v in before.items() if o < end}


def test_cut_reads_little_of_a_large_segment() -> None:
    bench = LogBench()
    for number in range(2000):
        bench.append(b"x" * 1000, timestamp=number)
    bench.files.put(log_path(0), damaged(bench.files.content(log_path(0)), 50_000))
    bench.log.truncate(Offset(1990))
    assert bench.log.segments()[0].records == 1990
    assert bench.log.largest_timestamp == 1989
    assert lookup.offset_for_timestamp(bench.log, 1980) == 1980


def test_times_that_fell_are_counted_right_after_a_cut() -> None:
    bench = LogBench()
    for timestamp in (50, 90, 20, 30, 95, 10):
        bench.append(b"x" * 5000, timestamp=timestamp)
    bench.log.truncate(Offset(4))
    assert bench.log.largest_timestamp == 90
    bench.log.truncate(Offset(1))
    assert bench.log.largest_timestamp == 50


@pytest.mark.parametrize("before", [0, 1, 5])
def test_times_that_fell_inside_of_a_batch_are_counted_right_after_a_cut(before: int) -> None:
    bench = LogBench()
    for _ in range(before):
        bench.append(b"x" * 5000, timestamp=10)
    times = ((before, 50), (before + 1, 70))
    frames = [bench.made.make(n, [b"x" * 5000], timestamp=t)[HEADER_SIZE:] for n, t in times]
    batch = seal(
        frames=frames,
        partition_id=PARTITION,
        leader_epoch=LeaderEpoch(1),
        base_offset=Offset(before),
        last_offset=Offset(before + 1),
        count=2,
        first_timestamp=50,
        largest_timestamp=70,
    )
    bench.append_raw(batch)
    bench.log.truncate(Offset(before + 1))
    assert bench.log.largest_timestamp == 50
    bench.append(b"y", timestamp=60)
    assert lookup.offset_for_timestamp(bench.log, 60) == before + 1


def test_index_of_what_was_cut_is_gone_from_its_file() -> None:
    bench = filled()
    bench.log.truncate(Offset(7))
    assert bench.files.durable_content(index_path(5)) == b""
    bench.stop()
    bench.open(clean=True)
    assert bench.report.rebuilt_indexes == 0


def test_a_cut_takes_back_how_far_the_log_was_compacted() -> None:
    bench = filled()
    end = bench.log.log_end_offset
    bench.log.compacted_offset = end
    bench.log.truncate(Offset(end - 1))
    assert bench.log.compacted_offset == end - 1
    bench.log.restart_at(end)
    assert bench.log.compacted_offset == end - 1


def test_a_higher_log_start_forgets_the_epochs_below_it() -> None:
    bench = filled()
    bench.log.set_log_start(Offset(6))
    assert bench.log.epochs.entries == ((3, 6), (4, 8), (5, 9))
