"""Ranges of verified positions against a set of numbers."""

from hypothesis import given
from hypothesis import strategies as st

from liftbridge_broker.storage.log.ranges import RANGES_MAX, Ranges

changes = st.lists(st.tuples(st.booleans(), st.integers(0, 60), st.integers(0, 20)), max_size=40)


@given(changes)
def test_ranges_hold_what_was_added_and_not_cut(changes: list[tuple[bool, int, int]]) -> None:
    ranges = Ranges()
    model: set[int] = set()
    for is_added, start, size in changes:
        if is_added:
            ranges.add(start, start + size)
            model |= set(range(start, start + size))
        else:
            ranges.cut(start)
            model = {position for position in model if position < start}
        for position in range(90):
            until = position
            while until in model:
                until += 1
            assert ranges.covered_until(position) == until
    assert ranges._starts == sorted(ranges._starts)
    pairs = zip(ranges._ends, ranges._starts[1:], strict=False)
    assert all(end < start for end, start in pairs)


def test_too_many_places_are_forgotten_rather_than_kept() -> None:
    ranges = Ranges()
    for number in range(RANGES_MAX):
        ranges.add(10 * number, 10 * number + 5)
    assert ranges.covered_until(0) == 5
    ranges.add(5, 7)
    assert ranges.covered_until(0) == 7
    ranges.add(10 * RANGES_MAX, 10 * RANGES_MAX + 5)
    assert ranges.covered_until(0) == 0
    assert ranges.covered_until(10 * RANGES_MAX) == 10 * RANGES_MAX + 5
