"""How a broker without a place in its cluster gets one, and answers others who look for one."""

from liftbridge_broker.model.ids import BrokerId, Instant
from liftbridge_broker.model.metadata_log import Peer
from liftbridge_broker.node.metadata.joining import ASK_NS, CALL_NS, UNHEARD_NS, Joining
from liftbridge_broker.node.peers.peer_link import PeerLink, unsigned_sessions
from liftbridge_broker.ports.transport import EVERYONE, Channel
from liftbridge_broker.wire.peer.frame import read_open
from liftbridge_broker.wire.peer.membership import Discover, DiscoverReply, Join
from liftbridge_broker.wire.peer.messages import PeerHeader, decode

ME, A, B = (Peer(BrokerId(name), f"dir-{name}") for name in ("me", "a", "b"))


class Group:
    """What this broker knows of the metadata group."""

    def __init__(self, leader=None, voters=(), learners=()):
        self.leader = leader
        self.voters = voters
        self.learners = learners


class Wire:
    """A transport that keeps what was sent."""

    is_connected = True
    payload_bytes_max = 1 << 20

    def __init__(self):
        self.sent = []

    def send(self, broker, channel, payload):
        assert channel is Channel.METADATA
        self.sent.append((broker, decode(read_open(payload))[0]))

    def take(self):
        sent, self.sent = self.sent, []
        return [(broker, header.body) for broker, header in sent]


def begin(group, cluster_id="", **given):
    wire = Wire()
    link = PeerLink(wire, unsigned_sessions("me", "start"), cluster_id)
    return Joining(ME, group, link, Instant(0), **given), wire, link


def said(sender, body, cluster_id=""):
    return PeerHeader(cluster_id, sender, "start", 0, 0, body)


def reply(leader, cluster_id="id"):
    return DiscoverReply("dir-a", is_empty=False, cluster_id=cluster_id, leader=leader, voters=())


def test_member_that_hears_a_leader_asks_nobody():
    for group in (Group(A, voters=(A, ME)), Group(A, voters=(A,), learners=(ME,))):
        joining, wire, _ = begin(group, "id")
        joining.on_timer(Instant(0))
        assert (joining.next_deadline(), wire.take()) == (UNHEARD_NS, [])
        joining.on_timer(Instant(UNHEARD_NS))
        assert (joining.asks, joining.next_deadline(), wire.take()) == (False, 2 * UNHEARD_NS, [])


def test_member_that_hears_no_leader_may_have_been_left_out():
    """An addition that was not committed goes with its leader; nobody tells who was added."""
    group = Group(None, voters=(A, B), learners=(ME,))
    joining, wire, _ = begin(group, "id")
    joining.on_timer(Instant(UNHEARD_NS - 1))
    assert (joining.asks, wire.take()) == (False, [])
    joining.on_timer(Instant(UNHEARD_NS))
    assert [broker for broker, _ in wire.take()] == [EVERYONE]
    joining.on_peer(said("b", reply(B), "id"), Instant(UNHEARD_NS + 1))
    joining.on_timer(Instant(UNHEARD_NS + 1))
    assert ("b", Join("dir-me", as_voter=True)) in wire.take()
    group.leader = B
    joining.on_timer(Instant(UNHEARD_NS + 2))
    assert (joining.asks, wire.take()) == (False, [])


def test_member_of_the_same_name_with_another_disk_is_none():
    joining, wire, _ = begin(Group(voters=(A, Peer("me", "former"))))
    joining.on_timer(Instant(0))
    assert [broker for broker, _ in wire.take()] == [EVERYONE]


def test_stranger_asks_everyone_then_the_leader_until_it_is_a_member():
    group = Group()
    joining, wire, link = begin(group)
    joining.on_timer(Instant(0))
    assert wire.take() == [(EVERYONE, Discover("dir-me", is_empty=False, cluster_id=""))]
    joining.on_peer(said("b", reply(A)), Instant(1))
    assert joining.next_deadline() == 1
    joining.on_timer(Instant(1))
    wish = ("a", Join("dir-me", as_voter=True))
    assert wish in wire.take()
    assert link.cluster_id == "id"
    joining.on_timer(Instant(2))
    assert wire.take() == []
    joining.on_timer(Instant(1 + ASK_NS))
    assert wish in wire.take()
    group.learners, group.leader = (ME,), A
    joining.on_timer(Instant(1 + 2 * ASK_NS))
    assert wire.take() == []


def test_stranger_follows_a_change_of_the_leader():
    joining, wire, _ = begin(Group())
    joining.on_peer(said("b", reply(A)), Instant(0))
    joining.on_peer(said("b", reply(None)), Instant(0))
    assert joining.leader == A
    joining.on_peer(said("a", reply(B)), Instant(0))
    joining.on_timer(Instant(0))
    assert [broker for broker, _ in wire.take()] == ["b", EVERYONE]


def test_answers_that_disagree_are_no_reason_to_ask_at_once():
    """Two believe in different leaders: each round of answers would bring the next question."""
    joining, wire, _ = begin(Group())
    joining.on_timer(Instant(0))
    for now in range(1, 100):
        joining.on_peer(said("a", reply(A)), Instant(now))
        joining.on_peer(said("b", reply(B)), Instant(now))
        joining.on_timer(Instant(now))
    assert [broker for broker, _ in wire.take()] == [EVERYONE, "b", EVERYONE]
    joining.on_timer(Instant(1 + ASK_NS))
    assert [broker for broker, _ in wire.take()] == ["b", EVERYONE]


def test_who_looks_is_told_the_leader_and_the_voters():
    joining, wire, _ = begin(Group(A, (A, ME)), "id")
    joining.on_peer(said("c", Discover("dir-c", is_empty=True, cluster_id="")), Instant(0))
    answer = DiscoverReply("dir-me", is_empty=False, cluster_id="id", leader=A, voters=(A, ME))
    assert wire.take() == [("c", answer)]


def test_own_question_is_not_answered_and_another_cluster_is_not_believed():
    joining, wire, _ = begin(Group(None, (A,)), "id")
    question = Discover("dir-me", is_empty=False, cluster_id="")
    joining.on_peer(said("me", question, "id"), Instant(0))
    joining.on_peer(said("c", reply(B, "other"), "other"), Instant(0))
    assert wire.take() == []
    assert joining.leader is None


def test_another_cluster_is_told_of_and_answered_though_its_broker_has_the_own_name():
    met = []
    joining, wire, _ = begin(Group(A, (A, ME)), "id", on_stranger=lambda *told: met.append(told))
    question = Discover("dir-x", is_empty=False, cluster_id="other")
    for name in ("c", "me"):
        joining.on_peer(said(name, question, "other"), Instant(CALL_NS - 1))
        assert [broker for broker, _ in wire.take()] == [name]
    joining.on_peer(said("c", reply(B, "other"), "other"), Instant(2 * CALL_NS))
    joining.on_peer(said("c", Join("dir-c", as_voter=True), "other"), Instant(9 * CALL_NS))
    assert (met, wire.take()) == ([("c", "other"), ("c", "other")], [])


def test_who_may_have_founded_alone_asks_for_other_clusters_now_and_then():
    joining, wire, _ = begin(Group(A, (A, ME)), "id", is_founder=True)
    joining.on_timer(Instant(0))
    question = Discover("dir-me", is_empty=False, cluster_id="id")
    assert wire.take() == [(EVERYONE, question)]
    assert joining.next_deadline() == UNHEARD_NS
    joining.on_timer(Instant(CALL_NS))
    assert wire.take() == [(EVERYONE, question)]
    joining.on_timer(Instant(2 * CALL_NS - 1))
    assert wire.take() == []


def test_who_joined_does_not_ask_for_other_clusters():
    joining, wire, _ = begin(Group(A, (A, ME)), "id")
    joining.on_timer(Instant(CALL_NS))
    assert wire.take() == []


def test_who_does_not_know_the_id_of_its_cluster_asks_for_it():
    """Its members believe nobody who does not name it, and it believes none of them."""
    joining, wire, link = begin(Group(None, (A, ME)))
    joining.on_timer(Instant(0))
    assert [broker for broker, _ in wire.take()] == [EVERYONE]
    stranger = DiscoverReply("d", is_empty=False, cluster_id="x", leader=None, voters=(A, B))
    joining.on_peer(said("b", stranger, "x"), Instant(1))
    assert link.cluster_id == ""
    member = stranger._replace(voters=(A, ME), cluster_id="id")
    joining.on_peer(said("a", member, "id"), Instant(1))
    assert (link.cluster_id, joining.asks) == ("id", False)
