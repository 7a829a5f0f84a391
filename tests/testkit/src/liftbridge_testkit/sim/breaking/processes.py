"""Faults of processes and clocks, and heavy load from clients."""

from collections.abc import Callable, Mapping
from random import Random

from liftbridge_broker.model.units import HOUR_NS, MILLISECOND_NS, SECOND_NS
from liftbridge_testkit.sim.breaking.parts import Breaking, Undo, nothing
from liftbridge_testkit.sim.machine import Machine

# -- the end of a process -------------------------------------------------------------------------


def _killed(machine: Machine | None) -> Undo | None:
    if machine is None:
        return None
    machine.kill()
    return nothing


def _kill(faults: Breaking) -> Undo | None:
    return _killed(faults.any_running())


def _kill_leader(faults: Breaking) -> Undo | None:
    return _killed(faults.any_leading())


def _kill_coordinator(faults: Breaking) -> Undo | None:
    return _killed(faults.any_coordinating())


def _kill_all(faults: Breaking) -> Undo | None:
    running = faults.world.running()
    for machine in running:
        machine.kill()
    return nothing if running else None


def _crash(faults: Breaking, keep: Random | None) -> Undo | None:
    machine = faults.any_running()
    if machine is None or not faults.atlas.may_lose(machine):
        return None
    machine.crash(keep)
    return nothing


def _crash_losing_all(faults: Breaking) -> Undo | None:
    return _crash(faults, None)


def _crash_losing_some(faults: Breaking) -> Undo | None:
    return _crash(faults, faults.random)


def _crash_within_a_turn(faults: Breaking) -> Undo | None:
    machine = faults.any_running()
    if machine is None or not faults.atlas.may_lose(machine):
        return None
    machine.crash_within(faults.random.randrange(1, 30), faults.random)
    return nothing


def _stop_in_order(faults: Breaking) -> Undo | None:
    machine = faults.any_running()
    if machine is None:
        return None
    machine.stop()
    return nothing


def _stop_all(faults: Breaking) -> Undo | None:
    running = faults.world.running()
    for machine in running:
        machine.stop()
    return nothing if running else None


def _rolling_restart(faults: Breaking) -> Undo | None:
    """Stop each machine in order, with a pause after each."""
    machines = list(faults.world.machines.values())
    faults.random.shuffle(machines)
    is_over = [False]

    def go_on() -> None:
        if not is_over[0] and machines:
            machines.pop().stop()
            pause_ns = faults.random.randrange(SECOND_NS, 4 * SECOND_NS)
            faults.world.scheduler.after(pause_ns, go_on)

    def end() -> None:
        is_over[0] = True

    go_on()
    return end


# -- a process held up ----------------------------------------------------------------------------


def _paused(machine: Machine | None) -> Undo | None:
    if machine is None:
        return None
    machine.pause()
    return machine.resume


def _pause(faults: Breaking) -> Undo | None:
    return _paused(faults.any_running())


def _pause_leader(faults: Breaking) -> Undo | None:
    return _paused(faults.any_leading())


def _pause_coordinator(faults: Breaking) -> Undo | None:
    return _paused(faults.any_coordinating())


def _stall(faults: Breaking) -> Undo | None:
    machine = faults.any_running()
    if machine is None:
        return None
    machine.stall(faults.random.randrange(10 * MILLISECOND_NS, faults.plan.duration_ns))
    return nothing


# -- clocks ---------------------------------------------------------------------------------------


def _clock_jump(faults: Breaking) -> Undo | None:
    machine = faults.any_machine()
    scale = faults.random.choice((SECOND_NS, 60 * SECOND_NS, HOUR_NS))
    machine.clock.wall_skew_ns += faults.random.randrange(-scale, scale)
    return nothing


def _clock_drift(faults: Breaking) -> Undo | None:
    machine = faults.any_machine()
    if not machine.is_running:
        return None
    # The armed timer keeps its true time: its error is the change of drift, as with a late timer.
    machine.clock.set_drift(faults.random.randrange(-20_000, 20_001), faults.world.now)
    return nothing


# -- clients --------------------------------------------------------------------------------------


def _retry_storm(faults: Breaking) -> Undo | None:
    """Let publishers send without pauses and retry at once."""
    world = faults.world
    if world.is_stormy:
        return None
    world.is_stormy = True

    def end() -> None:
        world.is_stormy = False

    return end


PROCESSES: Mapping[str, Callable[[Breaking], Undo | None]] = {
    "kill": _kill,
    "leader killed": _kill_leader,
    "coordinator killed": _kill_coordinator,
    "kill all": _kill_all,
    "crash losing all": _crash_losing_all,
    "crash losing some": _crash_losing_some,
    "crash within a turn": _crash_within_a_turn,
    "controlled shutdown": _stop_in_order,
    "stop all": _stop_all,
    "rolling restart": _rolling_restart,
    "pause": _pause,
    "leader paused": _pause_leader,
    "coordinator paused": _pause_coordinator,
    "loop stall": _stall,
    "clock jump": _clock_jump,
    "clock drift": _clock_drift,
    "retry storm": _retry_storm,
}
