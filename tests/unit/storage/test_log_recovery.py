"""Opening a log after every kind of stop: what is cut, what is quarantined, what is repaired."""

from struct import pack

import pytest

from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.logformat.checksum import crc32c
from liftbridge_broker.logformat.index_blocks import ENTRY, decode_blocks, encode_entries
from liftbridge_broker.model.ids import LeaderEpoch, Offset, PartitionId
from liftbridge_broker.storage.log.index import load_index
from liftbridge_broker.storage.log.scan import LogFile, find_batch_behind
from liftbridge_broker.storage.log.state import LogState
from liftbridge_broker.storage.log.types import LogLimits
from liftbridge_testkit.batches import PARTITION, Batches
from liftbridge_testkit.log_bench import (
    LogBench,
    damaged,
    index_path,
    log_path,
    segmented,
    snapshot,
    three_batches,
)
from liftbridge_testkit.memory_files import Fault, MemoryFiles

SMALL = LogLimits(1000, 0)
FOREIGN = Batches(PartitionId(99))


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
def test_damaged_last_batch_is_cut(kind: str) -> None:
    bench, batches = three_batches(synced=2)
    bad = damage_of(kind, batches[2])
    bench.files.put(log_path(0), b"".join(batches[:2]) + bad)
    report = bench.open()
    assert (report.cut_offset, report.cut_bytes, report.quarantined) == (4, len(bad), ())
    assert bench.files.content(report.cut_copies[0]) == bad


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "zeros"])
def test_damaged_last_batch_may_have_counted_in_commit_mode(kind: str) -> None:
    """A crash shortens a write or leaves zeros in it, and rot does neither."""
    bench, batches = three_batches(synced=2)
    bench.files.put(log_path(0), b"".join(batches[:2]) + damage_of(kind, batches[2]))
    before = snapshot(bench.files)
    assert bench.open(commit=True).quarantined == (log_path(0),)
    assert snapshot(bench.files) == before


@pytest.mark.parametrize("shape", ["sector of zeros", "torn", "file is missing"])
def test_what_is_cut_in_commit_mode_and_may_have_counted_is_told_before(shape: str) -> None:
    bench, batches = three_batches(synced=2)
    last = bench.made.make(4, [b"v" * 3_000])
    match shape:
        case "sector of zeros":
            last = last[:1_000] + bytes(1_000) + last[2_000:]
        case "torn":
            last = last[:-1]
        case _:
            last = b""
            bench.files.put(log_path(6), b"")
    before = b"".join(batches[:2]) + last
    bench.files.put(log_path(0), before)
    told: list[bytes] = []
    report = bench.open(commit=True, on_doubt=lambda: told.append(bench.files.content(log_path(0))))
    assert (bench.log.log_end_offset, report.quarantined) == (4, ())
    assert told == ([] if shape == "torn" else [before])


@pytest.mark.parametrize("encrypted", [False, True])
def test_no_flipped_bit_of_the_last_batch_makes_it_a_torn_write(*, encrypted: bool) -> None:
    bench, batches = three_batches(synced=2, encrypted=encrypted)
    for bit in range(8 * len(batches[2])):
        bad = bytearray(batches[2])
        bad[bit // 8] ^= 1 << bit % 8
        bench.files.put(log_path(0), b"".join(batches[:2]) + bytes(bad))
        assert bench.open(commit=True).quarantined == (log_path(0),), bit
        bench.log.abandon()


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
    assert data.endswith(outer)
    bench.files.put(log_path(0), data[:-1])
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
    for clean in (True, False):
        report = bench.open(clean=clean)
        assert (report.scanned_bytes, report.quarantined) == (total, ())
        bench.log.abandon()
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
