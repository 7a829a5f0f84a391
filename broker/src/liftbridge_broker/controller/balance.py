"""Proposals of the metadata leader that keep the cluster balanced.

Pure functions of the state: elections of the first replica unless its broker is cordoned (C9),
moves off drained brokers (C20), and permission for a broker to stop (C13). Each is bounded, so that
one pass does not move everything at once.
"""

from collections.abc import Mapping

from liftbridge_broker.controller.commands import BrokerLoad, ElectPreferred, StartReassignment
from liftbridge_broker.controller.placement import Placement
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.model.ids import BrokerId, MetadataIndex, PartitionId, stream_of
from liftbridge_broker.model.partitions import PartitionState


def preferred_elections(state: ClusterState, partitions_max: int) -> ElectPreferred | None:
    """Return the elections that give leaderships back to first replicas; `None` if none is due."""
    elections: list[PartitionId] = []
    for _, partition in state.partitions():
        if partition.leader != partition.replicas[0] and is_given_away(state, partition):
            elections.append(partition.partition_id)
            if len(elections) >= partitions_max:
                break
    return ElectPreferred(partitions=tuple(elections)) if elections else None


def is_given_away(state: ClusterState, partition: PartitionState) -> bool:
    """Return whether a partition could be led by its first replica, but is not."""
    first = partition.replicas[0]
    stream = state.streams[stream_of(partition.partition_id)]
    return (
        partition.leader not in (None, first)
        and first in partition.isr
        and state.brokers[first].can_lead
        and not state.brokers[first].cordoned  # it leaves the cluster, or is about to
        and state.brokers[first].can_unwrap(stream.data_key)  # it would give it away again
        and not partition.is_recovering
    )


def drain_moves(
    state: ClusterState, load: tuple[BrokerLoad, ...], moves_max: int
) -> tuple[StartReassignment, ...]:
    """Return moves off drained brokers; a partition without another broker to move to stays.

    Args:
        state: Applied metadata.
        load: Load of the brokers, to choose the least loaded.
        moves_max: Maximum number of concurrent reassignments, including those already in progress.
    """
    draining = {broker.broker for broker in state.brokers.values() if broker.draining}
    if not draining:
        return ()
    under_way = sum(partition.is_reassigning for _, partition in state.partitions())
    placement = Placement(state.brokers, load, state.replica_counts, 0)
    moves: list[StartReassignment] = []
    for _, partition in state.partitions():
        if under_way + len(moves) >= moves_max:
            break
        kept = tuple(replica for replica in partition.replicas if replica not in draining)
        if partition.is_reassigning or len(kept) == len(partition.replicas):
            continue
        target = placement.extend(kept, len(partition.replicas))
        if len(target) == len(partition.replicas):
            moves.append(
                StartReassignment(
                    partition_id=partition.partition_id,
                    target=target,
                    partition_epoch=partition.partition_epoch,
                )
            )
    return tuple(moves)


def may_stop(
    state: ClusterState, broker: BrokerId, applied: Mapping[BrokerId, MetadataIndex]
) -> bool:
    """Return whether a broker in controlled shutdown may stop now (SHUTDOWN_NOW of C13).

    Args:
        state: Applied metadata.
        broker: The broker.
        applied: Metadata index that each broker reported in its last heartbeat.
    """
    stopping = state.brokers[broker]
    if not stopping.in_controlled_shutdown:
        return False
    others_know = all(
        applied.get(other.broker, MetadataIndex(0)) >= stopping.controlled_shutdown_index
        for other in state.brokers.values()
        if other.broker != broker and not other.fenced
    )
    return others_know and not any(  # guard C13.applied
        partition.leader == broker  # guard C13.leads
        for _, partition in state.partitions()
    )
