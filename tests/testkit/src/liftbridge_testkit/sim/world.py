"""The world of one run: time, network, machines, and observers.

Watchers see the true state of everything after every turn of a process, whatever that process
believes, and say what is wrong by raising `BrokenInvariantError`.
"""

from collections.abc import Callable, Mapping
from random import Random

from liftbridge_broker.model.ids import BrokerId
from liftbridge_testkit.sim.clock import MachineClock
from liftbridge_testkit.sim.coverage import Coverage
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.network import Network
from liftbridge_testkit.sim.program import MakeProgram
from liftbridge_testkit.sim.scheduler import SECOND_NS, Scheduler
from liftbridge_testkit.sim.trace import Trace


class Watcher:
    """Looks at the true state of the world; what a watcher does not care for does nothing."""

    def on_turn(self, machine: Machine) -> None:
        """A process had a turn; cheap, because it is called after every one."""

    def on_transition(self, machine: Machine, kind: str, fields: Mapping[str, object]) -> None:
        """A process told a transition, in the middle of a turn."""

    def on_applied(self, machine: Machine) -> None:
        """A process applied one change of the metadata and has not acted on it."""

    def on_append(self, machine: Machine, path: str, data: bytes) -> None:
        """A process wrote bytes to the end of a file."""

    def on_process_end(self, machine: Machine, reason: str, lost_bytes: int) -> None:
        """A process ended; `lost_bytes` of its disk did not survive."""

    def on_end(self) -> None:
        """The run is over and everything had time to settle."""


class World:
    """Everything of one run.

    Attributes:
        seed: Seed of all random choices.
        random: Chance of the world itself; each part gets a generator of its own from it, so that
            what one part draws does not change other parts.
        machines: Machines by name, in order.
        watchers: Asked after every turn.
        is_stormy: Whether clients press on without a pause, and repeat at once.
    """

    def __init__(self, seed: int, trace: Trace) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.scheduler = Scheduler()
        self.trace = trace
        self.coverage = Coverage()
        self.network = Network(self.scheduler, self.new_random(), trace, self.coverage)
        self.machines: dict[BrokerId, Machine] = {}
        self.watchers: list[Watcher] = []
        self.is_stormy = False
        self._hooks: dict[str, list[Callable[..., None]]] = {}
        self._watchers_seen = 0

    def new_random(self) -> Random:
        """Return a generator for one part of the world."""
        return Random(self.random.getrandbits(64))

    @property
    def now(self) -> int:
        """True time, nanoseconds from the beginning."""
        return self.scheduler.now

    def add_machine(self, name: str, make: MakeProgram) -> Machine:
        """Return a machine with an empty disk, not started, whose clocks are somewhat off."""
        random = self.new_random()
        clock = MachineClock(
            base_local=random.randrange(1, 1_000 * SECOND_NS),
            base_true=self.now,
            drift_ppm=random.randrange(-100, 101),
            wall_skew_ns=random.randrange(-SECOND_NS, SECOND_NS) // 10,
        )
        machine = Machine(BrokerId(name), self, random, make, clock)
        self.machines[machine.name] = machine
        return machine

    def running(self) -> list[Machine]:
        """Return machines with a process, in order."""
        return [machine for machine in self.machines.values() if machine.program is not None]

    # What machines tell.

    def _watching(self, hook: str) -> list[Callable[..., None]]:
        """Return the methods of that name of the watchers that have one of their own."""
        if len(self.watchers) != self._watchers_seen:
            self._watchers_seen = len(self.watchers)
            self._hooks.clear()
        if hook not in self._hooks:
            nothing = getattr(Watcher, hook)
            own = [one for one in self.watchers if getattr(type(one), hook) is not nothing]
            self._hooks[hook] = [getattr(one, hook) for one in own]
        return self._hooks[hook]

    def touch(self, machine: Machine) -> None:
        """A process had a turn."""
        for look in self._watching("on_turn"):
            look(machine)

    def on_applied(self, machine: Machine) -> None:
        """A process applied a change of the metadata and has not acted on it."""
        for look in self._watching("on_applied"):
            look(machine)

    def on_append(self, machine: Machine, path: str, data: bytes) -> None:
        """A process wrote bytes to the end of a file."""
        for look in self._watching("on_append"):
            look(machine, path, data)

    def on_transition(self, machine: Machine, kind: str, fields: Mapping[str, object]) -> None:
        """A process told a transition."""
        for watcher in self.watchers:
            watcher.on_transition(machine, kind, fields)

    def on_process_end(self, machine: Machine, reason: str, lost_bytes: int) -> None:
        """A process ended."""
        self.coverage.count("world", f"process {reason}")
        if lost_bytes:
            self.coverage.count("world", "crash with loss")
        for watcher in self.watchers:
            watcher.on_process_end(machine, reason, lost_bytes)

    # Time.

    def run_until(self, when: int) -> None:
        """Let everything happen that is planned up to `when`, and time go on until then."""
        scheduler = self.scheduler
        while (next_at := scheduler.next_at) is not None and next_at <= when:
            scheduler.step()
        scheduler.now = max(scheduler.now, when)

    def run_while(self, wanted: Callable[[], bool], *, at_most_ns: int) -> bool:
        """Go on until `wanted` is false; whether that happened in time."""
        scheduler = self.scheduler
        until = scheduler.now + at_most_ns
        while wanted():
            next_at = scheduler.next_at
            if next_at is None or next_at > until:
                scheduler.now = until
                return not wanted()
            scheduler.step()
        return True
