"""What is read of consumers that break their promises is noticed."""

from liftbridge_testkit.consumers.history import History


def history(*lines, overlap_seconds_max=0.0):
    """A history of two partitions with five acknowledged messages each, and lines of members."""
    found = History(2, overlap_seconds_max)
    for partition in range(2):
        found.acked(partition, 4)
    for member, line in lines:
        found.told(member, line)
    return found


READ = [(1, "given 1.0 0 1"), (1, "read 1.1 0 0 4"), (1, "read 1.2 1 0 2")]


def test_a_partition_that_moves_breaks_nothing():
    found = history(*READ, (1, "revoked 2.0 1"), (2, "given 2.1 1"), (2, "read 2.2 1 2 4"))
    assert found.missing_count() == 0
    assert found.faults() == []
    assert found.repeated_count() == 1  # delivered again: at least once
    assert found.owners() == {0: 1, 1: 2}


def test_messages_that_nobody_read_are_counted():
    assert history(*READ).missing_count() == 2


def test_members_that_read_a_partition_at_the_same_time_are_told():
    found = history(*READ, (2, "given 1.3 1"), (2, "read 1.4 1 3 3"), (1, "read 1.5 1 3 4"))
    assert found.faults() == ["partition 1: member 1 reads until 1.500, member 2 from 1.400 on"]


def test_who_reads_a_message_twice_without_being_given_the_partition_again_is_told():
    again = (1, "read 1.3 1 2 4")
    assert history(*READ, again).faults() == ["partition 1: member 1 reads 2 again"]
    assert history(*READ, (1, "revoked 1.25 1"), (1, "given 1.27 1"), again).faults() == []


def test_owners_are_found_by_what_they_read_after_a_moment():
    found = history(*READ, (2, "given 2.1 1"), (2, "read 2.25 1 3 4"), (2, "read 2.5 1 5 5"))
    assert found.read_since(1, 2.0, frozenset({2})) == 2.25
    assert found.read_since(1, 2.0, frozenset({1})) is None
    assert found.given_since(1, 2.0, frozenset({1, 2})) == 2.1
    assert found.given_since(1, 2.0, frozenset({1})) is None


def test_a_former_reader_may_go_on_for_as_long_as_allowed():
    lines = (*READ, (2, "given 1.3 1"), (2, "read 1.4 1 3 3"), (1, "read 1.5 1 3 4"))
    found = history(*lines, overlap_seconds_max=0.2)
    assert found.faults() == []
    (overlap,) = found.overlaps()
    assert (overlap.partition, overlap.former, overlap.successor) == (1, 1, 2)
    assert round(overlap.seconds, 3) == 0.1


def test_an_overlap_with_a_reader_that_began_long_ago_is_noticed():
    reads = (3, "read 1.4 1 3 3"), (4, "read 1.5 1 4 4"), (1, "read 1.6 1 3 3")
    overlaps = history(*READ, *reads).overlaps()
    assert [(one.former, one.successor) for one in overlaps] == [(1, 3), (1, 4)]


def test_members_that_read_under_the_same_group_epoch_are_told():
    found = history((1, "read 1.1 0 0 2 7 1"), (2, "read 1.2 0 3 4 8 1"))
    assert found.faults() == []
    assert found.epochs() == {8}
    found.told(3, "read 1.3 0 3 4 8 1")
    assert found.faults() == ["partition 0: members [2, 3] read under group epoch 8"]


def test_subscriptions_tell_a_second_delivery_from_a_repeated_one():
    first = (1, "read 1.1 0 0 4 7 1")
    assert history(first, (1, "read 1.2 0 3 4 7 2")).faults() == []
    again = history(first, (1, "read 1.2 0 3 4 7 1"))
    assert again.faults() == ["partition 0: member 1 reads 3 again"]


def test_members_that_tell_no_epochs_act_on_any():
    assert history(*READ).epochs() == {0}
