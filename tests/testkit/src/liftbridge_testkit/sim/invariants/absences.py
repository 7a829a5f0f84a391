"""Check that a broker counts as ended only after NATS knew nobody for it (I28), in true state.

The network is looked at after every turn, which is often: connected brokers send probes.
"""

from collections.abc import Mapping

from liftbridge_broker.model.units import SECOND_NS
from liftbridge_broker.node.metadata.failure_detector import CONFIRM_NS, PROBE_NS
from liftbridge_broker.ports.transport import Channel
from liftbridge_testkit.sim.broken import BrokenInvariantError
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.world import Watcher, World

LEAST_NS = CONFIRM_NS * 8 // 10
"""Shortest absence; the clocks of machines run up to a tenth too fast, and turns are apart."""

NOTICED_NS = 2 * PROBE_NS
"""Longest presence that no probe may meet, as of a process that fails while it starts."""

RECENT_NS = 2 * SECOND_NS
"""Time by which a signal may be late."""

IDLE_NS = SECOND_NS // 2
"""Longest time between two turns of a process that handles signals in time."""


class Absences(Watcher):
    """Compares `broker_ended` with the connections that the network knows."""

    def __init__(self, world: World) -> None:
        """Begin while nobody is connected."""
        self._network = world.network
        self._world = world
        self._since: dict[str, int] = {}
        self._back: dict[str, int] = {}
        self._recent: dict[str, int] = {}
        self._turn: dict[str, int] = {}
        self._late_until: dict[str, int] = {}

    def on_turn(self, machine: Machine) -> None:
        """Note which brokers are absent, and whether this process was late."""
        now, name = self._world.now, machine.name
        if now - self._turn.get(name, now) > IDLE_NS:
            self._late_until[name] = now + RECENT_NS
        self._turn[name] = now
        for other in self._world.machines:
            if self._is_absent(other):
                self._back.pop(other, None)
                since = self._since.setdefault(other, now)
                if now - since >= LEAST_NS:
                    self._recent[other] = now
            elif now - self._back.setdefault(other, now) >= NOTICED_NS:
                self._since.pop(other, None)

    def _is_absent(self, name: str) -> bool:
        endpoint = self._network.endpoints.get(name)
        is_denied = len(self._network.denied.get(name, ())) == len(Channel)
        return endpoint is None or not endpoint.is_up or is_denied

    def on_transition(self, machine: Machine, kind: str, fields: Mapping[str, object]) -> None:
        """Compare what a process concluded with what was."""
        if kind != "broker_ended":
            return
        now, broker = self._world.now, str(fields["broker"])
        is_late = now < self._late_until.get(machine.name, 0)
        if not is_late and now - self._recent.get(broker, -RECENT_NS) >= RECENT_NS:
            raise BrokenInvariantError(
                "I28", f"{broker} ended for {machine.name}, but NATS knows it"
            )
