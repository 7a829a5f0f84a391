"""Log events of partition changes: one broker logs each, the leader if there is one."""

from collections.abc import Sequence

from liftbridge_broker.controller.records import PartitionChanged, Record
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.model.ids import BrokerId, stream_of
from liftbridge_broker.ports.observe import Observer


def log_partition_changes(
    observer: Observer, me: BrokerId, state: ClusterState, records: Sequence[Record]
) -> int:
    """Report elections and in-sync sets of replicated partitions; return the number of elections.

    Args:
        observer: Receives the transitions.
        me: This broker.
        state: Metadata with the records applied.
        records: The applied records.
    """
    elections = 0
    for record in records:
        if not isinstance(record, PartitionChanged):
            continue
        elections += record.is_election
        partition = record.state
        is_ours = partition.leader == me or (partition.leader is None and me in partition.replicas)
        stream = state.streams.get(stream_of(partition.partition_id))
        if not is_ours or stream is None or len(partition.replicas) == 1:
            continue
        fields: dict[str, object] = {
            "stream": stream.name,
            "partition": partition.number,
            "leader": partition.leader or "",
            "in_sync": list(partition.isr),
            "cause": record.cause.value,
        }
        if not record.is_election:
            observer.transition("in_sync_set_changed", fields)
        elif partition.leader is None:
            observer.transition("partition_leaderless", fields)
        else:
            epoch = {"leader_epoch": partition.leader_epoch}
            observer.transition("partition_leader_elected", fields | epoch)
    return elections
