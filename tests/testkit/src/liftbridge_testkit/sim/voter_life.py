"""Runs of a metadata group: voters, proposals, reads, membership changes, faults.

The promise of a group: an answered command is in the log once, at the index in the answer, after
everything answered before its proposal. A refused command is not in the log. A read sees everything
answered before it. One voter may lose its disk when all others are well.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import cast

from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.model.metadata_log import Configuration
from liftbridge_broker.model.units import MILLISECOND_NS, SECOND_NS
from liftbridge_broker.node.metadata.consensus import RaftConsensus
from liftbridge_testkit.sim.breaking.parts import FaultPlan
from liftbridge_testkit.sim.clients.calls import Calls
from liftbridge_testkit.sim.clients.operator import Operator
from liftbridge_testkit.sim.clients.proposers import Proposals, Proposer
from liftbridge_testkit.sim.faults import Faults
from liftbridge_testkit.sim.invariants.controller import ControllerRules
from liftbridge_testkit.sim.invariants.raft import RaftRules
from liftbridge_testkit.sim.life import Turns, wait_for
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.rare import GroupPoints
from liftbridge_testkit.sim.trace import Trace
from liftbridge_testkit.sim.voter import Voter, VoterSettings, peer_of
from liftbridge_testkit.sim.world import World

FAULTS = (
    "kill",
    "leader killed",
    "kill all",
    "crash losing all",
    "crash losing some",
    "crash within a turn",
    "pause",
    "leader paused",
    "loop stall",
    "controlled shutdown",
    "stop all",
    "rolling restart",
    "clock jump",
    "clock drift",
    "cut between two",
    "cut one way",
    "one isolated",
    "leader isolated",
    "split",
    "swizzle",
    "slow link",
    "NATS link",
    "flapping link",
    "NATS outage",
    "slow disk",
    "EIO on append",
    "EIO on fsync",
    "EIO on rename",
    "disk full",
    "bit rot",
    "wiped disk",
)
NAMES = ("a", "b", "c", "d", "e", "f")


def voter_on(machine: Machine) -> Voter | None:
    """Return the member on a machine, if it is active."""
    program = machine.program
    return cast("Voter", program) if program is not None and program.is_ready else None


def state_on(machine: Machine) -> ClusterState | None:
    """Return the state of the member on a machine."""
    voter = voter_on(machine)
    return None if voter is None else voter.driver.state


def consensus_on(machine: Machine) -> RaftConsensus | None:
    """Return the consensus of the member on a machine."""
    voter = voter_on(machine)
    return None if voter is None else voter.consensus


@dataclass(slots=True)
class GroupAtlas:
    """Losses that a group must tolerate: unsynced data; one whole disk when all others are well."""

    world: World

    def may_lose(self, machine: Machine) -> bool:
        """Return true: unsynced data are not promised."""
        del machine
        return True

    def may_damage(self, machine: Machine) -> bool:
        """Return whether every other machine runs, votes with its present disk, and has caught up.

        The others then have a majority, unless it is one of two voters.
        """
        leader = self._leader()
        if leader is None:
            return False
        voters = leader.consensus.voters
        if peer_of(machine.name, machine.disk_number) in voters and len(voters) < 3:
            return False
        top = leader.consensus.core.log.commit
        for other in self.world.machines.values():
            if other is machine:
                continue
            peer = peer_of(other.name, other.disk_number)
            match = leader.consensus.match(peer)
            is_well = voter_on(other) is not None and not other.is_paused
            if not is_well or peer not in voters or match is None or match < top:
                return False
        return leader.consensus.core.log.is_configuration_committed

    may_replace = may_refuse_reads = may_damage

    def leading(self) -> list[Machine]:
        """Return the machines that consider themselves leader."""
        return [
            machine
            for machine in self.world.machines.values()
            if (voter := voter_on(machine)) is not None and voter.consensus.is_leader
        ]

    def _leader(self) -> Voter | None:
        """Return the leader of the highest term."""
        voters = [voter_on(machine) for machine in self.world.machines.values()]
        leading = [voter for voter in voters if voter is not None and voter.consensus.is_leader]
        return max(leading, key=lambda one: one.consensus.term, default=None)


@dataclass(slots=True)
class GroupLife:
    """A group with its clients; implements `Run`.

    Attributes:
        world: The world.
        rules: Invariants, with the true log.
        proposals: Proposals and their outcomes.
        turns: Counter of turns.
    """

    world: World
    events_max: int
    time_max_ns: int
    faults: Faults
    rules: RaftRules
    proposals: Proposals
    proposers: list[Proposer]
    operator: Operator
    turns: Turns = field(default_factory=Turns)

    def run(self) -> None:
        """Run the safety and liveness phases, and compare the log with all answers.

        Raises:
            BrokenInvariantError: A promise is broken.
        """
        world = self.world
        for machine in world.machines.values():
            world.scheduler.after(world.random.randrange(200 * MILLISECOND_NS), machine.start)
        for proposer in self.proposers:
            proposer.start()
        self.operator.start()
        self.faults.start()
        last = self.turns.count + self.events_max
        world.run_while(lambda: self.turns.count < last, at_most_ns=self.time_max_ns)
        self._recover()
        self.proposals.check(self.rules)
        for watcher in world.watchers:
            watcher.on_end()

    def _recover(self) -> None:
        self.world.trace.note(self.world.now, "world", "heal")
        self.faults.heal()
        self.operator.is_calm = True
        for proposer in self.proposers:
            proposer.stop()
        self._expect("every member votes", self.operator.is_settled)
        probe = self.proposers[0].probe()
        self._expect("a command answered", lambda: probe.index > 0)
        self._expect("outcomes of all proposals", lambda: not self.proposals.open_count)
        self._expect("one state everywhere", self._is_converged)

    def _is_converged(self) -> bool:
        states = [state_on(machine) for machine in self.world.machines.values()]
        known = [state for state in states if state is not None]
        tops = {(state.applied_index, state.chain) for state in known}
        return len(known) == len(states) and len(tops) == 1

    def _expect(self, what: str, happens: Callable[[], bool]) -> None:
        wait_for(self.world, self.turns, what, happens)


def make_group_life(seed: int, trace: Trace) -> GroupLife:
    """Draw a run from a seed."""
    world = World(seed, trace)
    random = world.new_random()
    first = NAMES[: random.choice((3, 3, 3, 5))]
    machines = NAMES[: len(first) + random.choice((0, 0, 1))]
    settings = VoterSettings(
        bootstrap=Configuration(tuple(peer_of(name, 0) for name in first)),
        snapshot_entries=random.choice((10, 50, 400)),
    )
    for name in machines:
        machine = world.add_machine(name, lambda ports: Voter(ports, settings))
        # A machine that does not exist from the beginning waits for admission.
        machine.disk_number = 0 if name in first else 1
    draw_conditions(world, random)
    kinds = tuple(kind for kind in FAULTS if random.random() < 0.45)
    plan = FaultPlan(
        kinds=kinds,
        pace_ns=random.choice((300, 1_000, 3_000)) * MILLISECOND_NS,
        duration_ns=random.choice((300, 3_000, 10_000)) * MILLISECOND_NS,
        restart_ns=random.choice((100, 3_000)) * MILLISECOND_NS,
        down_max=random.choice((1, 1, 2, len(machines))),
        rot_files="metadata/*",
    )
    faults = Faults(world, plan, GroupAtlas(world))
    rules = RaftRules()
    calls = Calls(world)
    proposals = Proposals(world)
    think_ns = random.choice((20, 100, 500)) * MILLISECOND_NS
    life = GroupLife(
        world,
        events_max=random.choice((3_000, 6_000)),
        time_max_ns=180 * SECOND_NS,
        faults=faults,
        rules=rules,
        proposals=proposals,
        proposers=[Proposer(world, calls, proposals, think_ns) for _ in range(2)],
        operator=Operator(world, calls, size_min=len(first)),
    )
    world.watchers += [
        life.turns,
        rules,
        ControllerRules(state_on, world.coverage),
        GroupPoints(world, consensus_on),
        faults,
    ]
    return life


def draw_conditions(world: World, random: Random) -> None:
    """Draw the swarm options of the network."""
    conditions = world.network.conditions
    conditions.loss_ppm = random.choice((0, 0, 10_000, 100_000))
    conditions.duplicate_ppm = random.choice((0, 0, 10_000, 50_000))
    conditions.reorder_ppm = random.choice((0, 0, 10_000, 50_000))
    conditions.corrupt_ppm = random.choice((0, 0, 0, 5_000))
    conditions.spike_ppm = random.choice((0, 0, 20_000))
    conditions.delay_ns_jitter = random.choice((200_000, 5_000_000, 40_000_000))
