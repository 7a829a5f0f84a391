"""Other operator actions around a partition.

Brokers leave, other streams are created and deleted.
"""

from collections.abc import Sequence

from liftbridge_broker.controller.commands import (
    FEATURE_LEVEL,
    Bootstrap,
    CreateStream,
    DeclareUnclean,
    DeleteStream,
    RegisterBroker,
    RemoveBroker,
    SetFeatureLevel,
)
from liftbridge_broker.model.ids import BrokerId, StreamName
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.streams import StreamOverrides
from liftbridge_testkit.replica_brokers import Broker, Command
from liftbridge_testkit.replica_cluster import ReplicaCluster, Steps, Weighted

NEIGHBOUR = StreamName("bar")
NEWER_SHARE = 0.8
"""Share of software changes that are upgrades."""


class Estate(Steps):
    """An operator who works elsewhere in the cluster."""

    def __init__(self, cluster: ReplicaCluster) -> None:
        """Add a broker that may leave."""
        super().__init__(cluster)
        cluster.add_broker("d")
        self._retired: dict[BrokerId, int] = {}

    def faults(self) -> Sequence[Weighted]:
        """Return the actions of the operator."""
        return (
            (self._name, 1),
            (self._install, 1),
            (self._upgrade, 1),
            (self._retire, 1),
            (self._remove, 1),
            (self._damage, 1),
            (self._open, 1),
            (self._alter, 3),
            (self._close, 1),
        )

    def always(self) -> Sequence[Weighted]:
        """Return the steps in which brokers return."""
        return ((self._come_back, 1),)

    def _name(self) -> None:
        """Found the cluster, possibly a second time by mistake."""
        name = self.cluster.rng.choice(["one", "two"])
        self.cluster.send(Command(Bootstrap(cluster_id=name, feature_level=FEATURE_LEVEL)))

    def _install(self) -> None:
        """Install other software, mostly newer, for the next start of a broker."""
        newer = self.cluster.rng.random() < NEWER_SHARE
        self.cluster.any_broker().feature_level = FEATURE_LEVEL + newer

    def ended(self, one: Broker) -> None:
        """Register a process whose software does not support the rules in force."""
        if one.feature_level < self.cluster.world.state.feature_level:
            self.cluster.apply(self._start(one, "older"))

    def _start(self, one: Broker, why: str) -> RegisterBroker:
        """Return the registration of a process, possibly started by mistake."""
        return RegisterBroker(
            broker=one.broker,
            incarnation_id=f"{one.broker}-{why}-{self.cluster.world.index}",
            data_dir_id=one.data_dir,
            feature_level=one.feature_level,
        )

    def _upgrade(self) -> None:
        """Request other decision rules, possibly too soon."""
        level = FEATURE_LEVEL + self.cluster.rng.randrange(2)
        self.cluster.send(Command(SetFeatureLevel(feature_level=level)))

    # A broker leaves.

    def _retire(self) -> None:
        """Stop a broker without replicas, and remove it as soon as it is fenced.

        Before the command arrives, it may have got a replica, or been started again.
        """
        cluster = self.cluster
        one = cluster.any_broker()
        state = cluster.world.state
        is_idle = not any(one.broker in held.replicas for _, held in state.partitions())
        if not one.is_running or not is_idle:
            return
        if not state.brokers[one.broker].fenced:
            cluster.world.fence(one.broker)
            cluster.note_view()
        self._retired[one.broker] = one.broker_epoch
        cluster.end(one)
        one.is_running = False
        cluster.send(Command(RemoveBroker(broker=one.broker, broker_epoch=one.broker_epoch)))

    def _remove(self) -> None:
        """Remove a fenced broker as lost, as an operator may."""
        cluster = self.cluster
        one = cluster.any_broker()
        known = cluster.world.state.brokers[one.broker]
        if known.fenced and one.is_running:
            remove = RemoveBroker(broker=one.broker, broker_epoch=known.broker_epoch)
            cluster.send(Command(remove))

    def check(self) -> None:
        """End a broker that was removed."""
        cluster = self.cluster
        for known in cluster.world.state.brokers.values():
            one = cluster.brokers[known.broker]
            if known.removed and one.is_running:
                cluster.end(one)
                one.is_running = False
                self._retired[one.broker] = one.broker_epoch

    def _come_back(self) -> None:
        """Start a broker again that was to leave; with an empty disk if it left."""
        cluster = self.cluster
        for broker, epoch in self._retired.items():
            one = cluster.brokers[broker]
            is_gone = cluster.world.state.brokers[broker].removed
            if is_gone:
                cluster.counts["removed"] += 1
                # First the operator forgets that its directory does not return.
                cluster.apply(self._start(one, "former"))
                one.data_dir = f"disk-{broker}-{one.run}"
            cluster.register(one, 0 if is_gone else epoch)
        self._retired.clear()

    # Another stream.

    def _neighbour(self) -> PartitionState | None:
        stream = self.cluster.world.state.stream(NEIGHBOUR)
        return None if stream is None else stream.partitions[0]

    def _open(self) -> None:
        if self._neighbour() is None:
            command = CreateStream(
                name=NEIGHBOUR,
                subject=NEIGHBOUR,
                replication_factor=self.cluster.rng.randrange(1, 4),
                overrides=StreamOverrides(),
            )
            self.cluster.send(Command(command))

    def _alter(self) -> None:
        """Request any in-sync set for the other stream; the request may be late."""
        partition = self._neighbour()
        if partition is None or partition.leader is None:
            return
        cluster, rng = self.cluster, self.cluster.rng
        members = [
            replica
            for replica in partition.replicas
            if replica == partition.leader or rng.random() < 0.6
        ]
        cluster.send(Command(cluster.world.alteration(partition.partition_id, members)))

    def _damage(self) -> None:
        """Report damage in the other stream."""
        cluster, partition = self.cluster, self._neighbour()
        if partition is None:
            return
        broker = cluster.rng.choice(partition.replicas)
        cluster.send(
            Command(
                DeclareUnclean(
                    broker=broker,
                    broker_epoch=cluster.world.epoch(broker),
                    partition_id=partition.partition_id,
                    replica_epoch=partition.replica_epoch(broker) or 0,
                )
            )
        )

    def _close(self) -> None:
        if self._neighbour() is not None:
            self.cluster.send(Command(DeleteStream(name=NEIGHBOUR)))
