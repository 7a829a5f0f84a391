"""Faults and their times: a random subset of fault kinds for each seed (swarm testing).

A kind (`sim/breaking`) begins a fault and returns a function that ends it, or happens at once. A
supervisor restarts every process that ended. The *atlas* keeps faults within the promise of
durability: it must allow every permanent loss.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_testkit.sim.breaking import KINDS
from liftbridge_testkit.sim.breaking.parts import Atlas, FaultPlan, Undo, nothing
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.world import Watcher, World

REFUSED_MAX = 3
"""Consecutive failed starts after which an operator replaces a disk."""


@dataclass(slots=True)
class Faults(Watcher):
    """Injects faults from `start` until `heal`; also the supervisor of all processes.

    Attributes:
        coordinating: Returns the machines that coordinate consumer groups.
        is_over: Whether faults have ended; processes are still restarted.
    """

    world: World
    plan: FaultPlan
    atlas: Atlas
    coordinating: Callable[[], list[Machine]] = list
    is_over: bool = False
    random: Random = field(init=False)
    _lasting: dict[int, Undo] = field(default_factory=dict)
    _last: int = 0
    _refused: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = self.world.new_random()

    def start(self) -> None:
        """Begin to inject faults."""
        if self.plan.kinds:
            self._later()

    def _later(self) -> None:
        self.world.scheduler.after(self.random.randrange(self.plan.pace_ns), self._go)

    def _go(self) -> None:
        if self.is_over:
            return
        self.begin(self.random.choice(self.plan.kinds))
        self._later()

    def begin(self, kind: str) -> bool:
        """Begin one fault of this kind. Return whether there was a target."""
        undo = KINDS[kind](self)
        if undo is None:
            return False
        self.world.coverage.count("fault", kind)
        self.world.trace.note(self.world.now, "fault", kind)
        if undo is not nothing:
            self._last += 1
            self._lasting[self._last] = undo
            duration = self.random.randrange(MILLISECOND_NS, self.plan.duration_ns)
            self.world.scheduler.after(duration, self._end, self._last, kind)
        return True

    def _end(self, number: int, kind: str) -> None:
        undo = self._lasting.pop(number, None)
        if undo is not None:
            self.world.trace.note(self.world.now, "fault", "end of", kind)
            undo()

    def heal(self) -> None:
        """Stop all faults and repair everything."""
        self.is_over = True
        self.world.is_stormy = False
        for number in list(self._lasting):
            self._lasting.pop(number)()
        self.world.network.heal()
        for machine in self.world.machines.values():
            machine.files.mend()
            machine.resume()
            machine.start()

    # Watcher: the supervisor.

    def on_process_end(self, machine: Machine, reason: str, lost_bytes: int) -> None:
        """Restart the process after a while; replace a disk that it keeps refusing."""
        del lost_bytes
        if reason == "failed" and machine.started_at == self.world.now:
            refused = self._refused.get(machine.name, 0) + 1
            if refused >= REFUSED_MAX and self.atlas.may_replace(machine):
                self.world.coverage.rare("damaged disk replaced")
                machine.wipe()
                refused = 0
            self._refused[machine.name] = refused
        else:
            self._refused[machine.name] = 0
        longest = self.plan.restart_ns if not self.is_over else 100 * MILLISECOND_NS
        delay = self.random.randrange(longest)
        self.world.scheduler.after(delay, self._restart, machine, machine.incarnation)

    def _restart(self, machine: Machine, incarnation: int) -> None:
        if machine.incarnation == incarnation:
            machine.start()

    # Port `Breaking`.

    def any_running(self) -> Machine | None:
        """Return a machine whose process runs and is not paused, if one more may be down."""
        machines = list(self.world.machines.values())
        active = [machine for machine in machines if machine.is_running and not machine.is_paused]
        if len(machines) - len(active) >= self.plan.down_max:
            return None
        return self.random.choice(active) if active else None

    def any_leading(self) -> Machine | None:
        """Return a machine that leads a partition; `None` when none may go down."""
        if self.any_running() is None:
            return None
        leading = [one for one in self.atlas.leading() if one.is_running and not one.is_paused]
        return self.random.choice(leading) if leading else None

    def any_coordinating(self) -> Machine | None:
        """Return a machine that coordinates a consumer group; `None` when none may go down."""
        if self.any_running() is None:
            return None
        found = [one for one in self.coordinating() if one.is_running and not one.is_paused]
        return self.random.choice(found) if found else None

    def any_machine(self) -> Machine:
        """Return any machine, running or not."""
        return self.random.choice(list(self.world.machines.values()))

    def pair(self) -> tuple[str, str] | None:
        """Return two machines."""
        names = list(self.world.machines)
        if len(names) < 2:
            return None
        one, other = self.random.sample(names, 2)
        return one, other
