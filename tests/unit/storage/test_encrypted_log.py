"""An encrypted log reads as the plain one does, and works without its key where none is needed."""

from collections.abc import Iterator
from random import Random

import pytest

from liftbridge_broker.errors import CorruptionError, KeyUnavailableError
from liftbridge_broker.logformat.batch import HEADER_SIZE, BatchHeader, walk_verified
from liftbridge_broker.logformat.checksum import crc32c
from liftbridge_broker.logformat.encryption import read_cipher_head
from liftbridge_broker.logformat.frames import Frame
from liftbridge_broker.model.ids import Offset
from liftbridge_broker.model.steps import finish
from liftbridge_broker.storage.cleaning.compaction import (
    CompactionJob,
    SegmentRef,
    cleaned_path,
    compact,
    decode_job,
    encode_job,
)
from liftbridge_broker.storage.log import lookup
from liftbridge_broker.storage.log.batch_reader import ScrubReader
from liftbridge_broker.storage.log.opened import OpenedBatchReader, OpenedReader
from liftbridge_broker.storage.log.reverse import ReverseReader
from liftbridge_broker.storage.log.types import LogLimits, ReadResult
from liftbridge_testkit.batches import PARTITION, Batches, cipher, frames_of, header_of
from liftbridge_testkit.log_bench import DIRECTORY, LogBench, damaged, log_path, read_all

LIMITS = LogLimits(3_000, 0)
SECRET = b"plain text of a record"


def two_logs(seed: int) -> tuple[LogBench, LogBench]:
    """Return a plain and an encrypted log with equal records, made at random."""
    random, made = Random(seed), Batches()
    logs = LogBench(LIMITS), LogBench(LIMITS, cipher=cipher())
    end = 0
    for number in range(30):
        values = [SECRET + b"." * random.randrange(200) for _ in range(random.randrange(1, 7))]
        epoch = 1 + number // 10
        batch = made.make(end, values, timestamp=number, epoch=epoch)
        if random.random() < 0.3:
            kept = {end + n: value for n, value in enumerate(values) if random.random() < 0.6}
            batch = made.sparse(end, end + len(values), kept, timestamp=number, epoch=epoch)
        for bench in logs:
            bench.append_raw(batch)
        end = header_of(batch).end_offset
    return logs


def drained(read: Iterator[ReadResult]) -> list[Frame]:
    return [frame for result in read for frame in frames_of(result.slices)]


def forward(bench: LogBench, first: int, end: int, random: Random) -> Iterator[ReadResult]:
    reader = bench.reader(first)
    while (result := reader.read(random.randrange(1, 1_500), Offset(end))).slices:
        yield result
        if random.random() < 0.2:
            reader.release()
    reader.close()


def backward(bench: LogBench, first: int, oldest: int) -> list[Frame]:
    reader = ReverseReader(bench.log, Offset(first), Offset(oldest), bench.cipher)
    found: list[Frame] = []
    while (result := reader.read(500)).slices:
        found += [frame for piece in result.slices for frame in frames_of([piece])]
    return found


@pytest.mark.parametrize("seed", range(20))
def test_every_reader_gives_the_records_of_the_plain_log(seed: int) -> None:
    plain, closed = two_logs(seed)
    assert closed.cipher is not None
    random, end = Random(seed), plain.log.log_end_offset
    assert closed.log.log_end_offset == end
    for _ in range(10):
        first = random.randrange(end)
        stop = random.randrange(first + 1, end + 1)
        wanted = drained(forward(plain, first, stop, random))
        assert drained(forward(closed, first, stop, random)) == wanted
        assert backward(closed, stop - 1, first) == wanted[::-1]
        bulk = OpenedBatchReader(closed.log, Offset(first), closed.cipher)
        data = b""
        while (result := bulk.read(700, Offset(stop))).slices:
            data += b"".join(result.slices)
        batches = list(walk_verified(data, 0, len(data)))
        assert (batches[0][1].base_offset, batches[-1][1].end_offset) == (first, stop)
        frames = [data[at + HEADER_SIZE : at + header.size] for at, header in batches]
        assert frames_of(frames) == wanted


@pytest.mark.parametrize("seed", range(10))
def test_what_needs_no_key_does_not_ask_for_it(seed: int) -> None:
    plain, closed = two_logs(seed)
    assert closed.cipher is not None
    closed.sync()
    plain.sync()
    closed.cipher.lock(KeyUnavailableError("no key"))
    end = plain.log.log_end_offset
    for when in range(-1, 32):
        assert lookup.offset_for_timestamp(closed.log, when) == lookup.offset_for_timestamp(
            plain.log, when
        )
    assert lookup.last_timestamp(closed.log) == lookup.last_timestamp(plain.log)
    assert read_all(ScrubReader(closed.log, Offset(0)), 900, end) == read_all(
        ScrubReader(plain.log, Offset(0)), 900, end
    )
    cut_at = Random(seed).randrange(end // 2, end)
    for bench in (plain, closed):
        bench.log.truncate(Offset(cut_at))
        bench.sync()
        bench.files.kill()
        bench.log.abandon()
        assert not bench.open().quarantined
    with pytest.raises(KeyUnavailableError, match="no key"):
        closed.values()
    closed.cipher.unlock(b"k" * 32)
    assert closed.values() == plain.values()
    assert not any(SECRET in closed.files.content(path) for path in closed.files.paths(""))
    assert any(SECRET in plain.files.content(path) for path in plain.files.paths(""))


def test_batch_from_another_place_is_named_after_the_records_before_it() -> None:
    bench = LogBench(cipher=cipher())
    first = bench.append(SECRET, b"b")
    second = bench.append(b"c", b"d")
    other = cipher(new_salt=lambda: b"another writer.."[:16])
    foreign = other.close_batch(Batches().make(2, [b"c", b"d"], epoch=1))
    assert len(foreign) == len(second)
    swapped = damaged(foreign, len(foreign) - 1)
    fixed = _with_checksum(swapped)
    bench.log.abandon()
    bench.files.put(log_path(0), first + fixed)
    bench.open()
    reader = bench.reader(0)
    assert len(frames_of(reader.read(10_000, Offset(4)).slices)) == 2
    with pytest.raises(CorruptionError, match="does not decrypt") as caught:
        reader.read(10_000, Offset(4))
    assert (caught.value.path, caught.value.position) == (log_path(0), len(first))


def _with_checksum(batch: bytes) -> bytes:
    header = header_of(batch)
    return batch[:8] + crc32c(batch[12:]).to_bytes(4, "big") + batch[12 : header.size]


def test_reader_holds_no_decrypted_record_after_release_or_truncation() -> None:
    bench = LogBench(cipher=cipher())
    bench.append(*[b"%d" % n * 50 for n in range(10)])
    reader = bench.reader(0)
    assert isinstance(reader, OpenedReader)
    assert frames_of(reader.read(1, Offset(10)).slices)[0].offset == 0
    assert reader.next_offset == 1
    reader.release()
    assert reader.next_offset == 1
    assert [frame.offset for frame in frames_of(reader.read(250, Offset(10)).slices)] == [1, 2]
    bench.log.truncate(Offset(3))
    bench.append(b"new")
    assert frames_of(reader.read(10_000, Offset(4)).slices)[0].value == b"new"


def compact_log(bench: LogBench) -> CompactionJob:
    """Compact all sealed segments, as the helper process does from the line that it gets."""
    bench.log.roll()
    infos = [info for info in bench.log.segments() if info.bytes]
    given = CompactionJob(
        directory=DIRECTORY,
        partition_id=PARTITION,
        segments=tuple(SegmentRef(info.base, info.end, info.bytes) for info in infos),
        sealed_count=len(infos),
        until=bench.log.log_end_offset,
        map_start=Offset(0),
        segment_bytes_max=4_000,
        key=b"" if bench.cipher is None else bench.cipher.key,
        salt=b"salt of this job",
    )
    job = decode_job(encode_job(given))
    assert job == given
    result = finish(compact(bench.files, job))
    for (group,) in result.replacements:
        path = cleaned_path(DIRECTORY, group[0].base)
        bench.log.replace_segments([segment.base for segment in group], path)
    assert result.removed_count
    return job


@pytest.mark.parametrize("seed", range(5))
def test_compaction_keeps_what_it_keeps_of_the_plain_log(seed: int) -> None:
    random, made = Random(seed), Batches()
    plain, closed = LogBench(LIMITS), LogBench(LIMITS, cipher=cipher())
    end = 0
    for number in range(60):
        count = random.randrange(1, 6)
        batch = made.make(
            end,
            [SECRET + b"%d" % number] * count,
            keys=[b"secret-key-%d" % random.randrange(12) for _ in range(count)],
            timestamp=number,
            publisher=(random.randrange(1, 3), 0, number),
        )
        for bench in (plain, closed):
            bench.append_raw(batch)
        end += count
    compact_log(plain)
    job = compact_log(closed)
    assert closed.values() == plain.values()
    assert "k" * 8 not in repr(job)
    paths = closed.files.paths("")
    for text in (SECRET, b"secret-key"):
        assert not any(text in closed.files.content(path) for path in paths)
    heads = [
        read_cipher_head(batch, header)
        for header, batch in batches_of(closed)
        if not header.is_filler
    ]
    assert len({(head.salt, head.nonce) for head in heads}) == len(heads)


def batches_of(bench: LogBench) -> list[tuple[BatchHeader, bytes]]:
    """Return the stored batches of a log."""
    data = bench.log.read_batches(Offset(0), 1 << 20, bench.log.log_end_offset)
    return [
        (header, data[at : at + header.size]) for at, header in walk_verified(data, 0, len(data))
    ]


def test_compaction_without_the_right_key_changes_nothing_and_names_the_batch() -> None:
    bench = LogBench(LIMITS, cipher=cipher())
    for number in range(60):
        bench.append(b"%d" % number * 50)
    bench.log.roll()
    before = {path: bench.files.content(path) for path in bench.files.paths("")}
    bench.cipher = cipher(key=b"K" * 32)
    with pytest.raises(CorruptionError, match="does not decrypt") as caught:
        compact_log(bench)
    assert caught.value.path == log_path(0)
    assert {path: bench.files.content(path) for path in bench.files.paths("")} == before


def read_cold(bench: LogBench, reader: OpenedReader, max_bytes: int, end: int) -> ReadResult:
    """Read when nothing is in memory, as an owner does that submits the reads."""
    bench.files.is_cold = True
    while (result := reader.read(max_bytes, Offset(end))).need is not None:
        handle, position, length = result.need
        reader.feed(bench.files.read(handle, position, length))
    bench.files.is_cold = False
    return result


@pytest.mark.parametrize("max_bytes", [1, 700, 5_000, 1 << 20])
def test_reader_of_a_log_that_is_not_in_memory_gives_every_record(max_bytes: int) -> None:
    bench = LogBench(LIMITS, cipher=cipher())
    for number in range(40):
        bench.append(*[b"%d-%d" % (number, n) * 40 for n in range(3)])
    reader = bench.reader(0)
    assert isinstance(reader, OpenedReader)
    found: list[Frame] = []
    while (result := read_cold(bench, reader, max_bytes, 120)).slices:
        assert all(result.slices)
        found += frames_of(result.slices)
        assert reader.next_offset == len(found)
    assert [frame.offset for frame in found] == list(range(120))
    reader.close()


def test_damage_before_a_block_that_is_not_in_memory_is_raised_after_what_is_good() -> None:
    bench = LogBench(cipher=cipher())
    batches = [bench.append(b"x" * 1_000) for _ in range(40)]
    bench.log.abandon()
    batches[1] = _with_checksum(damaged(batches[1], len(batches[1]) - 1))
    bench.files.put(log_path(0), b"".join(batches))
    bench.open()
    reader = bench.reader(0)
    assert isinstance(reader, OpenedReader)
    result = read_cold(bench, reader, 16 * 1024, 40)
    assert [frame.offset for frame in frames_of(result.slices)] == [0]
    with pytest.raises(CorruptionError, match="does not decrypt"):
        reader.read(16 * 1024, Offset(40))
    reader.close()
    assert bench.log.live_segments()[0].pins == 0
