"""Storage matrix (docs/spec/storage.md) for segment and index files of a leader that is alone.

Each cell damages one file in one way and starts again. The outcome is one of four: no effect,
repaired, unclean (only records that were never synced are gone, and a copy is kept), refused (with
a message that names the file, nothing changed). Whatever is read is what was written.
"""

from collections.abc import Callable, Iterator
from enum import Enum
from itertools import product

import pytest

from liftbridge_broker.errors import CorruptionError, FilesError
from liftbridge_broker.model.ids import Offset, PartitionId
from liftbridge_broker.storage.log import lookup
from liftbridge_broker.storage.log.types import LogLimits
from liftbridge_testkit.batches import Batches, cipher, frames_of
from liftbridge_testkit.log_bench import (
    LogBench,
    damaged,
    index_path,
    log_path,
    snapshot,
)
from liftbridge_testkit.memory_files import Fault

SECTOR = 512
LIMITS = LogLimits(5000, 0)
ENCRYPTED_LIMITS = LogLimits(5600, 0)
"""As many batches in a segment: each is 80 bytes larger."""
RECORDS = 24


class Outcome(Enum):
    """What may come of a fault."""

    NO_EFFECT = "no effect"
    REPAIRED = "repaired"
    UNCLEAN = "unclean"
    REFUSED = "refused"
    SILENT = "wrong without saying where"  # never allowed


def bench_of(*, encrypted: bool) -> LogBench:
    """Return an empty log."""
    if encrypted:
        return LogBench(ENCRYPTED_LIMITS, cipher=cipher())
    return LogBench(LIMITS)


class Cell:
    """A log of sealed segments 0 to 7 and 8 to 15, an active one, and where it was synced.

    Attributes:
        bench: The log, not yet started again.
        values: What was appended.
        commit: Whether the policy in force is `commit`.
        synced: First offset that was not synced.
    """

    def __init__(self, *, commit: bool, synced: int, encrypted: bool = False) -> None:
        self.bench = bench_of(encrypted=encrypted)
        self.commit = commit
        self.synced = synced
        self.bench.log.commit = commit
        self.old: dict[str, bytes] = {}
        for number in range(RECORDS):
            self.bench.append(b"%d:" % number + b"x" * 550, timestamp=number)
            if number + 1 == synced:
                self.bench.sync()
            if number + 1 == RECORDS - 2:
                self.old = snapshot(self.bench.files)
        if synced == RECORDS:
            self.bench.stop()
        else:
            self.bench.log.live_segments()[-1].write_index_block()
        assert [info.base for info in self.bench.log.segments()] == [0, 8, 16]
        self.values = self.bench.values()
        self.bench.files.kill()
        if self.bench.files.open_count:
            self.bench.log.abandon()

    def put(self, path: str, data: bytes) -> None:
        self.bench.files.put(path, data)

    def content(self, path: str) -> bytes:
        return self.bench.files.content(path)

    def restart(self) -> Outcome:
        """Start again, read everything, and say what came of it; nothing else may happen."""
        bench, files = self.bench, self.bench.files
        before = snapshot(files)
        report = bench.open(commit=self.commit)
        assert list(bench.log.epochs.entries) == [(1, 0)]
        if report.quarantined:
            assert bench.log.is_offline
            assert report.reason
            assert snapshot(files) == before
            self.check_values(complete=False)
            return Outcome.REFUSED
        if report.cut_offset is not None:
            assert report.cut_offset >= self.synced
            assert bench.log.log_end_offset == report.cut_offset
            assert sum(len(files.content(path)) for path in report.cut_copies) == report.cut_bytes
            self.check_values(complete=True)
            return Outcome.UNCLEAN
        assert bench.log.log_end_offset >= self.synced
        try:
            self.check_values(complete=True)
        except CorruptionError as error:
            return Outcome.REFUSED if error.path in before else Outcome.SILENT
        if bench.log.log_end_offset < RECORDS:
            return Outcome.UNCLEAN
        is_same = {p: files.content(p) for p in before if files.exists(p)} == before
        return Outcome.NO_EFFECT if is_same and not report.rebuilt_indexes else Outcome.REPAIRED

    def check_values(self, *, complete: bool) -> None:
        """What can be read is what was written, by every way to read."""
        log = self.bench.log
        end = log.log_end_offset if complete else Offset(0)
        reader = self.bench.reader(0)
        found: dict[int, bytes] = {}
        while True:
            try:
                result = reader.read(1000, log.log_end_offset)
            except CorruptionError:
                if complete:
                    raise
                break
            if not result.slices:
                break
            found |= {frame.offset: frame.value for frame in frames_of(result.slices)}
        assert found == {o: v for o, v in self.values.items() if o in found}
        assert len(found) >= end
        for timestamp in range(end):
            assert lookup.offset_for_timestamp(log, timestamp) == timestamp
            first = self.bench.reader(timestamp).read(1, Offset(end))
            assert frames_of(first.slices)[0].offset == timestamp


Damage = Callable[[Cell, str], None]


def flip(place: float) -> Damage:
    def act(cell: Cell, path: str) -> None:
        data = cell.content(path)
        cell.put(path, damaged(data, int(place * (len(data) - 1))))

    return act


def zero_sector(cell: Cell, path: str) -> None:
    data = cell.content(path)
    start = len(data) // 2 // SECTOR * SECTOR
    cell.put(path, data[:start] + bytes(len(data[start : start + SECTOR])) + data[start + SECTOR :])


def lose_tail(cell: Cell, path: str) -> None:
    cell.put(path, cell.content(path)[:-5])


def lose_batches(cell: Cell, path: str) -> None:
    """The last two batches of a log file, or the last block of an index."""
    data = cell.content(path)
    last = data.rfind(b"LB\x01\x00", 0, data.rfind(b"LB\x01\x00"))
    cell.put(path, data[: max(0, last)] if path.endswith(".log") else data[: len(data) // 3])


def empty(cell: Cell, path: str) -> None:
    cell.put(path, b"")


def missing(cell: Cell, path: str) -> None:
    cell.bench.files.remove(path)


def old_version(cell: Cell, path: str) -> None:
    cell.put(path, cell.old.get(path, b""))


def junk_behind(cell: Cell, path: str) -> None:
    cell.put(path, cell.content(path) + b"junk" * 50)


def zeros_behind(cell: Cell, path: str) -> None:
    cell.put(path, cell.content(path) + bytes(4096))


def other_partition(cell: Cell, path: str) -> None:
    """A write meant for another partition landed here."""
    data = cell.content(path)
    batch = Batches(PartitionId(99)).make(3, [b"x" * 560])
    middle = len(data) // 2
    cell.put(path, data[:middle] + batch[: len(data) - middle] + data[middle + len(batch) :])


def other_segment(cell: Cell, path: str) -> None:
    """The file of another segment stands here."""
    suffix = path[-4:]
    other = log_path(0) if suffix == ".log" else index_path(0)
    source = other if other != path else other.replace(f"{0:020d}", f"{8:020d}")
    cell.put(path, cell.content(source))


FAULTS: dict[str, Damage] = {
    "bit flip at the start": flip(0.0),
    "bit flip in the middle": flip(0.5),
    "bit flip at the end": flip(1.0),
    "zero sector": zero_sector,
    "torn last write": lose_tail,
    "lost last writes": lose_batches,
    "truncated to 0": empty,
    "missing": missing,
    "old version": old_version,
    "junk behind": junk_behind,
    "zeros behind": zeros_behind,
    "misdirected write": other_partition,
    "file of another segment": other_segment,
}
FILES = {
    "sealed segment": log_path(8),
    "active segment": log_path(16),
    "sealed index": index_path(8),
    "active index": index_path(16),
}
# Where the log was synced: nowhere in the damaged files, before the active one, everywhere.
SYNCED = (8, 16, RECORDS)
CELLS = list(product(FILES, FAULTS, SYNCED, (False, True), (False, True)))


def allowed(file: str, fault: str, synced: int, commit: bool) -> set[Outcome]:
    """What may come of a cell; the four outcomes of the specification, narrowed."""
    fine = {Outcome.NO_EFFECT, Outcome.REPAIRED}
    if file.endswith("index") or (file == "sealed segment" and fault == "old version"):
        return fine
    base = 8 if file == "sealed segment" else 16
    # Damage behind the records of a file concerns the first offset behind them.
    damage_at = base + 8 if fault in {"junk behind", "zeros behind"} else base
    if synced > damage_at:
        return {Outcome.REFUSED}  # nothing durable is ever cut
    if base == 8 and commit:
        return {Outcome.REFUSED}  # the next segment begins with valid batches
    if commit:
        # A crash leaves the beginning of one write; whatever else is wrong may have been counted.
        shorter = {"torn last write", "lost last writes", "truncated to 0", "missing"}
        shorter |= {"old version", "zeros behind"}
        return {Outcome.UNCLEAN} if fault in shorter else {Outcome.REFUSED}
    return {Outcome.UNCLEAN}


@pytest.mark.parametrize(("file", "fault", "synced", "commit", "encrypted"), CELLS)
def test_fault_of_a_file(
    file: str, fault: str, synced: int, commit: bool, *, encrypted: bool
) -> None:
    cell = Cell(commit=commit, synced=synced, encrypted=encrypted)
    FAULTS[fault](cell, FILES[file])
    outcome = cell.restart()
    assert outcome in allowed(file, fault, synced, commit), outcome
    cell.bench.log.abandon()
    again = cell.restart()
    if outcome is Outcome.REFUSED:
        assert again is Outcome.REFUSED
    else:
        assert again in {Outcome.NO_EFFECT, Outcome.REPAIRED, Outcome.UNCLEAN}


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("commit", [False, True])
def test_last_write_torn_at_each_byte(commit: bool, *, encrypted: bool) -> None:
    cell = Cell(commit=commit, synced=16, encrypted=encrypted)
    data = cell.content(log_path(16))
    for length in range(data.rfind(b"LB\x01\x00"), len(data)):
        cell.put(log_path(16), data[:length])
        report = cell.bench.open(commit=commit)
        assert (report.quarantined, cell.bench.log.log_end_offset) == ((), RECORDS - 1)
        cell.bench.log.abandon()
    cell.bench.open(commit=commit)
    cell.check_values(complete=True)


def test_every_cell_of_the_matrix_is_run() -> None:
    assert len(CELLS) == len(set(CELLS)) == 4 * len(FAULTS) * 3 * 2 * 2
    assert len(CELLS) > 600


# Calls that fail.


def failing_calls() -> Iterator[tuple[str, str, bool]]:
    for operation, is_full in (
        ("append", False),
        ("append", True),
        ("sync", False),
        ("read", False),
        ("open", False),
        ("truncate", False),
        ("rename", False),
        ("remove", False),
        ("sync_directory", False),
        ("sync_directory", True),
    ):
        for path in ("*.log", "*.index", "*"):
            yield operation, path, is_full


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize(("operation", "path", "is_full"), list(failing_calls()))
def test_call_that_fails_while_running(
    operation: str, path: str, is_full: bool, *, encrypted: bool
) -> None:
    """Whatever call fails, the log refuses or goes on, and a restart has all that was synced."""
    for skip in range(8):
        bench = bench_of(encrypted=encrypted)
        for number in range(10):
            bench.append(b"%d" % number * 400, timestamp=number)
        bench.sync()
        bench.files.fail(Fault(operation, path, skip=skip, is_full=is_full))
        accepted = 10
        refused = None
        try:
            for number in range(10, 30):
                bench.append(b"%d" % number * 400, timestamp=number)
                accepted = number + 1
            bench.sync()
            bench.frames()
            bench.stop()
        except FilesError as error:
            refused = error
        if refused is not None:
            assert refused.is_full == is_full
            assert bench.log.log_end_offset == accepted
        bench.files.heal()
        synced = bench.journal.recovery_point if bench.journal is not None else 0
        bench.files.kill()
        report = bench.open()
        assert report.quarantined == ()
        assert synced <= bench.log.log_end_offset <= accepted
        values = bench.values()
        assert values == {n: b"%d" % n * 400 for n in range(bench.log.log_end_offset)}


@pytest.mark.parametrize("operation", ["read", "open", "list", "append", "truncate", "sync"])
@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize("encrypted", [False, True])
def test_call_that_fails_while_starting(operation: str, is_full: bool, *, encrypted: bool) -> None:
    """A failed start says so; the next one finds what the first would have found."""
    for skip in range(10):
        cell = Cell(commit=False, synced=8, encrypted=encrypted)
        lose_tail(cell, log_path(16))
        cell.bench.files.fail(Fault(operation, skip=skip, is_full=is_full))
        refused: FilesError | None = None
        try:
            cell.bench.open()
        except FilesError as error:
            refused = error
        if refused is not None:
            assert refused.is_full == is_full
            assert cell.bench.files.open_count == 0
        cell.bench.files.heal()
        cell.bench.files.kill()
        cell.bench.open()
        assert cell.bench.report.quarantined == ()
        assert cell.bench.log.log_end_offset == RECORDS - 1
        cell.check_values(complete=True)
