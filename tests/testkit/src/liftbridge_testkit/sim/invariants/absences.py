"""Check when a broker counts as ended for another one (I28), in true state.

NATS must have known no connection of it, channel by channel, for a time in which no message of it
arrived. And the other one must have been connected together with it, or for long. The network is
looked at after every turn, which is often: connected brokers send probes.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from liftbridge_broker.model.units import SECOND_NS
from liftbridge_broker.node.metadata.failure_detector import (
    CONFIRM_NS,
    CONFIRM_NS_MAX,
    GAP_NS,
    PUNCTUAL_NS,
    SETTLE_NS,
)
from liftbridge_broker.ports.transport import Channel
from liftbridge_testkit.sim.broken import BrokenInvariantError
from liftbridge_testkit.sim.invariants.pauses import Pauses
from liftbridge_testkit.sim.kinds import SILENT, kinds_of
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.world import Watcher, World

if TYPE_CHECKING:
    from liftbridge_broker.model.ids import BrokerId

LEAST_NS = CONFIRM_NS * 8 // 10
"""Shortest absence; the clocks of machines run up to a tenth too fast, and turns are apart."""

SETTLED_NS = SETTLE_NS * 8 // 10
"""Shortest time of a connection in which a broker that was never present may count as ended."""

NOTICED_NS = GAP_NS * 12 // 10
"""Shortest presence that ends an absence; one process's clock may run a tenth too slow."""

RECENT_NS = 2 * SECOND_NS
"""Time by which a signal may be late."""

IDLE_NS = SECOND_NS // 2
"""Longest time between two turns of a process that handles signals in time."""

ABSENCES_MAX: Final = 16
"""Absences of a broker that are remembered."""


@dataclass(slots=True)
class _Absence:
    """First and last time at which NATS was seen without a broker, or without a channel of it."""

    since: int
    last: int


class Absences(Watcher):
    """Compares `broker_ended` with the connections that the network knows."""

    def __init__(self, world: World) -> None:
        """Begin while nobody is connected."""
        self._network = world.network
        self._world = world
        self._absences: dict[tuple[str, Channel], _Absence] = {}
        self._recent: dict[str, deque[_Absence]] = {}
        self._turn: dict[str, int] = {}
        self._late_until: dict[str, int] = {}
        self._linked: dict[str, int] = {}
        self._together: dict[str, set[BrokerId]] = {}
        self._up: set[BrokerId] = set()
        self._pauses = Pauses(world.network, world.machines, self._have_met)

    def on_turn(self, machine: Machine) -> None:
        """Note which brokers are absent, and whether this process was late."""
        now, name = self._world.now, machine.name
        late_ns = now - self._turn.get(name, now)
        if late_ns > IDLE_NS:
            self._late_until[name] = now + RECENT_NS
        self._turn[name] = now
        linked = {one for one in self._world.machines if self._is_linked(one)}
        if linked != self._up:
            self._up = linked
            self._on_links(now)
        self._pauses.on_turn(machine, late_ns, now)
        for other in self._world.machines:
            self._look_at(other, frozenset(Channel) if other not in linked else self._denied(other))

    def _on_links(self, now: int) -> None:
        """Note who is connected, and with whom, after a change."""
        for one in self._world.machines:
            if one not in self._up:
                self._linked.pop(one, None)
                self._together.pop(one, None)
                continue
            if one not in self._linked:
                self._linked[one] = now
                self._pauses.forget(one)
            self._together.setdefault(one, set()).update(self._up)

    def _look_at(self, other: str, absent: frozenset[Channel]) -> None:
        """Note the channels on which NATS knows nobody of a broker, one by one."""
        if not absent and not self._absences:
            return
        now = self._world.now
        for channel in Channel:
            key = other, channel
            if channel in absent:
                absence = self._absences.setdefault(key, _Absence(now, now))
                absence.last = now
            elif key in self._absences and now - self._absences[key].last >= NOTICED_NS:
                del self._absences[key]
        found = [one for key, one in self._absences.items() if key[0] == other]
        if len(found) == len(Channel):
            common = _Absence(max(one.since for one in found), min(one.last for one in found))
            recent = self._recent.setdefault(other, deque(maxlen=ABSENCES_MAX))
            if recent and recent[-1].since == common.since:
                recent[-1] = common
            else:
                recent.append(common)

    def _longest_ns(self, broker: str) -> int:
        """Return the longest time for which a broker was absent lately."""
        recent, now = self._recent.get(broker, ()), self._world.now
        return max(
            (one.last - one.since for one in recent if now - one.last < RECENT_NS), default=0
        )

    def _least_ns(self, name: str, broker: str) -> int:
        """Return the shortest absence after which a broker may count as ended for another one."""
        lately_ns = self._pauses.longest_ns(name, broker, self._world.now) * 9 // 10
        if lately_ns <= PUNCTUAL_NS or self._has_been_intruded(name):
            return LEAST_NS
        return min(lately_ns, CONFIRM_NS_MAX) * 8 // 10

    def _is_settled(self, name: str) -> bool:
        now = self._world.now
        return now - self._linked.get(name, now) >= SETTLED_NS

    def _have_met(self, name: str, broker: str) -> bool:
        """Return whether two must have proven their starts to each other by now."""
        is_lossy = self._network.conditions.loss_ppm > 0
        return not is_lossy and self._is_settled(broker) and self._is_settled(name)

    def _has_been_intruded(self, name: str) -> bool:
        """Return whether it may have heard of a broker by a message that an intruder held back."""
        return self._network.intruded.get(name, -1) >= self._linked.get(name, 0)

    def _is_linked(self, name: str) -> bool:
        endpoint = self._network.endpoints.get(name)
        return endpoint is not None and endpoint.is_up

    def _denied(self, name: str) -> frozenset[Channel]:
        return self._network.denied.get(name, frozenset())

    def on_transition(self, machine: Machine, kind: str, fields: Mapping[str, object]) -> None:
        """Compare what a process concluded with what was."""
        if kind != "broker_ended":
            return
        now, broker = self._world.now, str(fields["broker"])
        if now < self._late_until.get(machine.name, 0):
            return
        longest_ns, least_ns = self._longest_ns(broker), self._least_ns(machine.name, broker)
        if longest_ns < least_ns:
            self._fail(machine, broker, f"it was absent for {longest_ns} ns, not {least_ns}")
        if not (
            self._is_settled(machine.name)
            or broker in self._together[machine.name]
            or self._has_been_intruded(machine.name)
        ):
            self._fail(machine, broker, "they were not connected together since it connected")
        if not self._have_met(machine.name, broker):
            return
        at, message = self._network.arrived.get((broker, machine.name), (-least_ns, b""))
        if now - at < least_ns and SILENT.isdisjoint(kinds_of(message)):
            self._fail(machine, broker, "a message of it arrived")

    def _fail(self, machine: Machine, broker: str, reason: str) -> None:
        raise BrokenInvariantError("I28", f"{broker} ended for {machine.name}, but {reason}")
