"""A cursor holds retention back: from it on all stays, unless the log has grown too large."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from liftbridge_broker.model.ids import Instant, Offset, PartitionId
from liftbridge_broker.model.streams import FsyncPolicy, StreamOptions
from liftbridge_broker.storage.cleaning.retention import CursorFound, CursorUnknown, first_within
from liftbridge_broker.storage.flush import FlushLimits
from liftbridge_broker.storage.log.types import SegmentInfo
from liftbridge_broker.storage.store import StoreOptions
from liftbridge_testkit.memory_files import Fault
from liftbridge_testkit.stores import NO_LIMITS, StoreBed, key_of, values_in

A = key_of(1)
MS = 1_000_000
HELD = StreamOptions(
    fsync_policy=FsyncPolicy.COMMIT,
    segment_bytes_max=300,
    retention_messages_max=4,
    cleaner_interval_ms=100,
    retention_cursor="archive",
)


@dataclass
class Cursors:
    """Who keeps cursors: answers at once with `answer`, or later when there is none."""

    answer: Offset | CursorUnknown | None = None
    asked: list[tuple[PartitionId, str]] = field(default_factory=list)
    waiting: list[CursorFound] = field(default_factory=list)

    def find(self, partition: PartitionId, name: str, found: CursorFound, now: Instant) -> None:
        self.asked.append((partition, name))
        if self.answer is None:
            self.waiting.append(found)
        else:
            found(self.answer, now)


@pytest.fixture
def cursors() -> Cursors:
    return Cursors()


@pytest.fixture
def begin(cursors: Cursors) -> Callable[..., StoreBed]:
    def opened(options: StreamOptions = HELD, records: int = 13) -> StoreBed:
        flush = FlushLimits(journal_ns=MS)
        bed = StoreBed(options=StoreOptions(space=NO_LIMITS, flush=flush))
        bed.start({A: options})
        bed.store.set_cursor_finder(cursors.find)
        fill(bed, records)
        return bed

    return opened


def fill(bed: StoreBed, count: int) -> None:
    """Append records of which two fill a segment, durable and committed."""
    for _ in range(count):
        bed.append(A, [b"." * 110])
        bed.pump()
        bed.commit(A)


def start(bed: StoreBed) -> int:
    """Log start after the next round of retention."""
    bed.advance(110 * MS)
    return bed.log(A).log_start_offset


def segment(base: int, end: int, size: int) -> SegmentInfo:
    return SegmentInfo(
        Offset(base), Offset(end), size, end - base, 1, 1, sealed=True, path=f"{base}.log"
    )


def test_what_lies_below_the_cursor_goes_and_the_rest_stays(
    begin: Callable[..., StoreBed], cursors: Cursors
) -> None:
    cursors.answer = Offset(0)
    bed = begin()
    assert start(bed) == 0
    cursors.answer = Offset(3)
    assert start(bed) == 2  # offset 3 is not archived, so its segment stays whole
    cursors.answer = Offset(4)
    assert start(bed) == 4
    assert min(values_in(bed.log(A))) == 4
    cursors.answer = Offset(13)
    assert start(bed) == 10  # what retention keeps it keeps
    assert set(cursors.asked) == {(A, "archive")}
    assert bed.told("retention_cursor_passed") == bed.told("retention_waits") == []


@pytest.mark.parametrize("unknown", [*CursorUnknown, Offset(99)])
def test_unknown_cursor_removes_nothing_and_that_is_told_once(
    begin: Callable[..., StoreBed], cursors: Cursors, unknown: Offset | CursorUnknown
) -> None:
    cursors.answer = unknown
    bed = begin()
    assert [start(bed), start(bed)] == [0, 0]
    (told,) = bed.told("retention_waits")
    reason = unknown if isinstance(unknown, CursorUnknown) else "beyond_log_end"
    assert (told["cursor"], told["reason"], told["partition"]) == ("archive", reason, 0)
    cursors.answer = Offset(6)
    assert start(bed) == 6
    cursors.answer = unknown
    fill(bed, 4)
    assert start(bed) == 6
    assert len(bed.told("retention_waits")) == 2


def test_cursor_is_looked_up_only_when_something_would_go(
    begin: Callable[..., StoreBed], cursors: Cursors
) -> None:
    cursors.answer = Offset(0)
    bed = begin(records=3)
    assert start(bed) == 0
    assert cursors.asked == []
    fill(bed, 4)
    assert start(bed) == 0
    assert len(cursors.asked) == 1


def test_without_an_answer_nothing_goes_and_nobody_is_asked_twice(
    begin: Callable[..., StoreBed], cursors: Cursors
) -> None:
    bed = begin()
    assert [start(bed), start(bed), start(bed)] == [0, 0, 0]
    (found,) = cursors.waiting
    found(Offset(5), bed.now)
    bed.pump()
    assert bed.log(A).log_start_offset == 4
    assert start(bed) == 4
    assert len(cursors.waiting) == 2


def test_late_answer_does_not_count_for_who_does_not_ask_any_more(
    begin: Callable[..., StoreBed], cursors: Cursors
) -> None:
    bed = begin()
    start(bed)
    bed.store.set_leader(A, is_leader=False)
    cursors.waiting.pop()(Offset(5), bed.now)
    bed.store.set_leader(A, is_leader=True)
    assert start(bed) == 0
    bed.store.set_options(A, replace(HELD, retention_cursor="another"), bed.now)
    cursors.waiting.pop()(Offset(5), bed.now)
    assert start(bed) == 0
    assert cursors.asked[-1] == (A, "another")
    bed.store.delete((A,), bed.now, bed.wall_ns)
    cursors.waiting.pop()(Offset(5), bed.now)
    assert bed.failures == []


def test_cursor_is_passed_over_beyond_the_limit_and_only_as_far(
    begin: Callable[..., StoreBed], cursors: Cursors
) -> None:
    cursors.answer = Offset(3)
    bed = begin(replace(HELD, retention_cursor_bytes_max=1_500))
    size = bed.log(A).size_bytes
    assert size > 2_000
    assert start(bed) > 3
    assert start(bed) < 10  # retention alone would have come so far
    assert 1_500 - 300 < bed.log(A).size_bytes <= 1_500
    (told,) = bed.told("retention_cursor_passed")
    assert (told["cursor"], told["position"], told["limit_bytes"]) == ("archive", 3, 1_500)
    assert (told["log_start_offset"], told["bytes"]) == (bed.log(A).log_start_offset, size)


@pytest.mark.parametrize("unknown", [*CursorUnknown, Offset(99)])
def test_limit_ends_the_waiting_for_an_unknown_cursor_too(
    begin: Callable[..., StoreBed], cursors: Cursors, unknown: Offset | CursorUnknown
) -> None:
    cursors.answer = unknown
    bed = begin(replace(HELD, retention_cursor_bytes_max=1_500))
    assert 0 < start(bed) < 10
    size = bed.log(A).size_bytes
    start(bed)
    assert bed.log(A).size_bytes == size
    passed, ignored = bed.told("retention_cursor_passed"), bed.told("retention_cursor_ignored")
    if unknown is CursorUnknown.UNANSWERED:  # it may stand beyond what went
        (told,) = ignored
        assert (passed, "position" in told) == ([], False)
    else:
        (told,) = passed
        assert ignored == []
        assert told["position"] == (
            unknown if isinstance(unknown, CursorUnknown) else "beyond_log_end"
        )
    assert (told["cursor"], told["limit_bytes"]) == ("archive", 1_500)
    assert told["log_start_offset"] == bed.log(A).log_start_offset


def test_below_the_limit_nothing_is_passed_over(
    begin: Callable[..., StoreBed], cursors: Cursors
) -> None:
    cursors.answer = Offset(3)
    bed = begin(replace(HELD, retention_cursor_bytes_max=5_000))
    assert start(bed) == 2
    assert bed.told("retention_cursor_passed") == []


def test_stream_without_a_cursor_asks_nobody(
    begin: Callable[..., StoreBed], cursors: Cursors
) -> None:
    bed = begin(replace(HELD, retention_cursor="", retention_cursor_bytes_max=1))
    assert start(bed) == 10
    assert cursors.asked == []


def test_disk_that_fails_when_the_answer_comes_takes_the_directory_offline(
    begin: Callable[..., StoreBed], cursors: Cursors
) -> None:
    bed = begin()
    start(bed)
    bed.files.fail(Fault("append", "journal"))
    cursors.waiting.pop()(Offset(5), bed.now)
    bed.pump()
    assert bed.failures


def test_store_that_nobody_serves_removes_nothing() -> None:
    bed = StoreBed()
    bed.start({A: HELD})
    fill(bed, 13)
    assert start(bed) == 0


def test_where_the_newest_segments_begin_that_fit_into_a_limit() -> None:
    segments = [segment(0, 10, 100), segment(10, 20, 100), segment(20, 30, 100)]

    def within(bytes_max: int, committed: int = 30) -> int:
        return first_within(segments, committed=Offset(committed), bytes_max=bytes_max)

    assert [within(0), within(300), within(299), within(200), within(199)] == [0, 0, 10, 10, 20]
    assert within(1) == 20  # the segment in use stays
    assert within(250, committed=25) == 0  # what is not committed does not count
