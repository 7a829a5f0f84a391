"""Rare points in metadata changes of one partition, by name."""

from typing import Final

from liftbridge_broker.model.partitions import PartitionState
from liftbridge_testkit.sim.coverage import Coverage

PARTITION: Final = (
    "eligible leaders appear",
    "eligible replica elected",
    "last known eligible leaders appear",
    "partition without a leader",
    "unclean election",
    "recovering leader",
    "recovered leader",
    "in-sync set of one",
    "below the minimum in sync",
    "new life of a replica",
    "leadership moved among the same in-sync set",
    "reassignment begins",
    "reassignment ends",
    "reassignment canceled",
    "replica count changed",
)
"""Rare points in the metadata of one partition."""


def count_partition(coverage: Coverage, before: PartitionState, after: PartitionState) -> None:
    """Count the rare points in a metadata change of a partition."""
    if after.leader_epoch != before.leader_epoch and after.leader is not None:
        coverage.count("world", "election")
    if after.isr != before.isr:
        coverage.count("world", "in-sync set changed")
    has_same_set = set(after.isr) == set(before.isr) and len(after.isr) > 1
    met = (
        bool(after.elr and not before.elr),
        after.leader in before.elr,
        bool(after.last_known_elr and not before.last_known_elr),
        after.leader is None and before.leader is not None,
        after.unclean_epoch != before.unclean_epoch,
        after.is_recovering and not before.is_recovering,
        before.is_recovering and not after.is_recovering,
        len(after.isr) == 1 < len(before.isr),
        len(after.elr) > len(before.elr) and len(after.isr) > 0,
        _has_new_life(before, after),
        has_same_set and after.leader != before.leader,
        bool(after.target and not before.target),
        bool(before.target and not after.target and after.replicas == before.target),
        bool(before.target and not after.target and after.replicas != before.target),
        not before.target and not after.target and len(after.replicas) != len(before.replicas),
    )
    coverage.rare_if(PARTITION, met)


def _has_new_life(before: PartitionState, after: PartitionState) -> bool:
    """Return whether a remaining replica counts as another one from now on."""
    epochs = zip(before.replicas, before.replica_epochs, strict=True)
    return any(after.replica_epoch(broker) not in (None, epoch) for broker, epoch in epochs)
