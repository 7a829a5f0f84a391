"""What breaks, and when: a swarm of fault kinds, a random subset of them for each seed.

A kind begins something and tells how it ends, or happens at once. A supervisor starts every process
that ended again. What the promise of durability does not cover - more lossy failures than it allows
- is kept out by the *atlas*: it is asked before anything is lost for good.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from liftbridge_testkit.memory_files import Fault
from liftbridge_testkit.sim.disk import LOG_FILES
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.scheduler import MILLISECOND_NS, SECOND_NS
from liftbridge_testkit.sim.world import Watcher, World

REFUSED_MAX = 3
"""Starts that must fail at once, one after the other, before an operator replaces a disk."""

HOUR_NS = 3_600 * SECOND_NS


class Atlas(Protocol):
    """Knows what may be lost without breaking the promise."""

    def may_lose(self, machine: Machine) -> bool:
        """Whether this machine may lose what it did not sync, now."""
        ...

    def may_damage(self, machine: Machine) -> bool:
        """Whether durable bytes of this machine may be spoiled or wiped, now."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """Which faults a run has.

    Attributes:
        kinds: Names of kinds, of `KINDS`.
        pace_ns: Longest time between two faults.
        duration_ns: Longest time a fault lasts.
        restart_ns: Longest time until an ended process is started again.
        down_max: Machines that may be without a process, or paused, at a time.
        rot_files: Files that rot; the process is started anew after it.
    """

    kinds: tuple[str, ...]
    pace_ns: int = SECOND_NS
    duration_ns: int = 3 * SECOND_NS
    restart_ns: int = 2 * SECOND_NS
    down_max: int = 1
    rot_files: str = LOG_FILES


Undo = Callable[[], None]


@dataclass(slots=True)
class Faults(Watcher):
    """Makes faults from `start` until `heal`; also the supervisor of all processes.

    Attributes:
        is_over: Whether nothing breaks any more; processes are still started again.
    """

    world: World
    plan: FaultPlan
    atlas: Atlas
    is_over: bool = False
    random: Random = field(init=False)
    _lasting: dict[int, Undo] = field(default_factory=dict)
    _last: int = 0
    _refused: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = self.world.new_random()

    def start(self) -> None:
        """Begin to break things."""
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
        """Let one fault of this kind begin; whether there was anything to break."""
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
        """Break nothing any more and mend everything."""
        self.is_over = True
        for number in list(self._lasting):
            self._lasting.pop(number)()
        self.world.network.heal()
        for machine in self.world.machines.values():
            machine.files.mend()
            machine.resume()
            machine.start()

    # Watcher: the supervisor.

    def on_process_end(self, machine: Machine, reason: str, lost_bytes: int) -> None:
        """Start it again after a while; a disk that it keeps refusing to use is replaced."""
        del lost_bytes
        if reason == "failed" and machine.started_at == self.world.now:
            refused = self._refused.get(machine.name, 0) + 1
            if refused >= REFUSED_MAX and self.atlas.may_damage(machine):
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

    # What kinds ask.

    def any_running(self) -> Machine | None:
        """A machine whose process runs and is not paused, if so many may be down."""
        machines = list(self.world.machines.values())
        active = [one for one in machines if one.is_running and not one.is_paused]
        if len(machines) - len(active) >= self.plan.down_max:
            return None
        return self.random.choice(active) if active else None

    def pair(self) -> tuple[str, str] | None:
        """Two machines."""
        names = list(self.world.machines)
        if len(names) < 2:
            return None
        one, other = self.random.sample(names, 2)
        return one, other


def nothing() -> None:
    """The fault happened at once and has no end."""


# -- processes ------------------------------------------------------------------------------------


def _kill(faults: Faults) -> Undo | None:
    machine = faults.any_running()
    if machine is None:
        return None
    machine.kill()
    return nothing


def _crash(faults: Faults, keep: Random | None) -> Undo | None:
    machine = faults.any_running()
    if machine is None or not faults.atlas.may_lose(machine):
        return None
    machine.crash(keep)
    return nothing


def _crash_losing_all(faults: Faults) -> Undo | None:
    return _crash(faults, None)


def _crash_losing_some(faults: Faults) -> Undo | None:
    return _crash(faults, faults.random)


def _crash_within_a_turn(faults: Faults) -> Undo | None:
    machine = faults.any_running()
    if machine is None or not faults.atlas.may_lose(machine):
        return None
    machine.crash_within(faults.random.randrange(1, 30), faults.random)
    return nothing


def _pause(faults: Faults) -> Undo | None:
    machine = faults.any_running()
    if machine is None:
        return None
    machine.pause()
    return machine.resume


def _stall(faults: Faults) -> Undo | None:
    machine = faults.any_running()
    if machine is None:
        return None
    machine.stall(faults.random.randrange(10 * MILLISECOND_NS, faults.plan.duration_ns))
    return nothing


def _stop_in_order(faults: Faults) -> Undo | None:
    machine = faults.any_running()
    if machine is None:
        return None
    machine.stop()
    return nothing


def _kill_all(faults: Faults) -> Undo | None:
    running = faults.world.running()
    for machine in running:
        machine.kill()
    return nothing if running else None


# -- clocks ---------------------------------------------------------------------------------------


def _any_machine(faults: Faults) -> Machine:
    return faults.random.choice(list(faults.world.machines.values()))


def _clock_jump(faults: Faults) -> Undo | None:
    machine = _any_machine(faults)
    scale = faults.random.choice((SECOND_NS, 60 * SECOND_NS, HOUR_NS))
    machine.clock.wall_skew_ns += faults.random.randrange(-scale, scale)
    return nothing


def _clock_drift(faults: Faults) -> Undo | None:
    machine = _any_machine(faults)
    if not machine.is_running:
        return None
    # The armed timer keeps its true time: off by what the drift changes, as a late timer is.
    machine.clock.set_drift(faults.random.randrange(-20_000, 20_001), faults.world.now)
    return nothing


# -- network --------------------------------------------------------------------------------------


def _cut_pair(faults: Faults) -> Undo | None:
    pair = faults.pair()
    if pair is None:
        return None
    one, other = pair
    return _cut(faults, ((one, other), (other, one)))


def _cut_one_way(faults: Faults) -> Undo | None:
    pair = faults.pair()
    return None if pair is None else _cut(faults, (pair,))


def _isolate(faults: Faults) -> Undo | None:
    pair = faults.pair()
    if pair is None:
        return None
    alone = pair[0]
    others = [name for name in faults.world.machines if name != alone]
    ways = [(alone, other) for other in others] + [(other, alone) for other in others]
    return _cut(faults, tuple(ways))


def _split(faults: Faults) -> Undo | None:
    names = list(faults.world.machines)
    if len(names) < 4:
        return None
    faults.random.shuffle(names)
    at = faults.random.randrange(1, len(names))
    ways = [(one, other) for one in names[:at] for other in names[at:]]
    return _cut(faults, tuple(ways + [(other, one) for one, other in ways]))


def _cut(faults: Faults, ways: tuple[tuple[str, str], ...]) -> Undo:
    network = faults.world.network
    for source, target in ways:
        network.cut(source, target)

    def mend() -> None:
        for source, target in ways:
            network.mend(source, target)

    return mend


def _slow_link(faults: Faults) -> Undo | None:
    pair = faults.pair()
    if pair is None:
        return None
    network = faults.world.network
    network.slow(*pair, faults.random.randrange(10 * MILLISECOND_NS, SECOND_NS))
    return lambda: network.slow(*pair, 0)


def _nats_link(faults: Faults) -> Undo | None:
    name = faults.random.choice(list(faults.world.network.endpoints) or [""])
    if not name:
        return None
    faults.world.network.unlink(name)
    return lambda: faults.world.network.relink(name)


def _nats_outage(faults: Faults) -> Undo | None:
    faults.world.network.begin_outage()
    return faults.world.network.end_outage


# -- disks ----------------------------------------------------------------------------------------


def _slow_disk(faults: Faults) -> Undo | None:
    machine = _any_machine(faults)
    machine.files.speed.factor = faults.random.choice((10, 100, 2_000))

    def mend() -> None:
        machine.files.speed.factor = 1

    return mend


def _failing(faults: Faults, operation: str) -> Undo | None:
    machine = _any_machine(faults)
    # A machine whose sync failed is rebooted, and loses what was not synced.
    if operation == "sync" and not faults.atlas.may_lose(machine):
        return None
    skip = faults.random.randrange(4)
    machine.files.fail(Fault(operation, skip=skip, count=faults.random.choice((1, 1, 5))))
    return machine.files.heal


def _failing_append(faults: Faults) -> Undo | None:
    return _failing(faults, "append")


def _failing_sync(faults: Faults) -> Undo | None:
    return _failing(faults, "sync")


def _failing_read(faults: Faults) -> Undo | None:
    return _failing(faults, "read")


def _failing_rename(faults: Faults) -> Undo | None:
    return _failing(faults, "rename")


def _full_disk(faults: Faults) -> Undo | None:
    files = _any_machine(faults).files
    used = files.capacity_bytes - files.free_bytes()
    files.capacity_bytes = used + faults.random.randrange(5_000)
    return files.enlarge


def _rot(faults: Faults) -> Undo | None:
    machine = faults.any_running()
    if machine is None or not faults.atlas.may_damage(machine):
        return None
    machine.kill()
    where = machine.files.rot(faults.plan.rot_files)
    faults.world.trace.note(faults.world.now, machine.name, "rot", where)
    return nothing if where else None


def _misdirected_write(faults: Faults) -> Undo | None:
    machine = _any_machine(faults)
    if not faults.atlas.may_damage(machine):
        return None
    machine.files.misdirected = "*.log"

    def mend() -> None:
        machine.files.misdirected = ""

    return mend


def _wiped_disk(faults: Faults) -> Undo | None:
    machine = faults.any_running()
    if machine is None or not faults.atlas.may_damage(machine):
        return None
    machine.wipe()
    return nothing


KINDS: dict[str, Callable[[Faults], Undo | None]] = {
    "kill": _kill,
    "kill all": _kill_all,
    "crash losing all": _crash_losing_all,
    "crash losing some": _crash_losing_some,
    "crash within a turn": _crash_within_a_turn,
    "pause": _pause,
    "loop stall": _stall,
    "controlled shutdown": _stop_in_order,
    "clock jump": _clock_jump,
    "clock drift": _clock_drift,
    "cut between two": _cut_pair,
    "cut one way": _cut_one_way,
    "one isolated": _isolate,
    "split": _split,
    "slow link": _slow_link,
    "NATS link": _nats_link,
    "NATS outage": _nats_outage,
    "slow disk": _slow_disk,
    "EIO on append": _failing_append,
    "EIO on fsync": _failing_sync,
    "EIO on read": _failing_read,
    "EIO on rename": _failing_rename,
    "disk full": _full_disk,
    "bit rot": _rot,
    "misdirected write": _misdirected_write,
    "wiped disk": _wiped_disk,
}
