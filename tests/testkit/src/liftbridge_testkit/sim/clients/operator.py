"""Operator of a metadata group: adds, promotes and removes members, transfers leadership."""

from dataclasses import dataclass, field
from random import Random
from typing import cast

from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import Instant
from liftbridge_broker.model.metadata_log import Peer
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_testkit.sim.clients.calls import Answer, Calls, Lost, Serving
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.voter import Voter, peer_of
from liftbridge_testkit.sim.world import World

PACE_NS = 400 * MILLISECOND_NS


@dataclass(slots=True)
class Operator:
    """One operator from `start` on; takes one step at a time at the present leader.

    Attributes:
        size_min: Minimum number of voters that a needless removal leaves.
        is_calm: Whether it only adds machines to the group.
    """

    world: World
    calls: Calls
    size_min: int
    is_calm: bool = False
    _random: Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = self.world.new_random()

    def start(self) -> None:
        """Begin."""
        self.world.scheduler.after(self._random.randrange(1, PACE_NS), self._go)

    def _go(self) -> None:
        leader = self._leader()
        if leader is not None:
            self._step(leader)
        self.start()

    def _voters(self) -> list[tuple[Machine, Voter]]:
        return [
            (machine, cast("Voter", machine.program))
            for machine in self.world.machines.values()
            if machine.program is not None and machine.program.is_ready
        ]

    def _leader(self) -> Machine | None:
        leading = [
            (one.consensus.term, machine)
            for machine, one in self._voters()
            if one.consensus.is_leader
        ]
        return max(leading, key=lambda pair: pair[0])[1] if leading else None

    def is_settled(self) -> bool:
        """Return whether one leader has all machines, with their present disks, as voters."""
        leader = self._leader()
        if leader is None:
            return False
        voters = cast("Voter", leader.program).consensus.voters
        return sorted(voters) == sorted(self._wanted())

    def _wanted(self) -> list[Peer]:
        return [
            peer_of(machine.name, machine.disk_number) for machine in self.world.machines.values()
        ]

    def _step(self, leader: Machine) -> None:
        def serve(serving: Serving, _now: Instant, _wall_ns: int, answer: Answer) -> None:
            voter = cast("Voter", serving)
            voter.act(lambda: answer(self._act(voter)))

        def done(outcome: object) -> None:
            if not isinstance(outcome, LiftbridgeError | Lost) and outcome:
                self.world.coverage.count("admin", str(outcome))
                self.world.trace.note(self.world.now, "operator", str(outcome))

        self.calls.call("operator", leader, serve, done)

    def _act(self, voter: Voter) -> str:
        """Take one step at a leader. Return its name, empty for none."""
        consensus = voter.consensus
        if not consensus.is_leader:
            return ""
        wanted = self._wanted()
        members = (*consensus.voters, *consensus.learners)
        for peer in members:
            if peer not in wanted:
                consensus.remove(peer)
                return "former disk removed"
        for peer in wanted:
            if peer not in members:
                consensus.add_learner(peer)
                return "learner added"
        for peer in consensus.learners:
            consensus.promote(peer)
            return "learner promoted"
        if self.is_calm:
            return ""
        return self._disturb(voter)

    def _disturb(self, voter: Voter) -> str:
        """Make a needless change: transfer leadership or remove a member."""
        consensus, random = voter.consensus, self._random
        kind = random.randrange(20)
        if kind == 0 and len(consensus.voters) > self.size_min:
            consensus.remove(random.choice(consensus.voters))
            return "voter removed"
        if kind < 3:
            consensus.transfer(random.choice(consensus.voters).broker)
            return "leadership handed over"
        return ""
