"""The leader of a partition: fetches, high watermark, in-sync set (L1 to L7)."""

import pytest

from liftbridge_broker import errors
from liftbridge_broker.model.ids import BrokerId, Instant, LeaderEpoch, MetadataIndex, Offset
from liftbridge_broker.replication.fetching import (
    ACCEPTED,
    Diverging,
    FetchError,
    FetchPosition,
    Refused,
)
from liftbridge_broker.replication.isr import (
    MS,
    LeaderLimits,
    ProposalOutcome,
    SessionClock,
    outcome_of,
)
from liftbridge_broker.replication.leader import LeaderCore
from liftbridge_testkit.batches import PARTITION
from liftbridge_testkit.replica_logs import ReplicaLog, partition_of

A, B, C, D = (BrokerId(name) for name in "abcd")
ALL = frozenset({A, B, C, D})
LIMITS = LeaderLimits()
LAG = LIMITS.lag_ns


class World:
    """One leader with a log; `now` moves by hand, and fetches tell what the test says."""

    def __init__(self, state=None, *, log=None, min_isr=2, commit=False, established=True):
        self.now = Instant(1_000 * MS)
        self.log = log or ReplicaLog.of((1, 10))
        self.state = state or partition_of()
        self.min_isr = min_isr
        self.commit = commit
        self.log.begin(self.state.leader_epoch)
        self.clocks = {}
        self.core = self.lead()
        if established:
            self.core.on_established()

    def lead(self, kept=None):
        return LeaderCore(
            A,
            self.log,
            self.state,
            min_isr=self.min_isr,
            is_commit_mode=self.commit,
            limits=LIMITS,
            now=self.now,
            kept=kept,
        )

    def fetch(self, replica, offset, *, epoch=None, last=-1, session=1, flushed=0, start=0, at=0):
        self.now = Instant(self.now + at)
        clock = self.clocks.setdefault(replica, SessionClock(self.now))
        clock.last_fetch = self.now
        known = self.log.epochs.epoch_at(Offset(max(0, offset - 1)))
        position = FetchPosition(
            PARTITION,
            MetadataIndex(session),
            LeaderEpoch(self.core.leader_epoch if epoch is None else epoch),
            Offset(offset),
            Offset(flushed),
            known if last == -1 else last,
            Offset(start),
        )
        return self.core.on_fetch(replica, position, clock, self.now)

    def advance(self):
        self.log.high_watermark = self.core.high_watermark()
        return self.log.high_watermark

    def append(self, count=1):
        for _ in range(count):
            self.log.append(self.core.leader_epoch, b"new")
        self.core.on_append(self.now)

    def propose(self, eligible=ALL, *, after=0):
        self.now = Instant(self.now + after)
        return self.core.next_proposal(self.now, eligible)

    def learn(self, state, *, min_isr=None, commit=None):
        self.core.on_state(
            state,
            min_isr=self.min_isr if min_isr is None else min_isr,
            is_commit_mode=self.commit if commit is None else commit,
            now=self.now,
        )

    def result(self, proposal, outcome):
        self.core.on_proposal_result(proposal, outcome, self.now)


def brokers(proposal):
    return "".join(broker for broker, _ in proposal.isr)


# L1


def test_nothing_is_served_before_the_epoch_is_in_the_cache():
    world = World(established=False)
    assert world.fetch(B, 10) == Refused(FetchError.RECOVERING)
    assert world.propose() is None
    assert world.core.next_deadline() is None
    world.core.on_established()
    assert world.fetch(B, 10) == ACCEPTED


def test_epoch_must_be_in_the_cache_to_be_established():
    world = World(established=False)
    world.log.epochs.clear()
    with pytest.raises(AssertionError):
        world.core.on_established()


def test_recovering_leader_serves_nothing_and_proposes_itself_recovered():
    log = ReplicaLog.of((1, 10))
    state = partition_of("a", leader_epoch=5, unclean_epoch=5, is_recovering=True)
    world = World(state, log=log, min_isr=1)
    assert world.fetch(B, 10) == Refused(FetchError.RECOVERING)
    assert world.advance() == 0
    proposal = world.propose()
    assert brokers(proposal) == "a"
    assert not proposal.is_recovering
    assert world.core.maximal_isr == (A,)
    world.learn(partition_of("a", leader_epoch=5, partition_epoch=6, unclean_epoch=5))
    assert world.core.is_serving
    assert world.advance() == 10


def test_re_elected_leader_keeps_what_members_hold_and_forgets_the_others():
    # S27
    world = World(partition_of("ab"))
    world.fetch(B, 8)
    world.fetch(C, 10)
    world.state = partition_of("ab", leader_epoch=4)
    world.log.begin(4)
    former, world.core = world.core, world.lead(kept=world.core)
    world.core.on_established()
    assert world.advance() == 8
    assert world.propose() is None
    world.fetch(C, 10)
    assert former is not world.core
    assert brokers(world.propose()) == "abc"


def test_re_elected_leader_keeps_nothing_of_another_session():
    world = World()
    world.fetch(B, 10)
    world.fetch(C, 10)
    world.state = partition_of(leader_epoch=4, replica_epochs=[1, 3, 1])
    world.log.begin(4)
    world.core = world.lead(kept=world.core)
    world.core.on_established()
    assert world.advance() == 0


# L2


def test_append_without_enough_replicas_is_refused():
    world = World(partition_of("a"))
    with pytest.raises(errors.NotEnoughReplicasError, match="1 replicas in sync, 2 needed"):
        world.core.check_min_isr()
    assert world.core.is_below_min_isr


def test_append_with_enough_replicas_is_taken():
    world = World(partition_of("ab"))
    world.core.check_min_isr()
    assert not world.core.is_below_min_isr


# L3


def test_fetch_of_another_partition_is_refused():
    world = World()
    position = FetchPosition(
        PARTITION + 1, MetadataIndex(1), LeaderEpoch(1), Offset(10), Offset(0), LeaderEpoch(1),
        Offset(0),
    )  # fmt: skip
    found = world.core.on_fetch(B, position, SessionClock(world.now), world.now)
    assert found == Refused(FetchError.UNKNOWN_PARTITION)


def test_fetch_of_an_older_epoch_is_fenced_and_changes_nothing():
    # S14, S26
    world = World(partition_of(leader_epoch=3))
    assert world.fetch(B, 10, epoch=1) == Refused(FetchError.FENCED_LEADER_EPOCH)
    assert world.fetch(C, 10) == ACCEPTED
    assert world.advance() == 0


def test_fetch_of_a_newer_epoch_is_refused_and_changes_nothing():
    world = World()
    assert world.fetch(B, 10, epoch=2) == Refused(FetchError.UNKNOWN_LEADER_EPOCH)
    world.fetch(C, 10)
    assert world.advance() == 0


def test_broker_without_replica_is_refused():
    assert World().fetch(D, 10) == Refused(FetchError.NOT_REPLICA)


def test_fetch_of_an_older_session_than_heard_is_refused():
    # S45: an old fetch with a higher offset overtakes after a restart.
    world = World()
    world.fetch(B, 6, session=7)
    assert world.fetch(B, 10, session=1) == Refused(FetchError.STALE_REPLICA_EPOCH)
    world.fetch(C, 10)
    assert world.advance() == 6


def test_fetch_of_an_older_session_than_the_metadata_is_refused():
    world = World(partition_of(replica_epochs=[1, 5, 1]))
    assert world.fetch(B, 10, session=4) == Refused(FetchError.STALE_REPLICA_EPOCH)
    assert world.fetch(B, 10, session=5) == ACCEPTED


def test_position_below_the_log_start_is_out_of_range_before_divergence():
    # S17
    log = ReplicaLog.of((1, 100), (3, 20), high_watermark=100)
    log.set_log_start(100)
    world = World(partition_of(leader_epoch=3), log=log)
    assert world.fetch(B, 40, last=2) == Refused(FetchError.OFFSET_OUT_OF_RANGE)
    assert world.fetch(B, 120, last=2) == Diverging(LeaderEpoch(2), Offset(100))


def test_unknown_newer_epoch_is_out_of_range():
    assert World().fetch(B, 5, last=9) == Refused(FetchError.OFFSET_OUT_OF_RANGE)


def test_diverging_position_counts_for_nothing():
    log = ReplicaLog.of((1, 4), (3, 6))
    world = World(partition_of(leader_epoch=3), log=log)
    assert world.fetch(B, 10, last=2) == Diverging(LeaderEpoch(1), Offset(4))
    assert world.fetch(B, 6, last=1) == Diverging(LeaderEpoch(1), Offset(4))
    world.fetch(C, 10)
    assert world.advance() == 0


def test_empty_replica_is_accepted_within_the_log_only():
    log = ReplicaLog.of((1, 10))
    world = World(log=log)
    assert world.fetch(B, 0, last=None) == ACCEPTED
    assert world.fetch(B, 11, last=None) == Refused(FetchError.OFFSET_OUT_OF_RANGE)


def test_position_behind_the_log_end_is_refused():
    world = World(log=ReplicaLog())
    assert world.fetch(B, 1, last=None) == Refused(FetchError.OFFSET_OUT_OF_RANGE)
    assert world.fetch(B, 1, last=1) == Diverging(LeaderEpoch(1), Offset(0))


def test_position_is_assigned_and_never_the_maximum():
    # S44: a follower that lost its tail holds less, and nothing above is committed by it.
    world = World()
    world.fetch(B, 10)
    world.fetch(C, 5)
    assert world.advance() == 5
    world.fetch(B, 7)
    world.fetch(C, 10)
    assert world.advance() == 7


# L4


def test_high_watermark_waits_for_every_member_to_be_heard():
    world = World()
    world.fetch(B, 10)
    assert world.advance() == 0
    world.fetch(C, 9)
    assert world.advance() == 9


def test_high_watermark_never_falls():
    world = World()
    world.fetch(B, 10)
    world.fetch(C, 10)
    assert world.advance() == 10
    world.fetch(C, 4)
    assert world.advance() == 10


def test_high_watermark_stays_below_the_minimum():
    # S34: the committed set counts, not the one that is proposed.
    world = World(partition_of("a"))
    world.fetch(B, 10)
    proposal = world.propose()
    assert brokers(proposal) == "ab"
    assert world.advance() == 0
    world.learn(partition_of("ab", partition_epoch=2))
    assert world.advance() == 10


def test_leader_alone_commits_what_it_appends():
    world = World(partition_of("a", replicas="a"), min_isr=1)
    assert world.advance() == 10
    world.append(2)
    assert world.advance() == 12


def test_proposed_member_counts_before_it_is_committed():
    # S33: the controller may elect the new member before this leader hears of it.
    world = World(partition_of("ab"))
    world.fetch(B, 10)
    world.fetch(C, 10)
    assert world.advance() == 10
    assert brokers(world.propose()) == "abc"
    assert world.core.maximal_isr == (A, B, C)
    world.append(10)
    world.fetch(B, 20)
    assert world.advance() == 10
    world.fetch(C, 20)
    assert world.advance() == 20


def test_shrunk_set_commits_only_when_it_is_committed():
    # S32
    world = World()
    for replica in (B, C):
        world.fetch(replica, 10)
    world.append()
    world.fetch(B, 11)
    proposal = world.propose(after=LAG + 1)
    assert brokers(proposal) == "ab"
    assert world.advance() == 10
    world.learn(partition_of("ab", partition_epoch=2))
    assert world.advance() == 11


def test_commit_mode_counts_what_is_on_disk():
    world = World(partition_of("ab"), commit=True)
    world.fetch(B, 10, flushed=4)
    assert world.advance() == 0
    world.log.recovery_point = Offset(6)
    assert world.advance() == 4
    world.fetch(B, 10, flushed=10)
    assert world.advance() == 6
    world.log.sync()
    assert world.advance() == 10


def test_change_to_commit_mode_counts_what_was_told_and_starts_no_lag():
    world = World()
    for replica in (B, C):
        world.fetch(replica, 10)
    assert world.advance() == 10
    world.log.sync()
    world.now = Instant(world.now + 10 * LAG)
    world.commit = True
    world.learn(partition_of(partition_epoch=2))
    assert world.propose() is None
    world.append()
    world.log.sync()
    world.fetch(B, 11, flushed=11)
    world.fetch(C, 11, flushed=10)
    assert world.advance() == 10


def test_high_watermark_is_not_known_before_it_comes_to_the_start_of_the_epoch():
    # S22
    world = World(partition_of(leader_epoch=2), log=ReplicaLog.of((1, 10), high_watermark=9))
    assert not world.core.is_high_watermark_known
    world.fetch(B, 10)
    world.fetch(C, 10)
    world.advance()
    assert world.core.is_high_watermark_known


# L5: into sync


def test_caught_up_follower_is_proposed_with_its_session():
    world = World(partition_of("ab"))
    world.fetch(B, 10)
    world.fetch(C, 10)
    proposal = world.propose()
    assert proposal.isr == ((A, -1), (B, -1), (C, 1))
    assert proposal.partition_epoch == 1
    assert proposal.leader_epoch == 1


def test_follower_below_the_high_watermark_is_not_proposed():
    world = World(partition_of("ab"))
    world.fetch(B, 10)
    world.advance()
    world.fetch(C, 9)
    assert world.propose() is None


def test_follower_below_the_start_of_the_epoch_is_not_proposed():
    # S41: the high watermark is behind after the election.
    log = ReplicaLog.of((1, 10), high_watermark=6)
    world = World(partition_of("ab", leader_epoch=2), log=log)
    world.fetch(C, 8)
    assert world.propose() is None
    world.fetch(C, 10)
    assert brokers(world.propose()) == "abc"


def test_follower_not_heard_in_this_epoch_is_not_proposed():
    # S42: it was in sync when the epoch began, left since, and never fetched.
    world = World(partition_of())
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
    world = World()
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
    world = World(partition_of("ab"))
    world.fetch(B, 10)
    world.fetch(C, 10)
    assert world.propose(after=LAG + 1) is None


def test_fetches_after_the_partition_was_forgotten_say_nothing():
    world = World(partition_of("ab"))
    world.fetch(C, 10)
    world.core.on_forgotten(C)
    world.now = Instant(world.now + LAG + 1)
    world.clocks[C].last_fetch = world.now
    assert world.propose() is None


def test_refused_position_ends_what_the_session_says():
    world = World(partition_of("ab", leader_epoch=2), log=ReplicaLog.of((1, 10)))
    world.fetch(C, 10)
    assert world.fetch(C, 10, epoch=1) == Refused(FetchError.FENCED_LEADER_EPOCH)
    world.now = Instant(world.now + LAG + 1)
    world.clocks[C].last_fetch = world.now
    assert world.propose() is None


def test_fenced_follower_is_not_proposed():
    # S40
    world = World(partition_of("ab"))
    world.fetch(C, 10)
    assert world.propose(frozenset({A, B})) is None
    assert brokers(world.propose(ALL)) == "abc"


def test_leader_that_may_not_stay_proposes_nothing():
    world = World(partition_of("ab"))
    world.fetch(C, 10)
    assert world.propose(frozenset({B, C})) is None


def test_follower_in_a_newer_session_than_the_metadata_waits_for_them():
    # S39
    world = World(partition_of("ab"))
    assert world.fetch(C, 10, session=9) == ACCEPTED
    assert world.propose() is None
    world.learn(partition_of("ab", partition_epoch=9, replica_epochs=[1, 1, 9]))
    assert brokers(world.propose()) == "abc"


def test_high_watermark_waits_for_a_follower_about_to_join():
    world = World(partition_of("a", replicas="ab"), min_isr=1)
    world.advance()
    world.propose()
    world.fetch(B, 10)
    world.append(2)
    # Behind at each fetch, but never by more than what came since the last one.
    world.fetch(B, 10, at=MS)
    assert world.advance() == 10
    assert brokers(world.propose()) == "ab"


def test_high_watermark_waits_for_nobody_who_fell_silent():
    world = World(partition_of("a", replicas="ab"), min_isr=1)
    world.advance()
    world.propose()
    world.fetch(B, 9)
    world.fetch(B, 9)
    world.append(2)
    world.propose(after=2 * LAG)
    assert world.advance() == 12


# L5: out of sync


def test_lagging_follower_leaves_when_enough_others_stay():
    world = World()
    for replica in (B, C):
        world.fetch(replica, 10)
    world.append()
    world.fetch(B, 11)
    assert world.core.next_deadline() == world.now + LAG + 1
    assert world.propose(after=LAG) is None
    assert brokers(world.propose(after=1)) == "ab"


def test_lagging_follower_stays_longer_when_too_few_would_be_left():
    world = World(partition_of("ab"))
    world.fetch(B, 10)
    world.append()
    assert world.propose(after=LAG + 1) is None
    assert world.propose(after=LIMITS.lag_hard_ns - LAG - 1) is None
    assert brokers(world.propose(after=1)) == "a"


def test_only_as_many_leave_as_can_be_spared():
    world = World(partition_of("abcd", replicas="abcd"))
    world.fetch(B, 10)
    world.fetch(C, 10, at=MS)
    world.fetch(D, 10, at=MS)
    world.append()
    assert brokers(world.propose(after=LAG + 1)) == "ad"


def test_follower_without_anything_to_fetch_does_not_lag():
    world = World()
    for replica in (B, C):
        world.fetch(replica, 10)
    assert world.propose(after=100 * LAG) is None
    assert world.core.next_deadline() is None


def test_follower_that_had_everything_begins_to_lag_with_the_next_record():
    world = World()
    for replica in (B, C):
        world.fetch(replica, 10)
    world.now = Instant(world.now + 100 * LAG)
    world.append()
    assert world.propose(after=LAG) is None
    assert brokers(world.propose(after=1)) == "ac"


def test_follower_one_fetch_behind_a_busy_leader_does_not_lag():
    world = World(partition_of("ab", replicas="ab"), min_isr=1)
    world.fetch(B, 10)
    for _ in range(50):
        end = world.log.log_end_offset
        world.append(5)
        world.fetch(B, end, at=LAG // 3)
        assert world.propose() is None


def test_follower_that_never_gets_closer_lags():
    world = World(partition_of("ab", replicas="ab"), min_isr=1)
    world.fetch(B, 5)
    removed = []
    for offset in (6, 7, 8, 9):
        world.append(5)
        world.fetch(B, offset, at=LAG // 2)
        removed.append(world.propose())
    assert brokers(next(filter(None, removed))) == "a"


def test_records_sent_for_an_old_position_count_as_a_fetch_of_that_time():
    # The session told nothing of this partition for long; then it gets all and fetches again.
    world = World(partition_of("ab", replicas="ab"), min_isr=1)
    world.fetch(B, 5)
    world.now = Instant(world.now + 10 * LAG)
    asked_at = world.now
    world.core.on_answered(B, asked_at)
    world.append()
    world.fetch(B, 10, at=MS)
    assert world.core._followers[B].caught_up_at == asked_at
    assert world.propose() is None


def test_member_never_heard_lags_from_the_beginning_of_the_epoch():
    world = World()
    world.fetch(B, 10)
    assert world.propose(after=LAG) is None
    assert brokers(world.propose(after=1)) == "ab"


def test_expansion_and_shrink_are_two_requests():
    # S46
    world = World(partition_of("abc", replicas="abcd"))
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
    world = World()
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
            world.fetch(C, world.log.log_end_offset, at=50 * MS)
            world.fetch(B, world.log.log_end_offset)
        waits.append((world.now - left_at) // (1_000 * MS))
        epoch += 1
        world.learn(partition_of("abc", partition_epoch=epoch))
    assert waits == [0, 1, 2, 4]


# L6


def expanding():
    world = World(partition_of("ab"))
    for replica in (B, C):
        world.fetch(replica, 10)
    return world, world.propose()


def test_one_proposal_at_a_time():
    world, proposal = expanding()
    assert proposal is not None
    assert world.propose(after=60_000 * MS) is None


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
    assert world.propose(after=60_000 * MS) is None
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
        world.fetch(C, 10, at=10 * MS)
        count += world.propose() is not None
    assert count == 1


def test_refused_withdrawal_is_sent_again_later():
    world, proposal = expanding()
    world.result(proposal, ProposalOutcome.INELIGIBLE)
    withdrawal = world.propose()
    world.result(withdrawal, ProposalOutcome.INELIGIBLE)
    assert world.propose() is None
    assert world.propose(after=LIMITS.ineligible_ns) == withdrawal


def test_ineligible_shrink_is_decided_on_again():
    world = World()
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


# L7


def test_older_metadata_change_nothing():
    world = World(partition_of("ab", partition_epoch=5))
    world.learn(partition_of("abc", partition_epoch=4))
    assert world.core.state.isr == (A, B)


def test_another_session_by_the_metadata_forgets_what_the_former_told():
    # S64
    world = World()
    world.fetch(B, 10)
    world.fetch(C, 10)
    world.learn(partition_of(partition_epoch=2, replica_epochs=[1, 2, 1]))
    assert world.advance() == 0
    world.fetch(B, 3, session=2)
    assert world.advance() == 3


def test_replica_that_was_removed_is_not_heard():
    world = World()
    world.learn(partition_of("ab", replicas="ab", partition_epoch=2))
    assert world.fetch(C, 10) == Refused(FetchError.NOT_REPLICA)


def test_controllers_larger_set_is_covered_while_its_message_is_lost():
    # S47: the expansion was applied, neither answer nor metadata came.
    world, proposal = expanding()
    world.result(proposal, ProposalOutcome.UNKNOWN)
    world.append()
    world.fetch(B, 11)
    assert world.advance() == 10


def test_lags_tell_every_follower():
    world = World(partition_of("ab"))
    world.fetch(B, 10)
    world.append(2)
    world.now = Instant(world.now + MS)
    lag_b, lag_c = world.core.lags(world.now)
    assert lag_b == (B, 10, 2, MS, True)
    assert (lag_c.log_end_offset, lag_c.records, lag_c.is_in_sync) == (None, 12, False)
