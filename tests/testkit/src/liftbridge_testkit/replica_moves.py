"""Moves of replicas in the life of a partition.

Started, cancelled, repeated late or by mistake (C6 to C8).
"""

from collections.abc import Sequence

from liftbridge_broker.controller.commands import (
    CancelReassignment,
    CordonBroker,
    ElectPreferred,
    StartReassignment,
)
from liftbridge_broker.model.ids import BrokerId
from liftbridge_testkit.replica_brokers import Command
from liftbridge_testkit.replica_cluster import ReplicaCluster, Steps, Weighted

SIZES = (1, 2, 2, 3, 3, 3, 3, 4)
"""Numbers of target replicas; a single replica is too few for a commit."""

STRANGER = BrokerId("x")
"""A broker that never existed, for mistaken requests."""


class Moves(Steps):
    """An operator who moves the partition among four brokers."""

    def __init__(self, cluster: ReplicaCluster) -> None:
        """Add a broker to move to."""
        super().__init__(cluster)
        cluster.add_broker("d")

    def faults(self) -> Sequence[Weighted]:
        """Return the requests of the operator."""
        return ((self._move, 3), (self._give_up, 1), (self._cordon, 1), (self._prefer, 1))

    def always(self) -> Sequence[Weighted]:
        """Return the steps that also run without faults, so that everything recovers."""
        return ((self._admit, 1),)

    def _expected(self) -> int:
        """Return a partition epoch that the operator saw, or none."""
        cluster = self.cluster
        present = cluster.world.get(cluster.partition).partition_epoch
        return present if cluster.rng.random() < 0.5 else 0

    def _move(self) -> None:
        cluster, rng = self.cluster, self.cluster.rng
        names = [*cluster.brokers]
        target = rng.sample(names, min(rng.choice(SIZES), len(names)))
        if rng.random() < 0.05:
            target.append(rng.choice([STRANGER, *target]))
        epoch = self._expected()
        cluster.counts["move"] += 1
        command = StartReassignment(
            partition_id=cluster.partition, target=tuple(target), partition_epoch=epoch
        )
        cluster.send(Command(command))

    def _give_up(self) -> None:
        cluster = self.cluster
        number = cluster.partition
        cluster.counts["move given up"] += cluster.world.get(number).is_reassigning
        epoch = self._expected()
        cluster.send(Command(CancelReassignment(partition_id=number, partition_epoch=epoch)))

    def _cordon(self) -> None:
        cluster = self.cluster
        one = cluster.any_broker()
        known = cluster.world.state.brokers[one.broker]
        cluster.send(Command(CordonBroker(broker=one.broker, cordoned=not known.cordoned)))

    def _prefer(self) -> None:
        self.cluster.send(Command(ElectPreferred(partitions=(self.cluster.partition,))))

    def _admit(self) -> None:
        """Uncordon brokers at the end."""
        cluster = self.cluster
        for known in [*cluster.world.state.brokers.values()]:
            if known.cordoned and not cluster.faults:
                cluster.apply(CordonBroker(broker=known.broker, cordoned=False))
