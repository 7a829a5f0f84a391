"""Readers: what they give out, and that they live through everything done to the log."""

from collections.abc import Callable

import pytest

from liftbridge_broker.errors import CorruptionError, FilesError
from liftbridge_broker.logformat.batch import HEADER_SIZE, walk_verified
from liftbridge_broker.model.ids import Offset, PartitionId
from liftbridge_broker.ports.files import Token
from liftbridge_broker.storage.log.batch_reader import BatchReader
from liftbridge_broker.storage.log.reader import LogReader
from liftbridge_broker.storage.log.reverse import ReverseReader
from liftbridge_broker.storage.log.types import READ_BLOCK_BYTES, LogLimits, ReadResult
from liftbridge_testkit.batches import Batches, frames_of, offsets_of
from liftbridge_testkit.log_bench import (
    LogBench,
    ReadCounter,
    damaged,
    log_path,
    read_all,
    read_back,
    starts_of,
    ten_batches,
)
from liftbridge_testkit.memory_files import Fault

MIB = 1 << 20
SMALL = LogLimits(700, 0)


def drain(read: Callable[[], ReadResult]) -> list[Offset]:
    found: list[Offset] = []
    while True:
        result = read()
        if not result.slices:
            return found
        found += offsets_of(result.slices)


def all_from(bench: LogBench, first: int, max_bytes: int, end: int) -> list[Offset]:
    reader = bench.log.reader(Offset(first))
    return drain(lambda: reader.read(max_bytes, Offset(end)))


# What is given out.


@pytest.mark.parametrize("max_bytes", [1, 50, 130, 300, 700, MIB])
@pytest.mark.parametrize("end", [0, 1, 2, 3, 4, 17, 29, 30, 99])
def test_reader_gives_every_record_once_up_to_the_end(max_bytes: int, end: int) -> None:
    bench = ten_batches()
    for first in range(31):
        assert all_from(bench, first, max_bytes, end) == list(range(first, min(end, 30)))


def test_slices_are_whole_batches_where_they_fit() -> None:
    bench = ten_batches()
    result = bench.log.reader(Offset(0)).read(MIB, Offset(30))
    assert (len(result.slices), result.count) == (10, 30)
    result = bench.log.reader(Offset(1)).read(MIB, Offset(29))
    assert (len(result.slices), result.count) == (10, 28)


def test_batch_that_does_not_fit_behind_others_is_left_whole() -> None:
    bench = ten_batches()
    frames = len(bench.files.content(log_path(0))) // 10 - HEADER_SIZE
    reader = bench.log.reader(Offset(0))
    assert offsets_of(reader.read(2 * frames + 10, Offset(30)).slices) == list(range(6))
    assert offsets_of(reader.read(frames - 1, Offset(30)).slices) == [6, 7]
    assert offsets_of(reader.read(frames - 1, Offset(30)).slices) == [8]


def test_record_larger_than_what_is_asked_for_is_given_alone() -> None:
    bench = LogBench()
    bench.append(b"a" * 5000, b"b" * 5000)
    reader = bench.log.reader(Offset(0))
    assert reader.read(10, Offset(2)).count == 1
    assert reader.read(10, Offset(2)).count == 1
    assert reader.read(10, Offset(2)) == ReadResult([], 0)


def test_reader_waits_at_the_end_and_goes_on() -> None:
    bench = ten_batches()
    reader = bench.log.reader(Offset(30))
    assert reader.read(MIB, Offset(99)) == ReadResult([], 0)
    bench.append(b"new")
    assert reader.read(MIB, Offset(30)) == ReadResult([], 0)
    assert frames_of(reader.read(MIB, Offset(31)).slices)[0].value == b"new"


def test_reader_stops_at_an_end_inside_of_a_batch_and_goes_on_there() -> None:
    bench = ten_batches()
    reader = bench.log.reader(Offset(0))
    ends = [1, 2, 2, 5, 6, 7, 9, 30]
    found = [offsets_of(reader.read(MIB, Offset(end)).slices) for end in ends]
    assert [offset for some in found for offset in some] == list(range(30))
    assert [len(some) for some in found] == [1, 1, 0, 3, 1, 1, 2, 21]
    assert reader.next_offset == 30


def test_reader_on_a_compacted_log_moves_over_what_is_gone() -> None:
    bench = LogBench()
    bench.append_raw(bench.made.sparse(0, 10, {2: b"c", 7: b"h"}))
    bench.append_raw(bench.made.filler(10, 20))
    bench.append_raw(bench.made.sparse(20, 22, {21: b"v"}))
    bench.append_raw(bench.made.filler(22, 30))
    for max_bytes in (1, 60, MIB):
        for first in range(31):
            for end in (*range(9), 15, 21, 22, 30):
                wanted = [o for o in (2, 7, 21) if first <= o < end]
                reader = bench.log.reader(Offset(first))
                assert read_all(reader, max_bytes, end) == len(wanted)
                assert all_from(bench, first, max_bytes, end) == wanted
                assert reader.next_offset == max(first, end)
    reader = bench.log.reader(Offset(0))
    assert drain(lambda: reader.read(MIB, Offset(5))) == [2]
    assert drain(lambda: reader.read(MIB, Offset(30))) == [7, 21]


def test_large_batches_are_read_in_one_piece_of_the_file() -> None:
    bench = LogBench(files=ReadCounter())
    assert isinstance(bench.files, ReadCounter)
    for _ in range(4):
        bench.append(*[b"x" * 1000] * 500)
    assert all_from(bench, 0, READ_BLOCK_BYTES, 2000) == list(range(2000))
    assert bench.files.read_bytes < 1.6 * bench.log.size_bytes
    assert all_from(bench, 0, 5000, 2000) == list(range(2000))


def test_large_stored_batches_are_read_once_each_by_a_reader_that_keeps_nothing() -> None:
    """As followers read; the first read finds the size with a short one."""
    bench = LogBench(files=ReadCounter())
    assert isinstance(bench.files, ReadCounter)
    for _ in range(8):
        bench.append(*[b"x" * 1000] * 100)
    reader = bench.log.batch_reader(Offset(0))
    for _ in range(8):
        assert len(reader.read(50_000, Offset(800)).slices) == 1
        reader.release()
    assert bench.files.read_bytes < 1.1 * bench.log.size_bytes


def test_small_batches_share_a_read() -> None:
    bench = LogBench(files=ReadCounter())
    assert isinstance(bench.files, ReadCounter)
    for _ in range(3000):
        bench.append(b"x" * 300)
    reader = bench.log.reader(Offset(0))
    assert drain(lambda: reader.read(READ_BLOCK_BYTES, Offset(3000))) == list(range(3000))
    blocks = bench.log.size_bytes / READ_BLOCK_BYTES
    assert bench.files.reads <= 2 * blocks + 2
    assert reader._block == b""


def test_frames_are_walked_once_when_a_batch_is_read_in_small_pieces() -> None:
    bench = LogBench(files=ReadCounter())
    assert isinstance(bench.files, ReadCounter)
    bench.append(*[b"x" * 100] * 1000)
    reader = bench.log.reader(Offset(0))
    assert drain(lambda: reader.read(500, Offset(1000))) == list(range(1000))
    assert bench.files.reads <= 2


# Verification.


def test_batch_is_verified_once_until_its_file_changes() -> None:
    bench = ten_batches()
    assert all_from(bench, 0, MIB, 30) == list(range(30))
    data = bench.files.content(log_path(0))
    bench.files.put(log_path(0), damaged(data, len(data) - 20))
    assert len(all_from(bench, 0, MIB, 30)) == 30
    bench.log.truncate(Offset(27))
    bench.append(b"new", b"new", b"new", timestamp=9)
    data = bench.files.content(log_path(0))
    bench.files.put(log_path(0), damaged(data, len(data) - 20))
    with pytest.raises(CorruptionError):
        all_from(bench, 27, MIB, 30)


@pytest.mark.parametrize("max_bytes", [1, 400, MIB])
@pytest.mark.parametrize("bad", [0, 4, 9])
@pytest.mark.parametrize("at", [0, 5, 9, 20, 35, 60, 100, 200])
def test_damage_is_told_with_its_place_after_all_before_it(
    max_bytes: int, bad: int, at: int
) -> None:
    bench = LogBench()
    batches = [bench.append(b"a", b"b" * 50, b"c") for _ in range(10)]
    position = starts_of(batches)[bad]
    bench.files.put(log_path(0), damaged(b"".join(batches), position + at))
    for reader in (bench.log.reader(Offset(0)), bench.log.batch_reader(Offset(0))):
        with pytest.raises(CorruptionError) as caught:
            read_all(reader, max_bytes, 30)
        assert reader.next_offset == 3 * bad
        assert (caught.value.path, caught.value.position) == (log_path(0), position)
        with pytest.raises(CorruptionError):
            reader.read(max_bytes, Offset(30))


@pytest.mark.parametrize("at", [0, 5, 9, 20, 35, 60, 100, 200])
def test_damage_is_told_by_the_reverse_reader(at: int) -> None:
    bench = LogBench()
    batches = [bench.append(b"a", b"b" * 50, b"c") for _ in range(10)]
    position = starts_of(batches)[4] + at
    bench.files.put(log_path(0), damaged(b"".join(batches), position))
    reader = ReverseReader(bench.log, Offset(29))
    with pytest.raises(CorruptionError) as caught:
        read_back(reader, MIB)
    assert caught.value.path == log_path(0)


def test_every_flipped_bit_of_a_log_is_told_by_every_reader() -> None:
    bench = LogBench()
    bench.append(b"abc", b"de")
    bench.append(b"f")
    data = bench.files.content(log_path(0))
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        bench.files.put(log_path(0), bytes(flipped))
        for segment in bench.log.live_segments():
            segment.verified.cut(0)
        with pytest.raises(CorruptionError):
            read_all(bench.log.reader(Offset(0)), MIB, 3)
        with pytest.raises(CorruptionError):
            read_all(bench.log.batch_reader(Offset(0)), MIB, 3)
        with pytest.raises(CorruptionError):
            read_back(ReverseReader(bench.log, Offset(2)), MIB)


def test_batch_of_another_partition_is_told_by_every_reader() -> None:
    bench = LogBench()
    batches = [bench.append(b"a"), bench.append(b"b"), bench.append(b"c")]
    foreign = Batches(PartitionId(4 << 24 | 3)).make(1, [b"b"])
    assert len(foreign) == len(batches[1])
    bench.files.put(log_path(0), batches[0] + foreign + batches[2])
    for reader in (bench.log.reader(Offset(0)), bench.log.batch_reader(Offset(0))):
        with pytest.raises(CorruptionError):
            read_all(reader, MIB, 3)
        assert reader.next_offset == 1
    with pytest.raises(CorruptionError):
        read_back(ReverseReader(bench.log, Offset(2)), MIB)


def test_file_shorter_than_its_log_is_damage() -> None:
    bench = ten_batches()
    data = bench.files.content(log_path(0))
    for kept in range(0, len(data), 97):
        bench.files.put(log_path(0), data[:kept])
        for reader in (bench.log.reader(Offset(0)), bench.log.batch_reader(Offset(0))):
            with pytest.raises(CorruptionError):
                read_all(reader, 300, 30)
        reverse = ReverseReader(bench.log, Offset(29))
        with pytest.raises(CorruptionError):
            reverse.read(300)


def test_failure_of_the_disk_is_told_after_what_was_read() -> None:
    bench = LogBench()
    for _ in range(4):
        bench.append(*[b"x" * 1000] * 100)
    for skip in (0, 1):
        bench.files.fail(Fault("read", log_path(0), skip=skip))
        reader = bench.log.reader(Offset(0))
        if skip:
            assert reader.read(MIB, Offset(400)).count > 0
        with pytest.raises(FilesError):
            read_all(reader, MIB, 400)


# Reads that the page cache cannot serve.


def cold_drain(bench: LogBench, reader: LogReader | BatchReader, max_bytes: int) -> int:
    """Records read while nothing is in memory; every read goes by token."""
    end = bench.log.log_end_offset
    count = 0
    while True:
        bench.files.is_cold = True
        result = reader.read(max_bytes, end)
        if result.need is None and not result.slices:
            bench.files.is_cold = False
            return count
        count += result.count
        if result.need is not None:
            assert result.slices == []
            assert reader.read(max_bytes, end) == result
            bench.files.submit_read(Token(1), *result.need)
            reader.feed(bench.files.calls.pump()[0].data)


@pytest.mark.parametrize("max_bytes", [1, 300, MIB])
def test_bytes_that_are_not_in_memory_are_asked_for(max_bytes: int) -> None:
    bench = ten_batches(SMALL)
    assert bench.log.segment_count > 2
    assert cold_drain(bench, bench.log.reader(Offset(1)), max_bytes) == 29
    assert cold_drain(bench, bench.log.batch_reader(Offset(1)), max_bytes) == 29


def test_bytes_that_never_come_are_damage_not_asked_for_again() -> None:
    bench = ten_batches()
    bench.files.put(log_path(0), bench.files.content(log_path(0))[:500])
    bench.files.is_cold = True
    for reader in (bench.log.reader(Offset(0)), bench.log.batch_reader(Offset(0))):
        need = reader.read(MIB, Offset(30)).need
        assert need is not None
        reader.feed(bench.files.read(*need))
        with pytest.raises(CorruptionError, match="shorter than its log"):
            reader.read(MIB, Offset(30))
        assert reader.next_offset == 0
    reverse = ReverseReader(bench.log, Offset(29))
    need = reverse.read(MIB).need
    assert need is not None
    reverse.feed(bench.files.read(*need))
    with pytest.raises(CorruptionError, match="shorter than its log"):
        reverse.read(MIB)


def test_reverse_reader_asks_for_bytes_too() -> None:
    bench = ten_batches(SMALL)
    reader = ReverseReader(bench.log, Offset(29))
    bench.files.is_cold = True
    found: list[Offset] = []
    while not reader.is_done:
        result = reader.read(200)
        found += [frame.offset for piece in result.slices for frame in frames_of([piece])]
        if result.need is not None:
            assert reader.read(200) == result
            reader.feed(bench.files.read(*result.need))
    assert found == list(range(29, -1, -1))


def drop(bench: LogBench) -> None:
    bench.log.set_log_start(Offset(20))
    bench.log.drop_segments_below(Offset(20))


CHANGES: dict[str, Callable[[LogBench], object]] = {
    "truncate": lambda bench: bench.log.truncate(Offset(4)),
    "drop": drop,
    "restart": lambda bench: bench.log.restart_at(Offset(40)),
    "abandon": lambda bench: bench.log.abandon(),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", ["frames", "batches", "reverse"])
def test_read_in_flight_keeps_its_file_open_and_is_dropped(change: str, kind: str) -> None:
    bench = ten_batches(SMALL)
    bench.sync()
    bench.log.close_idle()
    bench.files.is_cold = True
    reader: LogReader | BatchReader | ReverseReader
    if kind == "reverse":
        reader = ReverseReader(bench.log, Offset(2))
        need = reader.read(MIB).need
    else:
        reader = (
            bench.log.reader(Offset(0)) if kind == "frames" else bench.log.batch_reader(Offset(0))
        )
        need = reader.read(MIB, Offset(30)).need
    assert need is not None
    CHANGES[change](bench)
    reader.feed(bench.files.read(*need))
    if change != "truncate":
        assert need.handle not in bench.files._handles
    reader.close()
    bench.log.abandon()
    assert bench.files.open_count == 0


def test_reader_that_ends_with_a_read_in_flight_leaves_nothing_open() -> None:
    bench = ten_batches()
    bench.sync()
    bench.log.close_idle()
    bench.files.is_cold = True
    for reader in (bench.log.reader(Offset(0)), bench.log.batch_reader(Offset(0))):
        assert reader.read(MIB, Offset(30)).need
        assert bench.log.close_idle() == 0
        reader.close()
        reader.close()
        assert bench.log.close_idle() == 1
    reverse = ReverseReader(bench.log, Offset(9))
    assert reverse.read(MIB).need
    reverse.close()
    assert bench.log.close_idle() == 1
    assert bench.files.open_count == 0


# Readers live on.


def standing(bench: LogBench, at: int) -> LogReader:
    """A reader in the middle of a batch, with its block in hand."""
    reader = bench.log.reader(Offset(0))
    while reader.next_offset < at:
        reader.read(1, Offset(at))
    return reader


def rest(bench: LogBench, reader: LogReader) -> list[Offset]:
    return drain(lambda: reader.read(MIB, bench.log.log_end_offset))


@pytest.mark.parametrize("at", range(31))
def test_reader_survives_a_roll(at: int) -> None:
    bench = ten_batches()
    reader = standing(bench, at)
    bench.log.roll()
    bench.append(b"new")
    bench.log.roll()
    assert rest(bench, reader) == list(range(at, 31))
    bench.append(b"newer")
    assert rest(bench, reader) == [31]


@pytest.mark.parametrize("at", range(31))
def test_reader_survives_retention(at: int) -> None:
    bench = ten_batches(SMALL)
    reader = standing(bench, at)
    bench.log.set_log_start(Offset(16))
    for path in bench.log.drop_segments_below(Offset(16)):
        bench.files.remove(path)
    assert rest(bench, reader) == list(range(max(at, 16), 30))


@pytest.mark.parametrize("at", range(31))
def test_reader_survives_compaction(at: int) -> None:
    bench = ten_batches(SMALL)
    reader = standing(bench, at)
    values = bench.values()
    kept = set(range(0, 30, 4))
    sealed = [info for info in bench.log.segments() if info.sealed]
    for info in sealed:
        data = bench.files.content(info.path)
        out = b""
        for _, header in walk_verified(data, 0, len(data)):
            inside = range(header.base_offset, header.end_offset)
            out += bench.made.sparse(
                header.base_offset,
                header.end_offset,
                {offset: values[offset] for offset in inside if offset in kept},
            )
        bench.files.put(info.path + ".cleaned", out)
        bench.log.replace_segments([info.base], info.path + ".cleaned")
    end = sealed[-1].end
    expected = [o for o in range(at, 30) if o >= end or o in kept]
    assert rest(bench, reader) == expected


@pytest.mark.parametrize("at", range(31))
@pytest.mark.parametrize("end", [0, 5, 13, 27, 29])
def test_reader_survives_truncation(at: int, end: int) -> None:
    bench = ten_batches(SMALL)
    reader = standing(bench, at)
    bench.log.truncate(Offset(end))
    assert rest(bench, reader) == list(range(at, end))
    bench.append(*[b"other"] * 10, epoch=7)
    frames = frames_of(reader.read(MIB, bench.log.log_end_offset).slices)
    assert [f.offset for f in frames if f.offset >= end] == list(range(max(at, end), end + 10))
    assert {f.value for f in frames if f.offset >= end} <= {b"other"}


def test_reader_goes_on_after_damage_was_cut_away() -> None:
    bench = LogBench()
    batches = [bench.append(b"a"), bench.append(b"b"), bench.append(b"c")]
    bench.files.put(log_path(0), batches[0] + damaged(batches[1], 120) + batches[2])
    reader = bench.log.reader(Offset(0))
    assert offsets_of(reader.read(MIB, Offset(3)).slices) == [0]
    with pytest.raises(CorruptionError):
        reader.read(MIB, Offset(3))
    bench.log.truncate(Offset(1))
    bench.append(b"again", epoch=2)
    assert frames_of(reader.read(MIB, Offset(2)).slices)[0].value == b"again"
