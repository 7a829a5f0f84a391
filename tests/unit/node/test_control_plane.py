"""The control plane: sessions, heartbeats, reports, inquiries and members of the group."""

from dataclasses import dataclass, field

import pytest

from liftbridge_broker.controller.commands import (
    ChangeLeader,
    CordonBroker,
    CreateStream,
    ElectPreferred,
    FenceBroker,
    Leadership,
    RecoverUnclean,
    RegisterBroker,
    Resign,
    ShutDownBroker,
    StartReassignment,
    UnfenceBroker,
)
from liftbridge_broker.controller.replay import apply
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.errors import UnavailableError
from liftbridge_broker.model.ids import MetadataIndex, PartitionNumber, partition_id
from liftbridge_broker.model.metadata_log import Peer
from liftbridge_broker.model.streams import StreamOverrides
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.control import ControlOptions, ControlPlane
from liftbridge_broker.node.scheduling.cluster_clock import ClockLimits, ClusterClock
from liftbridge_broker.ports.metadata import LeaderChanged
from liftbridge_broker.wire.peer.bodies import (
    LeaderReport,
    LogInfo,
    LogInfoReply,
    LogInfoRequest,
    Silence,
)
from liftbridge_broker.wire.peer.heartbeat import Heartbeat, HeartbeatReply
from liftbridge_broker.wire.peer.membership import Join
from liftbridge_broker.wire.peer.messages import PeerHeader

START = 10_000 * MILLISECOND_NS
SESSION = 1_500 * MILLISECOND_NS


def peer(broker):
    return Peer(broker, f"dir-{broker}")


@dataclass
class Group:
    """The metadata group as the control plane sees it."""

    leader: Peer | None = None
    term: int = 7
    voters: list[Peer] = field(default_factory=list)
    learners: list[Peer] = field(default_factory=list)
    is_refusing: bool = False
    is_full: bool = False
    asked: list[str] = field(default_factory=list)

    def match(self, one):
        return {"b": 7, "c": 9}.get(one.broker)

    def transfer(self, broker):
        self.asked.append(broker)

    def _check(self):
        if self.is_refusing:
            raise UnavailableError("another change is under way")

    def add_learner(self, one):
        self._check()
        self.learners.append(one)

    def promote(self, one):
        self._check()
        self.learners.remove(one)
        self.voters.append(one)

    def remove(self, one):
        self._check()
        for members in (self.voters, self.learners):
            if one in members:
                members.remove(one)


class World:
    """Broker `a` with a state, whose commands are applied at once unless `is_deaf`."""

    def __init__(self, names="abc", **options):
        self.broker = "a"
        self.state = ClusterState()
        self.wall_ns = 0
        self.clock = ClusterClock(ClockLimits(), self.transition, lambda: 0)
        self.proposed = []
        self.sent = []
        self.transitions = []
        self.logs = {}
        self.now = START
        self.is_deaf = False
        self.group = Group()
        self.control = ControlPlane(
            self, self.group, self, ControlOptions(**options), self.log_infos, lambda _now: True
        )
        for name in names:
            self.register(name)

    def register(self, name, **fields):
        before = self.state.brokers.get(name)
        self.apply(
            RegisterBroker(
                broker=name,
                incarnation_id=f"start-{name}-{self.state.applied_index}",
                data_dir_id=fields.pop("data_dir_id", f"dir-{name}"),
                previous_broker_epoch=before.broker_epoch if before else 0,
                feature_level=1,
                **fields,
            )
        )
        if name == self.broker:
            self.control.session.begin(self.state.brokers[name].broker_epoch, self.now)

    def apply(self, command):
        index = MetadataIndex(self.state.applied_index + 1)
        decision = apply(self.state, index, command)
        self.control.on_applied(index, decision.records, self.now)
        return decision.answer

    def lead(self):
        self.group.leader = peer("a")
        self.control.on_leader(LeaderChanged("a", self.group.term, is_self=True), self.now)

    def follow(self, leader="b"):
        self.group.leader = peer(leader)
        self.control.on_leader(LeaderChanged(leader, self.group.term, is_self=False), self.now)

    # The context, and the link to other brokers.

    def propose(self, command, _now, reply):
        self.proposed.append(command)
        if not self.is_deaf:
            reply(self.apply(command))

    def log_infos(self, partitions):
        return tuple(self.logs[one] for one in partitions if one in self.logs)

    def transition(self, kind, fields):
        self.transitions.append((kind, fields))

    def send(self, broker, _channel, body, _tail=b"", *, correlation_id=0):
        self.sent.append((broker, body, correlation_id))

    # What a test does.

    def hear(self, sender, body, *, epoch=None, correlation_id=5):
        known = self.state.brokers.get(sender)
        epoch = known.broker_epoch if epoch is None and known else epoch or 0
        header = PeerHeader("", sender, f"start-{sender}", epoch, correlation_id, body)
        return self.control.on_peer(header, self.now)

    def beat(self, *senders, **fields):
        for sender in senders:
            index = fields.get("applied_index", self.state.applied_index)
            self.hear(
                sender,
                Heartbeat(
                    index,
                    fields.get("applied_hash", self.state.chain.to_bytes(8, "big")),
                    fields.get("want_fence", False),
                    fields.get("want_shutdown", False),
                ),
            )

    def advance(self, milliseconds, *senders, step=100):
        """Time goes on; `senders` send heartbeats all along."""
        end = self.now + milliseconds * MILLISECOND_NS
        while self.now < end:
            self.now += step * MILLISECOND_NS
            self.beat(*senders)
            self.control.on_timer(self.now)

    def fenced(self):
        return {name for name, broker in self.state.brokers.items() if broker.fenced}

    def create(self, name="s", **fields):
        answer = self.apply(CreateStream(name=name, subject=name, **fields))
        return partition_id(answer.stream_id, PartitionNumber(0))


@pytest.fixture
def world():
    world = World()
    world.control.session.want_fence = False
    world.lead()
    world.advance(300, "b", "c")
    assert world.fenced() == set()
    world.proposed.clear()
    return world


def of_type(commands, kind):
    return [command for command in commands if isinstance(command, kind)]


# -- sessions ---------------------------------------------------------------------------------


def test_broker_that_is_not_heard_for_a_session_is_fenced(world):
    world.advance(1_400, "b")
    assert world.fenced() == set()
    world.advance(200, "b")
    assert world.fenced() == {"c"}


def test_broker_that_is_heard_again_is_unfenced(world):
    world.advance(1_700, "b")
    assert world.fenced() == {"c"}
    world.beat("c")
    assert world.fenced() == set()


def test_heartbeat_of_a_former_registration_proves_nothing(world):
    former = world.state.brokers["c"].broker_epoch
    world.register("c")
    living = Heartbeat(world.state.applied_index, b"", want_fence=False, want_shutdown=False)
    for _ in range(20):
        world.advance(100, "b")
        world.hear("c", living, epoch=former)
    assert "c" in world.fenced()
    assert not [one for one in of_type(world.proposed, UnfenceBroker) if one.broker == "c"]


def test_broker_behind_its_registration_stays_fenced(world):
    world.register("c")
    epoch = world.state.brokers["c"].broker_epoch
    world.beat("c", applied_index=epoch - 1)
    assert "c" in world.fenced()
    world.beat("c", applied_index=epoch)
    assert "c" not in world.fenced()


def test_broker_that_wants_to_stay_fenced_does(world):
    world.register("c")
    world.beat("c", want_fence=True)
    assert "c" in world.fenced()


def test_new_metadata_leader_gives_every_broker_a_full_session(world):
    world.advance(1_400, "b")
    world.follow()
    world.advance(1_400)
    world.lead()
    world.advance(1_300, "b")
    assert world.fenced() == set()


def test_leader_that_stood_still_fences_nobody_at_once(world):
    world.advance(20_000, step=20_000)
    assert world.fenced() == set()
    world.advance(1_700, "b")
    assert world.fenced() == {"c"}


def test_leader_that_could_hear_nobody_fences_nobody(world):
    world.advance(1_400, "b")
    world.control.excuse(world.now)
    world.advance(1_400, "b")
    assert world.fenced() == set()
    world.advance(200, "b")
    assert world.fenced() == {"c"}


def test_change_that_does_not_come_about_is_proposed_again_but_not_at_each_look(world):
    world.is_deaf = True
    world.advance(2_400, "b")
    fences = [one for one in of_type(world.proposed, FenceBroker) if one.broker == "c"]
    assert 2 <= len(fences) <= 3


def test_broker_that_does_not_lead_fences_nobody(world):
    world.follow()
    world.advance(5_000)
    assert world.fenced() == set()
    assert not world.control.is_leader


# -- own session ------------------------------------------------------------------------------


def test_follower_sends_heartbeats_to_the_metadata_leader():
    world = World()
    world.follow("b")
    world.advance(1_000, step=50)
    beats = [(to, body) for to, body, _ in world.sent if isinstance(body, Heartbeat)]
    assert {to for to, _ in beats} == {"b"}
    assert 6 <= len(beats) <= 8


def test_broker_fences_itself_a_session_after_it_sent_what_was_answered():
    world = World()
    world.follow("b")
    world.advance(100)
    number = world.sent[-1][2]
    sent_at = world.now
    world.advance(1_000)
    epoch = world.state.brokers["a"].broker_epoch
    reply = HeartbeatReply(epoch, "start-a", is_fenced=False, should_shutdown=False, term=7)
    world.hear("b", reply, correlation_id=number)
    assert not world.control.session.is_fenced
    assert not world.control.session.is_self_fenced(sent_at + SESSION - 1)
    assert world.control.session.is_self_fenced(sent_at + SESSION)


def test_answer_to_another_registration_does_not_count():
    world = World()
    world.follow("b")
    world.advance(100)
    number = world.sent[-1][2]
    answered_at = world.control.session.answered_at
    world.advance(500)
    reply = HeartbeatReply(99_999, "start-a", is_fenced=False, should_shutdown=False, term=7)
    world.hear("b", reply, correlation_id=number)
    assert world.control.session.answered_at == answered_at
    assert world.control.session.is_fenced


def test_leader_answers_its_own_heartbeats(world):
    world.advance(5_000, "b", "c")
    assert not world.control.session.is_self_fenced(world.now)
    assert not [to for to, _, _ in world.sent if to == "a"]


def test_controlled_shutdown_ends_when_others_took_over_and_know_it(world):
    world.create(replication_factor=3)
    leader = next(world.state.partitions())[1].leader
    other = "c" if leader == "b" else "b"
    stopping = leader if leader != "a" else other
    third = "c" if stopping == "b" else "b"
    world.beat(stopping, want_shutdown=True)
    assert of_type(world.proposed, ShutDownBroker)
    assert next(world.state.partitions())[1].leader != stopping
    behind = world.state.brokers[stopping].controlled_shutdown_index - 1
    world.beat(third, applied_index=behind)
    world.beat(stopping, want_shutdown=True)
    assert not world.sent[-1][1].should_shutdown
    world.beat(third)
    world.advance(200, stopping, third)
    world.beat(stopping, want_shutdown=True)
    assert world.sent[-1][1].should_shutdown


def test_different_hash_at_an_equal_index_is_told(world):
    """R18: brokers that came to different states by the same commands are found out."""
    world.beat("b", applied_hash=b"\x01" * 8)
    assert [kind for kind, _ in world.transitions] == ["metadata_diverged"]


# -- reports ----------------------------------------------------------------------------------


def silence(world, number):
    partition = world.state.partition(number)
    return Silence(
        number, partition.leader, partition.leader_epoch, partition.partition_epoch, SESSION
    )


def test_majority_of_followers_replaces_a_leader(world):
    number = world.create(replication_factor=3)
    leader = world.state.partition(number).leader
    followers = [one for one in "abc" if one != leader]
    told = silence(world, number)
    for follower in followers:
        assert world.state.partition(number).leader == leader
        if follower == "a":
            world.control.report([told], world.now)
        else:
            world.hear(follower, LeaderReport((told,)))
    assert of_type(world.proposed, ChangeLeader)
    assert world.state.partition(number).leader != leader


def test_report_goes_to_the_metadata_leader():
    world = World()
    world.follow("c")
    number = 1 << 24
    world.control.report([Silence(number, "b", 3, 3, SESSION)], world.now)
    assert world.sent[-1][0] == "c"
    assert isinstance(world.sent[-1][1], LeaderReport)


# -- unclean recovery -------------------------------------------------------------------------


def lose(world):
    """A partition on `b` and `c` whose replicas both stop uncleanly; returns its id."""
    number = world.create(replication_factor=3, overrides=StreamOverrides(min_isr=2))
    for name in "bca":
        world.apply(FenceBroker(broker=name, broker_epoch=world.state.brokers[name].broker_epoch))
    for name in "abc":
        world.apply(
            RegisterBroker(
                broker=name,
                incarnation_id=f"again-{name}",
                data_dir_id=f"dir-{name}",
                feature_level=1,
            )
        )
    partition = world.state.partition(number)
    assert not partition.isr
    assert not partition.elr
    assert len(partition.last_known_elr) == 2
    return number


def test_partition_without_candidates_is_recovered_when_all_were_asked(world):
    number = lose(world)
    asked = world.state.partition(number).last_known_elr
    world.sent.clear()
    world.advance(100)
    questions = [to for to, body, _ in world.sent if isinstance(body, LogInfoRequest)]
    assert sorted(questions) == sorted(asked)
    first, second = asked
    world.hear(first, LogInfoReply((LogInfo(number, 5, 10),)))
    assert not of_type(world.proposed, RecoverUnclean)
    world.hear(second, LogInfoReply((LogInfo(number, 5, 12),)))
    assert of_type(world.proposed, RecoverUnclean)[0].chosen == second


def test_question_is_repeated_until_it_is_answered(world):
    lose(world)
    world.sent.clear()
    world.advance(1_200)
    questions = [to for to, body, _ in world.sent if isinstance(body, LogInfoRequest)]
    assert len(questions) >= 4


def test_answer_of_a_former_session_is_not_counted(world):
    number = lose(world)
    world.advance(100)
    for one in world.state.partition(number).last_known_elr:
        world.hear(one, LogInfoReply((LogInfo(number, 5, 10),)), epoch=1)
    assert not of_type(world.proposed, RecoverUnclean)


def test_broker_answers_for_its_logs():
    world = World()
    number = 1 << 24
    world.logs[number] = LogInfo(number, 4, 20)
    world.hear("b", LogInfoRequest((number, number + 1)))
    assert world.sent[-1][:2] == ("b", LogInfoReply((LogInfo(number, 4, 20),)))


# -- upkeep -----------------------------------------------------------------------------------


def test_broker_that_joins_becomes_a_learner_and_then_a_voter(world):
    world.group.voters = [peer("a"), peer("b"), peer("c")]
    world.hear("d", Join("dir-d", as_voter=True))
    assert world.group.learners == [peer("d")]
    world.advance(1_100, "b", "c")
    assert world.group.learners == [peer("d")], "it is not registered yet"
    world.register("d")
    world.beat("d")
    world.advance(1_100, "b", "c", "d")
    assert peer("d") in world.group.voters


def test_votes_are_bounded():
    world = World("abcd", voters_max=3)
    world.control.session.want_fence = False
    world.group.voters = [peer("a"), peer("b"), peer("c")]
    world.group.learners = [peer("d")]
    world.lead()
    world.advance(3_000, "b", "c", "d")
    assert world.group.learners == [peer("d")]


def test_wiped_broker_takes_the_place_of_its_former_identity(world):
    world.group.voters = [peer("a"), peer("b"), peer("c")]
    world.advance(2_500, "b")
    world.hear("c", Join("wiped", as_voter=True), epoch=0)
    world.advance(2_500, "b")
    assert world.group.learners == [Peer("c", "wiped")], "it is not registered yet"
    world.register("c", data_dir_id="wiped")
    world.advance(150, "b", "c")
    assert world.group.voters == [peer("a"), peer("b"), Peer("c", "wiped")], "at once"


def test_refused_change_of_the_group_is_tried_again(world):
    world.group.voters = [peer("a"), peer("b")]
    world.group.learners = [peer("c")]
    world.group.is_refusing = True
    world.advance(1_500, "b", "c")
    assert world.group.learners == [peer("c")]
    world.group.is_refusing = False
    world.advance(1_500, "b", "c")
    assert world.group.learners == []


def test_controller_with_a_full_disk_hands_over_now_and_then(world):
    world.group.voters = [peer("a"), peer("b"), peer("c")]
    world.lead()
    world.beat("a", "b", "c")
    world.advance(2_000, "b", "c")
    assert world.group.asked == []
    world.group.is_full = True
    world.advance(2_000, "b", "c")
    assert world.group.asked == ["c"]
    world.advance(30_000, "b", "c")
    assert world.group.asked == ["c", "c"]


def test_leaderships_go_back_to_the_first_replica():
    world = World("bca", balance_ns=5_000 * MILLISECOND_NS)
    world.control.session.want_fence = False
    world.lead()
    world.advance(300, "b", "c")
    number = world.create(replication_factor=3)
    first = world.state.partition(number).leader
    epoch = world.state.partition(number).leader_epoch
    resigned = Leadership(number, epoch)
    broker_epoch = world.state.brokers[first].broker_epoch
    world.apply(Resign(broker=first, broker_epoch=broker_epoch, partitions=(resigned,)))
    assert world.state.partition(number).leader != first
    assert first in world.state.partition(number).isr
    world.advance(6_000, "b", "c")
    assert of_type(world.proposed, ElectPreferred)
    assert world.state.partition(number).leader == first


def test_replicas_leave_a_broker_that_is_drained():
    world = World("abcd")
    world.control.session.want_fence = False
    world.lead()
    world.advance(300, "b", "c", "d")
    number = world.create(replication_factor=3)
    drained = world.state.partition(number).replicas[1]
    world.apply(CordonBroker(broker=drained, draining=True))
    world.advance(1_500, *(one for one in "bcd"))
    moves = of_type(world.proposed, StartReassignment)
    assert moves[0].partition_id == number
    assert drained not in moves[0].target


def test_message_of_another_plane_is_left_to_others(world):
    assert not world.hear("b", object())


def test_own_fencing_is_known_when_it_is_applied(world):
    epoch = world.state.brokers["a"].broker_epoch
    assert not world.control.session.is_fenced
    world.apply(FenceBroker(broker="a", broker_epoch=epoch))
    assert world.control.session.is_fenced


# -- cluster time -----------------------------------------------------------------------------


def beating(world, wall_ns):
    index = world.state.applied_index
    return Heartbeat(index, b"", want_fence=False, want_shutdown=False, wall_ns=wall_ns)


@pytest.mark.parametrize(
    ("voters", "clocks", "date"),
    [("a", {}, 7), ("ab", {}, 0), ("abc", {"b": 10**15}, 7), ("abc", {"b": 10**15, "c": 12}, 12)],
)
def test_leader_tells_the_date_of_a_majority_of_the_voters(world, voters, clocks, date):
    world.group.voters += map(peer, voters)
    world.now += 200 * MILLISECOND_NS
    world.wall_ns = 7
    for name, wall_ns in clocks.items():
        world.hear(name, beating(world, wall_ns))
    world.control.on_timer(world.now)
    world.sent.clear()
    world.hear("c", beating(world, 0))
    ((_, reply, _),) = world.sent
    assert (reply.cluster_time_ns, reply.is_upper_bound) == (date, len(clocks) == 2)


@pytest.mark.parametrize(("late_ms", "date"), [(800, 10**18), (1_001, None)])
def test_date_of_the_leader_counts_unless_the_answer_took_long(world, late_ms, date):
    world.follow()
    world.advance(200)
    number = [number for _, body, number in world.sent if isinstance(body, Heartbeat)][-1]
    epoch = world.state.brokers["a"].broker_epoch
    reply = HeartbeatReply(
        epoch,
        "",
        is_fenced=False,
        should_shutdown=False,
        term=1,
        cluster_time_ns=10**18,
        is_believed=True,
    )
    world.now += late_ms * MILLISECOND_NS
    world.hear("b", reply, correlation_id=number)
    assert world.clock.time_for_age(world.now) == date
