"""Members of a metadata group: they agree, survive, catch up, proposers learn the outcome."""

import pytest

from liftbridge_broker.errors import (
    FailedPreconditionError,
    LiftbridgeError,
    NoMetadataLeaderError,
    OutcomeUnknownError,
    StorageFullError,
    TooLargeError,
    UnavailableError,
)
from liftbridge_broker.model.ids import BrokerId, Instant, MetadataIndex
from liftbridge_broker.model.metadata_log import Peer
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.metadata.proposals import (
    OPEN_NS,
    ORIGINS_MAX,
    PROPOSALS_MAX,
    OwnProposals,
    SeenProposals,
    Waiting,
)
from liftbridge_broker.ports.metadata import (
    Committed,
    Failed,
    LeaderChanged,
    ProposalToken,
    ReadFailed,
    Refused,
    Restored,
    Urgency,
)
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.raft.options import RaftOptions
from liftbridge_broker.raft.types import VoteReply
from liftbridge_broker.wire.peer.bodies import RaftBody
from liftbridge_broker.wire.peer.frame import open_frame
from liftbridge_broker.wire.peer.messages import PeerHeader, encode
from liftbridge_broker.wire.raft import encode_message
from liftbridge_testkit.memory_files import Fault
from liftbridge_testkit.metadata_group import Group


def three() -> Group:
    group = Group(3)
    group.elect()
    return group


def tokens_of(outcomes: list[Committed | Refused]) -> list[int]:
    assert all(isinstance(outcome, Committed) for outcome in outcomes), outcomes
    return [outcome.token for outcome in outcomes]


# Alone.


def test_a_broker_alone_leads_without_waiting() -> None:
    group = Group(1)

    member = group[1]
    assert member.running.is_leader
    assert member.leaders() == [LeaderChanged(BrokerId("n1"), 1, is_self=True)]
    assert member.running.next_deadline() is None


def test_alone_proposals_wait_for_the_first_election_and_are_committed_in_order() -> None:
    group = Group(1)
    member = group[1]
    member.stop()
    member.start()
    for number in range(3):
        member.propose(b"%d" % number)
    assert member.outcomes == []

    group.settle()

    assert tokens_of(member.outcomes) == [1, 2, 3]
    assert member.told == [b"0", b"1", b"2"]


def test_proposals_during_a_sync_share_the_next_one() -> None:
    group = Group(1)
    member = group[1]
    for number in range(100):
        member.propose(b"%d" % number)
    before = member.files.power.points

    group.settle()

    assert tokens_of(member.outcomes) == list(range(1, 101))
    # Two syncs, one append for the second group, one mark at the end.
    assert member.files.power.points - before == 4


def test_alone_everything_told_is_there_at_once_after_a_power_cut() -> None:
    group = Group(1)
    member = group[1]
    for number in range(5):
        member.propose(b"%d" % number)
        group.settle()
    member.stop(power_cut=True)

    member.start()

    assert member.told == [b"%d" % number for number in range(5)]


# Three.


def test_three_elect_one_leader_that_all_follow() -> None:
    group = three()

    assert [member.running.is_leader for member in group.alive].count(True) == 1
    told = {member.leaders()[-1].leader for member in group.alive}
    assert told == {group.leader.peer.broker}
    assert [member.leaders()[-1].is_self for member in group.alive].count(True) == 1


def test_what_the_leader_proposes_is_applied_by_all_and_told_to_it() -> None:
    group = three()

    group.commit(b"a", b"b")

    assert {tuple(member.told) for member in group.alive} == {(b"a", b"b")}
    assert tokens_of(group.leader.outcomes) == [1, 2]
    assert all(member.outcomes == [] for member in group.followers)


def test_what_a_follower_proposes_goes_by_the_leader_and_is_told_to_the_follower() -> None:
    group = three()
    one, other = group.followers

    one.propose(b"x")
    group.settle()
    group.run(200)

    assert tokens_of(one.outcomes) == [1]
    assert (other.outcomes, group.leader.outcomes) == ([], [])
    assert {tuple(member.told) for member in group.alive} == {(b"x",)}


def test_a_follower_that_is_cut_off_from_nats_refuses_for_sure() -> None:
    group = three()
    one = group.followers[0]
    one.port.is_connected = False

    one.propose(b"x")

    (refused,) = one.outcomes
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, UnavailableError)


def test_a_proposal_that_comes_twice_is_appended_once() -> None:
    group = three()
    one = group.followers[0]
    one.propose(b"x")
    group.network.sent.append(group.network.sent[-1])

    group.settle()
    group.run(200)

    assert group.leader.told == [b"x"]
    assert tokens_of(one.outcomes) == [1]


def test_a_leader_that_is_not_any_more_says_so() -> None:
    group = three()
    old = group.leader
    one = group.followers[0]
    one.propose(b"x")
    (proposal,) = group.network.sent
    group.network.sent.clear()
    old.running.transfer(one.peer.broker)
    group.run(500)
    assert group.leader is one

    group.deliver(proposal)
    group.settle()

    (refused,) = one.outcomes
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, UnavailableError)
    assert "not the metadata leader" in refused.error.text


def test_without_a_leader_proposals_wait_and_are_refused_in_the_end() -> None:
    group = three()
    one, other = group.followers
    for member in (group.leader, other):
        member.stop()
    group.run(3_000)
    one.propose(b"x")
    assert one.outcomes == []

    group.run(6_000)

    (refused,) = one.outcomes
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, NoMetadataLeaderError)
    assert refused.error.text == "no known metadata leader"


def test_a_minority_of_dead_members_changes_nothing() -> None:
    group = three()
    group.commit(b"a")
    dead = group.leader
    dead.stop(power_cut=True)

    group.elect()
    group.commit(b"b")
    dead.start()
    group.run(1_000)

    assert {tuple(member.told) for member in group.alive} == {(b"a", b"b")}


def test_a_kill_of_everybody_at_any_moment_loses_nothing_told() -> None:
    group = three()
    for number in range(12):
        leader = group.leader
        leader.propose(b"%d" % number)
        for _ in range(number):
            leader.pump()
            if group.network.sent:
                group.deliver(group.network.sent.popleft())
        told = max((member.told for member in group.alive), key=len)
        for member in group.alive:
            member.stop(power_cut=True)
        group.network.sent.clear()
        for member in group.members.values():
            member.start()
        group.elect()
        group.commit(b"after %d" % number)
        for member in group.alive:
            assert member.told[: len(told)] == told
    assert len({tuple(member.told) for member in group.alive}) == 1


def test_a_proposal_whose_place_another_leader_took_is_refused_for_sure() -> None:
    group = three()
    old = group.leader
    group.network.cut(old.peer.broker, [one.peer.broker for one in group.followers])
    old.propose(b"lost")
    group.run(3_000)
    new = group.leader
    assert new is not old
    new.propose(b"won")
    group.settle()
    group.network.broken.clear()

    group.run(2_000)

    (refused,) = old.outcomes
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, UnavailableError)
    assert old.told == new.told == [b"won"]


def test_a_member_far_behind_gets_a_snapshot_in_pieces() -> None:
    group = three()
    late = group.followers[0]
    late.stop()
    for number in range(1_100):
        group.leader.propose(b"%d " % number + bytes(100))
    group.settle()
    for _ in range(2):
        group.commit(b"more")
        group.leader.snapshot()
    late.start()

    group.run(2_000)

    assert late.told == group.leader.told
    assert any(isinstance(event, Restored) for event in late.events)
    assert late.running.snapshot_index == group.leader.running.snapshot_index
    late.stop(power_cut=True)
    late.start()
    assert late.recovered is not None
    assert late.recovered.snapshot_index > 1_100


def test_reads_are_ready_when_the_state_holds_what_was_answered() -> None:
    group = three()
    group.commit(b"a")
    follower = group.followers[0]

    group.leader.read(1)
    follower.read(2)
    group.settle()

    assert group.leader.reads == [1]
    assert follower.reads == [2]
    assert follower.told == [b"a"]


def test_a_leader_cut_off_serves_no_read() -> None:
    group = three()
    old = group.leader
    group.network.cut(old.peer.broker, [one.peer.broker for one in group.followers])

    old.read(1)
    group.run(3_000)
    old.read(2)

    assert old.reads == []
    assert [event.token for event in old.events if isinstance(event, ReadFailed)] == [1, 2]


# Membership.


def test_a_group_grows_by_a_learner_that_is_promoted() -> None:
    group = Group(1)
    group.commit(b"a")
    new = group.add(2, "disk-2")

    with pytest.raises(FailedPreconditionError):
        group.leader.running.promote(new.peer)
    group.leader.running.add_learner(new.peer)
    group.run(500)
    assert new.told == [b"a"]
    assert group.leader.running.match(new.peer) == group.leader.applied_index
    group.leader.running.promote(new.peer)
    group.run(500)

    assert group[1].running.voters == (group[1].peer, new.peer)
    assert new.running.learners == ()
    new.stop(power_cut=True)
    new.start()
    assert new.running.voters == (group[1].peer, new.peer)


def test_only_the_leader_changes_members() -> None:
    group = three()
    follower = group.followers[0]

    with pytest.raises(UnavailableError, match="the leader is"):
        follower.running.remove(follower.peer)
    with pytest.raises(FailedPreconditionError, match="does not vote"):
        group.leader.running.transfer(BrokerId("nobody"))


def test_a_leader_that_removes_itself_leaves_the_others_a_leader() -> None:
    group = three()
    old = group.leader
    old.running.remove(old.peer)
    group.run(3_000)

    assert group.leader is not old
    assert old.peer not in group.leader.running.voters
    group.commit(b"a")
    assert group.leader.told[-1:] == [b"a"]


def test_a_wiped_disk_is_somebody_else() -> None:
    group = three()
    wiped = group.followers[0]
    number = int(wiped.peer.broker[1:])
    wiped.stop()
    again = group.add(number, "another-disk")
    group.commit(b"a")
    assert again.told == []

    group.leader.running.remove(wiped.peer)
    group.run(300)
    group.leader.running.add_learner(again.peer)
    group.run(500)
    group.leader.running.promote(again.peer)
    group.run(500)

    assert again.told == [b"a"]
    assert Peer(wiped.peer.broker, "another-disk") in group.leader.running.voters


def test_leadership_is_handed_over() -> None:
    group = three()
    target = group.followers[0]

    group.leader.running.transfer(target.peer.broker)
    group.settle()

    assert group.leader is target


# Bad messages.


def forged(group: Group, *, cluster: str, sender: str, said_by: str) -> bytes:
    """A frame with news of a later term for the leader, as somebody of the group would say it."""
    peer = group.members[BrokerId(said_by)].peer
    term = group.leader.running.term + 1
    news = VoteReply(peer, group.leader.peer, term, is_granted=False)
    header = PeerHeader(cluster, BrokerId(sender), "run-1", 0, 0, RaftBody())
    return open_frame(encode(header, encode_message(news)))


def test_messages_of_another_cluster_or_in_the_name_of_another_are_ignored() -> None:
    group = three()
    leader = group.leader
    one, other = (member.peer.broker for member in group.followers)
    for bad in (
        forged(group, cluster="other", sender=one, said_by=one),
        forged(group, cluster="cluster", sender=other, said_by=one),
    ):
        leader.peers.on_payload(Channel.METADATA, bad, group.now)
        assert leader.running.is_leader

    good = forged(group, cluster="cluster", sender=one, said_by=one)
    leader.peers.on_payload(Channel.METADATA, good, group.now)
    assert not leader.running.is_leader


def test_messages_that_cannot_be_read_are_counted() -> None:
    group = three()
    leader = group.leader
    header = PeerHeader("cluster", BrokerId("n1"), "run-1", 0, 0, RaftBody())

    leader.peers.on_payload(Channel.METADATA, b"rubbish", group.now)
    leader.peers.on_payload(Channel.METADATA, open_frame(encode(header, b"rubbish")), group.now)

    assert (leader.link.malformed_count, leader.running.malformed_count) == (1, 1)


# Full and broken disks.


def test_a_full_disk_takes_essential_commands_only() -> None:
    group = Group(1)
    member = group[1]
    member.files.capacity_bytes -= member.files.free_bytes()

    member.propose(b"ordinary")
    member.propose(b"essential", Urgency.ESSENTIAL)
    group.settle()

    refused, committed = member.outcomes
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, StorageFullError)
    assert isinstance(committed, Committed)
    assert member.running.is_full


def test_a_write_that_finds_no_room_at_all_is_done_when_there_is_some() -> None:
    group = Group(1)
    member = group[1]
    member.files.fail(Fault("append", "metadata/*", count=2, is_full=True))
    member.propose(b"x")
    group.settle()
    assert member.outcomes == []
    assert member.running.next_deadline() == group.now + 1_000 * MILLISECOND_NS

    group.run(1_100)

    assert tokens_of(member.outcomes) == [1]
    member.stop(power_cut=True)
    member.start()
    assert member.told == [b"x"]


@pytest.mark.parametrize(
    ("operation", "kind"), [("append", UnavailableError), ("sync", OutcomeUnknownError)]
)
def test_a_broken_disk_ends_the_log_and_is_not_tried_again(
    operation: str, kind: type[LiftbridgeError]
) -> None:
    group = Group(1)
    member = group[1]
    member.files.fail(Fault(operation, "metadata/*.wal"))
    member.propose(b"x")
    member.propose(b"y")
    group.settle()

    assert [type(one) for one in member.outcomes] == [Refused, Refused]
    assert [event for event in member.events if isinstance(event, Failed)]
    first, second = member.outcomes
    assert isinstance(first, Refused)
    assert isinstance(first.error, kind)
    assert isinstance(second, Refused)
    assert isinstance(second.error, UnavailableError)
    assert not member.files.calls.waiting
    member.propose(b"z")
    assert isinstance(member.outcomes[-1], Refused)
    assert member.running.next_deadline() is None


def test_a_follower_whose_disk_fails_stops_answering() -> None:
    group = three()
    broken = group.followers[0]
    broken.files.fail(Fault("sync", "metadata/*"))
    group.commit(b"a")

    assert broken.running.failure is not None
    assert group.leader.told == [b"a"]
    match = group.leader.running.match(broken.peer)
    assert match is not None
    assert match < group.leader.applied_index


# Bounds.


def test_the_number_of_open_proposals_is_bounded() -> None:
    group = Group(1)
    member = group[1]
    for _ in range(PROPOSALS_MAX + 1):
        member.propose(b"x")

    (refused,) = member.outcomes
    assert isinstance(refused, Refused)
    assert refused.error.text == f"more than {PROPOSALS_MAX} changes wait"
    group.settle()
    assert len(member.told) == PROPOSALS_MAX


def test_a_command_that_is_too_long_is_refused() -> None:
    group = three()
    long = bytes(RaftOptions().entry_bytes_max + 1)
    group.leader.propose(long)
    group.followers[0].propose(long)
    group.settle()

    for member in (group.leader, group.followers[0]):
        (refused,) = member.outcomes
        assert isinstance(refused, Refused)
        assert isinstance(refused.error, TooLargeError)


def test_more_than_the_core_takes_at_once_waits_its_turn() -> None:
    group = Group(1)
    member = group[1]
    command = bytes(RaftOptions().entry_bytes_max // 2)
    for _ in range(60):
        member.propose(command)
    group.settle()

    assert tokens_of(member.outcomes) == list(range(1, 61))


def test_outcomes_are_not_looked_for_for_ever() -> None:
    own = OwnProposals(bytes(16))
    own.on_sent(Waiting(ProposalToken(1), b"x", Urgency.ORDINARY, Instant(5)))

    assert list(own.expire(Instant(4 + OPEN_NS))) == []
    assert len(own) == 1
    assert list(own.expire(Instant(5 + OPEN_NS))) == []
    assert len(own) == 0


def test_the_number_of_remembered_processes_is_bounded() -> None:
    seen = SeenProposals()
    for number in range(ORIGINS_MAX + 1):
        assert seen.is_new(b"%d" % number, 1)

    assert not seen.is_new(b"%d" % ORIGINS_MAX, 1)
    assert seen.is_new(b"0", 1)


def test_snapshots_are_told_by_their_index() -> None:
    group = Group(1)
    group.commit(b"a")
    group[1].snapshot()

    assert group[1].running.snapshot_index == MetadataIndex(2)


def test_snapshot_of_what_a_newer_one_covers_is_not_kept() -> None:
    """A leader's may have come while the state was written down, and is not told of yet."""
    group = Group(1)
    group.commit(b"a")
    group[1].snapshot()

    group[1].running.snapshot(MetadataIndex(1), b"older")

    assert group[1].running.failure is None
    assert group[1].running.snapshot_index == MetadataIndex(2)
