"""Ranges, tasks and limits: every offset exactly once, the same answer for the same question."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyspark_liftbridge.plan.offsets import (
    History,
    Offsets,
    OffsetsError,
    PartitionId,
    StreamOffsets,
    parse,
)
from pyspark_liftbridge.plan.options import Limits, Split
from pyspark_liftbridge.plan.ranges import (
    BackwardsError,
    backlog_of,
    limited,
    ranges_between,
    tasks_of,
)

NAMES = st.sampled_from(["a", "b", "orders"])
HISTORIES = st.builds(History, st.integers(0, 2**40), st.integers(0, 2**40))
PARTITIONS = st.dictionaries(
    st.integers(0, 5), st.tuples(st.integers(0, 300), st.none() | HISTORIES), min_size=1
)


def stream_of(stream_id, partitions):
    """Next offsets, some of them with a history."""
    return StreamOffsets(
        stream_id,
        {number: offset for number, (offset, _) in partitions.items()},
        {number: history for number, (_, history) in partitions.items() if history is not None},
    )


OFFSETS = st.dictionaries(NAMES, st.builds(stream_of, st.integers(0, 2**40), PARTITIONS)).map(
    Offsets
)
SPLITS = st.builds(
    Split,
    st.none() | st.integers(1, 20),
    st.none() | st.integers(1, 100),
    st.integers(0, 200),
)
LEADERS = st.dictionaries(
    st.builds(PartitionId, NAMES, st.integers(0, 5)), st.sampled_from(["x", "y"])
)


def later(offsets, more):
    """The same partitions, further on."""
    return offsets.with_offsets({one: at + more.get(one, 0) for one, at in offsets.partitions()})


MORE = st.dictionaries(st.builds(PartitionId, NAMES, st.integers(0, 5)), st.integers(0, 500))


@given(OFFSETS, MORE, SPLITS, LEADERS)
def test_every_offset_is_in_exactly_one_range_of_one_task(start, more, split, leaders):
    end = later(start, more)
    ranges = ranges_between(start, end)
    tasks = tasks_of(ranges, split, leaders)
    read = sorted(
        (one.stream, one.partition, offset)
        for task in tasks
        for one in task
        for offset in range(one.start, one.end)
    )
    wanted = sorted(
        (one.stream, one.number, offset)
        for one, last in end.partitions()
        for offset in range(start.of(one), last)
    )
    assert read == wanted
    assert all(task for task in tasks)
    assert tasks == tasks_of(ranges_between(start, end), split, leaders)


@given(OFFSETS, MORE, SPLITS)
def test_tasks_keep_to_their_size_and_share_only_what_is_small(start, more, split):
    tasks = tasks_of(ranges_between(start, later(start, more)), split, {})
    for task in tasks:
        if split.records_max is not None:
            assert all(one.size <= split.records_max for one in task)
        if len(task) > 1:
            assert all(one.size < split.records_min for one in task)
    if split.records_max is None and split.tasks_min is None:
        assert sum(1 for task in tasks if sum(one.size for one in task) < split.records_min) <= 1


MANY = Offsets({"a": StreamOffsets(1, dict.fromkeys(range(3), 0))})
UNEVEN = {PartitionId("a", 0): 100, PartitionId("a", 1): 1, PartitionId("a", 2): 1}


@given(OFFSETS, MORE, st.integers(1, 400))
@example(MANY, UNEVEN, 10)
def test_limit_is_shared_out_and_leaves_nobody_behind(start, more, most):
    latest = later(start, more)
    backlog = backlog_of(start, latest)
    end = limited(start, latest, Limits(most, None, 0, None), 0)
    taken = backlog_of(start, end)
    assert set(taken) == set(backlog)
    assert all(taken[one] <= backlog[one] for one in taken)
    assert sum(taken.values()) <= max(most, len(backlog))
    if sum(backlog.values()) <= most:
        assert end == latest


@given(OFFSETS, MORE, st.integers(1, 10_000), st.floats(0.5, 100))
def test_bytes_bound_a_batch_by_the_mean_size(start, more, bytes_max, mean):
    latest = later(start, more)
    end = limited(start, latest, Limits(None, None, 0, bytes_max), mean)
    taken = backlog_of(start, end)
    assert sum(taken.values()) * mean <= max(bytes_max, mean * max(1, len(taken)))


@given(OFFSETS)
def test_offsets_come_back_from_json_as_they_were(offsets):
    text = json.dumps(offsets.as_json())
    assert parse(json.loads(text)) == offsets
    assert json.dumps(parse(json.loads(text)).as_json()) == text


@given(OFFSETS, OFFSETS)
def test_offsets_never_go_back_within_a_stream(former, found):
    kept = found.not_before(former)
    for one, offset in kept.partitions():
        before = former.of(one)
        is_same = (
            before is not None
            and former.streams[one.stream].stream_id == found.streams[one.stream].stream_id
        )
        assert offset == (max(before, found.of(one)) if is_same else found.of(one))


@given(OFFSETS, MORE)
def test_range_that_ends_before_it_begins_is_an_error(start, more):
    end = later(start, more)
    if start != end:
        with pytest.raises(BackwardsError, match="would be read from"):
            ranges_between(end, start)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["v", "streams", "id", "p", "h", "0", "a"]), inner, max_size=4
            )
        ),
        max_leaves=12,
    )
)
def test_what_is_no_offset_is_refused(found):
    try:
        offsets = parse(found)
    except OffsetsError:
        return
    assert offsets.as_json() == {**found, "v": 1}
