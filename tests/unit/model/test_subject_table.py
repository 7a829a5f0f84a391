"""Who listens to a subject: the table beside matching one by one."""

from hypothesis import given
from hypothesis import strategies as st

from liftbridge_broker.model.subject_table import LOOKUP_CACHE_COUNT_MAX, SubjectTable
from liftbridge_broker.model.subjects import matches

TOKENS = st.sampled_from(["a", "b", "*"])
SUBJECTS = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=4).map(".".join)
PATTERNS = st.tuples(st.lists(TOKENS, max_size=4), st.booleans()).map(
    lambda p: ".".join([*p[0], ">"] if p[1] or not p[0] else p[0])
)


@given(
    st.lists(st.tuples(PATTERNS, st.integers(0, 5)), max_size=12),
    st.lists(st.integers(0, 11), max_size=6),
    st.lists(SUBJECTS, max_size=6),
)
def test_table_finds_what_matching_one_by_one_finds(entries, removals, subjects):
    table, model = SubjectTable(), {}
    for pattern, value in entries:
        table.add(pattern, value)
        model[pattern, value] = None
    for subject in subjects:
        table.lookup(subject)  # fills the cache that changes have to drop
    for index in removals:
        if index < len(entries):
            table.remove(*entries[index])
            model.pop(entries[index], None)
    for subject in subjects:
        found = table.lookup(subject)
        assert len(found) == len(set(found))
        assert set(found) == {value for pattern, value in model if matches(pattern, subject)}


def test_table_forgets_patterns_that_are_gone():
    table = SubjectTable()
    for pattern in ("a.b.c", "a.*", "a.>", ">", "a"):
        table.add(pattern, 1)
    for pattern in ("a.b.c", "a.*", "a.>", ">", "a"):
        table.remove(pattern, 1)
    table.remove("never.there", 1)
    assert table.lookup("a.b.c") == ()
    assert table._root.is_empty


def test_every_change_is_seen_by_the_next_lookup():
    table = SubjectTable()
    assert table.lookup("a.b") == ()
    table.add("a.*", 1)
    assert table.lookup("a.b") == (1,)
    table.add("a.b", 2)
    assert set(table.lookup("a.b")) == {1, 2}
    table.remove("a.*", 1)
    assert table.lookup("a.b") == (2,)


def test_table_cache_is_bounded():
    table = SubjectTable()
    table.add(">", 1)
    for number in range(LOOKUP_CACHE_COUNT_MAX + 10):
        assert table.lookup(f"s.{number}") == (1,)
    assert len(table._cache) <= LOOKUP_CACHE_COUNT_MAX


def test_lookup_order_is_that_of_insertion_within_a_pattern():
    table = SubjectTable()
    for value in ("z", "a", "m"):
        table.add("x", value)
    assert table.lookup("x") == ("z", "a", "m")
