"""Claims about its logs that a restarting broker puts into its registration."""

from typing import Protocol

from liftbridge_broker.model.ids import PartitionId
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.storage.store import LogStore


class ClaimsHost(Protocol):
    """The part of the node that gives its logs."""

    partitions: dict[PartitionId, Partition]
    store: LogStore


def verified_partitions(host: ClaimsHost) -> tuple[PartitionId, ...]:
    """Return the partitions whose logs, as found, were written under policy `commit` alone.

    Judged by the metadata that the broker knew; the metadata group knows later decisions.
    """
    return tuple(
        partition_id
        for partition_id, partition in host.partitions.items()
        if not partition.offline_reason and host.store.was_strict(partition_id)
    )


def quarantined_partitions(host: ClaimsHost) -> tuple[PartitionId, ...]:
    """Return the partitions whose files are damaged, so that any record may be missing."""
    return tuple(p.partition_id for p in host.partitions.values() if p.offline_reason)
