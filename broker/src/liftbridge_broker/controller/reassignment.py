"""Moving partitions between brokers: grow, catch up, shrink (C6 to C8).

A reassignment never shrinks the in-sync set below its minimum and never adds to it; only the leader
adds, when the new replicas have caught up. Replicas no longer needed are removed at the end.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from liftbridge_broker.controller.commands import BrokerLoad, CancelReassignment, StartReassignment
from liftbridge_broker.controller.draft import Draft
from liftbridge_broker.controller.elections import elect, led_uncleanly, maintain_eligible
from liftbridge_broker.controller.placement import Placement, no_room, placeable
from liftbridge_broker.controller.records import (
    Cause,
    Decision,
    PartitionAnswer,
    StreamAltered,
)
from liftbridge_broker.controller.state import (
    ClusterState,
    StreamPolicy,
    StreamState,
    min_isr_of,
)
from liftbridge_broker.errors import (
    FailedPreconditionError,
    InvalidPartitionEpochError,
    InvalidRequestError,
    LimitError,
)
from liftbridge_broker.model.ids import BrokerId, LeaderEpoch, MetadataIndex
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.streams import StreamOverrides

GROWTH_MAX: Final = 3
"""Replication factor up to which reserved streams grow with the number of brokers (C15)."""

LARGE_FACTOR: Final = 3
"""Replication factor from which a commit needs two in-sync replicas by default."""


def start_reassignment(
    state: ClusterState, index: MetadataIndex, command: StartReassignment
) -> Decision:
    """C6, and C7 where no replica must catch up."""
    draft = Draft(state, index)
    before = draft.partition(command.partition_id)
    check_partition_epoch(before, command.partition_epoch)
    reassign(draft, before, command.target)
    return draft.decision(partition_answer(before, draft.partition(before.partition_id)))


def check_partition_epoch(partition: PartitionState, expected: int) -> None:
    """Refuse a decision based on an earlier state of a partition; 0 accepts any state.

    Raises:
        InvalidPartitionEpochError: The partition changed since.
    """
    if expected and partition.partition_epoch != expected:
        raise InvalidPartitionEpochError(
            f"partition {partition.partition_id} has partition epoch "
            f"{partition.partition_epoch}, not {expected}"
        )


def partition_answer(before: PartitionState, after: PartitionState) -> PartitionAnswer:
    """Return the answer of a command about one partition."""
    return PartitionAnswer(
        after.leader, after.leader_epoch, after.partition_epoch, after.leader != before.leader
    )


def reassign(draft: Draft, partition: PartitionState, target: tuple[BrokerId, ...]) -> None:
    """Begin to move a partition; complete it at once when no replica must catch up.

    Raises:
        FailedPreconditionError: A reassignment is under way.
        InvalidRequestError: The target is no valid set of brokers for the partition.
        LimitError: A broker that would get a replica is at its limit.
    """
    if partition.is_reassigning:  # guard C6.running
        raise FailedPreconditionError(f"partition {partition.partition_id} is being reassigned")
    _check_target(draft, partition, target)
    if target == partition.replicas:
        return
    adding = tuple(one for one in target if one not in partition.replicas)
    started = replace(
        partition,
        replicas=(*partition.replicas, *adding),
        replica_epochs=(
            *partition.replica_epochs,
            *(draft.index for _ in adding),  # guard C6.session
        ),
        target=target,
        adding=adding,
        partition_epoch=draft.index,
    )
    finished = complete_if_due(draft, started)
    draft.put(finished, Cause.REASSIGNED if finished is not started else Cause.REASSIGNING)


def _check_target(draft: Draft, partition: PartitionState, target: tuple[BrokerId, ...]) -> None:
    min_isr = draft.min_isr(partition)
    if len(target) < min_isr:  # guard C6.min_isr
        raise InvalidRequestError(f"Invalid replicas, {len(target)} of at least {min_isr}")
    if len(set(target)) != len(target):  # guard C6.twice
        raise InvalidRequestError("Invalid replicas, a broker is listed twice")
    for name in target:
        broker = draft.brokers.get(name)
        if broker is None or broker.removed:  # guard C6.brokers
            raise InvalidRequestError(f"Invalid replicas, broker {name} does not exist")
        is_new = name not in partition.replicas
        if broker.cordoned and is_new:  # guard C20.reassign
            raise InvalidRequestError(f"Invalid replicas, broker {name} accepts no new replicas")
        if is_new and not broker.has_room(draft.replica_counts[name]):  # guard Room.target
            raise LimitError(
                f"Invalid replicas, broker {name} has {broker.replicas_max} replicas, its limit"
            )


def complete_if_due(draft: Draft, partition: PartitionState) -> PartitionState:
    """C7: shrink to the target once enough of it is in sync; the same object when it is not due.

    Both epochs always change, even when the leader stays.
    """
    if not partition.is_reassigning:
        return partition
    final = tuple(one for one in partition.target if one in partition.isr)
    policy = draft.policy(partition.partition_id)
    min_isr = min_isr_of(policy, len(partition.target))
    if not set(partition.adding) <= set(final):  # guard C7.adding
        return partition
    if len(final) < min_isr:  # guard C7.min_isr
        return partition
    return _cut(draft, partition, partition.target, min_isr)


def _cut(
    draft: Draft, partition: PartitionState, replicas: tuple[BrokerId, ...], min_isr: int
) -> PartitionState:
    """Return the partition with only these replicas, no reassignment and a new leader epoch."""
    index = draft.index
    isr = tuple(replica for replica in replicas if replica in partition.isr)
    pools = maintain_eligible(partition, isr, min_isr, replicas=replicas)
    cut = replace(
        partition,
        replicas=replicas,
        replica_epochs=tuple(
            partition.replica_epochs[partition.replicas.index(replica)] for replica in replicas
        ),
        isr=isr,
        elr=pools.elr,
        last_known_elr=pools.last_known_elr,
        target=(),
        adding=(),
        leader=partition.leader if partition.leader in isr else None,
        leader_epoch=LeaderEpoch(index),  # guard C7.epochs
        partition_epoch=index,
    )
    return elect(cut, draft.brokers, index, min_isr)


def cancel_reassignment(
    state: ClusterState, index: MetadataIndex, command: CancelReassignment
) -> Decision:
    """C8.

    Restore the former replicas, if enough of them are in sync or the request accepts loss.
    """
    draft = Draft(state, index)
    before = draft.partition(command.partition_id)
    check_partition_epoch(before, command.partition_epoch)
    if not before.is_reassigning:
        raise FailedPreconditionError(f"partition {before.partition_id} is not being reassigned")
    replicas = tuple(replica for replica in before.replicas if replica not in before.adding)
    in_sync = sum(replica in before.isr for replica in replicas)
    min_isr = draft.min_isr(before)
    if in_sync < min_isr and not command.is_unclean:  # guard C8.min_isr
        raise FailedPreconditionError(
            f"partition {before.partition_id} would have {in_sync} in-sync replicas, "
            f"needed {min_isr}"
        )
    after = _cut(draft, before, replicas, min_isr)
    if not after.isr and not after.elr:
        # Only replicas being added were complete: the remaining ones are equally good.
        after = replace(after, last_known_elr=replicas)
        live = [replica for replica in replicas if not draft.brokers[replica].fenced]
        if live:
            after = led_uncleanly(after, live[0], index, min_isr)
    draft.put(after, Cause.REASSIGNMENT_CANCELLED)
    return draft.decision(partition_answer(before, after))


def resolve_min_isr(overrides: StreamOverrides, default: int, replication_factor: int) -> int:
    """Return the min ISR of a stream: as given, by default, or by its replication factor."""
    if overrides.min_isr is not None:
        return max(1, overrides.min_isr)
    if default:
        return default
    return 2 if replication_factor >= LARGE_FACTOR else 1


def with_factor(
    policy: StreamPolicy,
    overrides: StreamOverrides,
    replication_factor: int,
    index: MetadataIndex,
) -> StreamPolicy:
    """Return the policy of a stream with a new replica count or new overrides at `index`."""
    fsync_policy = overrides.fsync_policy or policy.fsync_policy
    return policy._replace(
        replication_factor=replication_factor,
        min_isr=resolve_min_isr(overrides, policy.min_isr_default, replication_factor),
        fsync_policy=fsync_policy,
        fsync_index=policy.fsync_index if fsync_policy is policy.fsync_policy else index,
        unclean_mode=overrides.unclean_mode or policy.unclean_mode,
    )


def grow(draft: Draft, stream: StreamState) -> None:
    """Add replicas to a stream that grows with the cluster; no-op during a reassignment."""
    policy = draft.policy_of(stream)
    if not policy.is_growing:
        return
    wanted = min(GROWTH_MAX, len(placeable(draft.brokers)))
    partitions = [draft.partition(one.partition_id) for one in stream.partitions]
    if wanted <= policy.replication_factor or any(one.is_reassigning for one in partitions):
        return
    targets = _targets(draft, partitions, wanted, ())
    if any(len(target) < wanted for target in targets):
        return  # a broker without room; automatic growth refuses no command
    policy = with_factor(policy, stream.overrides, wanted, draft.index)
    draft.policies[stream.stream_id] = policy
    draft.records.append(StreamAltered(stream.stream_id, stream.name, stream.overrides, policy))
    for partition, target in zip(partitions, targets, strict=True):
        reassign(draft, partition, target)


def resize(
    draft: Draft,
    partitions: Sequence[PartitionState],
    replication_factor: int,
    load: tuple[BrokerLoad, ...],
) -> None:
    """Begin to change the number of replicas of partitions.

    Raises:
        FailedPreconditionError: One of them is being reassigned.
        LimitError: Too few brokers have room for another replica.
    """
    targets = _targets(draft, partitions, replication_factor, load)
    if any(len(target) < replication_factor for target in targets):
        raise LimitError(no_room(draft.brokers, draft.replica_counts, replication_factor))
    for partition, target in zip(partitions, targets, strict=True):
        reassign(draft, partition, target)


def _targets(
    draft: Draft,
    partitions: Sequence[PartitionState],
    replication_factor: int,
    load: tuple[BrokerLoad, ...],
) -> list[tuple[BrokerId, ...]]:
    """Return the targets of partitions whose replica count changes, as far as brokers have room."""
    placement = Placement(draft.brokers, load, draft.replica_counts, draft.state.partition_count)
    return [
        placement.extend(partition.replicas, replication_factor)
        if len(partition.replicas) < replication_factor
        else _kept(partition, replication_factor)
        for partition in partitions
    ]


def _kept(partition: PartitionState, count: int) -> tuple[BrokerId, ...]:
    """Return the replicas to keep: leader, then in-sync, then eligible, then other replicas."""
    ranked = sorted(
        partition.replicas,
        key=lambda one: (
            one != partition.leader,
            one not in partition.isr,
            one not in partition.elr,
        ),
    )
    kept = ranked[:count]
    return tuple(replica for replica in partition.replicas if replica in kept)
