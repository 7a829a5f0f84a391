"""Power cut at every write point of a log's life, also while it recovers from another cut.

One script does everything a log goes through: appends, syncs, rolls, retention, a cut inside a
batch, compaction, a clean stop. It is run once to count its write points and then again and again
with the power cut at each of them. Whatever survives, what was reported as synced must be there,
and the rest must be a state the log has been in.
"""

from collections.abc import Callable, Iterator
from random import Random

import pytest

from liftbridge_broker.logformat.batch import HEADER_SIZE, walk_verified
from liftbridge_broker.logformat.cipher import BatchCipher
from liftbridge_broker.model.ids import Offset
from liftbridge_broker.storage.log.opened import OpenedReader
from liftbridge_broker.storage.log.partition_log import PartitionLog
from liftbridge_broker.storage.log.state import LogState
from liftbridge_broker.storage.log.types import EMPTY_STATE, LogLimits, RecoveryReport
from liftbridge_testkit.batches import PARTITION, Batches, cipher, frames_of, header_of
from liftbridge_testkit.log_bench import sync_log
from liftbridge_testkit.memory_files import MemoryFiles, PowerCutError

DIRECTORY = "streams/foo/0"
LIMITS = LogLimits(2000, 0)
Records = dict[int, bytes]


class Owner:
    """What a store does for a log, with a journal that is durable at once.

    Attributes:
        journal: Small state as it would be read after a crash.
        synced: Records that were reported as synced.
        states: All states the log has been in or was going to be in, since the last sync.
        cipher: Encrypts and decrypts the log; `None` for a plain one.
    """

    def __init__(self, files: MemoryFiles, *, commit: bool, encrypted: bool = False) -> None:
        self.files = files
        self.commit = commit
        self.cipher = cipher() if encrypted else None
        self.made = Batches()
        self.journal: LogState = EMPTY_STATE
        self.records: Records = {}
        self.synced: Records = {}
        self.states: list[Records] = [{}]
        self.serial = 0
        self.epoch = 1
        files.make_directory(DIRECTORY)
        for folder in ("streams/foo", "streams", ""):
            files.sync_directory(folder)
        self.log, _ = open_log(files, self.journal, commit=commit)

    def closed(self, batch: bytes) -> bytes:
        return batch if self.cipher is None else self.cipher.close_batch(batch)

    def will_be(self, records: Records) -> None:
        self.records = records
        self.states.append(records)

    def append(self, *lengths: int) -> None:
        base = self.log.log_end_offset
        values = []
        for length in lengths:
            self.serial += 1
            values.append((b"%d:" % self.serial).ljust(length, b"."))
        batch = self.made.make(base, values, timestamp=self.serial, epoch=self.epoch)
        batch = self.closed(batch)
        self.will_be(self.records | {base + n: value for n, value in enumerate(values)})
        self.log.append(batch, header_of(batch), 0)
        if self.commit:
            self.sync()

    def sync(self) -> None:
        sync_log(self.files, self.log)
        self.journal = self.log.state
        self.synced = dict(self.records)
        self.states = [self.records]

    def truncate(self, end: int) -> None:
        point = Offset(min(self.journal.recovery_point, end))
        self.journal = self.journal._replace(recovery_point=point)
        self.synced = {o: value for o, value in self.synced.items() if o < end}
        self.will_be({o: value for o, value in self.records.items() if o < end})
        self.log.truncate(Offset(end))
        self.epoch += 1

    def retain(self, start: int) -> None:
        self.log.set_log_start(Offset(start))
        self.journal = self.journal._replace(
            log_start=Offset(start), epochs=self.log.epochs.entries
        )
        self.synced = {o: value for o, value in self.synced.items() if o >= start}
        self.states = [{o: v for o, v in s.items() if o >= start} for s in self.states]
        self.records = self.states[-1]
        for path in self.log.drop_segments_below(Offset(start)):
            self.files.remove(path)

    def compact(self, number: int, count: int, keep: Callable[[int], bool]) -> None:
        chosen = self.log.segments()[number : number + count]
        assert all(segment.sealed for segment in chosen)
        out = b""
        for segment in chosen:
            data = self.files.content(segment.path)
            for position, header in walk_verified(data, 0, len(data)):
                batch = data[position : position + header.size]
                batch = batch if self.cipher is None else self.cipher.open_batch(batch)
                frames = frames_of([batch[HEADER_SIZE:]])
                kept: Records = {f.offset: f.value for f in frames if keep(f.offset)}
                made = self.made.sparse(
                    header.base_offset,
                    header.end_offset,
                    kept,
                    timestamp=header.first_timestamp,
                    epoch=header.leader_epoch,
                )
                out += self.closed(made)
        path = chosen[0].path + ".cleaned"
        handle = self.files.open(path, create=True)
        self.files.append(handle, out)
        self.files.sync(handle)
        self.files.close(handle)
        first, end = chosen[0].base, chosen[-1].end
        self.will_be({o: v for o, v in self.records.items() if not first <= o < end or keep(o)})
        self.synced = {o: v for o, v in self.synced.items() if not first <= o < end or keep(o)}
        for old in self.log.replace_segments([segment.base for segment in chosen], path):
            self.files.remove(old)

    def stop(self) -> None:
        self.log.close()
        self.journal = self.log.state
        self.synced = dict(self.records)
        self.states = [self.records]


def open_log(
    files: MemoryFiles, state: LogState | None, *, commit: bool, clean: bool = False
) -> tuple[PartitionLog, RecoveryReport]:
    return PartitionLog.open(files, DIRECTORY, PARTITION, LIMITS, state, clean=clean, commit=commit)


def life(owner: Owner) -> Iterator[str]:
    """Everything a log goes through, step by step."""
    owner.append(100, 200)
    owner.append(300)
    yield "appended"
    owner.sync()
    yield "synced"
    owner.append(900, 5, 700)
    owner.append(400, 400)
    yield "rolled"
    owner.append(1500)
    owner.append(700)
    owner.sync()
    owner.append(50)
    owner.log.roll()
    owner.append(60, 70)
    yield "rolled by hand"
    owner.retain(2)
    owner.retain(6)
    yield "retained"
    owner.append(1900)
    owner.append(30, 30, 30)
    owner.append(10)
    owner.truncate(owner.log.log_end_offset - 2)
    yield "cut inside a batch"
    owner.append(20)
    owner.sync()
    owner.append(21)
    owner.truncate(owner.log.log_end_offset - 1)
    owner.append(22)
    yield "cut at a batch"
    owner.append(1990)
    owner.append(1991)
    owner.append(1992)
    owner.truncate(owner.log.log_end_offset - 3)
    yield "cut whole segments"
    owner.append(1993)
    owner.append(1994)
    owner.sync()
    owner.append(5)
    owner.compact(0, 1, lambda offset: offset % 2 == 0)
    yield "compacted"
    owner.compact(0, 2, lambda offset: offset % 3 == 0)
    yield "merged"
    owner.append(40)
    owner.sync()
    owner.append(2)
    owner.stop()
    yield "stopped"


def run_life(
    files: MemoryFiles, *, commit: bool, cut_at: int = 0, encrypted: bool = False
) -> Owner:
    """The script until the power is cut at a write point of it, counted from 1, or to its end."""
    owner = Owner(files, commit=commit, encrypted=encrypted)
    if cut_at:
        files.power.cut_at = files.power.points + cut_at
    try:
        for _ in life(owner):
            pass
    except PowerCutError:
        pass
    return owner


def contents(log: PartitionLog, key: BatchCipher | None = None) -> Records:
    found: Records = {}
    start = log.log_start_offset
    reader = log.reader(start) if key is None else OpenedReader(log, start, key)
    while True:
        result = reader.read(700, log.log_end_offset)
        if not result.slices:
            reader.close()
            return found
        found |= {frame.offset: frame.value for frame in frames_of(result.slices)}


def check(owner: Owner, log: PartitionLog, report: RecoveryReport) -> None:
    """What was synced is there, and all that is there is a state the log has been in."""
    found, end = contents(log, owner.cipher), log.log_end_offset
    assert report.quarantined == (), report
    assert end >= owner.journal.recovery_point
    assert log.log_start_offset == owner.journal.log_start
    for offset, value in owner.synced.items():
        # What compaction was about to drop may still be there, but nothing else is.
        assert found[offset] == value
    held = [
        state
        for state in owner.states
        if all(state.get(offset) == value for offset, value in found.items())
        and all(offset in found for offset in state if offset < end)
    ]
    assert held, (found.keys(), [state.keys() for state in owner.states])
    assert list(log.epochs.entries) == sorted(log.epochs.entries)
    values = [found[offset] for offset in sorted(found)]
    assert len(set(values)) == len(values)


def use(owner: Owner, log: PartitionLog) -> None:
    """The log goes on: an append, a restart without losing power, and everything is there."""
    before = contents(log, owner.cipher)
    base = log.log_end_offset
    batch = owner.closed(owner.made.make(base, [b"after"], timestamp=10**6, epoch=10**6))
    log.append(batch, header_of(batch), 0)
    state = log.state
    owner.files.kill()
    again, report = open_log(owner.files, state, commit=owner.commit)
    assert report.quarantined == ()
    assert contents(again, owner.cipher) == before | {base: b"after"}
    again.close()


def points(*, commit: bool, encrypted: bool = False) -> int:
    files = MemoryFiles()
    Owner(files, commit=commit)
    before = files.power.points
    files = MemoryFiles()
    run_life(files, commit=commit, encrypted=encrypted)
    return files.power.points - before


@pytest.mark.parametrize("commit", [False, True])
def test_script_reaches_everything(commit: bool) -> None:
    owner = Owner(MemoryFiles(), commit=commit)
    steps = list(life(owner))
    assert steps[-1] == "stopped"
    names = {operation for operation, _ in owner.files.power.log}
    assert names >= {"append", "sync", "create", "rename", "remove", "truncate", "sync_directory"}
    owner.files.crash(None)
    log, report = open_log(owner.files, owner.journal, commit=commit, clean=True)
    assert contents(log) == owner.records
    assert report.cut_offset is None


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("keep", [None, 1, 2, 3])
def test_power_cut_at_every_write_point(commit: bool, keep: int | None, *, encrypted: bool) -> None:
    total = points(commit=commit, encrypted=encrypted)
    assert total > 80
    for point in range(1, total + 1):
        files = MemoryFiles()
        owner = run_life(files, commit=commit, cut_at=point, encrypted=encrypted)
        files.crash(None if keep is None else Random(1000 * keep + point))
        log, report = open_log(files, owner.journal, commit=commit)
        check(owner, log, report)
        use(owner, log)


@pytest.mark.parametrize("keep", [None, 7])
def test_power_cut_at_every_write_point_of_a_recovery(keep: int | None) -> None:
    total = points(commit=False)
    cuts = 0
    for point in range(3, total + 1, 3):
        attempt = 0
        while True:
            attempt += 1
            files = MemoryFiles()
            owner = run_life(files, commit=False, cut_at=point)
            random = None if keep is None else Random(1000 * keep + point)
            files.crash(random)
            files.power.cut_at = files.power.points + attempt
            try:
                log, report = open_log(files, owner.journal, commit=False)
            except PowerCutError:
                cuts += 1
                files.crash(random)
                log, report = open_log(files, owner.journal, commit=False)
                check(owner, log, report)
                use(owner, log)
                continue
            break
    assert cuts > (20 if keep else 0)


def test_lost_journal_still_finds_everything_that_was_synced() -> None:
    for point in range(1, points(commit=True) + 1, 2):
        files = MemoryFiles()
        owner = run_life(files, commit=True, cut_at=point)
        files.crash(Random(point))
        log, report = open_log(files, None, commit=False)
        assert report.quarantined == ()
        found = contents(log)
        for offset, value in owner.synced.items():
            assert found[offset] == value
