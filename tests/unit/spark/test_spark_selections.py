"""What of an archive is replayed, as the command is given it."""

import pytest

from pyspark_liftbridge.archive.records import Wanted
from pyspark_liftbridge.jobs.selection import Selection, selection_of
from pyspark_liftbridge.plan.options import OptionError

NOON_NS = 1_769_860_800 * 10**9
"""2026-01-31 at 12 in UTC."""


@pytest.mark.parametrize(
    ("offsets", "times", "found"),
    [
        (":", ":", Selection()),
        ("5:", ":", Selection(start=5)),
        (":17", ":", Selection(end=17)),
        ("0:17", ":", Selection(end=17)),
        (":", "2026-01-31T12:00:00Z:", Selection(start_ns=NOON_NS)),
        (":", ":2026-01-31T12:00", Selection(end_ns=NOON_NS)),
        (":", "2026-01-31T13:00:00+01:00:", Selection(start_ns=NOON_NS)),
        (
            ":",
            "2026-01-31T12:00:00.5Z:2026-02-01",
            Selection(start_ns=NOON_NS + 500_000_000, end_ns=NOON_NS + 43_200 * 10**9),
        ),
    ],
)
def test_ranges_are_open_where_nothing_stands(offsets: str, times: str, found: Selection) -> None:
    assert selection_of(offsets, times) == found


@pytest.mark.parametrize(
    ("offsets", "times", "told"),
    [
        ("5", ":", "--offsets 5: must be A:B"),
        ("-5:", ":", "--offsets -5:: must be A:B"),
        ("a:b", ":", "must be A:B"),
        ("5:5", ":", "must end after its start"),
        ("1" * 19 + ":", ":", "must be A:B"),
        (":", "noon", "--time noon: must be FROM:TO"),
        (":", "2026-01-31T12:00", "must be FROM:TO"),
        (":", "2026-02-01:2026-01-31", "must end after its start"),
    ],
)
def test_what_is_no_range_is_named(offsets: str, times: str, told: str) -> None:
    with pytest.raises(OptionError, match=told):
        selection_of(offsets, times)


def test_a_partition_has_its_part_of_what_is_chosen() -> None:
    chosen = Selection(start=5, end=10, start_ns=1, end_ns=2)
    assert chosen.of(3, 0, 100) == Wanted(3, 5, 10, 1, 2)
    assert chosen.of(3, 7, 8) == Wanted(3, 7, 8, 1, 2)
    assert chosen.of(3, 20, 30) == Wanted(3, 20, 20, 1, 2)
