"""Plain integer histograms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftbridge_broker.model.histogram import LATENCY_BOUNDS_NS, Histogram


@pytest.mark.parametrize(
    ("value", "bucket"), [(0, 0), (10, 0), (11, 1), (20, 1), (21, 2), (10**18, 2), (-5, 0)]
)
def test_value_falls_into_the_first_bucket_whose_end_is_not_below_it(value, bucket):
    histogram = Histogram(bounds=(10, 20))
    histogram.observe(value)
    assert histogram.counts[bucket] == 1
    assert sum(histogram.counts) == 1


@given(st.lists(st.tuples(st.integers(0, 10**11), st.integers(1, 5))))
def test_counts_and_sum_are_those_of_the_values(values):
    histogram = Histogram()
    for value, count in values:
        histogram.observe(value, count)
    assert sum(histogram.counts) == sum(count for _, count in values)
    assert histogram.total == sum(value * count for value, count in values)
    below = sum(count for value, count in values if value <= LATENCY_BOUNDS_NS[3])
    assert sum(histogram.counts[:4]) == below


def test_histograms_share_nothing():
    first, second = Histogram(), Histogram()
    first.observe(1)
    assert sum(second.counts) == 0
