"""What is archived next: every committed offset once, and no gap that nobody told of."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_liftbridge.plan.archiving import MissingError, Part, parts_of
from pyspark_liftbridge.plan.places import Known

OFFSETS = st.integers(0, 50)


def log(earliest, latest):
    return Known(7, earliest, latest, 0)


@given(st.dictionaries(st.integers(0, 3), st.tuples(OFFSETS, OFFSETS, st.none() | OFFSETS)))
def test_what_is_planned_adjoins_what_is_archived_or_says_what_is_lost(partitions):
    bounds = {n: log(min(a, b), max(a, b)) for n, (a, b, _) in partitions.items()}
    archived = {
        n: min(end, bounds[n].latest) for n, (_, _, end) in partitions.items() if end is not None
    }
    parts = {one.partition: one for one in parts_of("s", bounds, archived, fails_on_loss=False)}
    for number, known in bounds.items():
        end, part = archived.get(number), parts.get(number)
        begin = known.earliest if end is None else max(end, known.earliest)
        assert (part is None) == (begin == known.latest)
        if part is not None:
            assert (part.start, part.end, part.begins_at) == (begin, known.latest, known.earliest)
            assert part.lost_from == (end if end is not None and end < begin else None)


def test_what_is_gone_is_an_error_unless_the_job_may_go_on():
    bounds = {1: log(10, 20)}
    with pytest.raises(MissingError, match=r"s/1: offsets 4 to 9 are gone.*--allow-loss"):
        parts_of("s", bounds, {1: 4}, fails_on_loss=True)
    assert parts_of("s", bounds, {1: 4}, fails_on_loss=False) == [Part(1, 10, 20, 10, 4)]
    assert parts_of("s", bounds, {}, fails_on_loss=True) == [Part(1, 10, 20, 10, None)]


@pytest.mark.parametrize("fails_on_loss", [True, False])
def test_a_log_that_ends_before_the_archive_is_always_an_error(fails_on_loss):
    with pytest.raises(MissingError, match="an unclean election removed archived records"):
        parts_of("s", {0: log(0, 5)}, {0: 6}, fails_on_loss=fails_on_loss)
