"""Metadata as clients know them: from some broker, possibly outdated."""

from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.model.ids import PartitionId
from liftbridge_testkit.sim.clients.calls import serving_on
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.world import World


class Place(NamedTuple):
    """A partition as a client knows it.

    Attributes:
        partition: Its id.
        subject: NATS subject of its stream.
        leader: Machine of its leader, `None` when it has none.
        replicas: Machines of its replicas.
    """

    partition: PartitionId
    subject: str
    leader: Machine | None
    replicas: tuple[Machine, ...]


@dataclass(slots=True)
class Directory:
    """Reads the metadata of a random broker that serves."""

    world: World
    random: Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = self.world.new_random()

    def serving(self) -> list[Machine]:
        """Return machines whose broker accepts requests."""
        return [
            machine
            for machine in self.world.machines.values()
            if not machine.is_paused and serving_on(machine) is not None
        ]

    def state(self) -> ClusterState | None:
        """Return the metadata of some serving broker; `None` when none serves."""
        serving = self.serving()
        if not serving:
            return None
        program = serving_on(self.random.choice(serving))
        assert program is not None
        return program.node.state

    def states(self) -> list[ClusterState]:
        """Return the metadata of every broker that serves or is paused."""
        programs = [serving_on(machine) for machine in self.world.machines.values()]
        return [program.node.state for program in programs if program is not None]

    def find(self, stream: str, number: int) -> Place | None:
        """Return the brokers of a partition; `None` when unknown."""
        state = self.state()
        found = state.stream(stream) if state is not None else None
        partition = found.partition(number) if found is not None else None
        if found is None or partition is None:
            return None
        machines = self.world.machines
        return Place(
            partition.partition_id,
            found.subject,
            machines.get(partition.leader) if partition.leader is not None else None,
            tuple(machines[broker] for broker in partition.replicas if broker in machines),
        )

    def any_machine(self) -> Machine:
        """Return some machine, running or not, as a client without metadata would try."""
        return self.random.choice(list(self.world.machines.values()))
