"""The invariants of access rules and positions see the one thing that each of them is there for."""

from dataclasses import dataclass, field

import pytest

from liftbridge_broker.access.principals import Principal
from liftbridge_broker.access.rules import AccessRule, NameMatch, Operation, ResourceKind
from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.config.options import AccessOptions
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.model.ids import MetadataIndex, PartitionId
from liftbridge_broker.model.units import MILLISECOND_NS, SECOND_NS
from liftbridge_testkit.sim.broken import BrokenInvariantError
from liftbridge_testkit.sim.clients.client_end import ClientEnd
from liftbridge_testkit.sim.invariants.access import (
    REVOKED_NS,
    AccessRules,
    Act,
    RulesInForce,
    Running,
)
from liftbridge_testkit.sim.invariants.groups import GroupRules, Hold
from liftbridge_testkit.sim.trace import Trace
from liftbridge_testkit.sim.world import World

ANN = Principal("ann")
READ = (Act(Operation.READ, ResourceKind.STREAM, "s"),)
RULE = AccessRule(
    principal="ann",
    is_group=False,
    kind=ResourceKind.STREAM,
    match=NameMatch.EXACT,
    name="s",
    is_denied=False,
    operations=int(Operation.READ),
)
HERE = PartitionId(1 << 24)


@dataclass
class Settings:
    access: AccessOptions = field(default_factory=AccessOptions)


@dataclass
class Consensus:
    is_leader: bool
    term: int = 1


@dataclass
class Broker:
    """A broker as far as the invariants look at it."""

    consensus: Consensus
    state: ClusterState = field(default_factory=ClusterState)
    settings: Settings = field(default_factory=Settings)
    is_open: bool = True
    is_ready: bool = True

    @property
    def node(self) -> "Broker":
        return self


@dataclass
class Bench:
    """Two machines, of which the first leads the metadata."""

    world: World = field(default_factory=lambda: World(1, Trace()))

    def __post_init__(self) -> None:
        self.rules = AccessRules(self.world)
        self.brokers = [Broker(Consensus(is_leader=name == "a")) for name in "ab"]
        for name, broker in zip("ab", self.brokers, strict=True):
            machine = self.world.add_machine(name, lambda _ports: pytest.fail("not started"))
            machine.program = broker  # type: ignore[assignment] # all that is looked at
            machine.endpoint = self.world.network.add(name, machine)
        self.machines = list(self.world.machines.values())

    def turn(self, number: int = 0) -> None:
        self.rules.on_turn(self.machines[number])

    def apply(self, index: int, *operations: int, number: int = 0) -> None:
        """Apply a change of the rule on one broker, whose turn then ends."""
        state = self.brokers[number].state
        state.applied_index = MetadataIndex(index)
        state.access.is_on = True
        for one in operations:
            state.access.rules.put(RULE._replace(operations=int(one)))
        self.rules.on_applied(self.machines[number])
        self.turn(number)

    def decide(self, *, is_denied: bool) -> None:
        self.rules.decided(self.machines[0], ANN, READ, is_denied=is_denied)

    def wait(self, nanoseconds: int) -> None:
        """Let time pass, with a turn now and then."""
        until = self.world.now + nanoseconds
        while self.world.now < until:
            self.world.run_until(min(until, self.world.now + 100 * MILLISECOND_NS))
            self.turn()


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    for number in (0, 1):
        bench.apply(1, number=number)
    return bench


def expect_broken(name: str) -> "pytest.RaisesExc[BrokenInvariantError]":
    return pytest.raises(BrokenInvariantError, match=f"^{name}: ")


def test_what_is_done_needs_a_rule(bench: Bench) -> None:
    bench.decide(is_denied=True)
    with expect_broken("nothing without a rule"):
        bench.decide(is_denied=False)
    bench.apply(2, Operation.READ)
    bench.decide(is_denied=False)
    with expect_broken("what rules allow is not refused"):
        bench.decide(is_denied=True)


@pytest.mark.parametrize(
    ("match", "name", "is_part"),
    [
        (NameMatch.EXACT, "s", True),
        (NameMatch.EXACT, "s.t", False),
        (NameMatch.PREFIX, "", True),
        (NameMatch.PREFIX, "s", True),
        (NameMatch.PATTERN, ">", True),
        (NameMatch.PATTERN, "*.t", False),
    ],
)
def test_a_pattern_needs_that_nothing_it_matches_is_denied(
    match: NameMatch, name: str, *, is_part: bool
) -> None:
    allowed = RULE._replace(match=NameMatch.PREFIX, name="")
    denied = RULE._replace(match=match, name=name, is_denied=True)
    rules = RulesInForce(is_closed=True, rules=(allowed, denied))
    pattern = Act(Operation.READ, ResourceKind.STREAM, "*")
    assert rules.allow(ANN, (pattern,)) is not is_part
    assert rules.allow(ANN, (pattern._replace(operation=Operation.DESCRIBE),))
    assert rules.allow(Principal("bob"), (pattern,)) is False


def test_rules_of_the_turn_count_and_no_older_ones(bench: Bench) -> None:
    bench.apply(2, Operation.READ)
    bench.brokers[0].state.access.rules.put(RULE._replace(operations=0))
    bench.decide(is_denied=False)  # the gate may not know yet, within the turn
    bench.decide(is_denied=True)
    bench.turn()
    with expect_broken("nothing without a rule"):
        bench.decide(is_denied=False)


def test_a_broker_whose_settings_ask_for_it_is_closed_before_the_metadata_say_so() -> None:
    bench = Bench()
    bench.decide(is_denied=False)
    bench.brokers[0].settings.access = AccessOptions(is_enabled=True)
    with expect_broken("nothing without a rule"):
        bench.decide(is_denied=False)


def test_a_running_call_ends_in_the_turn_that_brings_its_revocation(bench: Bench) -> None:
    bench.apply(2, Operation.READ)
    end = ClientEnd(lambda _frames: None, lambda _code, _text, _error: None)
    call = Call(end, 1, method="", peer="", deadline=None)
    bench.rules.begins(bench.machines[0], Running(call, ANN, READ))
    bench.turn()
    with expect_broken("no call goes on without a right"):
        bench.apply(3, 0)
    bench.apply(4, Operation.READ)
    bench.rules.ends(bench.machines[0], call)
    bench.apply(5, 0)


def test_a_connected_broker_has_the_rules_in_time(bench: Bench) -> None:
    bench.apply(2, Operation.READ)
    bench.wait(REVOKED_NS)
    with expect_broken("rules are in force within 2 s"):
        bench.wait(SECOND_NS)
    bench.apply(2, Operation.READ, number=1)
    bench.wait(2 * REVOKED_NS)


@pytest.mark.parametrize("hold_up", ["cut", "slow", "pause", "busy", "nobody leads", "down"])
def test_a_broker_that_is_held_up_has_the_whole_time_after_it(bench: Bench, hold_up: str) -> None:
    network, behind = bench.world.network, bench.machines[1]
    bench.apply(2, Operation.READ)
    bench.wait(SECOND_NS)
    match hold_up:
        case "cut":
            network.cut("a", "b")
        case "slow":
            network.slow("b", "a", SECOND_NS)
        case "pause":
            behind.is_paused = True
        case "busy":
            behind.disk_free_at = bench.world.now + 9 * SECOND_NS
        case "nobody leads":
            bench.brokers[0].consensus.is_leader = False
        case _:
            bench.brokers[1].is_ready = False
    bench.wait(2 * REVOKED_NS)
    network.heal()
    behind.is_paused, behind.disk_free_at = False, 0
    bench.brokers[0].consensus.is_leader = bench.brokers[1].is_ready = True
    bench.wait(REVOKED_NS)
    with expect_broken("rules are in force within 2 s"):
        bench.wait(SECOND_NS)


def _groups() -> GroupRules:
    groups = GroupRules(World(1, Trace()))
    groups.holds["g", HERE] = [
        Hold(("one", 5), 10, 20),
        Hold(("two", 6), 20, 30),
        Hold(("one", 5), 30),
    ]
    groups.marks = dict(enumerate(groups.holds["g", HERE] * 2, 1))
    return groups


def test_a_commit_of_a_fenced_member_is_accepted_only_while_its_end_was_unknown() -> None:
    groups = _groups()
    for mark, since in ((1, 19), (2, 29), (3, 99)):
        groups.committed(mark, since=since)
    for mark, since in ((1, 20), (1, 35), (2, 30)):
        with expect_broken("no commit by a fenced member"):
            groups.committed(mark, since=since)


def test_a_position_is_that_of_the_hold_in_which_it_was_taken() -> None:
    groups = _groups()
    assert groups.next_mark("g", HERE, ("one", 5)) == 7
    assert groups.marks[7] is groups.holds["g", HERE][2]
    assert groups.marks[groups.next_mark("g", HERE, ("one", 4))] is None
    with expect_broken("no commit by a fenced member"):
        groups.committed(8, since=1)


def test_only_later_holds_go_on_from_a_reset() -> None:
    groups = _groups()  # positions 1 and 4, 2 and 5, 3 and 6 are of one hold
    groups._top = 20
    reset = groups.next_reset()
    groups.reset_arrived(reset)
    groups._check_order(b"k", [(1, 5), (1, reset), (1, 2), (1, 6)])
    with expect_broken("only later members go on from a reset"):
        groups._check_order(b"k", [(1, 5), (1, reset), (1, 1)])
    with expect_broken("nobody reads where a position is reset"):
        groups.reset_done("g", HERE, reset, 30)
    groups.holds["g", HERE][2].end = 40
    groups.reset_done("g", HERE, reset, 40)
    groups._check_order(b"k", [(1, 6), (1, reset)])
    with expect_broken("only later members go on from a reset"):
        groups._check_order(b"k", [(1, reset), (1, 6)])  # it came and left meanwhile


def test_a_position_goes_back_only_within_a_hold_and_by_a_call_without_an_answer() -> None:
    groups = _groups()  # positions 1 and 4, 2 and 5, 3 and 6 are of one hold
    groups._check_order(b"k", [(1, 1), (1, 4), (1, 5), (1, 2), (2, 1), (1, 6)])
    for late, former in ((1, 2), (1, 3), (2, 6)):
        with expect_broken("no commit by a fenced member"):
            groups._check_order(b"k", [(1, former), (1, late)])
    groups.answered(6)
    groups._check_order(b"k", [(1, 6), (1, 3)])
    groups.answered_at[2] = 4
    with expect_broken("a committed position never goes back"):
        groups._check_order(b"k", [(1, 5), (1, 2)])
