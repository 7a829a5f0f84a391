"""How long brokers paused lately between two messages to the metadata leader, in true state."""

from collections import deque
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from typing import Final

from liftbridge_broker.model.ids import BrokerId
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.metadata.failure_detector import LATELY_NS
from liftbridge_testkit.sim.cluster_atlas import broker_on
from liftbridge_testkit.sim.kinds import SILENT, kinds_of
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.network import Network

PUNCTUAL_TURN_NS: Final = 35 * MILLISECOND_NS
"""Longest time between two turns of a process that probes others and is not held up."""

PAUSES_MAX: Final = 16
"""Pauses that are remembered for a broker."""


@dataclass(slots=True)
class _Hearing:
    """What one metadata leader heard of a broker.

    Attributes:
        sessions: Process and term of the leader, and session of the broker.
        heard_at: Time of the latest message of any kind.
        pauses: Times at which a pause ended, and its length.
    """

    sessions: Hashable
    heard_at: int
    pauses: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=PAUSES_MAX))


class Pauses:
    """Pauses of brokers, as their metadata leader saw them, and no longer than they were.

    Args:
        network: Delivers the messages.
        names: Names of all brokers.
        have_met: Returns whether messages of the second broker count for the first one.
    """

    def __init__(
        self, network: Network, names: Collection[BrokerId], have_met: Callable[[str, str], bool]
    ) -> None:
        """Begin without one."""
        self._network = network
        self._names = names
        self._have_met = have_met
        self._hearings: dict[tuple[str, str], _Hearing] = {}

    def on_turn(self, machine: Machine, late_ns: int, now: int) -> None:
        """Note the messages that came before a turn of a metadata leader.

        Args:
            machine: Had the turn.
            late_ns: Time since its turn before.
            now: Time now.
        """
        program = broker_on(machine)
        if program is None or not program.consensus.core.is_leader:
            return
        term, brokers = program.consensus.core.term, program.node.state.brokers
        for other in self._names:
            broker = brokers.get(other)
            came_at = self._network.came.get((other, machine.name), -1)
            if broker is None or other == machine.name:
                continue
            sessions = machine.incarnation, term, broker.broker_epoch, broker.fenced
            hearing = self._hearings.get((other, machine.name))
            if hearing is None or hearing.sessions != sessions:
                self._hearings[other, machine.name] = _Hearing(sessions, now)
            elif late_ns > PUNCTUAL_TURN_NS:
                hearing.heard_at = now
            elif came_at > hearing.heard_at:
                pause_ns, hearing.heard_at = now - hearing.heard_at, now
                if pause_ns > 2 * PUNCTUAL_TURN_NS and self._have_met(machine.name, other):
                    self._note(hearing, other, machine.name, pause_ns)

    def forget(self, name: str) -> None:
        """Forget what a process heard: it has another connection."""
        for key in [key for key in self._hearings if key[1] == name]:
            del self._hearings[key]

    def _note(self, hearing: _Hearing, other: str, name: str, pause_ns: int) -> None:
        """Note a pause if the message that ended it counts for the process."""
        at, message = self._network.arrived.get((other, name), (-1, b""))
        if at == self._network.came[other, name] and SILENT.isdisjoint(kinds_of(message)):
            hearing.pauses.append((hearing.heard_at, pause_ns - PUNCTUAL_TURN_NS))

    def longest_ns(self, name: str, other: str, now: int) -> int:
        """Return the longest pause of a broker for a metadata leader lately, 0 without one."""
        hearing = self._hearings.get((other, name))
        if hearing is None:
            return 0
        lately = now - LATELY_NS * 9 // 10
        return max((pause for at, pause in hearing.pauses if at >= lately), default=0)
