"""Snapshots are bounded, copied, and joined by the rule of each metric."""

import asyncio

import pytest

from liftbridge_broker.adapters.observe.catalogue import (
    Catalogue,
    Combine,
    MetricSpec,
    MetricType,
    Scope,
    load_catalogue,
)
from liftbridge_broker.adapters.observe.exposition import render
from liftbridge_broker.adapters.observe.metrics import (
    DETAILED_LINES_MAX,
    OTHER,
    SLICE,
    bounded,
    detail,
    frozen,
    in_slices,
    read,
    summarise,
)
from liftbridge_broker.model.histogram import Histogram

CATALOGUE = load_catalogue()


class Source:
    """Samples given by the test."""

    def __init__(self, broker=None, streams=()):
        self.broker = broker or {}
        self.streams = streams

    def broker_samples(self):
        return self.broker

    def stream_samples(self):
        return iter(self.streams)

    def partition_samples(self, stream):
        del stream


def collect(source, catalogue, streams_max):
    """The whole way of a scrape, on a loop of its own."""
    return summarise(asyncio.run(read(source, catalogue)), catalogue, streams_max)


def values_of(snapshot, name):
    for family in snapshot.families:
        if family.spec.name == name:
            return dict(family.samples)
    return {}


def stream(size, **others):
    return {"stream_bytes": size, **others}


def test_largest_streams_get_series_and_the_rest_is_summed():
    source = Source(streams=[(f"s{n}", stream(n * 10)) for n in range(6)])
    snapshot = collect(source, CATALOGUE, 2)
    assert values_of(snapshot, "stream_bytes") == {("s5",): 50, ("s4",): 40, (OTHER,): 60}


def test_streams_of_equal_size_are_chosen_by_name_so_that_they_stay():
    rows = [(name, stream(1)) for name in "cab"]
    first = collect(Source(streams=rows), CATALOGUE, 1)
    second = collect(Source(streams=rows[::-1]), CATALOGUE, 1)
    assert first == second


def test_every_stream_is_in_the_rest_when_none_is_shown():
    snapshot = collect(Source(streams=[("a", stream(1)), ("b", stream(2))]), CATALOGUE, 0)
    assert values_of(snapshot, "stream_bytes") == {(OTHER,): 3}


def test_stream_named_like_the_rest_makes_no_double_series():
    rows = [(OTHER, stream(9)), ("a", stream(5)), ("b", stream(1))]
    snapshot = collect(Source(streams=rows), CATALOGUE, 1)
    (family,) = [f for f in snapshot.families if f.spec.name == "stream_bytes"]
    assert family.samples == ((("a",), 5), ((OTHER,), 10))


def test_rest_is_joined_by_the_rule_of_the_metric():
    rows = [
        ("a", stream(9)),
        ("b", stream(1, stream_oldest_timestamp_seconds=50, subscription_lag_messages_max=4)),
        ("c", stream(1, stream_oldest_timestamp_seconds=30, subscription_lag_messages_max=7)),
        ("d", stream(1)),  # an empty stream has no oldest message
    ]
    snapshot = collect(Source(streams=rows), CATALOGUE, 1)
    assert values_of(snapshot, "stream_oldest_timestamp_seconds") == {(OTHER,): 30}
    assert values_of(snapshot, "subscription_lag_messages_max") == {(OTHER,): 7}


def test_labels_inside_streams_are_kept_and_joined():
    rows = [
        ("a", stream(9, published_messages_total={"grpc": 1, "nats": 2})),
        ("b", stream(1, published_messages_total={"grpc": 3})),
        ("c", stream(1, published_messages_total={"grpc": 4, "batch": 5})),
    ]
    snapshot = collect(Source(streams=rows), CATALOGUE, 1)
    assert values_of(snapshot, "published_messages_total") == {
        ("a", "grpc"): 1,
        ("a", "nats"): 2,
        (OTHER, "grpc"): 7,
        (OTHER, "batch"): 5,
    }


def test_values_outside_a_closed_list_are_joined():
    spec = MetricSpec(
        name="x_total",
        type=MetricType.COUNTER,
        doc="X.",
        labels=("path",),
        values={"path": ("grpc",)},
    )
    values = frozen(spec, {"grpc": 1, "evil-1": 2, "evil-2": 3})
    assert bounded(spec, values) == {("grpc",): 1, (OTHER,): 5}


def test_open_label_sets_keep_the_largest_and_join_the_rest():
    spec = MetricSpec(
        name="x_total", type=MetricType.COUNTER, doc="X.", labels=("a", "b"), series_max=3
    )
    values = frozen(spec, {("m", str(n)): n for n in range(10)})
    joined = bounded(spec, values)
    assert joined == {("m", "9"): 9, ("m", "8"): 8, (OTHER, OTHER): 28}
    assert len(joined) == spec.series_max


def test_histograms_are_joined_by_bucket():
    spec = MetricSpec(
        name="x", type=MetricType.HISTOGRAM, doc="X.", labels=("a",), values={"a": ()}
    )
    first, second = Histogram(bounds=(10, 20)), Histogram(bounds=(10, 20))
    first.observe(5)
    second.observe(15, 2)
    second.observe(99)
    joined = bounded(spec, frozen(spec, {"x": first, "y": second}))[(OTHER,)]
    assert (joined.counts, joined.total) == ((1, 2, 1), 134)


def test_snapshot_does_not_follow_what_changes_later():
    histogram = Histogram()
    snapshot = collect(Source({"loop_lag_seconds": histogram}), CATALOGUE, 0)
    histogram.observe(1)
    (value,) = values_of(snapshot, "loop_lag_seconds").values()
    assert sum(value.counts) == 0


@pytest.mark.parametrize(
    "samples",
    [{"no_such_metric": 1}, {"grpc_requests_total": 1}, {"grpc_requests_total": {"a": 1}}],
)
def test_samples_that_do_not_fit_the_catalogue_are_a_bug(samples):
    with pytest.raises(AssertionError):
        collect(Source(samples), CATALOGUE, 0)


def test_missing_samples_make_no_family():
    assert collect(Source({"partitions": 0}), CATALOGUE, 5).families[0].samples == (((), 0),)
    assert len(collect(Source({"partitions": 0}), CATALOGUE, 5).families) == 1


def test_detail_has_each_partition_in_order():
    rows = [(10, {"partition_bytes": 5}), (2, {"partition_bytes": 7, "partition_paused": 1})]
    snapshot = detail("s", rows, CATALOGUE)
    assert values_of(snapshot, "partition_bytes") == {("s", "2"): 7, ("s", "10"): 5}
    assert values_of(snapshot, "partition_paused") == {("s", "2"): 1}
    assert snapshot.note == ""


async def test_loop_turns_between_slices_of_rows():
    turns = []
    asyncio.get_running_loop().call_soon(turns.append, "turned")
    rows = ((number, len(turns)) for number in range(SLICE + 1))
    taken = await in_slices(rows)
    assert taken == [(number, 0) for number in range(SLICE)] + [(SLICE, 1)]


def test_detail_is_cut_at_whole_partitions_and_says_so():
    names = [spec.name for spec in CATALOGUE.of_scope(Scope.PARTITION)]
    rows = [(n, dict.fromkeys(names, 1)) for n in range(DETAILED_LINES_MAX // len(names) + 5)]
    snapshot = detail("s", rows, CATALOGUE)
    text = render(snapshot).decode()
    lines = text.splitlines()
    assert DETAILED_LINES_MAX - 2 * len(names) < len(lines) <= DETAILED_LINES_MAX + 1
    assert lines[-1].startswith("# cut: ")
    counts = {len(family.samples) for family in snapshot.families}
    assert len(counts) == 1


class TestExposition:
    def test_units_are_turned_at_the_edge(self):
        histogram = Histogram()
        histogram.observe(3_000_000)
        histogram.observe(99_000_000_000)
        source = Source(
            {
                "broker_start_time_seconds": 1_700_000_000_500_000_000,
                "loop_busy_ratio": 250_000,
                "loop_lag_seconds": histogram,
                "nats_reconnects_total": 3,
            }
        )
        lines = render(collect(source, CATALOGUE, 0)).decode().splitlines()
        assert "liftbridge_broker_start_time_seconds 1.7000000005e+09" in lines
        assert "liftbridge_loop_busy_ratio 0.25" in lines
        assert "liftbridge_nats_reconnects_total 3.0" in lines
        assert 'liftbridge_loop_lag_seconds_bucket{le="0.0025"} 0.0' in lines
        assert 'liftbridge_loop_lag_seconds_bucket{le="0.005"} 1.0' in lines
        assert 'liftbridge_loop_lag_seconds_bucket{le="10.0"} 1.0' in lines
        assert 'liftbridge_loop_lag_seconds_bucket{le="+Inf"} 2.0' in lines
        assert "liftbridge_loop_lag_seconds_count 2.0" in lines
        assert "liftbridge_loop_lag_seconds_sum 99.003" in lines

    def test_stream_names_cannot_break_the_format(self):
        name = 'a"\n\\} 1\nliftbridge_evil 1'
        text = render(collect(Source(streams=[(name, stream(1))]), CATALOGUE, 5)).decode()
        assert [line for line in text.splitlines() if line.startswith("liftbridge_evil")] == []


@pytest.mark.parametrize(("how", "joined"), [(Combine.SUM, 6), (Combine.MAX, 4), (Combine.MIN, 2)])
def test_each_rule_of_joining(how, joined):
    spec = MetricSpec(name="x", type=MetricType.GAUGE, doc="X.", scope=Scope.STREAM, combine=how)
    catalogue = Catalogue({"x": spec}, {})
    rows = [("a", {"x": 2}), ("b", {"x": 4})]
    assert values_of(collect(Source(streams=rows), catalogue, 0), "x") == {(OTHER,): joined}
