"""Claims about its logs that a restarting broker puts into its registration."""

from collections.abc import Mapping

from liftbridge_broker.model.ids import PartitionId
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.storage.store import LogStore


def verified_partitions(
    partitions: Mapping[PartitionId, Partition], store: LogStore
) -> tuple[PartitionId, ...]:
    """Return the partitions whose recovered logs were written under policy `commit` alone.

    The broker judges by the metadata that it knew; the metadata group knows later decisions.
    """
    return tuple(
        partition_id
        for partition_id, partition in partitions.items()
        if not partition.offline_reason and store.was_strict(partition_id)
    )


def quarantined_partitions(
    partitions: Mapping[PartitionId, Partition],
) -> tuple[PartitionId, ...]:
    """Return the partitions whose files are damaged, so that any record may be missing."""
    return tuple(p.partition_id for p in partitions.values() if p.offline_reason)
