"""Bounds and small parts: majorities, the outbox, reads, calls that are refused."""

import pytest

from liftbridge_broker.model.metadata_log import Configuration
from liftbridge_broker.raft.options import RaftOptions
from liftbridge_broker.raft.outbox import Outbox
from liftbridge_broker.raft.progress import Progress, ProgressState
from liftbridge_broker.raft.quorum import reached_by_majority, tally
from liftbridge_broker.raft.reads import LeaderReads, LocalReads
from liftbridge_broker.raft.timers import FIRST_TURN_NS
from liftbridge_broker.raft.types import (
    AddLearner,
    AppendReply,
    NotRaftLeaderError,
    PreVote,
    RaftBusyError,
    TimeoutNow,
)
from liftbridge_testkit.raft.cluster import RaftCluster, Watch, peer_of

A, B, C = (peer_of(name) for name in "123")
TRIO = Configuration((A, B, C))


@pytest.mark.parametrize(
    ("values", "reached"),
    [([], 0), ([4], 4), ([4, 2], 2), ([9, 5, 1], 5), ([9, 8, 3, 1], 3), ([1, 2, 3, 4, 5], 3)],
)
def test_majority_reaches_the_middle(values, reached):
    assert reached_by_majority(values) == reached


def test_votes_of_others_do_not_count():
    assert tally((A, B, C), {A: True, peer_of("9"): True}) is None
    assert tally((A, B, C), {A: True, C: True}) is True
    assert tally((A, B, C), {A: False, C: False}) is False
    assert tally((A, B), {A: True, B: False}) is False
    assert tally((), {}) is False


def test_promises_wait_for_the_write_in_flight():
    outbox = Outbox(10)
    free, promise = TimeoutNow(A, B, 1), TimeoutNow(A, C, 1)
    outbox.send(free)
    outbox.send(promise, is_durable=False)
    assert outbox.take(must_persist=False, is_writing=True) == ((free,), ())
    assert not outbox.has_any(is_writing=True)
    assert outbox.has_any(is_writing=False)
    assert outbox.take(must_persist=True, is_writing=False) == ((), (promise,))
    outbox.send(promise, is_durable=False)
    assert outbox.take(must_persist=False, is_writing=False) == ((promise,), ())


def test_outbox_drops_what_does_not_fit():
    outbox = Outbox(2)
    for _ in range(5):
        outbox.send(TimeoutNow(A, B, 1))
    assert outbox.dropped_count == 3
    assert len(outbox.take(must_persist=False, is_writing=False)[0]) == 2


def test_reads_are_bounded_at_leader_and_follower():
    leader = LeaderReads(2)
    leader.add(None, 1, None)
    leader.add(B, 2, 5)
    with pytest.raises(RaftBusyError):
        leader.add(None, 3, 5)
    assert leader.own_tokens() == [1]
    local = LocalReads(1, 0)
    local.ask(7, 100)
    with pytest.raises(RaftBusyError):
        local.check_room()
    local.expire(99)
    assert local.take(9) == ((), ())
    local.expire(100)
    assert local.take(9) == ((), (7,))


def test_round_that_was_not_sent_confirms_nothing():
    reads = LeaderReads(10)
    reads.add(None, 1, 5)
    assert reads.confirm(99) == []
    reads.is_round_due = False
    assert [read.number for read in reads.confirm(1)] == [1]


def test_only_the_leader_takes_proposals():
    cluster = RaftCluster(RaftOptions())
    cluster.add(A, TRIO)
    cluster.start(A)
    core = cluster.hosts[A].core
    for call in (
        lambda: core.propose(b""),
        lambda: core.propose_config(AddLearner(B)),
        lambda: core.transfer(B, 0),
        lambda: core.read(1, 0),
    ):
        with pytest.raises(NotRaftLeaderError, match="no leader is known"):
            call()


def test_follower_with_a_slow_disk_drops_appends_beyond_its_bound():
    cluster = RaftCluster(RaftOptions(unstable_bytes_max=100, append_bytes_max=60))
    for peer in TRIO.voters:
        cluster.add(peer, TRIO)
        cluster.start(peer)
    cluster.elapse(2_000_000_000)
    leader = cluster.leader()
    slow = next(host for host in cluster.running() if host.peer != leader.me)
    slow.is_holding = True
    cluster.act(leader.me, lambda core: [core.propose(bytes(50)) for _ in range(40)])
    cluster.settle()
    assert slow.core.log.tail_bytes <= 100 + 60
    slow.is_holding = False
    cluster.sync(slow.peer)
    cluster.elapse(2_000_000_000)
    assert slow.applied == leader.log.commit == leader.log.last_index


def test_leader_tells_what_it_knows_of_members():
    cluster = RaftCluster(RaftOptions())
    for peer in TRIO.voters:
        cluster.add(peer, TRIO)
        cluster.start(peer)
    cluster.elapse(2_000_000_000)
    leader = cluster.leader()
    assert [(s.peer, s.is_voter, s.match) for s in leader.peers()] == [
        (p, True, 1) for p in (A, B, C)
    ]
    assert [leader.leading.match_of(p) for p in (A, B, C, peer_of("9"))] == [1, 1, 1, None]
    other = next(h.core for h in cluster.running() if h.core is not leader)
    assert other.peers() == ()
    assert other.leading is None
    assert other.leader == leader.me


def test_lone_leader_sleeps_until_called():
    cluster = RaftCluster(RaftOptions())
    cluster.add(A, Configuration((A,)))
    cluster.start(A)
    cluster.elapse(0)
    core = cluster.hosts[A].core
    assert core.is_leader
    assert core.next_deadline() is None
    core.read(5, 0)
    assert core.ready().reads == ((5, 1),)


def test_follower_wakes_often_enough_to_see_a_stall():
    cluster = RaftCluster(RaftOptions())
    cluster.add(A, TRIO)
    cluster.start(A)
    assert cluster.hosts[A].core.next_deadline() <= RaftOptions().election_ns // 2


@pytest.mark.parametrize("index", range(RaftOptions().voters_max))
def test_first_turn_is_before_any_timeout_and_a_failed_one_is_followed_by_a_timeout(index):
    class Elections(Watch):
        def on_send(self, message, _storage):
            assert isinstance(message, PreVote)
            begun.add(cluster.now)

    begun = set()
    options = RaftOptions()
    voters = tuple(peer_of(str(number)) for number in range(1, options.voters_max + 1))
    cluster = RaftCluster(options, watch=Elections())
    for peer in voters:
        cluster.add(peer, Configuration(voters))
    cluster.start(voters[index])
    cluster.elapse(3 * options.election_ns)
    first, second = sorted(begun)[:2]
    assert first == index * FIRST_TURN_NS
    assert first < options.election_ns <= second - first
    assert second - first < options.election_ns + options.election_spread_ns


def test_answer_of_a_removed_peer_does_not_depose():
    cluster = RaftCluster(RaftOptions())
    for peer in TRIO.voters:
        cluster.add(peer, TRIO)
        cluster.start(peer)
    cluster.elapse(2_000_000_000)
    leader = cluster.leader()
    cluster.deliver(AppendReply(peer_of("2'"), leader.me, 99, is_success=False, log_index=0))
    assert leader.is_leader
    assert leader.term < 99


def test_follower_that_lacks_what_it_acknowledged_is_not_asked_without_end():
    progress = Progress(5, 0, RaftOptions())
    progress.on_match(4)
    progress.probe()
    progress.on_sent(4, 0, 0)
    assert progress.state is ProgressState.PROBE
    assert not progress.on_reject(4, 2)
    assert progress.is_paused


def test_follower_that_keeps_lacking_what_it_acknowledged_is_sent_it_again():
    progress = Progress(5, 0, RaftOptions())
    progress.on_match(4)
    progress.probe()
    assert [progress.on_reject(4, 2) for _ in range(2)] == [False, False]
    progress.on_match(4)  # the two came late
    assert [progress.on_reject(4, 2) for _ in range(3)] == [False, False, True]
    assert (progress.match, progress.next_index, progress.is_paused) == (0, 3, False)
