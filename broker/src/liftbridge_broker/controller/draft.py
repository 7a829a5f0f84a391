"""Pending changes of a command: the resulting state, and the records that lead to it.

A decision about a broker concerns many partitions, and each of them depends on what was decided
about the broker. The draft overlays the state and leaves it unchanged.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from liftbridge_broker.controller.records import (
    Answer,
    BrokerChanged,
    Cause,
    Decision,
    PartitionChanged,
    Record,
)
from liftbridge_broker.controller.state import (
    BrokerState,
    ClusterState,
    StreamPolicy,
    StreamState,
    min_isr_of,
)
from liftbridge_broker.errors import UnknownPartitionError
from liftbridge_broker.model.ids import BrokerId, MetadataIndex, PartitionId, StreamId, stream_of
from liftbridge_broker.model.partitions import PartitionState


@dataclass(slots=True)
class Draft:
    """Changes by the command of `index`.

    Attributes:
        state: State before; never changed.
        index: Index of the command.
        brokers: Brokers as they will be.
        policies: New policies of streams that change them.
        records: Changes of streams so far, which precede those of partitions.
        replica_counts: Replicas by broker as they will be.
    """

    state: ClusterState
    index: MetadataIndex
    brokers: dict[BrokerId, BrokerState] = field(init=False)
    replica_counts: Counter[BrokerId] = field(init=False)
    policies: dict[StreamId, StreamPolicy] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    _broker_causes: dict[BrokerId, Cause] = field(default_factory=dict)
    _partitions: dict[PartitionId, PartitionChanged] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.brokers = dict(self.state.brokers)
        self.replica_counts = self.state.replica_counts.copy()

    def put_broker(self, broker: BrokerState, cause: Cause) -> None:
        """Set the new state of a broker."""
        self.brokers[broker.broker] = broker
        self._broker_causes[broker.broker] = cause

    def put(self, partition: PartitionState, cause: Cause) -> None:
        """Set the state of a partition; an equal state is no change."""
        assert partition.partition_epoch <= self.index
        if partition.partition_epoch == self.index:
            before = self.partition(partition.partition_id)
            if partition.replicas != before.replicas:
                self.replica_counts.update(partition.replicas)
                self.replica_counts.subtract(before.replicas)
            self._partitions[partition.partition_id] = PartitionChanged(partition, cause)

    def partition(self, partition_id: PartitionId) -> PartitionState:
        """Return a partition with the pending changes.

        Raises:
            UnknownPartitionError: No partition has this id, or it was deleted.
        """
        changed = self._partitions.get(partition_id)
        if changed is not None:
            return changed.state
        state = self.state.partition(partition_id)
        if state is None:
            raise UnknownPartitionError(f"partition {partition_id} does not exist")
        return state

    def policy(self, partition_id: PartitionId) -> StreamPolicy:
        """Return the stream policy of an existing partition, with the pending changes."""
        return self.policy_of(self.state.streams[stream_of(partition_id)])

    def policy_of(self, stream: StreamState) -> StreamPolicy:
        """Return the policy of a stream with the pending changes."""
        return self.policies.get(stream.stream_id, stream.policy)

    def min_isr(self, partition: PartitionState) -> int:
        """In-sync replicas that a commit needs (`effective_min_isr`)."""
        return min_isr_of(self.policy(partition.partition_id), partition.replication_factor)

    def replicas_of(self, broker: BrokerId) -> Iterator[PartitionState]:
        """Yield partitions with a replica on a broker, with the pending changes, in order."""
        for _, partition in self.state.partitions():
            current = self.partition(partition.partition_id)
            if broker in current.replicas:
                yield current

    def decision(self, answer: Answer) -> Decision:
        """Return all changes as records, with an answer."""
        brokers = (
            BrokerChanged(self.brokers[broker], cause)
            for broker, cause in self._broker_causes.items()
        )
        return Decision((*brokers, *self.records, *self._partitions.values()), answer)
