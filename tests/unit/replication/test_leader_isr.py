"""The leader of a partition: who comes into sync and who leaves (L5, L6)."""

import pytest

from liftbridge_broker import errors
from liftbridge_broker.model.fetching import ACCEPTED, FetchError, Refused
from liftbridge_broker.model.ids import Instant
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.replication.isr import ProposalOutcome, outcome_of
from liftbridge_testkit.leader_world import (
    ALL,
    LAG,
    LIMITS,
    A,
    B,
    C,
    D,
    LeaderWorld,
    brokers,
    expanding,
)
from liftbridge_testkit.replica_logs import ReplicaLog, partition_of

# L5: into sync


def test_caught_up_follower_is_proposed_with_its_session():
    world = LeaderWorld(partition_of("ab"))
    world.fetch(B, 10)
    world.fetch(C, 10)
    proposal = world.propose()
    assert proposal.isr == ((A, -1), (B, -1), (C, 1))
    assert proposal.partition_epoch == 1
    assert proposal.leader_epoch == 1


def test_follower_below_the_high_watermark_is_not_proposed():
    world = LeaderWorld(partition_of("ab"))
    world.append(5)
    world.fetch(B, 15)
    world.advance()
    world.fetch(C, 14)
    assert world.propose() is None


def test_follower_below_the_start_of_the_epoch_is_not_proposed():
    # S41: the high watermark is behind after the election.
    log = ReplicaLog.of((1, 10), high_watermark=6)
    world = LeaderWorld(partition_of("ab", leader_epoch=2), log=log)
    world.fetch(C, 8)
    assert world.propose() is None
    world.fetch(C, 10)
    assert brokers(world.propose()) == "abc"


def test_follower_not_heard_in_this_epoch_is_not_proposed():
    # S42: it was in sync when the epoch began, left since, and never fetched.
    world = LeaderWorld(partition_of())
    world.fetch(B, 10)
    world.fetch(C, 10)
    world.advance()
    world.state = partition_of(leader_epoch=4)
    world.log.begin(4)
    clock = world.clocks[C]
    world.core = world.lead(kept=world.core)
    world.core.on_established()
    world.learn(partition_of("ab", leader_epoch=4, partition_epoch=5))
    world.now = Instant(world.now + 1)
    clock.last_fetch = world.now
    world.core._followers[C].clock = clock
    assert world.propose() is None
    world.fetch(C, 10)
    assert brokers(world.propose()) == "abc"


def test_follower_that_left_is_not_proposed_before_it_fetches_again():
    world = LeaderWorld()
    world.fetch(B, 10)
    world.fetch(C, 10)
    world.advance()
    world.learn(partition_of("ab", partition_epoch=2))
    assert world.propose() is None
    # A fetch of its session that leaves the position as it is counts (KIP-227).
    world.now = Instant(world.now + 1)
    world.clocks[C].last_fetch = world.now
    assert brokers(world.propose()) == "abc"


def test_silent_follower_is_not_proposed():
    world = LeaderWorld(partition_of("ab"))
    world.fetch(B, 10)
    world.fetch(C, 10)
    assert world.propose(after=LAG + 1) is None


def test_fetches_after_the_partition_was_forgotten_say_nothing():
    world = LeaderWorld(partition_of("ab"))
    world.fetch(C, 10)
    world.core.on_forgotten(C)
    world.now = Instant(world.now + LAG + 1)
    world.clocks[C].last_fetch = world.now
    assert world.propose() is None


def test_refused_position_ends_what_the_session_says():
    world = LeaderWorld(partition_of("ab", leader_epoch=2), log=ReplicaLog.of((1, 10)))
    world.fetch(C, 10)
    assert world.fetch(C, 10, epoch=1) == Refused(FetchError.FENCED_LEADER_EPOCH)
    world.now = Instant(world.now + LAG + 1)
    world.clocks[C].last_fetch = world.now
    assert world.propose() is None


def test_fenced_follower_is_not_proposed():
    # S40
    world = LeaderWorld(partition_of("ab"))
    world.fetch(C, 10)
    assert world.propose(frozenset({A, B})) is None
    assert brokers(world.propose(ALL)) == "abc"


def test_leader_that_may_not_stay_proposes_nothing():
    world = LeaderWorld(partition_of("ab"))
    world.fetch(C, 10)
    assert world.propose(frozenset({B, C})) is None


def test_follower_in_a_newer_session_than_the_metadata_waits_for_them():
    # S39
    world = LeaderWorld(partition_of("ab"))
    assert world.fetch(C, 10, session=9) == ACCEPTED
    assert world.propose() is None
    world.learn(partition_of("ab", partition_epoch=9, replica_epochs=[1, 1, 9]))
    assert brokers(world.propose()) == "abc"


def test_high_watermark_waits_for_a_follower_about_to_join():
    world = LeaderWorld(partition_of("a", replicas="ab"), min_isr=1)
    world.advance()
    world.propose()
    world.fetch(B, 10)
    world.append(2)
    # Behind at each fetch, but never by more than what came since the last one.
    world.fetch(B, 10, at=MILLISECOND_NS)
    assert world.advance() == 10
    assert brokers(world.propose()) == "ab"


def test_high_watermark_waits_for_nobody_who_fell_silent():
    world = LeaderWorld(partition_of("a", replicas="ab"), min_isr=1)
    world.advance()
    world.propose()
    world.fetch(B, 9)
    world.fetch(B, 9)
    world.append(2)
    world.propose(after=2 * LAG)
    assert world.advance() == 12


# L5: out of sync


def test_lagging_follower_leaves_when_enough_others_stay():
    world = LeaderWorld()
    for replica in (B, C):
        world.fetch(replica, 10)
    world.append()
    world.fetch(B, 11)
    assert world.core.next_deadline() == world.now + LAG + 1
    assert world.propose(after=LAG) is None
    assert brokers(world.propose(after=1)) == "ab"


def test_lagging_follower_stays_longer_when_too_few_would_be_left():
    world = LeaderWorld(partition_of("ab"))
    world.fetch(B, 10)
    world.append()
    assert world.propose(after=LAG + 1) is None
    assert world.propose(after=LIMITS.lag_hard_ns - LAG - 1) is None
    assert brokers(world.propose(after=1)) == "a"


def test_only_as_many_leave_as_can_be_spared():
    world = LeaderWorld(partition_of("abcd", replicas="abcd"))
    world.fetch(B, 10)
    world.fetch(C, 10, at=MILLISECOND_NS)
    world.fetch(D, 10, at=MILLISECOND_NS)
    world.append()
    assert brokers(world.propose(after=LAG + 1)) == "ad"


def test_follower_without_anything_to_fetch_does_not_lag():
    world = LeaderWorld()
    for replica in (B, C):
        world.fetch(replica, 10)
    assert world.propose(after=100 * LAG) is None
    assert world.core.next_deadline() is None


def test_follower_that_had_everything_begins_to_lag_with_the_next_record():
    world = LeaderWorld()
    for replica in (B, C):
        world.fetch(replica, 10)
    world.now = Instant(world.now + 100 * LAG)
    world.append()
    assert world.propose(after=LAG) is None
    assert brokers(world.propose(after=1)) == "ac"


def test_follower_one_fetch_behind_a_busy_leader_does_not_lag():
    world = LeaderWorld(partition_of("ab", replicas="ab"), min_isr=1)
    world.fetch(B, 10)
    for _ in range(50):
        end = world.log.log_end_offset
        world.append(5)
        world.fetch(B, end, at=LAG // 3)
        assert world.propose() is None


def test_follower_that_never_gets_closer_lags():
    world = LeaderWorld(partition_of("ab", replicas="ab"), min_isr=1)
    world.fetch(B, 5)
    removed = []
    for offset in (6, 7, 8, 9):
        world.append(5)
        world.fetch(B, offset, at=LAG // 2)
        removed.append(world.propose())
    assert brokers(next(filter(None, removed))) == "a"


def test_records_sent_for_an_old_position_count_as_a_fetch_of_that_time():
    # The session told nothing of this partition for long; then it gets all and fetches again.
    world = LeaderWorld(partition_of("ab", replicas="ab"), min_isr=1)
    world.fetch(B, 5)
    world.now = Instant(world.now + 10 * LAG)
    asked_at = world.now
    world.core.on_answered(B, asked_at)
    world.append()
    world.fetch(B, 10, at=MILLISECOND_NS)
    assert world.core._followers[B].caught_up_at == asked_at
    assert world.propose() is None


def test_member_never_heard_lags_from_the_beginning_of_the_epoch():
    world = LeaderWorld()
    world.fetch(B, 10)
    assert world.propose(after=LAG) is None
    assert brokers(world.propose(after=1)) == "ab"


def test_expansion_and_shrink_are_two_requests():
    # S46
    world = LeaderWorld(partition_of("abc", replicas="abcd"))
    world.fetch(B, 10)
    world.fetch(C, 10)
    world.append()
    world.fetch(B, 11)
    world.fetch(D, 11, at=LAG + 1)
    first = world.propose()
    assert brokers(first) == "abcd"
    assert world.propose() is None
    world.learn(partition_of("abcd", replicas="abcd", partition_epoch=2))
    assert brokers(world.propose()) == "abd"


def test_flapping_follower_is_kept_out_longer_each_time():
    # S43
    world = LeaderWorld()
    epoch = 1
    waits = []
    for _ in range(4):
        world.append()
        world.fetch(B, world.log.log_end_offset)
        proposal = world.propose(after=LAG + 1)
        epoch += 1
        world.learn(partition_of("ab", partition_epoch=epoch))
        assert brokers(proposal) == "ab"
        left_at = world.now
        while world.propose() is None:
            world.advance()
            world.fetch(C, world.log.log_end_offset, at=50 * MILLISECOND_NS)
            world.fetch(B, world.log.log_end_offset)
        waits.append((world.now - left_at) // (1_000 * MILLISECOND_NS))
        epoch += 1
        world.learn(partition_of("abc", partition_epoch=epoch))
    assert waits == [0, 1, 2, 4]


# L6


def test_one_proposal_at_a_time():
    world, proposal = expanding()
    assert proposal is not None
    world.fetch(C, 10, at=60_000 * MILLISECOND_NS)
    assert world.propose() is None


def test_unknown_outcome_keeps_the_member_counting_and_sends_the_same_again():
    # S36
    world, proposal = expanding()
    world.result(proposal, ProposalOutcome.UNKNOWN)
    assert world.core.maximal_isr == (A, B, C)
    assert world.propose() is None
    assert world.core.next_deadline() == world.now + LIMITS.retry_ns
    assert world.propose(after=LIMITS.retry_ns) == proposal


def test_proposal_that_never_left_is_taken_back():
    world, proposal = expanding()
    world.result(proposal, ProposalOutcome.NOT_ATTEMPTED)
    assert world.core.maximal_isr == (A, B)
    assert world.propose() is None
    assert brokers(world.propose(after=LIMITS.retry_ns)) == "abc"


def test_proposal_that_left_once_is_not_taken_back_when_a_second_try_fails():
    world, proposal = expanding()
    world.result(proposal, ProposalOutcome.UNKNOWN)
    world.propose(after=LIMITS.retry_ns)
    world.result(proposal, ProposalOutcome.NOT_ATTEMPTED)
    assert world.core.maximal_isr == (A, B, C)
    assert world.propose(after=LIMITS.retry_ns) == proposal


def test_stale_proposal_waits_for_the_metadata():
    # S35, S37
    world, proposal = expanding()
    world.result(proposal, ProposalOutcome.SETTLED)
    assert world.core.maximal_isr == (A, B, C)
    assert world.propose(after=60_000 * MILLISECOND_NS) is None
    world.learn(partition_of("a", partition_epoch=11))
    assert world.core.maximal_isr == (A,)


def test_ineligible_member_counts_until_no_copy_of_the_request_can_be_applied():
    world, proposal = expanding()
    world.result(proposal, ProposalOutcome.INELIGIBLE)
    assert world.core.maximal_isr == (A, B, C)
    withdrawal = world.propose()
    assert withdrawal.isr == ((A, -1), (B, -1))
    assert withdrawal.partition_epoch == proposal.partition_epoch
    world.append()
    world.fetch(B, 11)
    assert world.advance() == 10
    world.learn(partition_of("ab", partition_epoch=2))
    assert world.core.maximal_isr == (A, B)
    assert world.advance() == 11


def test_ineligible_member_is_not_proposed_again_at_once():
    # S40
    world, proposal = expanding()
    world.result(proposal, ProposalOutcome.INELIGIBLE)
    world.result(world.propose(), ProposalOutcome.SETTLED)
    world.learn(partition_of("ab", partition_epoch=2))
    count = 0
    for _ in range(100):
        world.fetch(C, 10, at=10 * MILLISECOND_NS)
        count += world.propose() is not None
    assert count == 1


def test_refused_withdrawal_is_sent_again_later():
    world, proposal = expanding()
    world.result(proposal, ProposalOutcome.INELIGIBLE)
    withdrawal = world.propose()
    world.result(withdrawal, ProposalOutcome.INELIGIBLE)
    assert world.propose() is None
    assert world.propose(after=LIMITS.ineligible_ns) == withdrawal


def test_withdrawal_that_is_not_sent_withdraws_nothing():
    world, proposal = expanding()
    world.result(proposal, ProposalOutcome.INELIGIBLE)
    withdrawal = world.propose()
    world.result(withdrawal, ProposalOutcome.NOT_ATTEMPTED)
    assert world.core.maximal_isr == (A, B, C)
    assert world.propose(after=LIMITS.retry_ns) == withdrawal


def test_ineligible_shrink_is_decided_on_again():
    world = LeaderWorld()
    for replica in (B, C):
        world.fetch(replica, 10)
    world.append()
    world.fetch(B, 11)
    proposal = world.propose(after=LAG + 1)
    world.result(proposal, ProposalOutcome.INELIGIBLE)
    assert world.propose() is None
    assert brokers(world.propose(after=LIMITS.ineligible_ns)) == "ab"


def test_late_answer_to_a_former_proposal_is_ignored():
    # S37
    world, proposal = expanding()
    world.learn(partition_of("ab", partition_epoch=2))
    second = world.propose()
    world.result(proposal, ProposalOutcome.NOT_ATTEMPTED)
    assert world.core.maximal_isr == (A, B, C)
    assert second.partition_epoch == 2


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, ProposalOutcome.SETTLED),
        (errors.IneligibleReplicaError("x"), ProposalOutcome.INELIGIBLE),
        (errors.NotControllerError("x"), ProposalOutcome.UNKNOWN),
        (errors.UnavailableError("x"), ProposalOutcome.UNKNOWN),
        (errors.OutcomeUnknownError("x"), ProposalOutcome.UNKNOWN),
        (errors.FencedLeaderEpochError("x"), ProposalOutcome.SETTLED),
        (errors.InvalidPartitionEpochError("x"), ProposalOutcome.SETTLED),
        (errors.StaleBrokerEpochError("x"), ProposalOutcome.SETTLED),
        (errors.UnknownPartitionError("x"), ProposalOutcome.SETTLED),
        (errors.InvalidRequestError("x"), ProposalOutcome.SETTLED),
    ],
)
def test_answer_of_the_controller_has_an_outcome(error, outcome):
    assert outcome_of(error) is outcome
