"""Proposals that reach the metadata leader late or twice: appended in time and once, or not."""

from liftbridge_broker.errors import LiftbridgeError, OutcomeUnknownError, UnavailableError
from liftbridge_broker.model.ids import Instant
from liftbridge_broker.node.metadata.driver import PROPOSAL_TIMEOUT_NS_DEFAULT
from liftbridge_broker.node.metadata.proposals import WAIT_NS, LeaderClock
from liftbridge_broker.ports.metadata import Committed, Refused
from liftbridge_broker.wire.peer.bodies import Propose
from liftbridge_broker.wire.peer.frame import open_frame
from liftbridge_broker.wire.peer.messages import PeerHeader, encode
from liftbridge_testkit.metadata_group import Group, Member, Sent


def three() -> Group:
    group = Group(3)
    group.elect()
    return group


def sent_by(group: Group, proposer: Member) -> Sent:
    """What a follower proposes now, taken off the network."""
    proposer.propose(b"x")
    return group.network.sent.pop()


def lead_again(group: Group, leader: Member) -> None:
    """Have a leader hand its leadership over, and get it back in a later term."""
    other = group.followers[0]
    leader.running.transfer(other.peer.broker)
    group.run(500)
    assert group.leader is other
    other.running.transfer(leader.peer.broker)
    group.run(500)
    assert group.leader is leader


def refusal_of(member: Member) -> LiftbridgeError:
    """The only outcome of what a member proposed: a refusal."""
    (refused,) = member.outcomes
    assert isinstance(refused, Refused)
    return refused.error


def test_a_proposal_that_comes_in_time_is_appended_and_one_that_comes_later_is_not() -> None:
    for delay_ms, told in ((4_500, [b"x"]), (5_010, [])):
        group = three()
        one = group.followers[0]
        proposal = sent_by(group, one)
        group.run(delay_ms)

        group.deliver(proposal)
        group.settle()
        group.run(200)

        assert group.leader.told == told
        if not told:
            assert isinstance(refusal_of(one), UnavailableError)
            assert "too late" in refusal_of(one).text


def test_a_proposal_for_a_former_term_of_its_leader_is_refused_for_sure() -> None:
    group = three()
    leader, one = group.leader, group.followers[0]
    proposal = sent_by(group, one)
    lead_again(group, leader)

    group.deliver(proposal)
    group.settle()
    group.run(200)

    assert leader.told == []
    assert isinstance(refusal_of(one), UnavailableError)
    assert "is for term" in refusal_of(one).text


def test_a_proposal_for_a_former_process_of_its_leader_is_refused_with_an_open_outcome() -> None:
    group = three()
    leader, one = group.leader, group.followers[0]
    proposal = sent_by(group, one)
    leader.stop()
    group.run(1_000)
    leader.start()
    group.run(500)
    group.leader.running.transfer(leader.peer.broker)
    group.run(500)
    assert group.leader is leader

    group.deliver(proposal)
    group.settle()
    group.run(200)

    assert leader.told == []
    # That process may have appended it before it died; this one cannot know.
    assert isinstance(refusal_of(one), OutcomeUnknownError)


def test_a_copy_of_a_proposal_changes_nothing_in_a_later_life_of_its_leader() -> None:
    group = three()
    leader, one = group.leader, group.followers[0]
    proposal = sent_by(group, one)
    group.deliver(proposal)
    group.settle()
    group.run(200)
    leader.stop()
    group.run(1_000)
    leader.start()
    group.run(500)
    if group.leader is not leader:
        group.leader.running.transfer(leader.peer.broker)
        group.run(500)

    group.deliver(proposal)
    group.settle()
    group.run(200)

    assert leader.told == [b"x"]
    (committed,) = one.outcomes
    assert isinstance(committed, Committed)


def test_a_proposal_of_a_former_version_is_appended() -> None:
    group = three()
    one = group.followers[0]
    header = PeerHeader(
        "cluster", one.peer.broker, "run-1", 0, 0, Propose(bytes(16), 1, is_essential=False)
    )
    frame = open_frame(encode(header, b"old"))

    group.deliver(Sent(one.peer.broker, group.leader.peer.broker, frame))
    group.settle()
    group.run(200)

    assert group.leader.told == [b"old"]


def test_the_deadline_of_a_proposal_is_no_later_than_it_is_given_up() -> None:
    assert WAIT_NS <= PROPOSAL_TIMEOUT_NS_DEFAULT


def test_the_clock_of_a_leader_is_known_by_its_newest_message_of_the_term() -> None:
    clock = LeaderClock()
    assert clock.at(1, Instant(5)) == 0
    clock.on_announced(1, 1_000, Instant(100))
    assert clock.at(1, Instant(130)) == 1_030

    clock.on_announced(1, 1_000, Instant(120))  # twice
    clock.on_announced(1, 900, Instant(120))  # late
    assert clock.at(1, Instant(130)) == 1_030

    clock.on_announced(1, 1_010, Instant(115))
    assert clock.at(1, Instant(130)) == 1_025

    clock.on_announced(2, 7, Instant(140))  # another process leads
    assert clock.at(1, Instant(150)) == 0
    assert clock.at(2, Instant(150)) == 17
