"""Sizes of Arrow batches: enough rows to be worth it, and not all of a partition of large ones."""

import pyarrow as pa
import pytest

from pyspark_liftbridge.source.schema import ROWS_MAX, ROWS_MIN, resized

BYTES_MAX = 100_000


def batches(*counts, size=1):
    first = 0
    for count in counts:
        numbers = range(first, first + count)
        values = [b"%*d" % (size, number) for number in numbers]
        yield pa.record_batch({"n": pa.array(values, pa.binary())})
        first += count


@pytest.mark.parametrize(
    ("counts", "size", "expected"),
    [
        ((ROWS_MIN - 1, 1, 5), 1, [ROWS_MIN, 5]),
        ((2 * ROWS_MAX + 1,), 1, [13_333, 13_334, 13_334]),
        ((0, 3, 0), 1, [3]),
        ((), 1, []),
        ((2, 2, 2, 1), BYTES_MAX // 4, [4, 3]),
        ((1, 1), 2 * BYTES_MAX, [1, 1]),
    ],
)
def test_rows_are_the_same_in_batches_of_other_sizes(counts, size, expected):
    found = list(resized(batches(*counts, size=size), BYTES_MAX))
    assert [one.num_rows for one in found] == expected
    rows = [int(row["n"]) for one in found for row in one.to_pylist()]
    assert rows == list(range(sum(counts)))
