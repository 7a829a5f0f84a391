"""The follower of a partition: what it asks and what it does with answers (F1 to F5)."""

from random import Random

import pytest

from liftbridge_broker.model.fetching import FetchedHead, FetchError, FetchPosition
from liftbridge_broker.model.ids import BrokerId, Instant, LeaderEpoch, Offset, PartitionId
from liftbridge_broker.model.partitions import Copied
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.replication.follower import (
    Append,
    Damaged,
    FollowerCore,
    FollowerLimits,
    Rejected,
    RestartAt,
    Truncate,
    Wait,
)
from liftbridge_testkit.batches import PARTITION, Batches
from liftbridge_testkit.replica_logs import ReplicaLog, partition_of

A, B = BrokerId("a"), BrokerId("b")
NOW = Instant(1_000 * MILLISECOND_NS)
LIMITS = FollowerLimits(jitter_ns=0)
BATCHES = Batches()
IGNORED = Wait(None, is_retry=False)


class LargestChance:
    """Always the largest number."""

    def randrange(self, stop):
        return stop - 1


def follower(log, state=None, *, commit=False, limits=LIMITS, rng=None):
    state = state or partition_of()
    rng = rng or Random(1)
    return FollowerCore(B, log, state, is_commit_mode=commit, limits=limits, rng=rng, now=NOW)


def head_of(log, **changes):
    plain = FetchedHead(
        PARTITION, log.log_end_offset, LeaderEpoch(1), Offset(0), Offset(0), None, None, 0
    )
    return plain._replace(**changes)


def answered(log, data=b"", *, state=None, **changes):
    core = follower(log, state)
    head = head_of(log, leader_epoch=core.state.leader_epoch)._replace(**changes)
    return core.on_reply(head, data, NOW)


# F1 and F2


def test_nothing_is_truncated_before_the_leader_answers():
    # S1: the follower has a record above its high watermark.
    log = ReplicaLog.of((1, 3), high_watermark=1)
    core = follower(log, partition_of(leader_epoch=4))
    expected = FetchPosition(PARTITION, 1, LeaderEpoch(4), Offset(3), Offset(0), 1, Offset(0))
    assert core.position() == expected
    assert log.log_end_offset == 3


def test_position_of_an_empty_log_has_no_epoch():
    assert follower(ReplicaLog()).position().last_fetched_epoch is None


def test_position_tells_an_epoch_without_records():
    assert follower(ReplicaLog.of((1, 3), (2, 0))).position().last_fetched_epoch == 2


def test_position_tells_what_is_on_disk_in_commit_mode_only():
    log = ReplicaLog.of((1, 3))
    log.recovery_point = Offset(2)
    assert follower(log).position().flushed_offset == 0
    assert follower(log, commit=True).position().flushed_offset == 2


def test_older_metadata_change_nothing():
    core = follower(ReplicaLog(), partition_of(leader_epoch=3))
    core.on_state(partition_of(leader_epoch=2), is_commit_mode=False, now=NOW)
    assert core.position().leader_epoch == 3
    core.on_state(partition_of(leader_epoch=4), is_commit_mode=True, now=NOW)
    assert core.position().leader_epoch == 4


# What counts as an answer.


def test_answer_of_another_epoch_is_dropped():
    # S15
    log = ReplicaLog.of((1, 4))
    state = partition_of(leader_epoch=6)
    diverging = (LeaderEpoch(1), Offset(2))
    found = answered(log, state=state, leader_epoch=LeaderEpoch(5), diverging=diverging)
    assert found == Wait(None, is_retry=True)
    found = answered(log, state=state, leader_epoch=LeaderEpoch(7), diverging=diverging)
    assert found == Wait(None, is_retry=True)


def test_answer_to_another_offset_is_dropped():
    log = ReplicaLog.of((1, 4))
    data = BATCHES.make(3, [b"x"])
    assert answered(log, data, fetch_offset=Offset(3)) == IGNORED
    found = answered(log, fetch_offset=Offset(5), diverging=(LeaderEpoch(1), Offset(0)))
    assert found == IGNORED


def test_answer_for_another_partition_is_dropped():
    log = ReplicaLog.of((1, 4))
    found = answered(log, partition=PartitionId(1), diverging=(LeaderEpoch(1), Offset(0)))
    assert found == IGNORED


@pytest.mark.parametrize(
    "error", [error for error in FetchError if error is not FetchError.OFFSET_OUT_OF_RANGE]
)
def test_refusal_is_asked_again_later(error):
    assert answered(ReplicaLog(), error=error) == Wait(error, is_retry=True)


# Copies of compacted logs (S152).


def test_cut_at_the_log_start_leaves_nothing_below():
    """What is hidden there may be of later epochs than what the elected leader has."""
    log = ReplicaLog.of((1, 3), (5, 4), high_watermark=5)
    log.set_log_start(4)
    state = partition_of("a", leader_epoch=6, unclean_epoch=6)
    found = answered(log, state=state, diverging=(LeaderEpoch(1), Offset(3)))
    assert found == RestartAt(Offset(4), is_below_high_watermark=True)


@pytest.mark.parametrize(
    ("copied", "unclean_epoch", "end"),
    [
        (Copied(Offset(9), LeaderEpoch(1)), 6, 2),
        (Copied(Offset(8), LeaderEpoch(1)), 6, 8),  # it has all that made others go
        (Copied(Offset(9), LeaderEpoch(6)), 6, 8),  # it was given them after the election
        (Copied(Offset(9), LeaderEpoch(1)), 0, 8),  # nothing was taken back
        (Copied(Offset(9), LeaderEpoch(1)), 5, 8),  # it has followed since
    ],
)
def test_copy_without_what_made_others_go_is_made_again(copied, unclean_epoch, end):
    log = ReplicaLog.of((1, 4), (5, 4), high_watermark=8)
    log.copied, log.holes_from = copied, 2
    state = partition_of("a", leader_epoch=7, unclean_epoch=unclean_epoch)
    core = follower(log, state, commit=True)
    log.recovery_point = Offset(8)
    assert (core.position().fetch_offset, core.position().flushed_offset) == (end, end)
    head = head_of(log, leader_epoch=LeaderEpoch(7), fetch_offset=Offset(end))
    found = core.on_reply(head, b"", NOW)
    if end < log.log_end_offset:
        assert found == Truncate(Offset(end), is_below_high_watermark=True)
    else:
        assert isinstance(found, Append)


# Tombstones that do not come any more (S143).


def old_log(*, end: int = 4, dropped: int = 0) -> ReplicaLog:
    log = ReplicaLog.of((1, end))
    log.dropped_offset = Offset(dropped)
    return log


def test_log_that_ends_before_dropped_tombstones_begins_anew():
    state = partition_of("a", leader_epoch=4)
    assert answered(old_log(), state=state, dropped_offset=Offset(5)) == RestartAt(Offset(0))


def test_log_that_ends_before_dropped_tombstones_keeps_its_own_start():
    log = old_log()
    log.set_log_start(2)
    state = partition_of("a", leader_epoch=4)
    assert answered(log, state=state, dropped_offset=Offset(5)) == RestartAt(Offset(2))


def test_complete_replica_is_not_begun_anew_for_tombstones():
    state = partition_of("ab", leader_epoch=4)
    found = answered(old_log(), state=state, dropped_offset=Offset(5))
    assert found == Wait(None, is_retry=True)
    state = partition_of("a", elr="b", leader_epoch=4)
    found = answered(old_log(), state=state, dropped_offset=Offset(5))
    assert found == Wait(None, is_retry=True)


@pytest.mark.parametrize(
    ("log", "dropped"),
    [
        (old_log(), 4),  # it holds whatever may have been dropped, or compacted it itself
        (old_log(dropped=5), 5),  # it began empty, and was told
        (ReplicaLog(), 5),  # nothing is there to come back
    ],
)
def test_log_that_holds_nothing_hidden_goes_on(log: ReplicaLog, dropped: int):
    state = partition_of("a", leader_epoch=4)
    found = answered(log, state=state, dropped_offset=Offset(dropped))
    assert isinstance(found, Append)
    assert found.dropped_offset == dropped


# What is let through.


def test_records_are_let_through_with_what_the_leader_tells():
    log = ReplicaLog.of((1, 4))
    data = BATCHES.make(4, [b"x", b"y"]) + BATCHES.make(6, [b"z"], epoch=2)
    state = partition_of(leader_epoch=3)
    found = answered(log, data, state=state, high_watermark=Offset(5), log_start=Offset(2))
    assert isinstance(found, Append)
    assert found.data is data
    assert [header.base_offset for header in found.headers] == [4, 6]
    assert (found.high_watermark, found.log_start) == (5, 2)


def test_high_watermark_never_passes_the_log_end():
    log = ReplicaLog.of((1, 4))
    assert answered(log, high_watermark=Offset(9)) == Append(b"", (), Offset(4), Offset(0))
    found = answered(log, BATCHES.make(4, [b"x"]), high_watermark=Offset(9))
    assert isinstance(found, Append)
    assert found.high_watermark == 5


def test_high_watermark_may_go_down():
    log = ReplicaLog.of((1, 4), high_watermark=3)
    assert answered(log, high_watermark=Offset(1)) == Append(b"", (), Offset(1), Offset(0))


def test_log_start_follows_up_to_the_high_watermark_and_never_back():
    log = ReplicaLog.of((1, 9))
    log.set_log_start(2)
    start = answered(log, high_watermark=Offset(6), log_start=Offset(4))
    assert start == Append(b"", (), Offset(6), Offset(4))
    ahead = answered(log, high_watermark=Offset(6), log_start=Offset(8))
    assert ahead == Append(b"", (), Offset(6), Offset(6))
    behind = answered(log, high_watermark=Offset(1), log_start=Offset(0))
    assert behind == Append(b"", (), Offset(2), Offset(2))


def damaged(data):
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (damaged(BATCHES.make(4, [b"x"])), "checksum"),
        (BATCHES.make(4, [b"x"])[:-1], "cut off"),
        (BATCHES.make(5, [b"x"]), "batch at offset 5, not 4"),
        (BATCHES.make(4, [b"x"]) + BATCHES.make(6, [b"x"]), "begins at offset 6"),
        (BATCHES.make(4, [b"x"], epoch=1), "leader epoch 1 behind 2"),
        (BATCHES.make(4, [b"x"], epoch=3) + BATCHES.make(5, [b"x"], epoch=2), "epoch falls"),
        (BATCHES.make(4, [b"x"], epoch=4), "leader epoch 4 in 3"),
        (Batches(PartitionId(9)).make(4, [b"x"], epoch=3), "batch of partition 9"),
    ],
)
def test_records_that_do_not_belong_here_are_rejected(data, reason):
    log = ReplicaLog.of((2, 4))
    found = answered(log, data, state=partition_of(leader_epoch=3))
    assert isinstance(found, Rejected)
    assert reason in found.reason


# Where the logs part.


@pytest.mark.parametrize("log_start", [4, 3, 2])
def test_divergence_truncates_and_never_below_the_log_start(log_start):
    log = ReplicaLog.of((1, 4))
    log.set_log_start(log_start)
    log.high_watermark = Offset(4)
    state = partition_of(leader_epoch=9, unclean_epoch=9)
    found = answered(log, state=state, diverging=(LeaderEpoch(1), Offset(3)))
    cut = Truncate if log_start < 3 else RestartAt
    assert found == cut(Offset(max(3, log_start)), is_below_high_watermark=True)


def test_position_where_the_log_of_the_leader_begins_keeps_nothing_below():
    """The logs may diverge below it, and the leader has no epochs left to compare (S158)."""
    log = ReplicaLog.of((1, 4), high_watermark=3)
    told = {"high_watermark": Offset(4), "log_start": Offset(4)}
    assert answered(log, **told) == RestartAt(Offset(4))
    # Retention went on while the fetch was held.
    later = {"high_watermark": Offset(6), "log_start": Offset(5)}
    assert answered(log, **later) == RestartAt(Offset(4))
    assert isinstance(answered(log, **{**told, "log_start": Offset(3)}), Append)
    # Committed records are the same everywhere, unless an unclean election came later.
    log.high_watermark = Offset(4)
    assert isinstance(answered(log, **told), Append)
    after_unclean = partition_of(leader_epoch=9, unclean_epoch=9)
    assert answered(log, state=after_unclean, **told) == RestartAt(Offset(4))
    # There is nothing below it.
    empty = ReplicaLog()
    empty.restart_at(4)
    assert isinstance(answered(empty, state=after_unclean, **told), Append)


def test_log_that_matches_stays_where_that_of_the_leader_begins():
    """Retention of the leader may remove all records; only in a new leader epoch it is unknown."""
    log = ReplicaLog.of((1, 4), high_watermark=3)
    core = follower(log, partition_of(leader_epoch=4))
    head = head_of(log, leader_epoch=LeaderEpoch(4))
    all_deleted = head._replace(high_watermark=Offset(4), log_start=Offset(4))
    assert isinstance(core.on_reply(head, b"", NOW), Append)
    assert isinstance(core.on_reply(all_deleted, b"", NOW), Append)
    core.on_state(partition_of(leader_epoch=5), is_commit_mode=False, now=NOW)
    next_head = all_deleted._replace(leader_epoch=LeaderEpoch(5))
    assert core.on_reply(next_head, b"", NOW) == RestartAt(Offset(4))


def test_divergence_below_the_high_watermark_is_damage():
    log = ReplicaLog.of((1, 4), high_watermark=3)
    found = answered(log, state=partition_of(leader_epoch=9), diverging=(LeaderEpoch(1), Offset(2)))
    assert isinstance(found, Damaged)
    assert "offset 2, below the high watermark 3" in found.reason


def test_divergence_below_the_high_watermark_after_an_unclean_election_truncates():
    # S55
    log = ReplicaLog.of((1, 4), high_watermark=3)
    state = partition_of(leader_epoch=9, unclean_epoch=8)
    assert answered(log, state=state, diverging=(LeaderEpoch(1), Offset(2))) == Truncate(
        Offset(2), is_below_high_watermark=True
    )


def test_divergence_after_an_unclean_election_keeps_nothing_that_was_compacted():
    """S142: what goes may have made others go, which the leader still has."""
    log = ReplicaLog.of((1, 6), high_watermark=4)
    log.holes_from = 2
    state = partition_of(leader_epoch=9, unclean_epoch=8)
    for end in (3, 5):  # the high watermark that the journal kept says nothing
        assert answered(log, state=state, diverging=(LeaderEpoch(1), Offset(end))) == Truncate(
            Offset(2), is_below_high_watermark=True
        )
    assert answered(log, state=state, diverging=(LeaderEpoch(1), Offset(1))) == Truncate(
        Offset(1), is_below_high_watermark=True
    )
    log.set_log_start(3)
    assert answered(log, state=state, diverging=(LeaderEpoch(1), Offset(5))) == RestartAt(
        Offset(3), is_below_high_watermark=True
    )


def test_divergence_keeps_what_was_compacted_without_an_unclean_election_since():
    log = ReplicaLog.of((1, 4), (8, 2), high_watermark=4)
    log.holes_from = 2
    for unclean_epoch in (0, 8):
        state = partition_of(leader_epoch=9, unclean_epoch=unclean_epoch)
        assert answered(log, state=state, diverging=(LeaderEpoch(8), Offset(5))) == Truncate(
            Offset(5), is_below_high_watermark=False
        )


def test_records_fetched_since_the_unclean_election_are_not_given_up():
    log = ReplicaLog.of((1, 4), (8, 2), high_watermark=6)
    state = partition_of(leader_epoch=9, unclean_epoch=8)
    found = answered(log, state=state, diverging=(LeaderEpoch(8), Offset(5)))
    assert isinstance(found, Damaged)


@pytest.mark.parametrize("diverging", [(1, 4), (1, 9), (5, 2)])
def test_divergence_that_leads_nowhere_is_rejected(diverging):
    epoch, end = diverging
    log = ReplicaLog.of((1, 4))
    found = answered(
        log, state=partition_of(leader_epoch=9), diverging=(LeaderEpoch(epoch), Offset(end))
    )
    assert isinstance(found, Rejected)


def test_divergence_told_to_an_empty_log_is_rejected():
    assert isinstance(answered(ReplicaLog(), diverging=(LeaderEpoch(1), Offset(0))), Rejected)


# Outside of the leader's log.


def out_of_range(log, state, log_start):
    return answered(
        log, state=state, error=FetchError.OFFSET_OUT_OF_RANGE, log_start=Offset(log_start)
    )


def test_log_that_ends_below_the_leaders_start_begins_anew_there():
    # S17
    log = ReplicaLog.of((1, 40))
    assert out_of_range(log, partition_of("ac"), 100) == RestartAt(Offset(100))


@pytest.mark.parametrize("state", [partition_of(), partition_of("a", elr="b")])
def test_complete_replica_does_not_begin_anew(state):
    found = out_of_range(ReplicaLog.of((1, 40)), state, 100)
    assert found == Wait(FetchError.OFFSET_OUT_OF_RANGE, is_retry=True)


def test_leader_that_ends_before_this_log_is_no_reason_to_truncate():
    log = ReplicaLog.of((1, 40))
    found = out_of_range(log, partition_of("ac", leader_epoch=2), 0)
    assert found == Wait(FetchError.OFFSET_OUT_OF_RANGE, is_retry=True)


def test_empty_log_goes_back_only_after_an_unclean_election():
    log = ReplicaLog()
    log.restart_at(100)
    clean = partition_of("ac", leader_epoch=9)
    assert out_of_range(log, clean, 20) == Wait(FetchError.OFFSET_OUT_OF_RANGE, is_retry=True)
    unclean = partition_of("ac", leader_epoch=9, unclean_epoch=9)
    assert out_of_range(log, unclean, 20) == RestartAt(Offset(20))


def test_log_of_a_newer_epoch_than_the_metadata_is_damaged():
    log = ReplicaLog.of((7, 40))
    assert isinstance(out_of_range(log, partition_of(leader_epoch=6), 0), Damaged)


# F4


def after(ns):
    return Instant(NOW + ns)


def test_silent_leader_is_reported_again_and_again():
    core = follower(ReplicaLog())
    assert core.suspicion(NOW, after(LIMITS.silence_ns - 1)) is None
    assert core.suspicion(NOW, after(LIMITS.silence_ns)) == LIMITS.silence_ns
    assert core.suspicion(NOW, after(LIMITS.silence_ns + 1)) is None
    assert core.suspicion(NOW, after(LIMITS.silence_ns + LIMITS.repeat_ns - 1)) is None
    assert core.suspicion(NOW, after(2 * LIMITS.silence_ns)) == 2 * LIMITS.silence_ns


def test_leader_that_answers_in_the_session_is_not_reported():
    core = follower(ReplicaLog())
    assert core.suspicion(after(500 * MILLISECOND_NS), after(1_000 * MILLISECOND_NS)) is None
    assert (
        core.suspicion(after(500 * MILLISECOND_NS), after(1_100 * MILLISECOND_NS))
        == 600 * MILLISECOND_NS
    )


def test_answer_of_another_epoch_is_no_sign_of_life():
    log = ReplicaLog()
    core = follower(log, partition_of(leader_epoch=2))
    core.on_reply(head_of(log, leader_epoch=LeaderEpoch(1)), b"", after(100 * MILLISECOND_NS))
    heard_at = after(5_000 * MILLISECOND_NS)
    assert core.suspicion(heard_at, after(699 * MILLISECOND_NS)) is None
    assert core.suspicion(heard_at, after(700 * MILLISECOND_NS)) == 600 * MILLISECOND_NS


@pytest.mark.parametrize(
    ("error", "is_alive"),
    [
        (FetchError.NOT_LEADER, False),
        (FetchError.CORRUPT, False),
        (FetchError.RECOVERING, True),
        (FetchError.OFFSET_OUT_OF_RANGE, True),
    ],
)
def test_refusal_of_a_leader_at_work_is_a_sign_of_life(error, is_alive):
    log = ReplicaLog()
    core = follower(log)
    core.on_reply(head_of(log, error=error), b"", NOW)
    silence = core.suspicion(after(5_000 * MILLISECOND_NS), after(5_000 * MILLISECOND_NS))
    assert (silence is None) == is_alive


def test_damaged_records_are_no_sign_of_life_until_good_ones_come():
    log = ReplicaLog.of((1, 4))
    core = follower(log)
    core.on_reply(head_of(log), damaged(BATCHES.make(4, [b"x"])), NOW)
    assert (
        core.suspicion(after(5_000 * MILLISECOND_NS), after(5_000 * MILLISECOND_NS))
        == 5_000 * MILLISECOND_NS
    )
    core.on_reply(head_of(log), BATCHES.make(4, [b"x"]), NOW)
    core.repeat_report()
    assert core.suspicion(after(5_000 * MILLISECOND_NS), after(5_000 * MILLISECOND_NS)) is None


def test_new_leader_gets_all_its_time():
    core = follower(ReplicaLog())
    assert core.suspicion(NOW, after(700 * MILLISECOND_NS)) is not None
    core.on_state(
        partition_of(leader_epoch=2), is_commit_mode=False, now=after(700 * MILLISECOND_NS)
    )
    assert core.suspicion(NOW, after(1_299 * MILLISECOND_NS)) is None
    assert core.suspicion(NOW, after(1_300 * MILLISECOND_NS)) == 600 * MILLISECOND_NS


def test_standing_report_is_repeated_for_a_new_metadata_leader():
    core = follower(ReplicaLog())
    assert core.suspicion(NOW, after(700 * MILLISECOND_NS)) is not None
    core.repeat_report()
    assert core.suspicion(NOW, after(701 * MILLISECOND_NS)) is not None


def test_reports_of_several_followers_are_spread():
    limits = FollowerLimits(jitter_ns=50 * MILLISECOND_NS)
    core = follower(ReplicaLog(), limits=limits, rng=LargestChance())
    assert core.suspicion(NOW, after(649 * MILLISECOND_NS)) is None
    assert core.suspicion(NOW, after(650 * MILLISECOND_NS)) == 650 * MILLISECOND_NS
    assert core.suspicion(NOW, after(650 * MILLISECOND_NS + 649 * MILLISECOND_NS)) is None
    assert (
        core.suspicion(NOW, after(650 * MILLISECOND_NS + 650 * MILLISECOND_NS))
        == 1_300 * MILLISECOND_NS
    )
