"""Reserved subjects, and inboxes that clients may name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftbridge_broker.errors import InvalidRequestError
from liftbridge_broker.model.subjects import SUBJECT_BYTES_MAX, is_publishable
from liftbridge_broker.node.partition.ack_inboxes import AckInboxes
from liftbridge_broker.wire.subjects import (
    INBOX_CACHE_COUNT_MAX,
    ReservedSubjects,
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
