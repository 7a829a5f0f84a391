"""Stored batches, reading backwards, and look-ups by time."""

import pytest

from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.logformat.batch import walk_verified
from liftbridge_broker.model.ids import Offset, PartitionId
from liftbridge_broker.storage.log import lookup
from liftbridge_broker.storage.log.reverse import ReverseReader
from liftbridge_broker.storage.log.types import LogLimits, ReadResult
from liftbridge_testkit.batches import Batches, offsets_of
from liftbridge_testkit.log_bench import (
    LogBench,
    ReadCounter,
    log_path,
    read_back,
    ten_batches,
)

MIB = 1 << 20
SMALL = LogLimits(700, 0)


# Stored batches.


@pytest.mark.parametrize("first", range(7))
@pytest.mark.parametrize("end", range(8))
def test_batches_are_cut_to_exactly_what_was_asked_for(first: int, end: int) -> None:
    bench = LogBench()
    bench.append(b"a", b"b", b"c")
    bench.append(b"d")
    bench.append(b"e", b"f", b"g")
    data = bench.log.read_batches(Offset(first), MIB, Offset(end))
    headers = [header for _, header in walk_verified(data, 0, len(data))]
    if first >= end:
        assert data == b""
        return
    assert (headers[0].base_offset, headers[-1].end_offset) == (first, min(end, 7))


def test_whole_batches_are_the_stored_bytes_in_one_slice() -> None:
    bench = ten_batches()
    result = bench.log.batch_reader(Offset(0)).read(MIB, Offset(30))
    assert len(result.slices) == 1
    assert bytes(result.slices[0]) == bench.files.content(log_path(0))
    assert result.count == 30


def test_batches_are_bounded_and_at_least_one_is_given() -> None:
    bench = LogBench()
    for number in range(100, 110):
        bench.append_raw(bench.made.make(number - 100, [b"%d" % number]))
    size = len(bench.log.read_batches(Offset(5), 1, Offset(10)))
    bench.log.set_log_start(Offset(3))
    for max_bytes, count in ((1, 1), (size, 1), (2 * size - 1, 1), (2 * size, 2), (MIB, 7)):
        data = bench.log.read_batches(Offset(3), max_bytes, Offset(10))
        assert len(list(walk_verified(data, 0, len(data)))) == count
    with pytest.raises(AssertionError):
        bench.log.read_batches(Offset(2), MIB, Offset(10))


def test_blocking_read_of_batches_needs_no_page_cache() -> None:
    bench = ten_batches()
    bench.files.is_cold = True
    assert bench.log.read_batches(Offset(0), MIB, Offset(30)) == bench.files.content(log_path(0))


# Backwards.


@pytest.mark.parametrize("max_bytes", [1, 100, 500, MIB])
@pytest.mark.parametrize("newest", [-1, 0, 1, 2, 3, 17, 29, 30, 99])
def test_reverse_reader_gives_newest_first(max_bytes: int, newest: int) -> None:
    bench = ten_batches(SMALL)
    bench.log.set_log_start(Offset(2))
    reader = ReverseReader(bench.log, Offset(newest))
    found: list[Offset] = []
    while not reader.is_done:
        result = reader.read(max_bytes)
        assert sum(map(len, result.slices)) <= max_bytes or result.count == 1
        found += [offsets_of([piece])[0] for piece in result.slices]
    assert found == list(range(min(newest, 29), 1, -1))
    assert reader.read(max_bytes) == ReadResult([], 0)


def test_reverse_reader_reads_stretches_of_a_large_log() -> None:
    bench = LogBench(files=ReadCounter())
    assert isinstance(bench.files, ReadCounter)
    for number in range(1000):
        bench.append(b"x" * 1000, timestamp=number)
    reader = ReverseReader(bench.log, Offset(999))
    assert read_back(reader, 30_000) == list(range(999, -1, -1))
    assert bench.files.read_bytes <= 1.1 * bench.log.size_bytes
    assert bench.files.reads <= 30


def test_reverse_reader_stops_when_retention_overtakes_it() -> None:
    bench = ten_batches(SMALL)
    reader = ReverseReader(bench.log, Offset(29))
    assert reader.read(100).count
    bench.log.set_log_start(Offset(25))
    bench.log.drop_segments_below(Offset(25))
    assert read_back(reader, 100)[-1] == 25


def test_reverse_reader_stops_at_the_oldest_offset_it_was_given() -> None:
    bench = ten_batches(SMALL)
    for oldest in range(31):
        reader = ReverseReader(bench.log, Offset(29), Offset(oldest))
        assert read_back(reader, 100) == list(range(29, oldest - 1, -1))


def test_reverse_reader_drops_what_retention_hides_while_it_holds_it() -> None:
    bench = ten_batches()
    reader = ReverseReader(bench.log, Offset(29))
    assert reader.read(1).count == 1
    bench.log.set_log_start(Offset(20))
    assert read_back(reader, 100) == list(range(28, 19, -1))


def test_reverse_reader_notices_a_stretch_of_another_partition() -> None:
    bench = LogBench()
    bench.append(b"a")
    bench.files.put(log_path(0), Batches(PartitionId(4 << 24 | 3)).make(0, [b"a"]))
    with pytest.raises(CorruptionError):
        read_back(ReverseReader(bench.log, Offset(0)), MIB)


def test_reverse_reader_survives_truncation() -> None:
    bench = ten_batches(SMALL)
    reader = ReverseReader(bench.log, Offset(29))
    bench.log.truncate(Offset(10))
    assert offsets_of(reader.read(MIB).slices[::-1])[-1] == 9


# Times.


def test_first_record_of_a_time_and_last_record_before_it() -> None:
    bench = LogBench(SMALL)
    for number in range(20):
        bench.append(b"x" * 100, b"y", timestamp=10 * (number // 2))
    for timestamp in range(-5, 105):
        later = [n for n in range(40) if 10 * (n // 4) >= timestamp]
        before = [n for n in range(40) if 10 * (n // 4) <= timestamp]
        assert lookup.offset_for_timestamp(bench.log, timestamp) == (later[0] if later else 40)
        found = lookup.last_offset_at_or_before(bench.log, timestamp)
        assert found == (before[-1] if before else None)


def test_times_between_two_segments_belong_to_the_later_one() -> None:
    bench = LogBench()
    bench.append(b"a", timestamp=10)
    bench.log.roll()
    bench.append(b"b", timestamp=30)
    bench.log.roll()
    assert lookup.offset_for_timestamp(bench.log, 20) == 1
    assert lookup.offset_for_timestamp(bench.log, 10) == 0
    assert lookup.offset_for_timestamp(bench.log, 31) == 2
    assert lookup.last_offset_at_or_before(bench.log, 20) == 0


def test_times_that_fell_are_found_by_the_first_record_that_reaches_them() -> None:
    bench = LogBench()
    times = [50, 90, 20, 30, 95, 10]
    for timestamp in times:
        bench.append(b"x" * 5000, timestamp=timestamp)
    for timestamp in range(100):
        later = [n for n, t in enumerate(times) if t >= timestamp]
        assert lookup.offset_for_timestamp(bench.log, timestamp) == (later[0] if later else 6)


def test_times_skip_what_is_hidden_or_gone() -> None:
    bench = LogBench(LogLimits(100, 0))
    bench.append(b"a", b"b", timestamp=10)
    bench.append_raw(bench.made.filler(2, 8, timestamp=20))
    bench.append_raw(bench.made.sparse(8, 12, {9: b"c"}, timestamp=30))
    bench.append_raw(bench.made.filler(12, 20, timestamp=40))
    log = bench.log
    assert [lookup.offset_for_timestamp(log, t) for t in (5, 15, 25, 35)] == [0, 9, 9, 20]
    assert [lookup.last_offset_at_or_before(log, t) for t in (5, 15, 35)] == [None, 1, 9]
    assert (lookup.first_timestamp(log), lookup.last_timestamp(log)) == (10, 30)
    log.set_log_start(Offset(1))
    assert (lookup.offset_for_timestamp(log, 5), lookup.first_timestamp(log)) == (1, 10)
    log.set_log_start(Offset(5))
    assert (lookup.offset_for_timestamp(log, 5), lookup.first_timestamp(log)) == (9, 30)
    assert lookup.last_offset_at_or_before(log, 29) is None
    log.set_log_start(Offset(10))
    assert (lookup.offset_for_timestamp(log, 5), lookup.first_timestamp(log)) == (20, None)
    assert lookup.last_timestamp(log) is None


def test_last_record_is_found_behind_many_fillers() -> None:
    bench = LogBench()
    bench.append(b"a", timestamp=10)
    for number in range(200):
        bench.append_raw(bench.made.filler(1 + number, 2 + number, timestamp=20))
    assert lookup.last_timestamp(bench.log) == 10
    assert lookup.last_offset_at_or_before(bench.log, 50) == 0
