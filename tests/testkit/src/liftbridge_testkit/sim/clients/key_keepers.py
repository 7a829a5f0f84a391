"""Who keeps the master keys of brokers: takes them away, gives them back, and rotates them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final

from liftbridge_broker.controller.commands import SetMasterKey
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import BrokerId, Instant
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_testkit.sim.clients.calls import Answer, Calls, Lost, Serving
from liftbridge_testkit.sim.clients.directory import Directory
from liftbridge_testkit.sim.cluster_atlas import broker_on
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.master_keys import MASTER_KEYS, SimMasterKeys
from liftbridge_testkit.sim.world import World

WITHDRAWN: Final = "master keys withdrawn"
"""Fault: a broker has no master key for a while, or one of two."""

RETURNED: Final = "master keys returned"
CHOSEN: Final = "master key chosen"
REWRAPPED: Final = "data keys rewrapped"


@dataclass(slots=True)
class KeyKeeper:
    """One keeper from `start` until `stop`, when all brokers have all keys.

    Attributes:
        masters: Master keys of each broker.
        think_ns: Maximum time between two changes.
    """

    world: World
    calls: Calls
    directory: Directory
    masters: Mapping[BrokerId, SimMasterKeys]
    think_ns: int = 2 * SECOND_NS
    is_stopped: bool = False
    _random: Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = Random(f"key keeper {self.world.seed}")

    def start(self) -> None:
        """Begin to change keys."""
        self._later()

    def stop(self) -> None:
        """Give everybody all keys."""
        self.is_stopped = True
        for name in self.masters:
            self._set(name, tuple(MASTER_KEYS))

    def _later(self) -> None:
        self.world.scheduler.after(self._random.randrange(1, self.think_ns), self._go)

    def _go(self) -> None:
        if self.is_stopped:
            return
        name = self._random.choice(tuple(self.masters))
        match self._random.randrange(6):
            case 0:
                self._set(name, ())
            case 1:
                self._set(name, (self._random.choice(tuple(MASTER_KEYS)),))
            case 2 | 3:
                self._set(name, tuple(MASTER_KEYS))
            case 4:
                self._choose(self._random.choice(tuple(MASTER_KEYS)))
            case _:
                self._rewrap()
        self._later()

    def _set(self, name: BrokerId, key_ids: tuple[str, ...]) -> None:
        """Give a broker these keys; it learns of them at once, or when it starts."""
        masters, machine = self.masters[name], self.world.machines[name]
        is_less = len(key_ids) < len(masters.keys)
        self.world.coverage.count("fault", WITHDRAWN if is_less else RETURNED)
        self.world.trace.note(self.world.now, "keys", f"{name} has {key_ids}")
        masters.keys = {one: MASTER_KEYS[one] for one in key_ids}
        machine.turn(machine.incarnation, self._renew, machine)

    def _renew(self, machine: Machine) -> None:
        broker = broker_on(machine)
        if broker is not None:
            broker.node.renew_master_keys(machine.now())

    def _choose(self, key_id: str) -> None:
        """Choose the master key that wraps data keys from now on."""

        def serve(serving: Serving, now: Instant, _wall_ns: int, answer: Answer) -> None:
            serving.node.propose(SetMasterKey(master_key=key_id), now, answer)

        self.calls.call("keys", self.directory.any_machine(), serve, _Count(self.world, CHOSEN))

    def _rewrap(self) -> None:
        """Wrap all data keys by the chosen master key."""

        def serve(serving: Serving, _now: Instant, _wall_ns: int, answer: Answer) -> None:
            serving.node.rewrapping.begin(answer)

        self.calls.call("keys", self.directory.any_machine(), serve, _Count(self.world, REWRAPPED))


@dataclass(frozen=True, slots=True)
class _Count:
    """Counts what was not refused."""

    world: World
    what: str

    def __call__(self, outcome: object) -> None:
        if not isinstance(outcome, LiftbridgeError | Lost):
            self.world.coverage.count("world", self.what)
