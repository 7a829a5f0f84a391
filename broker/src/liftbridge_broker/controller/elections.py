"""Elections and the eligible leader replicas (C4, rule E, KIP-966).

Pure functions of a partition and the brokers. Each takes the current partition and returns the
resulting one, with its epochs set to the index of the command when it changes.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from liftbridge_broker.controller.state import BrokerState
from liftbridge_broker.model.ids import BrokerId, LeaderEpoch, MetadataIndex
from liftbridge_broker.model.partitions import PartitionState

NO_BROKERS: Final[frozenset[BrokerId]] = frozenset()


class Eligible(NamedTuple):
    """Pools from which leaders are elected when no replica is in sync."""

    elr: tuple[BrokerId, ...]
    last_known_elr: tuple[BrokerId, ...]


def maintain_eligible(
    partition: PartitionState,
    isr: Collection[BrokerId],
    min_isr: int,
    *,
    replicas: tuple[BrokerId, ...],
    unclean: Collection[BrokerId] = NO_BROKERS,
) -> Eligible:
    """Apply rule E: determine the replicas guaranteed to hold every committed record.

    Below the minimum nothing is committed, so complete replicas stay complete. At or above it, only
    in-sync replicas are complete.

    Args:
        partition: The partition before.
        isr: In-sync set after.
        min_isr: In-sync replicas that a commit needs, after.
        replicas: Replicas after.
        unclean: Replicas that may have lost records.
    """
    if len(isr) >= min_isr:  # guard E.full
        return Eligible((), ())
    left = [one for one in partition.isr if one not in isr]
    pool = {*partition.elr, *left}
    elr = tuple(
        one
        for one in replicas  # guard E.replicas
        if one in pool
        and one not in isr  # guard E.isr
        and one not in unclean  # guard E.unclean
    )
    known = {*partition.last_known_elr, *(one for one in pool if one not in elr)}
    return Eligible(
        elr,
        tuple(
            replica
            for replica in replicas
            if replica in known and replica not in isr and replica not in elr
        ),
    )


def elect(
    partition: PartitionState,
    brokers: Mapping[BrokerId, BrokerState],
    index: MetadataIndex,
    min_isr: int,
    *,
    avoid: BrokerId | None = None,
) -> PartitionState:
    """C4.

    Keep a valid leader, else elect another replica, else leave the partition without a leader.

    Args:
        partition: The partition, with its pools up to date.
        brokers: State of all brokers.
        index: Index of the command.
        min_isr: In-sync replicas that a commit needs.
        avoid: Leader that must not continue, although it could.

    Returns:
        The same object when its leader stays.
    """
    candidates = [
        replica
        for replica in partition.replicas
        if replica in partition.isr  # guard C4.isr
        and brokers[replica].can_lead  # guard C4.can_lead
        and replica != avoid
    ]
    if partition.leader in candidates:
        return partition  # guard C4.keep
    if candidates:
        return led(partition, candidates[0], index)
    if not partition.isr:  # guard C4.elr
        return _elect_eligible(partition, brokers, index, min_isr)
    # All in-sync replicas are about to stop: the last of them leads until the end (C13).
    remaining = [one for one in partition.isr if not brokers[one].fenced and one != avoid]
    if partition.leader in remaining:
        return partition
    return led(partition, remaining[0] if remaining else None, index)


def _elect_eligible(
    partition: PartitionState,
    brokers: Mapping[BrokerId, BrokerState],
    index: MetadataIndex,
    min_isr: int,
) -> PartitionState:
    """Elect without an in-sync replica: a complete replica, or the sole replica."""
    eligible = [one for one in partition.elr if not brokers[one].fenced]  # guard C4.elr_fenced
    if eligible:
        isr = eligible[:1]
        pools = maintain_eligible(partition, isr, min_isr, replicas=partition.replicas)
        partition = replace(
            partition, isr=tuple(isr), elr=pools.elr, last_known_elr=pools.last_known_elr
        )
        return led(partition, isr[0], index)
    only = partition.replicas[0]
    if (
        len(partition.replicas) == 1  # guard C4.3a_only
        and not brokers[only].fenced  # guard C4.3a_fenced
    ):
        return led_uncleanly(partition, only, index, min_isr)
    return led(partition, None, index)


def led(partition: PartitionState, leader: BrokerId | None, index: MetadataIndex) -> PartitionState:
    """Return the partition with another leader or none; the same object if it already has none."""
    if leader is None and partition.leader is None:
        return partition
    return replace(
        partition,
        leader=leader,
        leader_epoch=LeaderEpoch(index),  # guard C4.epoch
        partition_epoch=index,
    )


def led_uncleanly(
    partition: PartitionState, leader: BrokerId, index: MetadataIndex, min_isr: int
) -> PartitionState:
    """Return the partition with a leader that might lack acknowledged records.

    Rule E holds here as well. Until enough replicas have caught up with the leader, the replicas
    known as complete stay in their pool, because the leader may lose its records before another
    replica has them.

    Args:
        partition: The partition without a leader.
        leader: The new leader.
        index: Index of the command.
        min_isr: In-sync replicas that a commit needs.
    """
    isr = (leader,)
    pools = maintain_eligible(
        partition,
        isr,
        min_isr,
        replicas=partition.replicas,
        unclean=partition.elr,  # guard C10.elr
    )
    return replace(
        partition,
        isr=isr,
        elr=pools.elr,
        last_known_elr=pools.last_known_elr,  # guard C10.known
        leader=leader,
        leader_epoch=LeaderEpoch(index),
        partition_epoch=index,
        unclean_epoch=LeaderEpoch(index),
        is_recovering=True,
    )


def with_isr(
    partition: PartitionState,
    isr: Collection[BrokerId],
    brokers: Mapping[BrokerId, BrokerState],
    index: MetadataIndex,
    min_isr: int,
    *,
    unclean: Collection[BrokerId] = NO_BROKERS,
    avoid: BrokerId | None = None,
) -> PartitionState:
    """Return the partition with another in-sync set: rule E, then an election if due.

    Args:
        partition: The partition before.
        isr: Members of the new set, in any order; all of them replicas.
        brokers: State of all brokers.
        index: Index of the command.
        min_isr: In-sync replicas that a commit needs.
        unclean: Replicas that may have lost records.
        avoid: Leader that must not continue.

    Returns:
        The same object when nothing changes.
    """
    members = tuple(replica for replica in partition.replicas if replica in isr)
    pools = maintain_eligible(
        partition, members, min_isr, replicas=partition.replicas, unclean=unclean
    )
    before = (partition.isr, partition.elr, partition.last_known_elr)
    if (members, *pools) != before:
        partition = replace(
            partition,
            isr=members,
            elr=pools.elr,
            last_known_elr=pools.last_known_elr,
            partition_epoch=index,
        )
    return elect(partition, brokers, index, min_isr, avoid=avoid)


def with_session(
    partition: PartitionState, broker: BrokerId, index: MetadataIndex
) -> PartitionState:
    """Return the partition with a new session of one replica, which voids its earlier reports."""
    place = partition.replicas.index(broker)
    epochs = list(partition.replica_epochs)
    epochs[place] = index
    return replace(partition, replica_epochs=tuple(epochs), partition_epoch=index)
