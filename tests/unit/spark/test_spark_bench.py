"""What `make bench-spark` makes of what it measures."""

from liftbridge_testkit.spark_bench.rows import Row, tables
from liftbridge_testkit.spark_bench.streams import KINDS, PARTITIONS, rows_of
from liftbridge_testkit.spark_bench.usage import Sample, Usage

SAMPLE = Sample(200_000, 0.5, Usage(0.1, 0.2, 0.3).since(Usage(0.0, 0.1, 0.1)))


def test_rates_must_reach_their_target_and_times_must_not_exceed_theirs() -> None:
    assert Row.of_sample("read", SAMPLE, 400_000).is_met
    assert Row.of_sample("read", SAMPLE, 400_001).is_met is False
    assert Row.of_sample("read", SAMPLE, 0).is_met is None
    assert Row.of_figure("wait", 300.0, "ms", 300.0).is_met
    assert Row.of_figure("wait", 300.1, "ms", 300.0).is_met is False


def test_a_row_tells_the_processor_time_of_each_process() -> None:
    row = Row.of_sample("read", SAMPLE, 500_000)._replace(notes={"ceiling": 0.5})
    line = tables([row]).splitlines()[-1]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == ["read", "400 k", ">= 500 k", "NO", "0.50", "0.50", "1.00", "ceiling 0.50"]


def test_streams_hold_whole_batches_in_each_partition() -> None:
    for kind in KINDS:
        for rows in (1, 123_456, 2_000_000):
            assert rows_of(kind, rows) % (kind.batch * PARTITIONS) == 0
            assert rows_of(kind, rows) > 0
