"""Reserved subjects, inboxes that clients may name, and who listens to a subject."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftbridge_broker.errors import InvalidRequestError
from liftbridge_broker.model.subjects import SUBJECT_BYTES_MAX, matches
from liftbridge_broker.node.partition.ack_inboxes import AckInboxes
from liftbridge_broker.wire.subjects import (
    INBOX_CACHE_COUNT_MAX,
    LOOKUP_CACHE_COUNT_MAX,
    ReservedSubjects,
    SubjectTable,
    is_publishable,
    reserved_subjects,
)

RESERVED = ReservedSubjects("liftbridge-default")


@pytest.mark.parametrize(
    ("subject", "is_reserved"),
    [
        ("liftbridge-default.raft.metadata.join", True),
        ("liftbridge-default.ack.x", True),
        ("_INBOX.abc", True),
        ("$SYS.REQ", True),
        ("$JS.API", True),
        ("liftbridge-default", False),
        ("liftbridge-default2.x", False),
        ("_INBOXES.abc", False),
        ("foo.liftbridge-default.x", False),
        ("foo", False),
    ],
)
def test_internal_subjects_and_inboxes_stay_out_of_streams(subject, is_reserved):
    assert RESERVED.is_reserved(subject) is is_reserved


def test_own_inbox_prefix_is_reserved():
    assert ReservedSubjects("ns", "_LIFT.inbox").is_reserved("_LIFT.inbox.7")


@pytest.mark.parametrize(
    ("inbox", "is_allowed"),
    [
        ("acks.1", True),
        ("_INBOX.abc.def", True),
        ("liftbridge-default.ack.xyz", False),
        ("_LIFTBRIDGE.liftbridge-default.ack.xyz", False),
        ("_LIFTBRIDGE.other.ack.xyz", False),
        ("liftbridge-default.raft.metadata.join", False),
        ("liftbridge-default.notify.a", False),
        ("liftbridge-default.ack.*", False),
        ("$SYS.REQ.SERVER", False),
        ("a b", False),
        ("a\r\nPUB x 0\r\n", False),
        ("a..b", False),
        ("", False),
        ("foo.*", False),
        (">", False),
        ("x" * 2000, False),
    ],
)
def test_acks_go_only_where_a_client_may_point(inbox, is_allowed):
    assert RESERVED.allows_ack_inbox(inbox) is is_allowed
    assert RESERVED.allows_ack_inbox(inbox) is is_allowed  # from the cache


def test_clients_cannot_speak_on_internal_subjects():
    RESERVED.check_publish("foo.*")
    for subject in (
        "liftbridge-default.ack.x",
        "liftbridge-default.raft",
        "_LIFTBRIDGE.other.b.a.meta",
        "_INBOX.x",
        "$SYS.x",
        "a b",
    ):
        with pytest.raises(InvalidRequestError):
            RESERVED.check_publish(subject)


def test_inbox_cache_is_bounded():
    reserved = ReservedSubjects("ns")
    for number in range(INBOX_CACHE_COUNT_MAX + 10):
        assert reserved.allows_ack_inbox(f"in.{number}")
    assert len(reserved._inboxes) <= INBOX_CACHE_COUNT_MAX


def test_long_inboxes_are_refused_and_not_kept():
    reserved = ReservedSubjects("ns")
    for number in range(10):
        assert not reserved.allows_ack_inbox(f"{number}" + "x" * SUBJECT_BYTES_MAX)
    assert not reserved._inboxes


def test_all_partitions_of_a_broker_keep_the_same_inboxes():
    inboxes = [AckInboxes("ns"), AckInboxes("ns")]
    assert inboxes[0].allows("one", b"")
    assert "one" in inboxes[1].reserved._inboxes
    assert inboxes[0].reserved is reserved_subjects("ns")


@given(st.text(max_size=10))
def test_nothing_publishable_can_leave_its_place_in_a_protocol_line(subject):
    if is_publishable(subject):
        assert not set(subject) & set(" \t\r\n")
        assert subject.split() == [subject]


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
