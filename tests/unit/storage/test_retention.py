"""Which segments go: the original's rules and order, nothing uncommitted."""

from hypothesis import given, settings
from hypothesis import strategies as st

from liftbridge_broker.model.ids import Offset
from liftbridge_broker.model.streams import StreamOptions
from liftbridge_broker.storage.cleaning.retention import (
    RetentionLimits,
    choose_log_start,
    limits_of,
)
from liftbridge_broker.storage.log.types import NO_TIMESTAMP, SegmentInfo

NONE = RetentionLimits(0, 0, 0)


def segment(
    base: int, end: int, *, size: int = 100, newest: int = 0, records: int = -1
) -> SegmentInfo:
    count = end - base if records < 0 else records
    return SegmentInfo(
        base=Offset(base),
        end=Offset(end),
        bytes=size,
        records=count,
        first_timestamp=newest,
        largest_timestamp=newest,
        sealed=True,
        path=f"{base}.log",
    )


FOUR = (
    segment(0, 10, newest=10),
    segment(10, 20, newest=20),
    segment(20, 30, newest=30),
    segment(30, 35, newest=40),
)


def chosen(
    limits: RetentionLimits,
    *,
    bound: int = 35,
    committed: int = 35,
    log_start: int = 0,
    wall_ns: int = 100,
    segments: tuple[SegmentInfo, ...] = FOUR,
) -> int:
    return choose_log_start(
        segments,
        log_start=Offset(log_start),
        bound=Offset(bound),
        committed=Offset(committed),
        limits=limits,
        age_ns=wall_ns,
    )


def test_what_may_still_be_truncated_pushes_nothing_out() -> None:
    uncommitted = (*FOUR, segment(35, 1_000, size=10_000))
    for limits in (NONE._replace(records_max=35), NONE._replace(bytes_max=400)):
        assert chosen(limits, segments=uncommitted) == 0
        assert chosen(limits, segments=uncommitted, committed=1_000) == 35
    empty = (*FOUR, segment(35, 35))
    assert chosen(NONE._replace(bytes_max=100), segments=empty, bound=30, committed=30) == 20
    # Of a segment that is committed in part, that part counts.
    assert chosen(NONE._replace(records_max=22), committed=32) == 10
    assert chosen(NONE._replace(records_max=21), committed=32) == 20
    assert chosen(NONE._replace(bytes_max=240), committed=32) == 10
    assert chosen(NONE._replace(bytes_max=239), committed=32) == 20


def test_without_limits_everything_stays() -> None:
    assert chosen(NONE) == 0


def test_segments_older_than_the_age_go() -> None:
    assert chosen(NONE._replace(age_ns_max=80)) == 10
    assert chosen(NONE._replace(age_ns_max=79)) == 20
    assert chosen(NONE._replace(age_ns_max=91)) == 0


def test_active_segment_stays_however_old() -> None:
    assert chosen(NONE._replace(age_ns_max=1)) == 30


def test_records_are_counted_from_the_newest_back() -> None:
    assert chosen(NONE._replace(records_max=35)) == 0
    assert chosen(NONE._replace(records_max=34)) == 10
    assert chosen(NONE._replace(records_max=15)) == 20
    assert chosen(NONE._replace(records_max=1)) == 30


def test_records_that_compaction_removed_do_not_count() -> None:
    thin = (segment(0, 10, records=1), *FOUR[1:])
    assert chosen(NONE._replace(records_max=26), segments=thin) == 0


def test_bytes_are_counted_from_the_newest_back() -> None:
    assert chosen(NONE._replace(bytes_max=400)) == 0
    assert chosen(NONE._replace(bytes_max=399)) == 10
    assert chosen(NONE._replace(bytes_max=1)) == 30


def test_limit_that_removes_most_wins() -> None:
    assert chosen(RetentionLimits(79, 34, 400)) == 20
    assert chosen(RetentionLimits(91, 15, 400)) == 20
    assert chosen(RetentionLimits(91, 35, 100)) == 30


def test_nothing_uncommitted_or_unsynced_goes() -> None:
    limits = NONE._replace(bytes_max=1)
    assert chosen(limits, bound=0) == 0
    assert chosen(limits, bound=19) == 10
    assert chosen(limits, bound=20) == 20


def test_log_start_never_falls() -> None:
    assert chosen(NONE, log_start=15) == 15
    assert chosen(NONE._replace(bytes_max=300), log_start=15) == 15


def test_segment_without_records_is_as_old_as_can_be() -> None:
    emptied = (segment(0, 10, newest=NO_TIMESTAMP), *FOUR[1:])
    assert chosen(NONE._replace(age_ns_max=95), segments=emptied) == 10


def test_log_with_an_active_segment_only_keeps_it() -> None:
    assert chosen(RetentionLimits(1, 1, 1), segments=FOUR[:1]) == 0


def test_limits_come_from_the_settings() -> None:
    options = StreamOptions(retention_age_ms_max=5, retention_messages_max=6, retention_bytes_max=7)
    assert limits_of(options) == RetentionLimits(5_000_000, 6, 7)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 99), st.integers(0, 99)), min_size=1),
    st.tuples(st.integers(0, 99), st.integers(0, 60), st.integers(0, 600)),
    st.integers(0, 300),
)
def test_choice_is_a_segment_start_and_no_more_than_the_limits_ask_for(
    shapes: list[tuple[int, int, int]], limits: tuple[int, int, int], bound: int
) -> None:
    segments, base = [], 0
    for count, size, newest in shapes:
        segments.append(segment(base, base + count, size=size, newest=newest))
        base += count
    start = chosen(
        RetentionLimits(*limits),
        segments=tuple(segments),
        bound=min(bound, base),
    )
    assert start in [info.base for info in segments]
    assert start <= min(bound, segments[-1].base) or start == 0
    kept = [info for info in segments if info.base >= start]
    gone = [info for info in segments if info.end <= start]
    if gone:
        age, records, size = limits
        last = gone[-1]
        assert (
            (age and all(info.largest_timestamp < 100 - age for info in gone))
            or (records and sum(info.records for info in [last, *kept]) > records)
            or (size and sum(info.bytes for info in [last, *kept]) > size)
        )
