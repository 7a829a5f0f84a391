"""Messages between readers and the application, and where groups continue."""

from math import inf

import pytest

from liftbridge_client import FencedError, Message, PartitionName, Start
from liftbridge_client.core.deliveries import Deliveries, size_of
from liftbridge_client.core.group_positions import (
    POSITIONS_A_CALL_MAX,
    by_place,
    first_offset,
    place_of,
)
from liftbridge_client.core.membership import Claim, Membership
from liftbridge_proto.ext.v1 import data_pb2, groups_pb2

A, B = PartitionName("a", 0), PartitionName("b", 1)


def message(offset, value=b""):
    return Message(offset, b"", value, 0, "a", 0, "", "", {})


def filled(count, *, claim=None, begin=0, stored=None, messages_max=100):
    deliveries, claim = Deliveries(messages_max, 2**30), claim or Claim(A)
    deliveries.begin(claim, begin, stored)
    for offset in range(begin, begin + count):
        deliveries.put(claim, message(offset))
    return deliveries, claim


# -- messages -------------------------------------------------------------------------------------


def test_batches_are_bounded_and_partitions_take_turns():
    deliveries, first = filled(3)
    second = Claim(B)
    deliveries.begin(second, 7, 6)
    deliveries.put(second, message(7))
    order = []
    while (taken := deliveries.take(2)) is not None:
        order.append((taken[0].partition, [one.offset for one in taken[1]]))
        deliveries.finish()
    assert order == [(A, [0, 1]), (B, [7]), (A, [2])]
    assert deliveries.to_commit() == {first: 2, second: 7}


def test_there_is_room_until_a_bound_is_reached_and_again_once_messages_went():
    by_count, _ = filled(3, messages_max=3)
    assert not by_count.has_room
    by_count.take(1)
    assert by_count.has_room
    by_bytes, claim = Deliveries(100, 2 * size_of(message(0, b"v"))), Claim(A)
    by_bytes.begin(claim, 0, None)
    by_bytes.put(claim, message(0, b"v"))
    assert by_bytes.has_room
    by_bytes.put(claim, message(1, b"v"))
    assert not by_bytes.has_room
    by_bytes.drop(claim)
    assert by_bytes.has_room


def test_what_ends_takes_no_more_messages():
    deliveries, claim = filled(0)
    claim.is_ending = True
    deliveries.put(claim, message(0))
    claim.is_ending, claim.is_over = False, True
    deliveries.put(claim, message(0))
    assert deliveries.take(1) is None


def test_dropped_messages_are_read_again_from_the_first_that_was_not_returned():
    deliveries, claim = filled(4)
    deliveries.take(2)
    deliveries.drop(claim)
    assert claim.next_offset == 2


# -- positions ------------------------------------------------------------------------------------


def test_only_finished_batches_have_positions():
    deliveries, claim = filled(3)
    deliveries.take(2)
    assert deliveries.in_hand is claim
    assert deliveries.to_commit() == {}
    deliveries.finish()
    assert deliveries.to_commit() == {claim: 1}
    assert deliveries.to_commit([Claim(B)]) == {}
    deliveries.on_committed({claim: 1})
    assert deliveries.to_commit() == {}


def test_a_position_that_moved_on_during_a_commit_is_stored_by_the_next():
    deliveries, claim = filled(3)
    deliveries.take(1)
    deliveries.finish()
    positions = deliveries.to_commit()
    deliveries.take(2)
    deliveries.finish()
    deliveries.on_committed(positions)
    assert deliveries.to_commit() == {claim: 2}


@pytest.mark.parametrize(
    ("begin", "stored", "position"),
    [(5, 4, None), (0, None, None), (5, None, 4), (9, 4, 8), (0, 7, -1)],
    ids=["continues", "at the beginning", "chosen", "overtaken", "created again"],
)
def test_a_place_that_is_not_after_the_stored_position_is_stored(begin, stored, position):
    deliveries, claim = filled(0, begin=begin, stored=stored)
    assert deliveries.to_commit().get(claim) == position


def test_a_truncated_log_takes_the_position_back():
    deliveries, claim = filled(6)
    deliveries.take(4)
    deliveries.finish()
    deliveries.on_committed(deliveries.to_commit())
    deliveries.take(1)
    deliveries.rewind(claim, 2)
    assert (claim.next_offset, deliveries.in_hand, deliveries.take(1)) == (2, None, None)
    assert deliveries.to_commit() == {claim: 1}
    deliveries.rewind(claim, 9)  # beyond what was read: nothing to take back
    assert deliveries.to_commit() == {claim: 1}


def test_what_is_lost_before_its_position_was_stored_is_told_once():
    deliveries, claim = filled(2, begin=3)
    untouched = Claim(B)
    deliveries.begin(untouched, 3, None)
    deliveries.lose([untouched])
    deliveries.check_lost()  # nothing of it was read
    deliveries.take(1)
    deliveries.lose([claim])
    assert deliveries.in_hand is None
    deliveries.finish()
    assert deliveries.to_commit() == {}
    with pytest.raises(FencedError, match=r"^a/0 went to another member"):
        deliveries.check_lost()
    deliveries.check_lost()


def test_many_lost_partitions_are_told_briefly():
    deliveries = Deliveries(100, 2**30)
    for number in range(5):
        claim = Claim(PartitionName("a", number))
        deliveries.begin(claim, 0, None)
        deliveries.put(claim, message(0))
        deliveries.take(1)
        deliveries.finish()
        deliveries.lose([claim])
    with pytest.raises(FencedError, match=r"^a/0, a/1, a/2 and 2 more went"):
        deliveries.check_lost()


# -- membership -----------------------------------------------------------------------------------


def answer(*numbers, epoch=9):
    found = groups_pb2.HeartbeatResponse(
        member_epoch=5,
        group_epoch=epoch,
        coordinator="b1",
        heartbeat_interval_ms=1_000,
        session_timeout_ms=3_000,
    )
    found.assigned.add(stream="a", partitions=numbers)
    return found


def test_a_claim_is_reported_until_it_is_let_go_of():
    membership = Membership("g", "c", ["a"], instance_id="i", zone="z")
    join = membership.request()
    assert (list(join.streams), join.instance_id, join.zone, join.member_epoch) == (
        ["a"],
        "i",
        "z",
        0,
    )
    change = membership.on_answer(answer(0, 1), 10.0)
    assert [claim.partition.partition for claim in change.given] == [0, 1]
    assert membership.valid_until == 13.0
    change = membership.on_answer(answer(1, epoch=10), 11.0)
    (revoked,) = change.revoked
    again = membership.on_answer(answer(0, 1, epoch=11), 12.0)
    assert (again.given, again.revoked) == ([], [])  # first it is let go of
    request = membership.request()
    assert (request.group_epoch, list(request.held[0].partitions)) == (11, [0, 1])
    commit = membership.commit_request()
    assert (commit.member_id, commit.member_epoch, commit.group_epoch) == ("c", 5, 11)
    membership.let_go([revoked])
    assert list(membership.request().held[0].partitions) == [1]
    (given,) = membership.on_answer(answer(0, 1, epoch=11), 13.0).given
    assert given.partition == A
    assert given is not revoked


def test_a_fenced_member_has_nothing_and_stays_a_member():
    membership = Membership("g", "c", ["a"], instance_id="", zone="")
    membership.on_answer(answer(0, 1), 10.0)
    assert [claim.is_over for claim in membership.fence()] == [True, True]
    assert (membership.valid_until, membership.member_epoch) == (-inf, 5)
    assert len(membership.on_answer(answer(0, 1), 20.0).given) == 2
    membership.on_unknown()
    assert membership.request().member_epoch == 0


# -- where groups continue ------------------------------------------------------------------------


def bounds(epochs=((1, 0),), unclean_epoch=0):
    found = data_pb2.PartitionBounds(
        log_start=10,
        high_watermark=18,
        log_end=20,
        timestamp_offset=15,
        unclean_epoch=unclean_epoch,
    )
    for epoch, start in epochs:
        found.epochs.add(leader_epoch=epoch, start_offset=start)
    return found


@pytest.mark.parametrize(
    ("position", "start", "first"),
    [
        (13, Start.new(), 14),
        (19, Start.new(), 20),
        (3, Start.new(), 10),
        (25, Start.new(), 10),
        (None, Start.new(), 18),
        (None, Start.earliest(), 10),
        (None, Start.latest(), 17),
        (None, Start.at(3), 10),
        (None, Start.at(12), 12),
        (None, Start.at(99), 20),
        (None, Start("time", timestamp=1), 15),
    ],
)
def test_a_group_continues_after_its_position_or_at_the_start(position, start, first):
    assert first_offset(position, start, bounds()) == first


@pytest.mark.parametrize(("cut", "first"), [(16, 16), (3, 10)])
def test_a_position_beyond_the_end_continues_where_the_log_was_cut(cut, first):
    assert first_offset(25, Start.new(), bounds(((1, 0), (4, cut)), 4)) == first


def test_positions_are_stored_where_brokers_look_for_them():
    many = [PartitionName("s", number) for number in range(2_500)]
    calls = list(by_place("g", many, 1))
    assert [len(some) for _, some in calls] == [1_000, 1_000, 500]
    assert POSITIONS_A_CALL_MAX == 1_000
    assert {place_of("__group:g", one, 7) for one in many} == set(range(7))
    assert sorted(one for _, some in by_place("g", many, 7) for one in some) == many
