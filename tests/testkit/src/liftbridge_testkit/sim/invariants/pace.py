"""Check that metadata messages between brokers do not cause each other without end.

An answer that causes the next question without a pause becomes a storm at network speed, and
brokers have no time for anything else.
"""

from typing import Final

from liftbridge_broker.ports.transport import Channel
from liftbridge_testkit.sim.broken import BrokenInvariantError
from liftbridge_testkit.sim.cluster_atlas import broker_on
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.world import Watcher, World

WINDOW_NS: Final = 100_000_000
FRAMES_MAX: Final = 2_000
"""Maximum number of metadata frames of a process in a window; busy processes send 200."""


class Pace(Watcher):
    """Counts the frames of each process by windows."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._windows: dict[str, tuple[object, int, int]] = {}

    def on_turn(self, machine: Machine) -> None:
        """Check the frames that it has sent since its window began."""
        broker = broker_on(machine)
        if broker is None:
            return
        now, transport = self._world.now, broker.ports.transport
        sent = transport.sent_counts[Channel.METADATA]
        former, began_at, before = self._windows.get(machine.name, (None, 0, 0))
        if former is not transport or now - began_at >= WINDOW_NS:
            self._windows[machine.name] = transport, now, sent
        elif sent - before > FRAMES_MAX:
            raise BrokenInvariantError(
                "pace", f"{machine.name} sent {sent - before} frames of metadata in {WINDOW_NS} ns"
            )
