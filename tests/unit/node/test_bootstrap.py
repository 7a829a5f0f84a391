"""How brokers with empty data directories find or found a cluster, with messages that get lost."""

from random import Random

import pytest

from liftbridge_broker.model.metadata_log import Peer
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.metadata.bootstrap import Discovery, Role, founded_by
from liftbridge_broker.ports.transport import EVERYONE
from liftbridge_broker.raft.configuration import EMPTY
from liftbridge_broker.wire.peer.membership import Claim, Discover, DiscoverReply
from liftbridge_broker.wire.peer.messages import PeerHeader

STEP = 50 * MILLISECOND_NS


def peer(name):
    return Peer(name, f"dir-{name}")


class Member:
    """A broker that belongs to a cluster and answers for it."""

    def __init__(self, name, leader, voters):
        self.name = name
        self.answer = DiscoverReply(
            f"dir-{name}", is_empty=False, cluster_id="id", leader=leader, voters=voters
        )


class World:
    """Brokers that look for a cluster, and members of one; messages are lost by chance."""

    def __init__(self, seed=0, loss=0.0):
        self.now = 0
        self.random = Random(seed)
        self.loss = loss
        self.seeking = {}
        self.members = {}
        self.waiting = []
        self.cut = set()

    def seek(self, name, role, peers=()):
        def send(to, _channel, body):
            targets = [*self.seeking, *self.members] if to == EVERYONE else [to]
            self.waiting += [(name, target, body) for target in targets]

        self.seeking[name] = Discovery(peer(name), role, peers, send, self.now)
        return self.seeking[name]

    def member(self, name, leader, voters):
        self.members[name] = Member(name, leader, voters)

    def run(self, milliseconds):
        end = self.now + milliseconds * MILLISECOND_NS
        while self.now < end:
            for discovery in self.seeking.values():
                discovery.on_timer(self.now)
            while self.waiting:
                self._deliver(*self.waiting.pop(0))
            self.now += STEP

    def _deliver(self, sender, target, body):
        if {sender, target} & self.cut and sender != target:
            return
        if self.random.random() < self.loss:
            return
        if target in self.seeking:
            header = PeerHeader("", sender, "start", 0, 0, body)
            self.seeking[target].on_peer(header)
        elif isinstance(body, Discover) and target in self.members:
            self.waiting.append((target, sender, self.members[target].answer))

    def outcomes(self):
        return {name: one.beginning for name, one in self.seeking.items()}


def test_broker_that_nobody_answers_founds_a_cluster_of_its_own():
    for role in (Role.ALONE, Role.SEED):
        world = World()
        one = world.seek("a", role)
        world.run(1_000)
        assert one.beginning == founded_by([peer("a")])
        assert one.beginning.cluster_id
        assert one.next_deadline() is None


def test_seed_with_an_empty_directory_joins_the_cluster_it_finds():
    world = World()
    world.member("b", peer("b"), (peer("b"), peer("c")))
    one = world.seek("a", Role.SEED)
    world.run(1_000)
    assert one.beginning.configuration == EMPTY
    assert not one.beginning.cluster_id


def test_member_without_a_leader_is_no_cluster_to_join_yet():
    world = World()
    world.member("b", None, (peer("b"), peer("c")))
    one = world.seek("a", Role.WAITER)
    world.run(2_000)
    assert one.beginning is None
    world.members["b"].answer = Member("b", peer("b"), ()).answer
    world.run(500)
    assert one.beginning.configuration == EMPTY


@pytest.mark.parametrize("role", [Role.SEED, Role.ALONE])
def test_no_second_cluster_is_founded_while_the_first_has_no_leader(role):
    """A seed that lost its disk would otherwise begin anew beside what the others hold."""
    world = World()
    world.member("b", None, (peer("b"), Peer("a", "old")))
    one = world.seek("a", role)
    world.run(5_000)
    assert one.beginning is None
    world.members["b"].answer = Member("b", peer("b"), (peer("b"), Peer("a", "old"))).answer
    world.run(500)
    assert one.beginning.configuration == EMPTY


def test_two_brokers_that_were_told_nothing_found_nothing():
    world = World()
    world.seek("a", Role.ALONE)
    world.seek("b", Role.ALONE)
    world.run(5_000)
    assert world.outcomes() == {"a": None, "b": None}


def test_seed_founds_although_others_wait_for_it():
    world = World()
    world.seek("a", Role.SEED)
    world.seek("b", Role.WAITER)
    world.run(1_000)
    assert world.outcomes() == {"a": founded_by([peer("a")]), "b": None}


def test_waiter_never_founds():
    world = World()
    one = world.seek("a", Role.WAITER)
    world.run(10_000)
    assert one.beginning is None
    assert one.next_deadline() is not None


@pytest.mark.parametrize("seed", range(20))
def test_listed_peers_begin_alike_whatever_is_lost(seed):
    world = World(seed, loss=0.4)
    names = ["a", "b", "c"]
    for name in names:
        world.seek(name, Role.PEER, names)
        world.run(200)
    world.run(2_000)
    for name, one in world.seeking.items():
        if one.beginning is None:
            # The others founded it and count on this one: it hears so from a member.
            voters = founded_by([peer(each) for each in names]).configuration.voters
            world.member(f"{name}-member", None, voters)
    world.loss = 0
    world.run(1_000)
    expected = founded_by([peer(each) for each in names]).configuration
    assert {one.beginning.configuration for one in world.seeking.values()} == {expected}
    assert {one.beginning.cluster_id for one in world.seeking.values()} <= {
        founded_by([peer(each) for each in names]).cluster_id,
        "",
    }


def test_listed_peers_wait_for_every_one_of_them():
    world = World()
    for name in "ab":
        world.seek(name, Role.PEER, ["a", "b", "c"])
    world.run(10_000)
    assert world.outcomes() == {"a": None, "b": None}
    world.seek("c", Role.PEER, ["a", "b", "c"])
    world.run(1_000)
    assert set(world.outcomes().values()) == {founded_by([peer("a"), peer("b"), peer("c")])}


def test_majority_of_wiped_disks_waits_instead_of_electing_itself():
    world = World()
    world.member("c", None, (peer("c"), Peer("a", "old"), Peer("b", "old")))
    for name in "ab":
        world.seek(name, Role.PEER, ["a", "b", "c"])
    world.run(10_000)
    assert world.outcomes() == {"a": None, "b": None}


@pytest.mark.parametrize("listed", [(), ("a", "b", "c")])
@pytest.mark.parametrize("is_seed", [True, False])
@pytest.mark.parametrize("role", Role)
def test_repeated_questions_found_no_cluster_that_silence_would_not(role, is_seed, listed):
    """Questions are believed without proof that they are of now: old ones may be repeated."""
    world, alone = World(), World()
    names = ("a", "b", "c")
    one, silent = (each.seek("a", role, names) for each in (world, alone))
    for _ in range(50):
        for name in "bc":
            claim = Claim(is_seed=is_seed, listed=listed)
            question = Discover(f"old-{name}", is_empty=True, cluster_id="", claim=claim)
            one.on_peer(PeerHeader("", name, "start", 0, 0, question))
        world.run(100)
        alone.run(100)
    assert one.beginning in (None, silent.beginning)


def test_peer_that_got_metadata_meanwhile_is_not_counted_as_empty():
    world = World()
    one = world.seek("a", Role.PEER, ["a", "b"])
    header = PeerHeader("", "b", "start", 0, 0, Discover("dir-b", is_empty=True, cluster_id=""))
    one.on_peer(header)
    assert one.seekers == {"b": peer("b")}
    reply = DiscoverReply(
        "dir-b", is_empty=False, cluster_id="id", leader=None, voters=(peer("b"),)
    )
    one.on_peer(PeerHeader("", "b", "start", 0, 0, reply))
    world.run(1_000)
    assert one.beginning is None
    assert one.seekers == {}


def settle(world):
    """Let all look; who founds answers as a member from then on. Returns all outcomes."""
    outcomes = world.outcomes()
    for _ in range(40):
        world.run(50)
        outcomes |= world.outcomes()
        for name, beginning in world.outcomes().items():
            if beginning is not None and beginning.cluster_id:
                del world.seeking[name]
                world.member(name, peer(name), beginning.configuration.voters)
    return outcomes


@pytest.mark.parametrize("seed", range(10))
def test_of_two_seeds_that_start_at_once_the_first_founds_and_the_other_joins(seed):
    world = World(seed, loss=0.2)
    for name in "ba":
        world.seek(name, Role.SEED)
    assert settle(world) == {"a": founded_by([peer("a")]), "b": (EMPTY, "")}


def test_seed_founds_nothing_beside_one_that_comes_first_and_is_silent_now():
    """It may have founded a cluster before it fell silent."""
    world = World()
    one = world.seek("b", Role.SEED)
    claim = Claim(is_seed=True)
    question = Discover("dir-a", is_empty=True, cluster_id="", claim=claim)
    one.on_peer(PeerHeader("", "a", "start", 0, 0, question))
    world.run(20_000)
    assert one.beginning is None
    assert one.contradictions() == {"a": claim}


@pytest.mark.parametrize(
    ("lists", "told"),
    [
        ({"a": "ab", "b": "abc", "c": "abc"}, {"a": "bc", "b": "a", "c": "a"}),
        ({"a": "ab", "b": "ab", "c": "cd", "d": "cd"}, {"a": "cd", "c": "ab"}),
        ({"a": "ab", "b": ""}, {"a": "b"}),
    ],
)
def test_nothing_is_founded_while_lists_differ(lists, told):
    world = World()
    for name, peers in lists.items():
        world.seek(name, Role.PEER if peers else Role.WAITER, list(peers))
    world.run(5_000)
    assert set(world.outcomes().values()) == {None}
    for name, others in told.items():
        assert set(world.seeking[name].contradictions()) == set(others)


def test_listed_peers_found_once_the_wrong_list_is_mended():
    world = World()
    for name, peers in {"a": "ab", "b": "abc"}.items():
        world.seek(name, Role.PEER, list(peers))
    world.run(1_000)
    assert world.outcomes() == {"a": None, "b": None}
    world.seek("b", Role.PEER, ["a", "b"])
    world.run(1_000)
    assert set(world.outcomes().values()) == {founded_by([peer("a"), peer("b")])}


def test_claim_of_a_broker_that_is_not_needed_is_forgotten_when_it_is_gone():
    world = World()
    for name in "ab":
        world.seek(name, Role.PEER, ["a", "b"])
    world.seek("x", Role.PEER, ["x", "y"])
    world.run(1_000)
    assert world.outcomes()["a"] is None
    del world.seeking["x"]
    world.run(11_000)
    assert set(world.outcomes().values()) == {founded_by([peer("a"), peer("b")])}


def test_seed_and_brokers_that_list_it_end_as_one_cluster():
    """Those who list it cannot begin without it, so it may."""
    world = World()
    world.seek("a", Role.SEED)
    world.seek("b", Role.PEER, ["a", "b"])
    assert settle(world) == {"a": founded_by([peer("a")]), "b": (EMPTY, "")}


def test_seed_founds_nothing_beside_brokers_that_may_begin_without_it():
    world = World()
    world.seek("a", Role.SEED)
    for name in "bc":
        world.seek(name, Role.PEER, ["b", "c"])
    world.run(5_000)
    assert set(world.outcomes().values()) == {None}


def test_listed_peers_join_a_cluster_that_others_have():
    world = World()
    world.member("x", None, (peer("x"),))
    for name in "ab":
        world.seek(name, Role.PEER, ["a", "b"])
    world.run(2_000)
    assert world.outcomes() == {"a": None, "b": None}
    world.members["x"].answer = Member("x", peer("x"), (peer("x"),)).answer
    world.run(500)
    assert set(world.outcomes().values()) == {(EMPTY, "")}
