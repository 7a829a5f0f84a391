"""Damage one log at the end of some runs of a cluster, when all is well.

A read detects the damage, at the leader, at a follower, or at an isolated follower. The replica is
declared damaged before any of its data are deleted (C12), another replica leads (L8), and a while
later the replica is whole again. It uses a separate generator, so that the rest of each run stays
unchanged.
"""

from random import Random
from typing import Final

from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_testkit.sim.clients.calls import serving_on
from liftbridge_testkit.sim.life import Life
from liftbridge_testkit.sim.machine import Machine

SHARE: Final = 0.5
"""Share of the runs with such an end."""

ALONE_NS: Final = 4 * SECOND_NS
"""Time for which a follower is isolated: its requests end, and it is fenced."""


class LogRot:
    """Damages one replica of one partition."""

    def __init__(self, life: Life, seed: int) -> None:
        self._life = life
        self._random = Random(f"log rot {seed}")
        self.is_wanted = self._random.random() < SHARE

    def __call__(self) -> None:
        """Damage a replica that may be lost, and wait until it recovers."""
        life, random = self._life, self._random
        state = life.directory.state()
        assert state is not None
        known = [one for _, one in state.partitions() if len(one.isr) > 2]
        if not known:
            return
        one = random.choice(known)
        assert one.leader is not None
        name = random.choice((one.leader, *one.isr))
        is_alone = name != one.leader and random.random() < 0.5
        machine = life.world.machines[name]
        if is_alone:
            self._isolate(machine)
        kind = "leader" if name == one.leader else "follower"
        life.world.coverage.count("log rot", f"{kind} that is alone" if is_alone else kind)
        machine.turn(machine.incarnation, self._find_damage, machine, one)
        if is_alone:
            life.world.run_while(lambda: True, at_most_ns=ALONE_NS)
            life.world.network.heal()
        life.expect("another leader, and a whole replica", lambda: self._is_mended(machine, one))

    def _isolate(self, machine: Machine) -> None:
        for other in self._life.world.machines:
            if other != machine.name:
                self._life.world.network.cut(machine.name, other)
                self._life.world.network.cut(other, machine.name)

    def _find_damage(self, machine: Machine, one: PartitionState) -> None:
        partition = self._partition(machine, one)
        if partition is not None:
            partition.on_unreadable(CorruptionError("bits turned over"))

    @staticmethod
    def _partition(machine: Machine, one: PartitionState) -> Partition | None:
        program = serving_on(machine)
        return None if program is None else program.node.partitions.get(one.partition_id)

    def _is_mended(self, machine: Machine, one: PartitionState) -> bool:
        partition = self._partition(machine, one)
        is_whole = partition is not None and not partition.offline_reason
        is_gone = partition is None and not self._is_replica(machine, one)
        return (is_whole or is_gone) and self._life.is_all_committed()

    def _is_replica(self, machine: Machine, one: PartitionState) -> bool:
        """Return whether it is still a replica: an earlier move may remove it."""
        serving = (serving_on(other) for other in self._life.world.machines.values())
        states = [program.node.state for program in serving if program is not None]
        newest = max(states, key=lambda state: state.applied_index, default=None)
        state = None if newest is None else newest.partition(one.partition_id)
        return state is None or machine.name in state.replicas
