"""Segments that went by age wait in the trash, by a time that a wall clock cannot move."""

from dataclasses import replace

import pytest

from liftbridge_broker.errors import FilesError
from liftbridge_broker.logformat.batch import read_header
from liftbridge_broker.model.ids import Instant, StreamName
from liftbridge_broker.model.streams import StreamOptions
from liftbridge_broker.storage.flush import FlushLimits
from liftbridge_broker.storage.reserve import SpaceLimits
from liftbridge_broker.storage.store import StoreOptions
from liftbridge_broker.storage.trash import AGE_PARTS_IN_TRASH
from liftbridge_testkit.memory_files import Fault
from liftbridge_testkit.stores import NO_LIMITS, START_WALL_NS, StoreBed, batch_of, key_of

MS = 1_000_000
A = key_of(1)
AGE_MS = 8_000
OLD = StreamOptions(retention_age_ms_max=AGE_MS, cleaner_interval_ms=100, segment_bytes_max=200)
FULL = replace(OLD, retention_messages_max=3)
GRACE_MS = AGE_MS // AGE_PARTS_IN_TRASH


class AgeBed(StoreBed):
    """A store that is told a date, which the test sets apart from the wall clock."""

    def begin(self, options: StreamOptions) -> None:
        self.date_off_ns: int | None = 0
        self.start({A: options})
        self.store.set_age_clock(self.date)

    def date(self, now: Instant) -> int | None:
        off_ns = self.date_off_ns
        return None if off_ns is None else START_WALL_NS + now + off_ns

    def fill(self, count: int) -> None:
        for _ in range(count):
            self.append(A, [b"value"])
            self.pump()
            self.commit(A)

    def in_trash(self) -> list[str]:
        return sorted(path.rpartition("/")[2] for path in self.files.paths("trash"))


@pytest.fixture
def bed() -> AgeBed:
    options = StoreOptions(
        space=NO_LIMITS, trash_grace_ns=10_000 * MS, flush=FlushLimits(journal_ns=MS)
    )
    return AgeBed(options=options)


def test_segments_that_went_by_age_are_whole_in_the_trash(bed: AgeBed) -> None:
    bed.begin(OLD)
    bed.fill(4)
    first = bed.files.paths("streams")[0]
    content = bed.files.content(first)
    bed.advance((AGE_MS + 300) * MS)
    assert bed.log(A).log_start_offset == 4
    name = first.rpartition("/")[2]
    assert name in bed.in_trash()
    (path,) = [path for path in bed.files.paths("trash") if path.endswith(name)]
    assert bed.files.content(path) == content
    bed.advance((GRACE_MS + 300) * MS)
    assert bed.in_trash() == []


def test_what_was_too_much_anyway_is_not_kept(bed: AgeBed) -> None:
    bed.begin(FULL)
    bed.fill(9)
    bed.advance(1_300 * MS)
    assert bed.log(A).log_start_offset == 6
    assert bed.in_trash() == []


def test_settings_bound_the_grace(bed: AgeBed) -> None:
    bed.options = replace(bed.options, trash_grace_ns=200 * MS)
    bed.begin(OLD)
    bed.fill(4)
    bed.advance((AGE_MS + 200) * MS)
    bed.advance(400 * MS)
    assert bed.log(A).log_start_offset == 4
    assert bed.in_trash() == []


def test_nothing_goes_by_age_and_nothing_is_purged_while_the_date_is_not_known(bed: AgeBed) -> None:
    bed.begin(FULL)
    bed.fill(2)
    bed.store.delete((A,), bed.now, bed.wall_ns)
    trash = bed.in_trash()
    bed.store.open(A, StreamName("stream"), FULL, bed.now)
    bed.fill(2)
    bed.date_off_ns = None
    bed.advance(2 * AGE_MS * MS)
    assert bed.log(A).log_start_offset == 0
    assert bed.in_trash() == trash != []
    bed.fill(8)
    bed.advance(1_300 * MS)
    assert bed.log(A).log_start_offset == 8
    bed.date_off_ns = 0
    bed.advance(70_000 * MS)
    assert bed.log(A).log_start_offset == 10
    assert bed.in_trash() == []


@pytest.mark.parametrize("leap_ms", [10**9, -(10**9)])
def test_wall_clock_moves_neither_ages_nor_the_trash(bed: AgeBed, leap_ms: int) -> None:
    bed.begin(OLD)
    bed.fill(4)
    now = bed.now
    for _ in range(20):
        now = Instant(now + 100 * MS)
        bed.store.on_timer(now, START_WALL_NS + now + leap_ms * MS)
    assert bed.log(A).log_start_offset == 0
    bed.store.delete((A,), now, START_WALL_NS + now + leap_ms * MS)
    trash = bed.in_trash()
    bed.now = now
    bed.advance(9_900 * MS)
    assert bed.in_trash() == trash != []
    bed.advance(200 * MS)
    assert bed.in_trash() == []


def test_full_disk_takes_the_trash_of_ages_too() -> None:
    bed = AgeBed(options=StoreOptions(space=SpaceLimits(reserve_bytes=100, free_bytes_min=0)))
    bed.begin(OLD)
    bed.fill(4)
    bed.advance((AGE_MS + 300) * MS)
    assert bed.in_trash()
    bed.store.disk.on_error(FilesError("full", is_full=True), bed.now)
    bed.pump()
    assert bed.in_trash() == []


@pytest.mark.parametrize("operation", ["make_directory", "rename"])
def test_disk_that_is_too_full_for_the_trash_is_freed(bed: AgeBed, operation: str) -> None:
    bed.begin(OLD)
    bed.fill(4)
    bed.files.fail(Fault(operation, "*", count=-1, is_full=True))
    bed.advance((AGE_MS + 300) * MS)
    assert bed.log(A).log_start_offset == 4
    assert [path for path in bed.files.paths("streams") if "0000000.log" in path] == []
    assert not bed.store.disk.failure


def test_trash_of_ages_is_purged_after_a_restart(bed: AgeBed) -> None:
    bed.begin(OLD)
    bed.fill(4)
    bed.advance((AGE_MS + 300) * MS)
    trash = bed.in_trash()
    bed.files.kill()
    bed.begin(OLD)
    assert bed.in_trash() == trash != []
    assert bed.log(A).log_start_offset == 4
    bed.advance(10_300 * MS)
    assert bed.in_trash() == []


def test_segment_that_was_begun_ahead_of_time_is_sealed_as_soon_as_it_would_be_old(
    bed: AgeBed,
) -> None:
    bed.begin(replace(OLD, segment_bytes_max=0, segment_age_ms_max=1_000))
    batch = batch_of(A, 0, [b"ahead"])
    bed.log(A).append(batch, read_header(batch, 0), bed.wall_ns + 10**15)
    bed.advance(1_300 * MS)
    assert bed.log(A).segment_count == 2
