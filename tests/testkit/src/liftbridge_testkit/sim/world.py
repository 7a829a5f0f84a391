"""The world of one run: time, network, machines, and observers.

Watchers see the true state after every turn of a process, and raise `BrokenInvariantError` for a
broken promise.
"""

from collections.abc import Callable, Mapping
from random import Random

from liftbridge_broker.model.ids import BrokerId
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_testkit.sim.clock import MachineClock
from liftbridge_testkit.sim.coverage import Coverage
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.network import Network
from liftbridge_testkit.sim.program import MakeProgram
from liftbridge_testkit.sim.scheduler import Scheduler
from liftbridge_testkit.sim.trace import Trace


class Watcher:
    """Checks the true state of the world; methods that a watcher does not override do nothing."""

    def on_turn(self, machine: Machine) -> None:
        """Handle the end of a turn; must be cheap, because every turn calls it."""

    def on_transition(self, machine: Machine, kind: str, fields: Mapping[str, object]) -> None:
        """Handle a transition that a process reported, in the middle of a turn."""

    def on_applied(self, machine: Machine) -> None:
        """Handle one metadata change that a process applied, before the process acts on it."""

    def on_append(self, machine: Machine, path: str, data: bytes) -> None:
        """Handle bytes that a process appended to a file."""

    def on_process_end(self, machine: Machine, reason: str, lost_bytes: int) -> None:
        """Handle the end of a process; `lost_bytes` of its disk did not survive."""

    def on_end(self) -> None:
        """Handle the end of the run, after everything has settled."""


class World:
    """The state of one run.

    Attributes:
        seed: Seed of all random choices.
        random: Random generator of the world; each part gets a separate generator from it, so that
            the draws of one part do not change other parts.
        machines: Machines by name, in order.
        watchers: Watchers, called after every turn.
        is_stormy: Whether clients send without pauses and retry at once.
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
        """Return the true time, nanoseconds from the beginning."""
        return self.scheduler.now

    def add_machine(self, name: str, make: MakeProgram) -> Machine:
        """Add a stopped machine with an empty disk and slightly wrong clocks, and return it."""
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

    # Reports of machines.

    def _watching(self, hook: str) -> list[Callable[..., None]]:
        """Return the methods of that name of the watchers that override it."""
        if len(self.watchers) != self._watchers_seen:
            self._watchers_seen = len(self.watchers)
            self._hooks.clear()
        if hook not in self._hooks:
            nothing = getattr(Watcher, hook)
            own = [
                watcher for watcher in self.watchers if getattr(type(watcher), hook) is not nothing
            ]
            self._hooks[hook] = [getattr(one, hook) for one in own]
        return self._hooks[hook]

    def touch(self, machine: Machine) -> None:
        """Handle the end of a turn of a process."""
        for look in self._watching("on_turn"):
            look(machine)

    def on_applied(self, machine: Machine) -> None:
        """Handle a metadata change that a process applied, before the process acts on it."""
        for look in self._watching("on_applied"):
            look(machine)

    def on_append(self, machine: Machine, path: str, data: bytes) -> None:
        """Handle bytes that a process appended to a file."""
        for look in self._watching("on_append"):
            look(machine, path, data)

    def on_transition(self, machine: Machine, kind: str, fields: Mapping[str, object]) -> None:
        """Handle a transition that a process reported."""
        for watcher in self.watchers:
            watcher.on_transition(machine, kind, fields)

    def on_process_end(self, machine: Machine, reason: str, lost_bytes: int) -> None:
        """Handle the end of a process."""
        self.coverage.count("world", f"process {reason}")
        if lost_bytes:
            self.coverage.count("world", "crash with loss")
        for watcher in self.watchers:
            watcher.on_process_end(machine, reason, lost_bytes)

    # Time.

    def run_until(self, when: int) -> None:
        """Run all events planned up to `when`, and advance the time to it."""
        scheduler = self.scheduler
        while (next_at := scheduler.next_at) is not None and next_at <= when:
            scheduler.step()
        scheduler.now = max(scheduler.now, when)

    def run_while(self, wanted: Callable[[], bool], *, at_most_ns: int) -> bool:
        """Run events until `wanted` is false. Return whether that happened in time."""
        scheduler = self.scheduler
        until = scheduler.now + at_most_ns
        while wanted():
            next_at = scheduler.next_at
            if next_at is None or next_at > until:
                scheduler.now = until
                return not wanted()
            scheduler.step()
        return True
