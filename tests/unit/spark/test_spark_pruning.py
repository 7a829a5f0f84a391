"""What filters leave of ranges: everything that they let through, and where it can be no more."""

from hypothesis import given
from hypothesis import strategies as st

from pyspark_liftbridge.plan.offsets import PartitionId
from pyspark_liftbridge.plan.pruning import Pruning
from pyspark_liftbridge.plan.ranges import Range

NUMBERS = st.none() | st.integers(0, 12)
RANGES = [Range(name, 7, number, 2, 10) for name in ("s", "t") for number in (0, 1)]
PRUNINGS = st.builds(
    Pruning,
    streams=st.none() | st.frozensets(st.sampled_from("stu")),
    partitions=st.none() | st.frozensets(st.integers(0, 2)),
    offset_min=NUMBERS,
    offset_end=NUMBERS,
    time_ns_min=NUMBERS,
    time_ns_end=NUMBERS,
)


def passes(one: Pruning, stream: str, partition: int, offset: int) -> bool:
    """Whether it lets a record through, whose time is its offset."""
    return (
        (one.streams is None or stream in one.streams)
        and (one.partitions is None or partition in one.partitions)
        and (one.offset_min or 0) <= offset
        and (one.offset_end is None or offset < one.offset_end)
        and (one.time_ns_min or 0) <= offset
        and (one.time_ns_end is None or offset < one.time_ns_end)
    )


@given(one=PRUNINGS, other=PRUNINGS)
def test_ranges_keep_what_all_filters_let_through_and_nothing_else(one, other):
    whole = one.also(other)
    assert whole == other.also(one)
    places = [PartitionId(each.stream, each.partition) for each in RANGES]
    first, last = (
        {} if time_ns is None else dict.fromkeys(places, time_ns) for time_ns in whole.times_ns
    )
    kept = whole.by_time(whole.by_place(RANGES), first, last)
    assert [
        (each.stream, each.partition, offset)
        for each in kept
        for offset in range(each.start, each.end)
    ] == [
        (each.stream, each.partition, offset)
        for each in RANGES
        for offset in range(each.start, each.end)
        if passes(one, each.stream, each.partition, offset)
        and passes(other, each.stream, each.partition, offset)
    ]
    assert all(each.size > 0 for each in kept)
