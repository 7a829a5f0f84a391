"""Opening a log after every kind of stop: what is cut, what is quarantined, what is repaired."""

from collections.abc import Callable
from struct import pack

import pytest

from liftbridge_broker.errors import CorruptionError, FilesError
from liftbridge_broker.logformat.checksum import crc32c
from liftbridge_broker.logformat.index_blocks import ENTRY, decode_blocks, encode_entries
from liftbridge_broker.model.ids import LeaderEpoch, Offset, PartitionId
from liftbridge_broker.ports.files import FileHandle
from liftbridge_broker.storage.index import load_index
from liftbridge_broker.storage.recovery import CUT_COPIES_MAX
from liftbridge_broker.storage.scan import LogFile, find_batch_behind
from liftbridge_broker.storage.state import LogState
from liftbridge_broker.storage.types import LogLimits, RecoveryReport
from liftbridge_testkit.batches import PARTITION, Batches
from liftbridge_testkit.log_bench import (
    DIRECTORY,
    LogBench,
    damaged,
    index_path,
    log_path,
    snapshot,
    starts_of,
)
from liftbridge_testkit.memory_files import Fault, MemoryFiles, PowerCutError

SMALL = LogLimits(1000, 0)
FOREIGN = Batches(PartitionId(99))


class CountingFiles(MemoryFiles):
    """Counts the bytes read of log files."""

    def __init__(self) -> None:
        super().__init__()
        self.log_bytes_read = 0

    def read(self, handle: FileHandle, position: int, length: int) -> bytes:
        data = super().read(handle, position, length)
        if self._handles[handle].path.endswith(".log"):
            self.log_bytes_read += len(data)
        return data


def three_batches(*, synced: int) -> tuple[LogBench, list[bytes]]:
    """A log of three batches of two records each, of which some batches are synced."""
    bench = LogBench()
    batches = []
    for number in range(3):
        batches.append(bench.append(b"%da" % number, b"%db" % number))
        if number + 1 == synced:
            bench.sync()
    bench.files.kill()
    return bench, batches


def damage_of(kind: str, batch: bytes) -> bytes:
    match kind:
        case "body":
            return damaged(batch, 120)
        case "header":
            return damaged(batch, 0)
        case "length":
            return damaged(batch, 6)
        case "zeros":
            return bytes(len(batch))
        case "other partition":
            return FOREIGN.make(2, [b"1a", b"1b"])
        case "other offset":
            return Batches().make(7, [b"1a", b"1b"])
        case _:
            raise AssertionError(kind)


KINDS = ("body", "header", "length", "zeros", "other partition", "other offset")


@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("lost", range(1, 190, 7))
def test_torn_tail_above_the_recovery_point_is_cut_with_a_copy(commit: bool, lost: int) -> None:
    bench, batches = three_batches(synced=1)
    assert lost < len(batches[2])
    data = b"".join(batches)[:-lost]
    bench.files.put(log_path(0), data)
    report = bench.open(commit=commit)
    kept = len(batches[0] + batches[1])
    assert bench.log.log_end_offset == report.cut_offset == 4
    assert report.cut_bytes == len(data) - kept
    assert bench.files.content(report.cut_copies[0]) == data[kept:]
    assert bench.files.content(log_path(0)) == data[:kept]
    assert bench.files.durable_content(index_path(0)) == b""
    assert report.quarantined == ()
    assert "no batch" in report.reason or "cut off" in report.reason
    assert not bench.log.is_offline
    assert list(bench.values()) == [0, 1, 2, 3]
    bench.append(b"next")
    assert bench.values()[4] == b"next"


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_last_batch_is_a_torn_tail_in_every_mode(kind: str) -> None:
    for commit in (False, True):
        bench, batches = three_batches(synced=2)
        bad = damage_of(kind, batches[2])
        bench.files.put(log_path(0), b"".join(batches[:2]) + bad)
        report = bench.open(commit=commit)
        assert (report.cut_offset, report.cut_bytes, report.quarantined) == (4, len(bad), ())
        assert bench.files.content(report.cut_copies[0]) == bad


@pytest.mark.parametrize("kind", KINDS)
def test_damage_before_a_valid_batch_is_rot_in_commit_mode_only(kind: str) -> None:
    for commit in (False, True):
        bench, batches = three_batches(synced=1)
        data = batches[0] + damage_of(kind, batches[1]) + batches[2]
        bench.files.put(log_path(0), data)
        before = snapshot(bench.files)
        report = bench.open(commit=commit)
        if commit:
            assert report.quarantined == (log_path(0),)
            assert bench.log.is_offline
            assert snapshot(bench.files) == before
        else:
            assert report.quarantined == ()
            assert report.cut_offset == bench.log.log_end_offset == 2
            assert bench.files.content(report.cut_copies[0]) == data[len(batches[0]) :]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("commit", [False, True])
def test_damage_below_the_recovery_point_is_never_cut(kind: str, commit: bool) -> None:
    for number in range(3):
        bench, batches = three_batches(synced=3)
        batches[number] = damage_of(kind, batches[number])
        bench.files.put(log_path(0), b"".join(batches))
        before = snapshot(bench.files)
        report = bench.open(commit=commit)
        assert report.quarantined == (log_path(0),)
        assert report.cut_offset is None
        assert snapshot(bench.files) == before
        assert bench.open(commit=commit) == report


def test_offline_log_refuses_appends_and_reads_what_is_good() -> None:
    bench, batches = three_batches(synced=3)
    bench.files.put(log_path(0), b"".join(batches[:1]) + damaged(batches[1], 100) + batches[2])
    bench.open()
    assert list(bench.values()) == [0, 1]
    with pytest.raises(AssertionError):
        bench.append(b"x")
    bench.log.close()
    assert bench.files.open_count == 0


def test_batch_within_a_torn_batch_is_a_publishers_value_not_a_valid_batch_behind() -> None:
    bench = LogBench()
    bench.append(b"first")
    bench.sync()
    inner = bench.made.make(5, [b"looks like a batch"])
    outer = bench.append(b"v" * 50 + inner)
    bench.files.kill()
    data = bench.files.content(log_path(0))
    start = len(data) - len(outer)
    bench.files.put(log_path(0), damaged(data, start + 120))
    assert bench.open(commit=True).cut_offset == 1


@pytest.mark.parametrize("length", [0, 50, 88, 200])
def test_log_that_ends_below_its_recovery_point_is_quarantined(length: int) -> None:
    bench, batches = three_batches(synced=3)
    bench.files.put(log_path(0), b"".join(batches)[:length])
    before = snapshot(bench.files)
    report = bench.open()
    assert report.quarantined == (log_path(0),)
    assert snapshot(bench.files) == before


def test_log_cut_at_a_batch_below_its_recovery_point_is_quarantined() -> None:
    for kept in range(3):
        bench, batches = three_batches(synced=3)
        bench.files.put(log_path(0), b"".join(batches[:kept]))
        report = bench.open()
        assert report.quarantined == (log_path(0),)
        assert report.reason == f"log ends at offset {2 * kept}, below the recovery point 6"


@pytest.mark.parametrize("clean", [False, True])
def test_missing_log_is_quarantined_also_after_a_clean_stop(clean: bool) -> None:
    bench, _ = three_batches(synced=3)
    bench.files.remove(log_path(0))
    report = bench.open(clean=clean)
    assert report.quarantined == (log_path(0),)
    assert bench.log.is_offline


def segmented(count: int, *, synced: int) -> LogBench:
    """A log of segments with two records each."""
    bench = LogBench(SMALL)
    for number in range(count):
        bench.append(b"x" * 500, b"%d" % number * 500)
        if number + 1 == synced:
            bench.sync()
    bench.files.kill()
    return bench


@pytest.mark.parametrize("missing", [0, 2, 4])
def test_missing_segment_below_the_recovery_point_is_quarantined(missing: int) -> None:
    bench = segmented(4, synced=4)
    bench.files.remove(log_path(missing))
    before = snapshot(bench.files)
    report = bench.open()
    assert report.quarantined == (log_path(missing),)
    assert snapshot(bench.files) == before


def test_missing_segment_above_the_recovery_point_cuts_what_is_behind() -> None:
    bench = segmented(4, synced=1)
    contents = [bench.files.content(log_path(base)) for base in (4, 6)]
    bench.files.remove(log_path(2))
    report = bench.open()
    assert (report.quarantined, report.cut_offset) == ((), 2)
    assert [bench.files.content(path) for path in sorted(report.cut_copies)] == contents
    assert report.cut_bytes == sum(map(len, contents))
    assert list(bench.values()) == [0, 1]
    assert [name for name in bench.paths() if name.endswith(".index")] == [f"{0:020d}.index"]


def test_missing_segment_above_the_recovery_point_is_rot_in_commit_mode() -> None:
    bench = segmented(4, synced=1)
    bench.files.remove(log_path(2))
    assert bench.open(commit=True).quarantined == (log_path(2),)


def test_missing_first_segment_is_told_from_retention_by_the_log_start() -> None:
    bench = segmented(4, synced=4)
    bench.files.remove(log_path(0))
    bench.journal = bench.log.state._replace(log_start=Offset(1))
    assert bench.open().quarantined == (log_path(1),)
    bench.journal = bench.log.state._replace(log_start=Offset(2), recovery_point=Offset(8))
    assert bench.open().quarantined == ()
    assert list(bench.values()) == [2, 3, 4, 5, 6, 7]


def test_damage_in_a_middle_segment_moves_the_later_ones_aside() -> None:
    bench = segmented(4, synced=1)
    data = bench.files.content(log_path(2))
    bench.files.put(log_path(2), damaged(data, 200))
    report = bench.open()
    assert (report.cut_offset, report.quarantined) == (2, ())
    assert len(report.cut_copies) == 3
    assert bench.log.log_end_offset == 2
    bench.append(b"goes on")
    assert bench.values()[2] == b"goes on"


def test_empty_file_of_a_roll_whose_past_was_lost_is_removed() -> None:
    bench = segmented(2, synced=1)
    first = bench.files.content(log_path(2))
    bench.files.put(log_path(2), first[:-1])
    bench.files.put(log_path(4), b"")
    report = bench.open(commit=True)
    assert (report.cut_offset, report.quarantined) == (2, ())
    assert log_path(4) in report.removed
    assert len(report.cut_copies) == 1


def test_lost_journal_means_a_full_scan() -> None:
    bench = segmented(3, synced=3)
    bench.append(b"tail", epoch=7)
    bench.files.kill()
    total = sum(len(bench.files.content(log_path(base))) for base in (0, 2, 4, 6))
    bench.journal = None
    report = bench.open(clean=True)
    assert report.scanned_bytes == 0
    assert bench.log.epochs.entries == ((LeaderEpoch(1), 0), (LeaderEpoch(7), 6))
    bench.log.abandon()
    report = bench.open()
    assert (report.scanned_bytes, report.quarantined) == (total, ())
    assert bench.log.state == LogState(
        Offset(0), Offset(0), Offset(0), ((LeaderEpoch(1), Offset(0)), (LeaderEpoch(7), Offset(6)))
    )


def test_lost_journal_never_cuts_before_a_valid_batch() -> None:
    bench = segmented(3, synced=3)
    data = bench.files.content(log_path(2))
    bench.files.put(log_path(2), damaged(data, 200))
    bench.journal = None
    before = snapshot(bench.files)
    assert bench.open().quarantined == (log_path(2),)
    assert snapshot(bench.files) == before


def test_lost_journal_cuts_a_torn_tail() -> None:
    bench, batches = three_batches(synced=3)
    bench.files.put(log_path(0), b"".join(batches)[:-3])
    bench.journal = None
    assert bench.open().cut_offset == 4


def test_lost_journal_begins_where_the_files_begin() -> None:
    bench = segmented(3, synced=3)
    bench.files.remove(log_path(0))
    bench.journal = None
    bench.open()
    assert bench.log.log_start_offset == 2
    assert list(bench.values()) == [2, 3, 4, 5]


def test_epoch_that_falls_is_damage() -> None:
    bench = LogBench()
    batches = [bench.append(b"a", epoch=5), bench.append(b"b", epoch=5)]
    bench.files.put(log_path(0), batches[0] + Batches().make(1, [b"b"], epoch=4))
    report = bench.open()
    assert report.cut_offset == 1
    assert "leader epoch falls to 4" in report.reason


def test_search_for_a_batch_ends_with_a_file_that_became_shorter() -> None:
    files = MemoryFiles()
    files.put("log", b"x" * 300)
    file = LogFile(files, files.open("log"), "log", PartitionId(1), 5000)
    assert not find_batch_behind(file, 0, Offset(0))


def test_block_of_index_with_half_an_entry_is_refused() -> None:
    block = bytearray(
        encode_entries(
            partition_id=PartitionId(5),
            base_offset=Offset(0),
            records_before=0,
            timestamp_before=0,
            entries=ENTRY.pack(0, 0, 0),
        )
    )
    cut = bytes(block[12:-8])
    half = bytes(block[:4]) + pack(">II", len(cut), crc32c(cut)) + cut
    with pytest.raises(CorruptionError, match="whole entries"):
        list(decode_blocks(half, partition_id=PartitionId(5), base_offset=Offset(0)))


def test_index_whose_first_block_is_lost_is_not_used() -> None:
    bench = LogBench()
    bench.files.fail(Fault("append", index_path(0), count=1))
    for _ in range(520):
        bench.append(b"v" * 5000)
    whole = bench.log.live_segments()[0].index
    data = whole.take_blocks(PARTITION)
    first = encode_entries(
        partition_id=PARTITION,
        base_offset=Offset(0),
        records_before=0,
        timestamp_before=0,
        entries=bytes(256 * 16),
    )
    lost = load_index(data[len(first) :], partition_id=PARTITION, base_offset=Offset(0))
    assert (lost.is_whole, len(lost.entries), lost.resumes) == (False, 0, ())


# What is not read.


def big_log(*, synced_to: int) -> LogBench:
    """2.5 MB in one segment, of which the first part is synced."""
    bench = LogBench(files=CountingFiles())
    for number in range(1200):
        bench.append(b"v" * 2000, timestamp=number)
        if number + 1 == synced_to:
            bench.sync()
    bench.files.kill()
    return bench


def bytes_read(bench: LogBench, act: Callable[[], object]) -> int:
    assert isinstance(bench.files, CountingFiles)
    before = bench.files.log_bytes_read
    act()
    return bench.files.log_bytes_read - before


def test_only_what_is_above_the_recovery_point_is_scanned() -> None:
    bench = big_log(synced_to=1100)
    size = len(bench.files.content(log_path(0)))
    assert bytes_read(bench, bench.open) < size // 2
    assert 100 * 2000 < bench.report.scanned_bytes < size // 2
    assert bench.log.log_end_offset == 1200
    assert [info.records for info in bench.log.segments()] == [1200]
    assert bench.log.offset_for_timestamp(700) == 700
    assert bench.log.largest_timestamp == 1199


def test_sealed_segments_below_the_recovery_point_are_not_read() -> None:
    bench = LogBench(LogLimits(100_000, 0), files=CountingFiles())
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
    bench = LogBench(LogLimits(100_000, 0), files=CountingFiles())
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
    assert bench.log.offset_for_timestamp(5000) == 1200


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
        assert bench.log.offset_for_timestamp(10 * number - 5) == number
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
    assert [bench.log.offset_for_timestamp(10 * n) for n in range(40)] == list(range(40))
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
    assert bench.log.offset_for_timestamp(500) == 10
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
        assert other.log.offset_for_timestamp(900) == 905


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
    assert bench.log.offset_for_timestamp(1015) == 5
    assert bench.log.offset_for_timestamp(5014) == 19


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
    assert bench.paths() == [f"{3:020d}.index", f"{3:020d}.log"]


def test_whole_redo_file_is_completed_and_a_torn_one_dropped() -> None:
    bench, batches = three_batches(synced=3)
    before = snapshot(bench.files)
    bench.open()
    bench.journal = bench.log.state._replace(recovery_point=Offset(3))
    stops = bench.files.points
    bench.files.fail(Fault("truncate", log_path(0)))
    with pytest.raises(FilesError):
        bench.log.truncate(Offset(3))
    assert bench.files.points > stops
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
    bench.files.cut_power_at(bench.files.points + point)
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
        bench.files.cut_power_at(bench.files.points + point)
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
