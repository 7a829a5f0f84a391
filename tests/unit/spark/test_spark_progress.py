"""Where queries begin and micro-batches end, by what brokers tell."""

import pytest

from liftbridge_broker.model.units import SECOND_NS
from pyspark_liftbridge.plan.histories import divergences, with_histories
from pyspark_liftbridge.plan.offsets import (
    History,
    Offsets,
    OffsetsError,
    PartitionId,
    StreamOffsets,
    parse,
)
from pyspark_liftbridge.plan.options import Limits, OptionError, Places
from pyspark_liftbridge.plan.places import Known, at_latest, offsets_at, offsets_of, times_of
from pyspark_liftbridge.plan.progress import GoneError, advanced, ends_of, next_end, target_of
from pyspark_liftbridge.plan.ranges import Range, in_history, ranges_between
from pyspark_liftbridge.plan.table import EARLIEST, LATEST

S0, S1, T0 = PartitionId("s", 0), PartitionId("s", 1), PartitionId("t", 0)
BOUNDS = {
    S0: Known(7, 10, 30, 400),
    S1: Known(7, 0, 5, 100),
    T0: Known(9, 2, 2, 0),
}
NO_LIMITS = Limits(None, None, 0, None)


def offsets(**streams):
    """Next offsets: `s=(7, {0: 10})` is stream s of id 7."""
    return Offsets({name: StreamOffsets(*one) for name, one in streams.items()})


def test_places_become_offsets():
    assert offsets_at(Places(EARLIEST, {}), BOUNDS, {}) == offsets(
        s=(7, {0: 10, 1: 0}), t=(9, {0: 2})
    )
    assert offsets_at(Places(LATEST, {}), BOUNDS, {}) == offsets(
        s=(7, {0: 30, 1: 5}), t=(9, {0: 2})
    )
    each = Places(None, {"s": {0: 12, 1: EARLIEST}, "t": {0: LATEST}})
    assert offsets_at(each, BOUNDS, {}) == offsets(s=(7, {0: 12, 1: 0}), t=(9, {0: 2}))
    assert times_of(each, BOUNDS) == {}


def test_times_are_looked_up_and_may_be_later_than_everything():
    places = Places(1_500, {}, is_time=True)
    assert times_of(places, BOUNDS) == dict.fromkeys(BOUNDS, 1_500_000_000)
    found = {S0: 20, S1: 5, T0: 2}
    assert offsets_at(places, BOUNDS, found) == offsets(s=(7, {0: 20, 1: 5}), t=(9, {0: 2}))
    with pytest.raises(OptionError, match="no record of s/1 is as late as 1500 ms"):
        offsets_at(places, BOUNDS, found, is_latest_without_match=False)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"s": {0: 1, 1: 1}}, "t/0 is missing"),
        ({"s": {0: 1, 1: 1, 2: 1}, "t": {0: 1}}, "s/2 is not read"),
        ({"s": {0: 1}, "u": {0: 1}}, "s/1, t/0 is missing; u/0 is not read"),
    ],
)
@pytest.mark.parametrize("is_time", [False, True])
def test_places_by_partition_name_all_that_is_read_and_nothing_else(given, text, is_time):
    places = Places(None, given, is_time=is_time)
    with pytest.raises(OptionError, match=text):
        (times_of if is_time else lambda *one: offsets_at(*one, {}))(places, BOUNDS)


def test_the_end_is_what_is_committed_and_never_goes_back():
    start = offsets(s=(7, {0: 31, 1: 2}), t=(9, {0: 2}))
    ends = ends_of(BOUNDS, start, fails_on_loss=True)
    assert ends.latest == offsets(s=(7, {0: 31, 1: 5}), t=(9, {0: 2}))
    assert ends.mean_bytes == 500 / 25


def test_a_new_partition_and_a_new_stream_begin_at_earliest_in_the_next_batch():
    start = offsets(s=(7, {0: 10}))
    ends = ends_of(BOUNDS, start, fails_on_loss=True)
    assert ends.latest == offsets(s=(7, {0: 30, 1: 0}), t=(9, {0: 2}))
    assert [(one.partition, one.start, one.end) for one in ranges_between(start, ends.latest)] == [
        (0, 10, 30)
    ]
    after = ends_of(BOUNDS, ends.latest, fails_on_loss=True).latest
    assert [(one.partition, one.start, one.end) for one in ranges_between(ends.latest, after)] == [
        (1, 0, 5)
    ]


def test_a_stream_that_was_made_anew_is_an_error_or_begins_at_earliest():
    start = offsets(s=(6, {0: 100, 1: 3}), t=(9, {0: 2}))
    with pytest.raises(GoneError, match="stream s, read with id 6, has id 7 now"):
        ends_of(BOUNDS, start, fails_on_loss=True)
    ends = ends_of(BOUNDS, start, fails_on_loss=False)
    assert ends.latest == offsets(s=(7, {0: 10, 1: 0}), t=(9, {0: 2}))
    assert ranges_between(start, ends.latest) == []


def test_a_stream_that_is_gone_is_an_error_or_left_out():
    start = offsets(s=(7, {0: 10, 1: 0}), u=(3, {0: 1}))
    with pytest.raises(GoneError, match="stream u, read with id 3, is gone"):
        ends_of(BOUNDS, start, fails_on_loss=True)
    assert "u" not in ends_of(BOUNDS, start, fails_on_loss=False).latest.streams


def test_few_records_are_waited_for_until_the_delay_is_over():
    start = offsets(s=(7, {0: 10, 1: 0}), t=(9, {0: 2}))
    ends = ends_of(BOUNDS, start, fails_on_loss=True)
    limits = Limits(None, 26, 5 * SECOND_NS, None)
    assert next_end(start, ends, limits, 4 * SECOND_NS, None) == start
    assert next_end(start, ends, limits, 5 * SECOND_NS, None) == ends.latest
    assert next_end(start, ends, limits._replace(offsets_min=25), 0, None) == ends.latest
    assert next_end(start, ends, limits, 0, ends.latest) == ends.latest


def test_a_query_with_a_target_reads_up_to_it_and_nothing_that_came_later():
    start = offsets(s=(7, {0: 10}))
    ends = ends_of(BOUNDS, start, fails_on_loss=True)
    target = offsets(s=(7, {0: 20}))
    assert next_end(start, ends, NO_LIMITS, 0, target) == target
    few = Limits(4, None, 0, None)
    ends_at = []
    while start != target:
        start = next_end(start, ends, few, 0, target)
        ends_at.append(start.of(S0))
    assert ends_at == [14, 18, 20]


def test_offsets_of_partitions_carry_the_ids_of_their_streams():
    assert offsets_of({T0: BOUNDS[T0]}, {T0: 1}) == offsets(t=(9, {0: 1}))


@pytest.mark.parametrize(
    ("places", "found"),
    [
        (Places(LATEST, {}), [S0, S1, T0]),
        (Places(EARLIEST, {}), []),
        (Places(None, {"s": {0: LATEST, 1: 5}, "t": {0: EARLIEST}}), [S0]),
        (Places(1_500, {}, is_time=True), [S1, T0]),
    ],
)
def test_partitions_that_begin_at_latest_are_known(places, found):
    assert at_latest(places, BOUNDS, {S0: 20, S1: 5, T0: 2}) == found


def test_ends_do_not_go_back_unless_the_stream_is_another_one():
    found = {S0: Known(7, 11, 29, 1), S1: Known(8, 0, 1, 1), PartitionId("u", 0): Known(1, 0, 4, 1)}
    assert advanced(BOUNDS, found) == {**found, S0: Known(7, 11, 30, 1)}


def test_ends_go_back_in_another_history():
    found = {S0: Known(7, 10, 29, 1, 8)}
    assert advanced({S0: Known(7, 10, 30, 1, 0)}, found) == found


def test_ranges_are_read_in_the_present_history_of_their_stream():
    bounds = {S0: Known(7, 10, 30, 400, 8), T0: Known(9, 0, 30, 0, 5)}
    ranges = [Range("s", 7, 0, 10, 12), Range("t", 8, 0, 0, 1), Range("u", 1, 0, 0, 1)]
    assert in_history(ranges, bounds) == [ranges[0]._replace(unclean_epoch=8), *ranges[1:]]


def test_offsets_keep_the_history_that_was_read_until_there_is_more():
    bounds = {S0: Known(7, 10, 30, 0, 8, ((3, 10), (8, 25))), T0: Known(9, 0, 5, 0)}
    start = offsets(s=(7, {0: 20}), t=(9, {0: 4}))
    assert with_histories(start, start, bounds) == start
    end = offsets(s=(7, {0: 26}), t=(9, {0: 5}))
    read = with_histories(end, start, bounds)
    assert read == offsets(s=(7, {0: 26}, {0: History(8, 8)}), t=(9, {0: 5}))
    assert read.as_json()["streams"]["s"] == {"h": {"0": [8, 8]}, "id": 7, "p": {"0": 26}}
    assert parse(read.as_json()) == read
    later = {S0: Known(7, 10, 30, 0, 9, ((9, 10),))}
    assert with_histories(end, read, later) == read._replace(
        streams={**end.streams, "s": read.streams["s"]}
    )
    (text,) = divergences(read, later)
    assert text.startswith("s/0: offsets up to 25 were read in history 8, the last one by leader")
    assert list(divergences(read, {S0: later[S0]._replace(stream_id=8)})) == []
    # A partition and a stream that are new.
    met = offsets(s=(7, {0: 20, 1: 5}), t=(10, {0: 5}))
    assert with_histories(met, start, {**bounds, S1: Known(7, 5, 9, 0, 8, ((8, 7),))}) == met


@pytest.mark.parametrize("history", [[1], [1, 2, 3], [1, -1], [1, True], [1, "2"], 1, "12", {}])
@pytest.mark.parametrize("number", ["0", "1"])
def test_history_that_is_none_is_refused(history, number):
    stream = {"h": {number: history}, "id": 7, "p": {"0": 26}}
    with pytest.raises(OffsetsError, match="offsets are damaged"):
        parse({"streams": {"s": stream}, "v": 1})


def test_a_query_that_ends_reads_partitions_that_it_meets_then():
    start = offsets(s=(7, {0: 12}))
    target = target_of(BOUNDS, start)
    assert target == offsets(s=(7, {0: 30, 1: 5}), t=(9, {0: 2}))
    met = next_end(start, ends_of(BOUNDS, start, fails_on_loss=True), NO_LIMITS, 0, target)
    assert met == offsets(s=(7, {0: 30, 1: 0}), t=(9, {0: 2}))
    later = {one: known._replace(latest=known.latest + 9) for one, known in BOUNDS.items()}
    assert next_end(met, ends_of(later, met, fails_on_loss=True), NO_LIMITS, 0, target) == target
    assert target_of(BOUNDS, offsets(s=(7, {0: 40}))).of(S0) == 40
