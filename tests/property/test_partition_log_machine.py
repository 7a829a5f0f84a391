"""The partition log against a list, with readers that live through everything done to it.

The machine also plays the owner: it journals small state as the store does, syncs by token, and
cuts power or kills between calls. After any restart what was synced must be there, and nothing may
be there that was not appended.
"""

from random import Random
from typing import NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from liftbridge_broker.logformat.batch import HEADER_SIZE, walk_verified
from liftbridge_broker.logformat.frames import Frame, iter_frames
from liftbridge_broker.logformat.index_blocks import RELATIVE_MAX
from liftbridge_broker.model.ids import LeaderEpoch, Offset
from liftbridge_broker.ports.files import Token
from liftbridge_broker.storage.log import lookup
from liftbridge_broker.storage.log.batch_reader import BatchReader
from liftbridge_broker.storage.log.partition_log import PartitionLog
from liftbridge_broker.storage.log.reader import LogReader
from liftbridge_broker.storage.log.reverse import ReverseReader
from liftbridge_broker.storage.log.state import LogState
from liftbridge_broker.storage.log.types import EMPTY_STATE, LogLimits, ReadResult
from liftbridge_testkit.batches import PARTITION, Batches, frames_of, header_of
from liftbridge_testkit.memory_files import MemoryFiles

DIRECTORY = "streams/foo/0"
LIMITS = LogLimits(3000, 1000)
sizes = st.lists(st.integers(0, 400) | st.just(5000), min_size=1, max_size=12)


class Record(NamedTuple):
    value: bytes
    timestamp: int
    epoch: int


class PartitionLogMachine(RuleBasedStateMachine):
    """Model: records by offset, where the log begins and ends, and what the journal holds."""

    def __init__(self) -> None:
        super().__init__()
        self.files = MemoryFiles()
        self.made = Batches()
        self.records: dict[int, Record] = {}
        self.start = self.end = 0
        self.now = 1000
        self.wall = 0
        self.epoch = 1
        self.serial = 0
        self.journal: LogState = EMPTY_STATE
        self.flight: tuple[int, LogState] | None = None
        self.readers: list[LogReader | BatchReader] = []

    @initialize()
    def open_empty(self) -> None:
        self.files.make_directory(DIRECTORY)
        for folder in ("streams/foo", "streams", ""):
            self.files.sync_directory(folder)
        self.open(clean=False)

    def open(self, *, clean: bool) -> None:
        self.log, self.report = PartitionLog.open(
            self.files, DIRECTORY, PARTITION, LIMITS, self.journal, clean=clean, commit=False
        )
        self.log.high_watermark = self.log.log_end_offset
        self.flight = None
        self.readers = []

    def note_state(self) -> None:
        """Journal durably, as the store does before it removes anything."""
        self.journal = self.log.state

    # Changes.

    def batch(self, lengths: list[int]) -> bytes:
        values = []
        for length in lengths:
            self.serial += 1
            values.append((b"%d:" % self.serial).ljust(length, b"."))
        data = self.made.make(self.end, values, timestamp=self.now, epoch=self.epoch)
        for value in values:
            self.records[self.end] = Record(value, self.now, self.epoch)
            self.end += 1
        return data

    @rule(
        lengths=sizes, pass_time=st.integers(0, 30), wait=st.integers(0, 400), elect=st.booleans()
    )
    def append(self, lengths: list[int], pass_time: int, wait: int, elect: bool) -> None:
        self.now += pass_time
        self.wall += wait
        self.epoch += elect
        batch = self.batch(lengths)
        self.log.append(batch, header_of(batch), self.wall)

    @rule(first=sizes, second=sizes)
    def append_joined(self, first: list[int], second: list[int]) -> None:
        batches = [self.batch(first), self.batch(second)]
        self.log.append_batches(b"".join(batches), [header_of(b) for b in batches], self.wall)

    @rule(length=st.integers(1, 50) | st.just(1 << 33))
    def append_filler(self, length: int) -> None:
        batch = self.made.filler(self.end, self.end + length, timestamp=self.now, epoch=self.epoch)
        self.end += length
        self.log.append(batch, header_of(batch), self.wall)

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(back=st.integers(0, 40))
    def truncate(self, back: int) -> None:
        end = max(self.start, self.end - back)
        point = min(self.journal.recovery_point, end)
        self.journal = self.journal._replace(recovery_point=Offset(point))
        self.log.truncate(Offset(end))
        self.end = end
        self.records = {offset: r for offset, r in self.records.items() if offset < end}
        self.epoch += 1

    @rule(forward=st.integers(0, 60))
    def move_log_start(self, forward: int) -> None:
        self.start = min(self.end, self.start + forward)
        self.log.set_log_start(Offset(self.start))
        self.note_start()
        for path in self.log.drop_segments_below(Offset(self.start)):
            self.files.remove(path)
        self.records = {offset: r for offset, r in self.records.items() if offset >= self.start}

    def note_start(self) -> None:
        self.journal = self.journal._replace(
            log_start=self.log.log_start_offset, epochs=self.log.epochs.entries
        )

    @rule(gap=st.integers(0, 50))
    def restart_elsewhere(self, gap: int) -> None:
        place = Offset(self.end + gap)
        self.journal = LogState(place, place, place, ())
        self.log.restart_at(place)
        self.start = self.end = place
        self.records = {}

    @rule(seed=st.integers(0, 1 << 20), has_index=st.booleans(), many=st.booleans())
    def compact(self, seed: int, has_index: bool, many: bool) -> None:
        sealed = [s for s in self.log.segments() if s.sealed]
        if not sealed:
            return
        random = Random(seed)
        first = random.randrange(len(sealed))
        chosen = sealed[first : first + (2 if many else 1)]
        if chosen[-1].end - chosen[0].base > RELATIVE_MAX:
            chosen = chosen[:1]
        # What a crash may bring back of the old file must not differ: compaction is of synced data.
        self.sync_now()
        dropped = {offset for offset in self.records if random.random() < 0.5}
        out = []
        for segment in chosen:
            data = self.files.content(segment.path)
            for position, header in walk_verified(data, 0, len(data)):
                frames = data[position + HEADER_SIZE : position + header.size]
                kept: dict[int, bytes] = {
                    frame.offset: frame.value
                    for frame in frames_of([frames])
                    if frame.offset not in dropped
                }
                out.append(
                    self.made.sparse(
                        header.base_offset,
                        header.end_offset,
                        kept,
                        timestamp=header.first_timestamp,
                        epoch=header.leader_epoch,
                    )
                )
        base, end = chosen[0].base, chosen[-1].end
        cleaned = chosen[0].path + ".cleaned"
        self.files.put(cleaned, b"".join(out))
        for path in self.log.replace_segments([s.base for s in chosen], cleaned):
            self.files.remove(path)
        if has_index:
            self.log.close_idle()
        for offset in dropped:
            if base <= offset < end:
                self.records.pop(offset, None)

    # Durability.

    @precondition(lambda self: self.flight is None)
    @rule()
    def begin_sync(self) -> None:
        self.files.submit_sync(Token(1), *self.log.unsynced())
        self.flight = self.end, self.log.state

    @precondition(lambda self: self.flight is not None)
    @rule()
    def end_sync(self) -> None:
        assert self.flight is not None
        self.files.calls.pump()
        self.log.mark_synced(Offset(self.flight[0]))
        self.flight = None
        self.note_state()

    def sync_now(self) -> None:
        if self.flight is not None:
            self.end_sync()
        self.begin_sync()
        self.end_sync()

    @rule()
    def stop_and_start(self) -> None:
        self.files.calls.pump()
        before = self.log.segments()
        self.log.close()
        assert self.files.open_count == 0
        self.note_state()
        self.files.crash(None)
        self.open(clean=True)
        assert not self.report.quarantined
        assert self.report.cut_offset is None
        assert self.log.log_end_offset == self.end
        assert set(self.log.segments()[:-1]) <= set(before)

    @rule()
    def kill(self) -> None:
        self.files.kill()
        self.open(clean=False)
        assert self.report.cut_offset is None
        assert self.log.log_end_offset == self.end

    @rule(seed=st.integers(0, 1 << 30), keeps=st.booleans())
    def lose_power(self, seed: int, keeps: bool) -> None:
        self.files.crash(Random(seed) if keeps else None)
        self.open(clean=False)
        end = self.log.log_end_offset
        assert not self.report.quarantined, self.report
        assert self.journal.recovery_point <= end <= self.end
        self.end = end
        self.records = {offset: r for offset, r in self.records.items() if offset < end}
        self.epoch += 1

    @rule()
    def drop_caches(self) -> None:
        self.log.close_idle()

    # Reading.

    def expected(self, first: int, end: int) -> list[tuple[int, Record]]:
        inside = [o for o in self.records if max(first, self.start) <= o < min(end, self.end)]
        return [(offset, self.records[offset]) for offset in sorted(inside)]

    def check(self, frames: list[Frame], expected: list[tuple[int, Record]]) -> None:
        found = [(f.offset, f.value, f.timestamp) for f in frames]
        assert found == [(offset, r.value, r.timestamp) for offset, r in expected]

    def served(
        self, reader: LogReader | BatchReader, max_bytes: int, end: int, cold: bool
    ) -> ReadResult:
        self.files.is_cold = cold
        result = reader.read(max_bytes, Offset(end))
        while result.need is not None:
            assert result.slices == []
            handle, position, length = result.need
            reader.feed(self.files.read(handle, position, length))
            self.files.is_cold = False
            result = reader.read(max_bytes, Offset(end))
        self.files.is_cold = False
        return result

    @rule(
        back=st.integers(0, 80),
        max_bytes=st.integers(1, 3000) | st.just(1 << 20),
        short=st.integers(0, 10),
        cold=st.booleans(),
    )
    def read_frames(self, back: int, max_bytes: int, short: int, cold: bool) -> None:
        first, end = max(0, self.end - back), self.end - short
        reader = self.log.reader(Offset(first))
        frames: list[Frame] = []
        while True:
            result = self.served(reader, max_bytes, end, cold)
            some = frames_of(result.slices)
            assert result.count == len(some)
            size = sum(map(len, result.slices))
            assert size <= max_bytes or len(some) == 1
            if not some:
                break
            frames += some
        self.check(frames, self.expected(first, end))
        reader.close()

    @rule(
        back=st.integers(0, 80),
        max_bytes=st.integers(1, 3000) | st.just(1 << 20),
        short=st.integers(0, 10),
        cold=st.booleans(),
    )
    def read_batches(self, back: int, max_bytes: int, short: int, cold: bool) -> None:
        first = min(self.end, max(self.start, self.end - back))
        end = max(first, self.end - short)
        reader = self.log.batch_reader(Offset(first))
        at = first
        frames: list[Frame] = []
        while True:
            result = self.served(reader, max_bytes, end, cold)
            data = b"".join(result.slices)
            if not data:
                break
            headers = [header for _, header in walk_verified(data, 0, len(data))]
            assert headers[0].base_offset == at
            assert len(data) <= max_bytes or len(headers) == 1
            assert sum(header.count for header in headers) == result.count
            at = headers[-1].end_offset
            for position, header in walk_verified(data, 0, len(data)):
                frames += frames_of([data[position + HEADER_SIZE : position + header.size]])
        assert at == end
        self.check(frames, self.expected(first, end))
        blocking = self.log.read_batches(Offset(first), max_bytes, Offset(end))
        assert bool(blocking) == (first < end)

    @rule(back=st.integers(-5, 80), max_bytes=st.integers(1, 3000), cold=st.booleans())
    def read_backwards(self, back: int, max_bytes: int, cold: bool) -> None:
        newest = self.end - 1 - back
        reader = ReverseReader(self.log, Offset(newest))
        frames: list[Frame] = []
        self.files.is_cold = cold
        while not reader.is_done:
            result = reader.read(max_bytes)
            if result.need is not None:
                handle, position, length = result.need
                reader.feed(self.files.read(handle, position, length))
                continue
            some = frames_of(result.slices[::-1])[::-1]
            assert result.count == len(some)
            frames += some
        self.files.is_cold = False
        self.check(frames[::-1], self.expected(0, newest + 1))

    @rule(back=st.integers(0, 80), batches=st.booleans())
    def start_reader(self, back: int, batches: bool) -> None:
        first = Offset(max(self.start, self.end - back))
        if len(self.readers) < 4:
            reader = self.log.batch_reader(first) if batches else self.log.reader(first)
            self.readers.append(reader)

    @rule(number=st.integers(0, 3), max_bytes=st.integers(1, 2000), short=st.integers(0, 10))
    def read_on(self, number: int, max_bytes: int, short: int) -> None:
        """A reader that lived through changes goes on where it was, or where the log begins now."""
        if number >= len(self.readers):
            return
        reader = self.readers[number]
        first = max(reader.next_offset, self.start)
        result = self.served(reader, max_bytes, self.end - short, cold=False)
        data = b"".join(result.slices)
        if isinstance(reader, BatchReader):
            pieces = [(p + HEADER_SIZE, p + h.size) for p, h in walk_verified(data, 0, len(data))]
            data = b"".join(data[start:end] for start, end in pieces)
        expected = self.expected(first, min(self.end - short, reader.next_offset))
        self.check(frames_of([data]), expected)
        if not result.slices and first < self.end - short:
            assert reader.next_offset >= self.end - short

    @rule(number=st.integers(0, 3))
    def end_with_read_in_flight(self, number: int) -> None:
        if number >= len(self.readers):
            return
        reader = self.readers.pop(number)
        self.files.is_cold = True
        reader.read(1000, Offset(self.end))
        self.files.is_cold = False
        reader.close()

    # Looking up.

    @rule(back=st.integers(-5, 200))
    def look_up_times(self, back: int) -> None:
        timestamp = self.now - back
        live = self.expected(0, self.end)
        later = [offset for offset, record in live if record.timestamp >= timestamp]
        before = [offset for offset, record in live if record.timestamp <= timestamp]
        assert lookup.offset_for_timestamp(self.log, timestamp) == (later[0] if later else self.end)
        assert lookup.last_offset_at_or_before(self.log, timestamp) == (
            before[-1] if before else None
        )
        assert lookup.first_timestamp(self.log) == (live[0][1].timestamp if live else None)
        assert lookup.last_timestamp(self.log) == (live[-1][1].timestamp if live else None)

    @invariant()
    def agrees_with_the_model(self) -> None:
        if not hasattr(self, "log"):
            return
        log = self.log
        assert (log.log_start_offset, log.log_end_offset) == (self.start, self.end)
        assert log.recovery_point <= log.log_end_offset
        segments = log.segments()
        assert len(segments) == log.segment_count
        assert sum(s.bytes for s in segments) == log.size_bytes
        assert [s.base for s in segments[1:]] == [s.end for s in segments[:-1]]
        assert segments[0].base <= self.start
        assert segments[-1].end == self.end
        assert [s.sealed for s in segments] == [True] * (len(segments) - 1) + [False]
        for segment in segments:
            if segment.bytes:
                assert len(self.files.content(segment.path)) == segment.bytes
        for epoch, start in log.epochs.entries:
            assert start <= self.end
            record = self.records.get(start)
            assert record is None or record.epoch == epoch or start == self.start
        for offset, record in self.records.items():
            assert log.epochs.epoch_at(Offset(offset)) == LeaderEpoch(record.epoch)

    @invariant()
    def counts_its_records(self) -> None:
        if not hasattr(self, "log"):
            return
        for info in self.log.segments():
            data = self.files.content(info.path) if info.bytes else b""
            count = 0
            for position, header in walk_verified(data, 0, len(data)):
                frames = iter_frames(data, position + HEADER_SIZE, position + header.size)
                count += sum(1 for _ in frames)
            assert info.records == count


TestPartitionLogMachine = PartitionLogMachine.TestCase
TestPartitionLogMachine.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
