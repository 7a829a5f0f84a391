import pytest

from liftbridge_broker.model.metadata_log import Configuration
from liftbridge_broker.raft.configuration import EMPTY, changed, decode, encode, is_well_formed
from liftbridge_broker.raft.membership import Membership
from liftbridge_broker.raft.types import (
    AddLearner,
    BadConfigurationError,
    ConfigChangeRefusedError,
    Promote,
    Remove,
)
from liftbridge_testkit.raft.cluster import peer_of

A, B, C, D = (peer_of(name) for name in "1234")
FULL = Configuration((A, B), (C, D))
ENCODED = bytes.fromhex(
    "01 0002 0002 0001 31 0002 6430 0001 32 0002 6430 0001 33 0002 6430 0001 34 0002 6430"
)


def test_encoding_is_as_documented():
    assert encode(FULL) == ENCODED
    assert decode(ENCODED) == FULL


def test_cut_or_prolonged_bytes_are_refused():
    for end in range(len(ENCODED)):
        with pytest.raises(BadConfigurationError):
            decode(ENCODED[:end])
    with pytest.raises(BadConfigurationError, match="left over"):
        decode(ENCODED + b"\0")


@pytest.mark.parametrize(
    "bad",
    [
        EMPTY,
        Configuration((), (A,)),
        Configuration((B, A)),
        Configuration((A, A)),
        Configuration((A,), (C, B)),
        Configuration((A,), (A,)),
    ],
)
def test_malformed_members_are_refused(bad):
    assert not is_well_formed(bad)
    with pytest.raises(BadConfigurationError):
        decode(encode(bad))


def test_other_version_and_bad_text_are_refused():
    with pytest.raises(BadConfigurationError, match="version 2"):
        decode(b"\x02" + ENCODED[1:])
    with pytest.raises(BadConfigurationError):
        decode(ENCODED[:7] + b"\xff" + ENCODED[8:])


def test_changes_move_one_member():
    assert changed(Configuration((B,)), AddLearner(A)) == Configuration((B,), (A,))
    assert changed(FULL, Promote(D)) == Configuration((A, B, D), (C,))
    assert changed(FULL, Remove(A)) == Configuration((B,), (C, D))
    assert changed(FULL, Remove(C)) == Configuration((A, B), (D,))


@pytest.mark.parametrize(
    ("configuration", "change"),
    [
        (FULL, AddLearner(A)),
        (FULL, AddLearner(C)),
        (FULL, Promote(A)),
        (FULL, Remove(peer_of("9"))),
        (Configuration((A,), (B,)), Remove(A)),
        (Configuration((A,), (peer_of("1'"),)), Promote(peer_of("1'"))),
    ],
)
def test_changes_that_make_no_sense_are_refused(configuration, change):
    with pytest.raises(ConfigChangeRefusedError):
        changed(configuration, change)


def test_newest_configuration_counts_until_its_entry_is_truncated():
    one, two = Configuration((A,), (B,)), Configuration((A, B))
    membership = Membership(3, one)
    membership.add(5, two)
    assert (membership.latest, membership.latest_index) == (two, 5)
    assert (membership.at(4), membership.at(5)) == (one, two)
    membership.truncate(6)
    assert membership.latest == two
    membership.truncate(5)
    assert (membership.latest, membership.latest_index) == (one, 3)
    membership.truncate(1)
    assert membership.latest == one


def test_forgotten_configurations_are_those_no_snapshot_needs():
    membership = Membership(0, Configuration((A,)))
    for index in (2, 4, 6):
        membership.add(index, Configuration((A, B) if index == 4 else (A,)))
    membership.forget(5)
    assert membership.at(5) == Configuration((A, B))
    assert membership.at(2) == Configuration((A, B))
    assert membership.latest_index == 6


def test_removed_member_belongs_until_the_removal_is_committed():
    membership = Membership(0, Configuration((A, B), (C,)))
    membership.add(7, Configuration((A,)))
    assert membership.is_member(B, 6)
    assert membership.is_member(C, 6)
    assert membership.may_lead(B, 6)
    assert not membership.may_lead(C, 6)
    assert not membership.is_member(B, 7)
    assert not membership.may_lead(B, 7)
