"""The leader of a partition: fetches and high watermark (L1 to L4, L7)."""

import pytest

from liftbridge_broker import errors
from liftbridge_broker.model.fetching import (
    ACCEPTED,
    Diverging,
    FetchError,
    FetchPosition,
    Refused,
    SessionClock,
)
from liftbridge_broker.model.ids import Instant, LeaderEpoch, MetadataIndex, Offset
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.replication.isr import ProposalOutcome
from liftbridge_testkit.batches import PARTITION
from liftbridge_testkit.leader_world import (
    LAG,
    A,
    B,
    C,
    D,
    LeaderWorld,
    brokers,
    expanding,
)
from liftbridge_testkit.replica_logs import ReplicaLog, partition_of

# L1


def test_nothing_is_served_before_the_epoch_is_in_the_cache():
    world = LeaderWorld(established=False)
    assert world.fetch(B, 10) == Refused(FetchError.RECOVERING)
    assert world.propose() is None
    assert world.core.next_deadline() is None
    world.core.on_established()
    assert world.fetch(B, 10) == ACCEPTED


def test_epoch_must_be_in_the_cache_to_be_established():
    world = LeaderWorld(established=False)
    world.log.epochs.clear()
    with pytest.raises(AssertionError):
        world.core.on_established()


def test_recovering_leader_serves_nothing_and_proposes_itself_recovered():
    log = ReplicaLog.of((1, 10))
    state = partition_of("a", leader_epoch=5, unclean_epoch=5, is_recovering=True)
    world = LeaderWorld(state, log=log, min_isr=1)
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
    world = LeaderWorld(partition_of("ab"))
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
    world = LeaderWorld()
    world.fetch(B, 10)
    world.fetch(C, 10)
    world.state = partition_of(leader_epoch=4, replica_epochs=[1, 3, 1])
    world.log.begin(4)
    world.core = world.lead(kept=world.core)
    world.core.on_established()
    assert world.advance() == 0


# L2


def test_append_without_enough_replicas_is_refused():
    world = LeaderWorld(partition_of("a"))
    with pytest.raises(errors.NotEnoughReplicasError, match="1 replicas in sync, 2 needed"):
        world.core.check_min_isr()
    assert world.core.is_below_min_isr


def test_append_with_enough_replicas_is_taken():
    world = LeaderWorld(partition_of("ab"))
    world.core.check_min_isr()
    assert not world.core.is_below_min_isr


# L3


def test_fetch_of_another_partition_is_refused():
    world = LeaderWorld()
    position = FetchPosition(
        PARTITION + 1, MetadataIndex(1), LeaderEpoch(1), Offset(10), Offset(0), LeaderEpoch(1),
        Offset(0),
    )  # fmt: skip
    found = world.core.on_fetch(B, position, SessionClock(world.now), world.now)
    assert found == Refused(FetchError.UNKNOWN_PARTITION)


def test_fetch_of_an_older_epoch_is_fenced_and_changes_nothing():
    # S14, S26
    world = LeaderWorld(partition_of(leader_epoch=3))
    assert world.fetch(B, 10, epoch=1) == Refused(FetchError.FENCED_LEADER_EPOCH)
    assert world.fetch(C, 10) == ACCEPTED
    assert world.advance() == 0


def test_fetch_of_a_newer_epoch_is_refused_and_changes_nothing():
    world = LeaderWorld()
    assert world.fetch(B, 10, epoch=2) == Refused(FetchError.UNKNOWN_LEADER_EPOCH)
    world.fetch(C, 10)
    assert world.advance() == 0


def test_broker_without_replica_is_refused():
    assert LeaderWorld().fetch(D, 10) == Refused(FetchError.NOT_REPLICA)


def test_fetch_of_an_older_session_than_heard_is_refused():
    # S45: an old fetch with a higher offset overtakes after a restart.
    world = LeaderWorld()
    world.fetch(B, 6, session=7)
    assert world.fetch(B, 10, session=1) == Refused(FetchError.STALE_REPLICA_EPOCH)
    world.fetch(C, 10)
    assert world.advance() == 6


def test_fetch_of_an_older_session_than_the_metadata_is_refused():
    world = LeaderWorld(partition_of(replica_epochs=[1, 5, 1]))
    assert world.fetch(B, 10, session=4) == Refused(FetchError.STALE_REPLICA_EPOCH)
    assert world.fetch(B, 10, session=5) == ACCEPTED


def test_position_below_the_log_start_is_out_of_range_before_divergence():
    # S17
    log = ReplicaLog.of((1, 100), (3, 20), high_watermark=100)
    log.set_log_start(100)
    world = LeaderWorld(partition_of(leader_epoch=3), log=log)
    assert world.fetch(B, 40, last=2) == Refused(FetchError.OFFSET_OUT_OF_RANGE)
    assert world.fetch(B, 120, last=2) == Diverging(LeaderEpoch(2), Offset(100))


def test_unknown_newer_epoch_is_out_of_range():
    assert LeaderWorld().fetch(B, 5, last=9) == Refused(FetchError.OFFSET_OUT_OF_RANGE)


def test_diverging_position_counts_for_nothing():
    log = ReplicaLog.of((1, 4), (3, 6))
    world = LeaderWorld(partition_of(leader_epoch=3), log=log)
    assert world.fetch(B, 10, last=2) == Diverging(LeaderEpoch(1), Offset(4))
    assert world.fetch(B, 4, last=2) == Diverging(LeaderEpoch(1), Offset(4))
    assert world.fetch(B, 6, last=1) == Diverging(LeaderEpoch(1), Offset(4))
    world.fetch(C, 10)
    assert world.advance() == 0


def test_empty_replica_is_accepted_within_the_log_only():
    log = ReplicaLog.of((1, 10))
    world = LeaderWorld(log=log)
    assert world.fetch(B, 0, last=None) == ACCEPTED
    assert world.fetch(B, 11, last=None) == Refused(FetchError.OFFSET_OUT_OF_RANGE)


def test_position_behind_the_log_end_is_refused():
    world = LeaderWorld(log=ReplicaLog())
    assert world.fetch(B, 1, last=None) == Refused(FetchError.OFFSET_OUT_OF_RANGE)
    assert world.fetch(B, 1, last=1) == Diverging(LeaderEpoch(1), Offset(0))


def test_position_is_assigned_and_never_the_maximum():
    # S44: a follower that lost its tail holds less, and nothing above is committed by it.
    world = LeaderWorld()
    world.fetch(B, 10)
    world.fetch(C, 5)
    assert world.advance() == 5
    world.fetch(B, 7)
    world.fetch(C, 10)
    assert world.advance() == 7


# L4


def test_high_watermark_waits_for_every_member_to_be_heard():
    world = LeaderWorld()
    world.fetch(B, 10)
    assert world.advance() == 0
    world.fetch(C, 9)
    assert world.advance() == 9


def test_high_watermark_never_falls():
    world = LeaderWorld()
    world.fetch(B, 10)
    world.fetch(C, 10)
    assert world.advance() == 10
    world.fetch(C, 4)
    assert world.advance() == 10


def test_high_watermark_stays_below_the_minimum():
    # S34: the committed set counts, not the one that is proposed.
    world = LeaderWorld(partition_of("a"))
    world.fetch(B, 10)
    proposal = world.propose()
    assert brokers(proposal) == "ab"
    assert world.advance() == 0
    world.learn(partition_of("ab", partition_epoch=2))
    assert world.advance() == 10


def test_leader_alone_commits_what_it_appends():
    world = LeaderWorld(partition_of("a", replicas="a"), min_isr=1)
    assert world.advance() == 10
    world.append(2)
    assert world.advance() == 12


def test_proposed_member_counts_before_it_is_committed():
    # S33: the controller may elect the new member before this leader hears of it.
    world = LeaderWorld(partition_of("ab"))
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
    world = LeaderWorld()
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
    world = LeaderWorld(partition_of("ab"), commit=True)
    world.fetch(B, 10, flushed=4)
    assert world.advance() == 0
    world.log.recovery_point = Offset(6)
    assert world.advance() == 4
    world.fetch(B, 10, flushed=10)
    assert world.advance() == 6
    world.log.sync()
    assert world.advance() == 10


def test_change_to_commit_mode_counts_what_was_told_and_starts_no_lag():
    world = LeaderWorld()
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
    world = LeaderWorld(partition_of(leader_epoch=2), log=ReplicaLog.of((1, 10), high_watermark=9))
    assert not world.core.is_high_watermark_known
    world.fetch(B, 10)
    world.fetch(C, 10)
    world.advance()
    assert world.core.is_high_watermark_known


# L7


def test_older_metadata_change_nothing():
    world = LeaderWorld(partition_of("ab", partition_epoch=5))
    world.learn(partition_of("abc", partition_epoch=4))
    assert world.core.state.isr == (A, B)


def test_another_session_by_the_metadata_forgets_what_the_former_told():
    # S64
    world = LeaderWorld()
    world.fetch(B, 10)
    world.fetch(C, 10)
    world.learn(partition_of(partition_epoch=2, replica_epochs=[1, 2, 1]))
    assert world.advance() == 0
    world.fetch(B, 3, session=2)
    assert world.advance() == 3


def test_replica_that_was_removed_is_not_heard():
    world = LeaderWorld()
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
    world = LeaderWorld(partition_of("ab"))
    world.fetch(B, 10)
    world.append(2)
    world.now = Instant(world.now + MILLISECOND_NS)
    lag_b, lag_c = world.core.lags(world.now)
    assert lag_b == (B, 10, 2, MILLISECOND_NS, True)
    assert (lag_c.log_end_offset, lag_c.records, lag_c.is_in_sync) == (None, 12, False)


def test_compacted_offset_is_the_least_of_all_replicas_in_sync_or_not():
    world = LeaderWorld(partition_of("ab"))
    world.log.compacted_offset = Offset(9)
    world.core.note_compacted()
    world.fetch(B, 10, compacted=8)
    assert world.core.compacted_everywhere == 0  # nothing is known of the third one
    world.fetch(C, 10, compacted=7)
    assert world.core.compacted_everywhere == 7
    world.fetch(C, 10, compacted=10)
    assert world.core.compacted_everywhere == 8
    world.fetch(C, 3, compacted=3)  # it was cut
    assert world.core.compacted_everywhere == 3


def test_compacted_offset_is_forgotten_with_the_session_that_told_it():
    world = LeaderWorld()
    world.log.compacted_offset = Offset(9)
    for replica in (B, C):
        world.fetch(replica, 10, compacted=9)
    assert world.core.compacted_everywhere == 9
    world.learn(partition_of(partition_epoch=9, replica_epochs=[1, 3, 1]))
    assert world.core.compacted_everywhere == 0
