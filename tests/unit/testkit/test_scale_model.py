"""The cost model against the broker's code: a simulated cluster, and a measured one."""

import pytest

from liftbridge_testkit.scale_model import Cluster, compare, pairs_of

MEASURED = Cluster(brokers=3, partitions=10_000, pairs=6)
"""The cluster of docs/internals/performance.md, "Ten thousand replicated partitions"."""


def test_counts_of_a_simulated_cluster_are_those_of_the_formulas():
    rows = compare(broker_count=4, partition_count=60)
    assert [row.what for row in rows if row.what.startswith("entries")]
    for row in rows:
        assert row.counted == pytest.approx(row.computed, rel=0.02), row.what


def test_pairs_are_at_least_those_of_one_partition_and_at_most_all():
    assert pairs_of(3) == 6
    assert 2 * 30 <= pairs_of(30) <= 30 * 29


@pytest.mark.parametrize(
    ("computed", "measured"),
    [
        (MEASURED.memory_mb(), 280),
        (MEASURED.processor(of_leader=True), 7.4),
        (MEASURED.creation_s(), 14.9),
        (MEASURED.serve_s(), 8.5),
        (MEASURED.in_sync_s(), 18.7),
    ],
)
def test_formulas_give_what_was_measured(computed, measured):
    assert computed == pytest.approx(measured, rel=0.1)
