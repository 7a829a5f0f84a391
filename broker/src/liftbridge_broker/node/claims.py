"""What a broker that starts again claims of the logs that it found, for its registration."""

from typing import Protocol

from liftbridge_broker.model.ids import PartitionId
from liftbridge_broker.node.partition import Partition
from liftbridge_broker.storage.store import LogStore


class ClaimsHost(Protocol):
    """The node, as far as its logs are asked for."""

    partitions: dict[PartitionId, Partition]
    store: LogStore


def verified_partitions(host: ClaimsHost) -> tuple[PartitionId, ...]:
    """Partitions whose logs, as they were found, were written under policy `commit` alone.

    By the metadata that the broker knew; the metadata group knows what was decided since.
    """
    return tuple(
        partition_id
        for partition_id, partition in host.partitions.items()
        if not partition.offline_reason and host.store.was_strict(partition_id)
    )


def quarantined_partitions(host: ClaimsHost) -> tuple[PartitionId, ...]:
    """Partitions whose files are damaged, so that they may lack anything."""
    return tuple(p.partition_id for p in host.partitions.values() if p.offline_reason)
