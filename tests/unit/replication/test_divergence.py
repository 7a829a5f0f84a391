"""Two logs that differ meet: a follower fetches from a leader until they agree (S6 to S21)."""

from itertools import count, product
from random import Random

import pytest

from liftbridge_broker.model.fetching import (
    ACCEPTED,
    Diverging,
    FetchedHead,
    FetchError,
    Refused,
    SessionClock,
)
from liftbridge_broker.model.ids import BrokerId, Instant, Offset
from liftbridge_broker.replication.follower import (
    Append,
    FollowerCore,
    FollowerLimits,
    RestartAt,
    Truncate,
)
from liftbridge_broker.replication.isr import LeaderLimits
from liftbridge_broker.replication.leader import LeaderCore
from liftbridge_testkit.batches import PARTITION
from liftbridge_testkit.replica_logs import ReplicaLog, partition_of

A, B = BrokerId("a"), BrokerId("b")
NOW = Instant(10**9)
ROUNDS_MAX = 20


def meet(leader, follower, *, epoch, unclean_epoch=0, isr="a", after_each=lambda _: None):
    """Fetch until the follower has everything; what it did on the way."""
    leader.begin(epoch)
    state = partition_of(isr, replicas="ab", leader_epoch=epoch, unclean_epoch=unclean_epoch)
    lead = LeaderCore(
        A, leader, state, min_isr=1, is_commit_mode=False, limits=LeaderLimits(), now=NOW
    )
    lead.on_established()
    follow = FollowerCore(
        B,
        follower,
        state,
        is_commit_mode=False,
        limits=FollowerLimits(),
        rng=Random(1),
        now=NOW,
    )
    done = []
    for round_number in count():
        assert round_number < ROUNDS_MAX
        position = follow.position()
        verdict = lead.on_fetch(B, position, SessionClock(NOW), NOW)
        head = FetchedHead(
            PARTITION,
            position.fetch_offset,
            state.leader_epoch,
            leader.high_watermark,
            leader.log_start_offset,
            verdict.error if isinstance(verdict, Refused) else None,
            tuple(verdict) if isinstance(verdict, Diverging) else None,
            0,
        )
        is_accepted = verdict == ACCEPTED
        if is_accepted and position.fetch_offset == leader.log_end_offset:
            return done
        data = leader.read(position.fetch_offset) if is_accepted else b""
        done.append(act(follower, follow.on_reply(head, data, NOW)))
        after_each(follower)
    return done


def act(log, outcome):
    """Do what the core says, as its owner would."""
    match outcome:
        case Truncate(end, _):
            log.truncate(end)
        case RestartAt(offset):
            log.restart_at(offset)
        case Append(data, headers, high_watermark, _):
            log.append_batches(data, headers)
            log.high_watermark = high_watermark
        case _:
            pass
    return outcome


def cuts(done):
    return [
        outcome.end if isinstance(outcome, Truncate) else outcome.offset
        for outcome in done
        if isinstance(outcome, Truncate | RestartAt)
    ]


@pytest.mark.parametrize(
    ("leader", "follower", "epoch", "expected"),
    [
        pytest.param([(1, 4)], [(1, 2)], 2, [], id="S6 shorter"),
        pytest.param([(1, 4), (2, 2)], [(1, 2)], 3, [], id="S7 shorter, the leader is newer"),
        pytest.param([(1, 2), (2, 2)], [(1, 4)], 3, [2], id="S8 longer"),
        pytest.param([(1, 2)], [(1, 2), (2, 2)], 3, [2], id="S9 unknown epoch"),
        pytest.param([(1, 2), (3, 3)], [(1, 2), (2, 3)], 4, [2], id="S10 fork"),
        pytest.param([(1, 2), (3, 2)], [(1, 1), (2, 3)], 4, [1], id="S11 earlier fork"),
        pytest.param([(3, 4)], [(1, 2), (2, 2)], 4, [0], id="S12 nothing in common"),
        pytest.param([(1, 3), (2, 0)], [(1, 5)], 3, [3], id="S13 epoch without records"),
        pytest.param(
            [(1, 2), (2, 1), (3, 1), (5, 1), (7, 2)],
            [(1, 2), (4, 2), (6, 3)],
            8,
            [4, 2],
            id="S16 several rounds",
        ),
        pytest.param([(1, 3), (2, 2)], [(1, 4)], 3, [3], id="S20 one record too many"),
    ],
)
def test_follower_becomes_equal_to_its_leader(leader, follower, epoch, expected):
    lead, follow = ReplicaLog.of(*leader), ReplicaLog.of(*follower)
    assert cuts(meet(lead, follow, epoch=epoch)) == expected
    assert follow.records == lead.records


def test_epoch_without_records_goes_though_no_record_does():
    # S19: the follower led epoch 2 without appending; leader 3 never heard of it.
    lead, follow = ReplicaLog.of((1, 3)), ReplicaLog.of((1, 3), (2, 0))
    done = meet(lead, follow, epoch=3)
    assert cuts(done) == [3]
    assert follow.epochs.entries == ((1, 0),)
    assert follow.cut_count == 0


def test_epochs_without_records_do_not_make_a_follower_loop():
    # S18: retention removed every record; what is left is the epoch in force at the log start.
    lead = ReplicaLog.of((1, 3), (2, 3), (5, 4), high_watermark=10)
    lead.set_log_start(10)
    follow = ReplicaLog.of((1, 3), (2, 3))
    done = meet(lead, follow, epoch=6)
    assert [type(outcome) for outcome in done] == [RestartAt]
    assert follow.log_start_offset == follow.log_end_offset == 10


def test_follower_at_the_leaders_log_start_with_an_old_epoch_goes_on():
    # S17, S18
    lead = ReplicaLog.of((1, 100), (3, 20), high_watermark=100)
    lead.set_log_start(100)
    follow = ReplicaLog.of((1, 100), (2, 20), high_watermark=100)
    assert cuts(meet(lead, follow, epoch=4)) == [100]
    assert follow.records[100:] == lead.records


def test_follower_below_the_leaders_log_start_begins_there():
    # S17
    lead = ReplicaLog.of((1, 120), high_watermark=110)
    lead.set_log_start(100)
    follow = ReplicaLog.of((1, 40))
    done = meet(lead, follow, epoch=2)
    assert done[0] == RestartAt(Offset(100))
    assert follow.records == lead.records


def test_divergence_inside_a_batch_cuts_at_the_record():
    # S21: eight records in one batch there, five of them in common.
    lead, follow = ReplicaLog.of((1, 5), (2, 3)), ReplicaLog.of((1, 8))
    assert cuts(meet(lead, follow, epoch=3)) == [5]
    assert follow.records == lead.records


def test_shorter_log_that_led_uncleanly_wins():
    # S2: both lost power, the shorter one came back first and was elected uncleanly.
    lead, follow = ReplicaLog.of((1, 1)), ReplicaLog.of((1, 2), high_watermark=2)
    lead.begin(5)
    lead.append(5, b"m3")
    done = meet(lead, follow, epoch=6, unclean_epoch=5)
    assert done[0] == Truncate(Offset(1), is_below_high_watermark=True)
    assert follow.records == lead.records


def test_empty_follower_behind_the_end_of_an_unclean_leader_comes_back():
    lead, follow = ReplicaLog.of((1, 50)), ReplicaLog()
    follow.restart_at(100)
    done = meet(lead, follow, epoch=6, unclean_epoch=6)
    assert done[0] == RestartAt(Offset(0))
    assert follow.records == lead.records


def test_record_lost_behind_its_epoch_is_cut_at_the_start():
    # S4: the entry of epoch 2 was on disk, its records were not.
    log = ReplicaLog.of((1, 3), (2, 2))
    log.recovery_point = Offset(2)
    log.lose(2)
    assert log.epochs.entries == ((1, 0),)
    lead = ReplicaLog.of((1, 3), (2, 2))
    assert cuts(meet(lead, log, epoch=3)) == []
    assert log.records == lead.records


def test_leaders_that_alternated_uncleanly_agree_on_nothing():
    # S5 (KIP-101, appendix): equal length, other epochs at each place.
    lead = ReplicaLog.of((1, 1), (3, 1))
    follow = ReplicaLog.of((0, 1), (2, 1))
    assert cuts(meet(lead, follow, epoch=4, unclean_epoch=4)) == [1, 0]
    assert follow.records == lead.records


BRANCHES = [
    (*first, *second)
    for first in ((), ((1, 1),), ((2, 0),), ((2, 1),))
    for second in ((), ((4, 1),))
]
"""Runs (leader epoch, records) after the common ones; later ones of the follower are one higher."""


def check_shown(log, whole):
    """All that a replica shows to readers is in the history of its leader."""
    start, end = log.log_start_offset, log.high_watermark
    assert log.slice(start, end) == whole.slice(start, end)


@pytest.mark.parametrize("common", range(3))
@pytest.mark.parametrize("ahead", BRANCHES)
@pytest.mark.parametrize("behind", BRANCHES)
def test_follower_shows_only_what_its_leader_had(common, ahead, behind):
    """All pairs of logs, high watermarks of the follower, and log starts of the leader (S158)."""
    other = tuple((epoch if epoch == 1 else epoch + 1, count) for epoch, count in behind)
    whole = ReplicaLog.of((1, common), *ahead, (7, 1))
    end = whole.log_end_offset
    shared = common + (ahead[:1] == behind[:1] == ((1, 1),))
    for high_watermark, log_start in product(range(shared + 1), range(end)):
        lead = ReplicaLog.of((1, common), *ahead, (7, 1), high_watermark=end)
        lead.set_log_start(log_start)
        follow = ReplicaLog.of((1, common), *other, high_watermark=high_watermark)
        meet(lead, follow, epoch=7, after_each=lambda log: check_shown(log, whole))
        assert follow.slice(log_start, follow.log_end_offset) == lead.records


def test_out_of_range_without_a_reason_is_only_waited_for():
    log = ReplicaLog.of((1, 3))
    core = FollowerCore(
        B,
        log,
        partition_of("a", replicas="ab", leader_epoch=2),
        is_commit_mode=False,
        limits=FollowerLimits(),
        rng=Random(1),
        now=NOW,
    )
    head = FetchedHead(
        PARTITION,
        Offset(3),
        core.state.leader_epoch,
        Offset(0),
        Offset(0),
        FetchError.OFFSET_OUT_OF_RANGE,
        None,
        0,
    )
    act(log, core.on_reply(head, b"", NOW))
    assert log.log_end_offset == 3
