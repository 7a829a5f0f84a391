"""Invariants of access control (docs/internals/simulator.md): nothing is done that no rule allows.

The rules of a broker are those of the metadata that it applied, read one by one. A broker does what
they allow and nothing else, no call goes on that they forbid, and a broker that is connected to the
leader of the metadata has the rules of two seconds ago. So nobody uses a revoked right for longer.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from liftbridge_broker.access.principals import Principal
from liftbridge_broker.access.rules import AccessRule, Operation, ResourceKind
from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.model.subjects import has_wildcard
from liftbridge_broker.model.units import MILLISECOND_NS, SECOND_NS
from liftbridge_testkit.access_reading import allows, denies_part
from liftbridge_testkit.sim.broken import BrokenInvariantError
from liftbridge_testkit.sim.cluster_atlas import broker_on, state_on
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.world import Watcher, World

REVOKED_NS = 2 * SECOND_NS
"""Time in which a connected broker applies a change of the rules."""

DISK_NS = 100 * MILLISECOND_NS
"""Work of a disk from which on it counts as slow."""


class Act(NamedTuple):
    """An operation on a resource, or on all streams that a pattern matches."""

    operation: Operation
    kind: ResourceKind
    name: str


class RulesInForce(NamedTuple):
    """Rules in force on a broker at some moment; if not closed, everybody may do everything."""

    is_closed: bool
    rules: tuple[AccessRule, ...]

    def allow(self, who: Principal, acts: tuple[Act, ...]) -> bool:
        """Return whether a principal may do all of this."""
        return not self.is_closed or not any(
            not allows(self.rules, who, *one)
            or (has_wildcard(one.name) and denies_part(self.rules, who, *one))
            for one in acts
        )


class Running(NamedTuple):
    """A call that runs at a broker: who makes it, and what it goes on doing."""

    call: Call
    who: Principal
    acts: tuple[Act, ...]


def in_force_on(machine: Machine) -> RulesInForce | None:
    """Return the rules that the broker of a machine has applied; `None` without a broker."""
    broker = broker_on(machine)
    if broker is None:
        return None
    access = broker.node.state.access
    return RulesInForce(access.is_on or broker.settings.access.is_enabled, tuple(access.rules))


@dataclass(slots=True, eq=False)
class AccessRules(Watcher):
    """Checks what callers may do in one world.

    Attributes:
        running: Calls that run, by machine.
    """

    world: World
    running: dict[str, dict[Call, Running]] = field(default_factory=dict)
    _in_turn: dict[str, list[RulesInForce]] = field(default_factory=dict)
    _newest: RulesInForce | None = None
    _top: int = 0
    _behind: dict[str, dict[int, int]] = field(default_factory=dict)

    # -- what callers do ----------------------------------------------------------------------

    def decided(
        self, machine: Machine, who: Principal, acts: tuple[Act, ...], *, is_denied: bool
    ) -> None:
        """Check a decision of this turn by the rules that were in force in the turn.

        Raises:
            BrokenInvariantError: No rule allows what is done, or the rules allow what is refused.
        """
        sets = self._of_turn(machine)
        may = [one.allow(who, acts) for one in sets]
        if is_denied and all(may):
            raise BrokenInvariantError("what rules allow is not refused", f"{who} {acts}: {sets}")
        if not is_denied and not any(may):
            raise BrokenInvariantError("nothing without a rule", f"{who} {acts}: {sets}")
        if sets[-1].is_closed:
            self.world.coverage.count("access", "refused" if is_denied else "allowed")

    def _of_turn(self, machine: Machine) -> list[RulesInForce]:
        """Return the rules at the begin of the turn, those it brought, and those of now."""
        now = in_force_on(machine)
        assert now is not None
        return [*self._in_turn.get(machine.name, ()), now]

    def begins(self, machine: Machine, one: Running) -> None:
        """Follow a call that begins to run in this turn."""
        self.running.setdefault(machine.name, {})[one.call] = one

    def ends(self, machine: Machine, call: Call) -> None:
        """Handle the end of a call; no-op if it does not run."""
        self.running.get(machine.name, {}).pop(call, None)

    # -- the rules ----------------------------------------------------------------------------

    def on_applied(self, machine: Machine) -> None:
        """Note rules that a broker applied."""
        self._note(machine)

    def on_turn(self, machine: Machine) -> None:
        """Check the calls that run, if the rules changed in this turn."""
        found = self._note(machine)
        if found is None:
            return
        sets = self._in_turn[machine.name]
        if len(sets) > 1:
            self._in_turn[machine.name] = [found]
            self._check_running(machine, found)
        if self._behind:
            self._check_behind()

    def _note(self, machine: Machine) -> RulesInForce | None:
        found, state = in_force_on(machine), state_on(machine)
        if found is None or state is None:
            return None
        sets = self._in_turn.setdefault(machine.name, [])
        if sets and sets[-1] == found:
            return found
        sets.append(found)
        if state.applied_index > self._top and found != self._newest:
            self._top, self._newest = int(state.applied_index), found
            for other in self.world.machines:
                self._behind.setdefault(other, {})[self._top] = self.world.now
        return found

    def _check_running(self, machine: Machine, found: RulesInForce) -> None:
        """Check that no call runs on that the rules forbid now."""
        for one in list(self.running.get(machine.name, {}).values()):
            if not found.allow(one.who, one.acts):
                raise BrokenInvariantError(
                    "no call goes on without a right",
                    f"{machine.name}: {one.who} {one.acts}: {found}",
                )

    # -- the time until a revocation counts ---------------------------------------------------

    def _check_behind(self) -> None:
        """Check that each broker applies the rules in time, while it is connected."""
        now = self.world.now
        for name, changes in list(self._behind.items()):
            machine = self.world.machines[name]  # type: ignore[index] # names of brokers
            state = state_on(machine)
            applied = -1 if state is None else int(state.applied_index)
            for index in [one for one in changes if one <= applied]:
                del changes[index]
            if not changes:
                del self._behind[name]
            elif not self._is_connected(machine, min(changes)):
                changes.update(dict.fromkeys(changes, now))
            elif now - min(changes.values()) > REVOKED_NS:
                raise BrokenInvariantError(
                    "rules are in force within 2 s", f"{name} has {applied}, not {changes}"
                )

    def _is_connected(self, machine: Machine, index: int) -> bool:
        """Return whether a broker hears a leader of the metadata that has applied an index.

        Both processes get turns, nothing between them is cut or delayed by a fault, and their disks
        are not busy for long.
        """
        leading = [
            (broker.consensus.term, one)
            for one in self.world.machines.values()
            if (broker := broker_on(one)) is not None and broker.consensus.is_leader
        ]
        if not leading:
            return False
        _, leader = max(leading, key=lambda found: found[0])
        state, network = state_on(leader), self.world.network
        return (
            state is not None
            and int(state.applied_index) >= index
            and all(_is_well(one, self.world.now) for one in (machine, leader))
            and network.is_clear(machine.name, leader.name)
            and network.is_clear(leader.name, machine.name)
        )

    def on_process_end(self, machine: Machine, reason: str, lost_bytes: int) -> None:
        """Forget what ran."""
        del reason, lost_bytes
        self.running.pop(machine.name, None)
        self._in_turn.pop(machine.name, None)


def _is_well(machine: Machine, now: int) -> bool:
    """Return whether the broker of a machine serves, and nothing holds it up."""
    broker, endpoint = broker_on(machine), machine.endpoint
    return (
        broker is not None
        and broker.is_ready
        and endpoint is not None
        and endpoint.is_up
        and not machine.is_held_up
        and machine.disk_free_at < now + DISK_NS
    )
