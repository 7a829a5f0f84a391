"""Decisions about streams and their publishers (C14 to C18)."""

from dataclasses import fields, replace
from typing import Final

from liftbridge_broker.controller.callers.quotas import check_streams
from liftbridge_broker.controller.checks import (
    OWNER_BYTES_MAX,
    check_encryption,
    check_min_isr,
    check_names,
    check_not_reserved,
    check_partition_count,
    check_partitions,
    check_publisher,
    check_replication_factor,
    check_retention_cursor,
    check_stream_count,
    check_values,
)
from liftbridge_broker.controller.commands import (
    AlterStream,
    CreateStream,
    DeleteStream,
    InitPublisher,
    MarkStream,
    PauseStream,
    ResumeStream,
    SetReadonly,
)
from liftbridge_broker.controller.consumer_groups.groups import on_stream_created, on_stream_deleted
from liftbridge_broker.controller.draft import Draft
from liftbridge_broker.controller.elections import with_isr
from liftbridge_broker.controller.placement import Placement, placeable
from liftbridge_broker.controller.reassignment import (
    GROWTH_MAX,
    complete_if_due,
    resize,
    resolve_min_isr,
    with_factor,
)
from liftbridge_broker.controller.records import (
    Cause,
    Decision,
    Done,
    PartitionsPaused,
    PartitionsResumed,
    PublisherForgotten,
    PublisherInitialised,
    ReadonlySet,
    Record,
    StreamAltered,
    StreamCreated,
    StreamDeleted,
    StreamIdAnswer,
    StreamMarked,
)
from liftbridge_broker.controller.state import (
    ClusterState,
    PublisherState,
    StreamPolicy,
    StreamState,
)
from liftbridge_broker.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidRequestError,
    NotFoundError,
)
from liftbridge_broker.model.ids import (
    BrokerId,
    LeaderEpoch,
    MetadataIndex,
    PartitionNumber,
    PublisherId,
    StreamId,
    partition_id,
)
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.streams import FsyncPolicy, StreamOverrides, UncleanMode
from liftbridge_broker.model.subjects import CURSORS_STREAM, RESERVED_STREAMS

PUBLISHERS_MAX: Final = 10_000
"""Idempotent publishers of one stream; beyond it the least recently used is dropped."""

PUBLISHER_EPOCH_MAX: Final = 2**32 - 1
MIN_ISR_MAX: Final = 2**31 - 1


def create_stream(
    state: ClusterState, index: MetadataIndex, command: CreateStream, *, has_key: bool = False
) -> Decision:
    """C15. The order of the checks is that of the original; with `has_key` it gets a data key."""
    check_names(command, command.partitions)
    check_encryption(command.overrides, has_key=has_key)
    partition_count = check_partition_count(command.partitions, command.partitions_max)
    check_values(command.overrides)
    check_retention_cursor(command.overrides, has_cursors=CURSORS_STREAM in state.stream_ids)
    is_growing = command.replication_factor == -1 and command.name in RESERVED_STREAMS
    replication_factor = check_replication_factor(
        command.replication_factor,
        sum(not broker.removed for broker in state.brokers.values()),
        len(placeable(state.brokers)),
    )
    if is_growing:
        replication_factor = min(replication_factor, GROWTH_MAX)
    check_min_isr(command.overrides, replication_factor)  # guard C15.min_isr
    if command.name in state.stream_ids:  # guard C15.exists
        raise AlreadyExistsError("stream already exists")
    check_stream_count(len(state.streams), command.streams_max)
    check_streams(state, command.created_by)
    stream_id = StreamId(index)
    overrides = _normalised(command.overrides)
    default = min(command.min_isr_default, MIN_ISR_MAX)
    policy = StreamPolicy(
        replication_factor,
        resolve_min_isr(overrides, default, replication_factor),
        default,
        overrides.fsync_policy or command.fsync_policy_default or FsyncPolicy.INTERVAL,
        overrides.unclean_mode or command.unclean_mode_default or UncleanMode.BALANCED,
        is_growing,
    )
    placement = Placement(state.brokers, command.load, state.replica_counts, state.partition_count)
    created = StreamCreated(
        stream_id,
        command.name,
        command.subject,
        command.group,
        command.creation_timestamp,
        overrides,
        policy,
        tuple(
            _new_partition(stream_id, PartitionNumber(number), placement.place(replication_factor))
            for number in range(partition_count)
        ),
        command.created_by,
    )
    groups = on_stream_created(state, index, created.name, created.partitions)
    return Decision((created, *groups), StreamIdAnswer(stream_id))


def _new_partition(
    stream_id: StreamId, number: PartitionNumber, replicas: tuple[BrokerId, ...]
) -> PartitionState:
    """Return an empty partition, for which all replicas are in sync."""
    index = MetadataIndex(stream_id)
    return PartitionState(
        partition_id=partition_id(stream_id, number),
        replicas=replicas,
        isr=replicas,
        leader=replicas[0],
        leader_epoch=LeaderEpoch(stream_id),
        partition_epoch=index,
        replica_epochs=(index,) * len(replicas),
    )


def _normalised(overrides: StreamOverrides) -> StreamOverrides:
    """Return overrides with a min ISR of 0 replaced by 1, since the leader is always in sync."""
    return replace(overrides, min_isr=1) if overrides.min_isr == 0 else overrides


def delete_stream(state: ClusterState, index: MetadataIndex, command: DeleteStream) -> Decision:
    """C14: delete a stream; its partition ids are never reused."""
    check_not_reserved(command.name, is_internal=command.is_internal)  # guard C14.reserved
    stream = _existing(state, command.name)
    partition_ids = tuple(partition.partition_id for partition in stream.partitions)
    deleted = StreamDeleted(stream.stream_id, stream.name, partition_ids, index)
    return Decision((*on_stream_deleted(state, index, stream.name), deleted), Done())


def _existing(state: ClusterState, name: str) -> StreamState:
    stream = state.stream(name)
    if stream is None:
        raise NotFoundError("stream does not exist")
    return stream


def alter_stream(state: ClusterState, index: MetadataIndex, command: AlterStream) -> Decision:
    """C16: replace the given settings of a stream; its pools follow in the same command."""
    check_not_reserved(command.name, is_internal=command.is_internal)  # guard C16.reserved
    stream = _existing(state, command.name)
    check_encryption(command.overrides, has_key=stream.data_key is not None)
    check_values(command.overrides)
    check_retention_cursor(command.overrides, has_cursors=CURSORS_STREAM in state.stream_ids)
    draft = Draft(state, index)
    factor = _new_factor(draft, stream, command.replication_factor)
    values = {name: getattr(command.overrides, name) for name in _OVERRIDE_NAMES}
    given = {name: value for name, value in values.items() if value is not None}
    overrides = _normalised(replace(stream.overrides, **given))
    check_min_isr(overrides, factor)  # guard C16.min_isr
    policy = with_factor(stream.policy, overrides, factor, index)
    if command.replication_factor:
        policy = policy._replace(is_growing=False)
    draft.policies[stream.stream_id] = policy
    draft.records.append(StreamAltered(stream.stream_id, stream.name, overrides, policy))
    if policy.min_isr != stream.policy.min_isr:  # guard C16.rule_e
        _adjust(draft, stream)
    if factor != stream.policy.replication_factor:
        partitions = [draft.partition(partition.partition_id) for partition in stream.partitions]
        resize(draft, partitions, factor, command.load)
    return draft.decision(Done())


_OVERRIDE_NAMES: Final = tuple(field.name for field in fields(StreamOverrides))


def _new_factor(draft: Draft, stream: StreamState, wanted: int) -> int:
    """Return the new replication factor of a stream; 0 leaves it."""
    if not wanted:
        return stream.policy.replication_factor
    takers = placeable(draft.brokers)
    # A partition may keep replicas on brokers that accept no new replicas; other partitions cannot
    # use these brokers. If a new min ISR completes a reassignment below, the partition gets its
    # target.
    kept = (partition.target or partition.replicas for partition in stream.partitions)
    usable = min(({*takers, *replicas} for replicas in kept), key=len)
    if not 0 < wanted <= len(usable):  # guard C16.factor
        raise InvalidRequestError(f"Invalid replicationFactor {wanted}, cluster size {len(usable)}")
    return wanted


def _adjust(draft: Draft, stream: StreamState) -> None:
    """Apply rule E and C7 under a new minimum, so that no pool of the former minimum remains."""
    for before in stream.partitions:
        partition = with_isr(before, before.isr, draft.brokers, draft.index, draft.min_isr(before))
        partition = complete_if_due(draft, partition)
        draft.put(partition, Cause.STREAM_ALTERED)


def pause_stream(state: ClusterState, index: MetadataIndex, command: PauseStream) -> Decision:
    """C17. A repeated pause gets the same answer; a manual pause outlasts an auto-pause."""
    check_not_reserved(command.name, is_internal=command.is_internal)  # guard C17.reserved
    stream, numbers = check_partitions(state.stream(command.name), command.partitions)
    automatic: list[PartitionNumber] = []
    explicit: list[PartitionNumber] = []
    for number in numbers:
        before = stream.partitions[number]
        by_hand = not command.is_automatic or (before.paused and not before.auto_paused)
        (explicit if by_hand else automatic).append(number)  # guard C17.by_hand
    # An auto-pause does not revoke the `resume_all` of a client.
    resume_all = stream.resume_all if command.is_automatic else command.resume_all
    paused = PartitionsPaused(
        stream.stream_id, stream.name, tuple(explicit), tuple(automatic), resume_all, index
    )
    return Decision((paused,), Done())


def resume_stream(state: ClusterState, index: MetadataIndex, command: ResumeStream) -> Decision:
    """C17. Reserved streams too: any publish or subscription resumes."""
    stream, numbers = check_partitions(state.stream(command.name), command.partitions)
    if stream.resume_all:
        numbers = tuple(partition.number for partition in stream.partitions)
    numbers = tuple(number for number in numbers if stream.partitions[number].paused)
    if not numbers:
        return Decision((), Done())
    return Decision((PartitionsResumed(stream.stream_id, stream.name, numbers, index),), Done())


def set_readonly(state: ClusterState, index: MetadataIndex, command: SetReadonly) -> Decision:
    """C18. A request for the current state gets the same answer."""
    check_not_reserved(command.name, is_internal=command.is_internal)  # guard C18.reserved
    stream, numbers = check_partitions(state.stream(command.name), command.partitions)
    record = ReadonlySet(stream.stream_id, stream.name, numbers, command.readonly, index)
    return Decision((record,), Done())


def init_publisher(state: ClusterState, index: MetadataIndex, command: InitPublisher) -> Decision:
    """Give a new publisher an id, a known one the next epoch, which fences earlier instances."""
    check_publisher(command.publisher)
    stream = _existing(state, command.stream)
    known = stream.publishers.get(command.publisher)
    records: list[Record] = []
    if known is None or known.publisher_epoch == PUBLISHER_EPOCH_MAX:
        initialised = PublisherState(PublisherId(index), 0)
    else:
        initialised = PublisherState(known.publisher_id, known.publisher_epoch + 1)
    if known is None and len(stream.publishers) >= PUBLISHERS_MAX:
        oldest = next(iter(stream.publishers))
        records.append(
            PublisherForgotten(stream.stream_id, oldest, stream.publishers[oldest].publisher_id)
        )
    records.append(PublisherInitialised(stream.stream_id, command.publisher, initialised))
    return Decision(tuple(records), initialised)


def mark_stream(state: ClusterState, command: MarkStream) -> Decision:
    """Compare and set the owner.

    Of two contenders, the later gets a refusal that names the earlier.
    """
    stream = _existing(state, command.name)
    if command.stream_id != stream.stream_id:  # guard Mark.stream_id
        raise FailedPreconditionError(
            f"stream {stream.name} is {stream.stream_id}, not {command.stream_id}: it was recreated"
        )
    size = len(command.owner.encode())
    if size > OWNER_BYTES_MAX:
        raise InvalidRequestError(f"Invalid owner of {size} bytes, limit {OWNER_BYTES_MAX}")
    if stream.owner == command.owner:
        return Decision((), Done())
    if stream.owner != command.expected:  # guard Mark.expected
        raise FailedPreconditionError(
            f"stream {stream.name} has owner '{stream.owner}', not '{command.expected}'"
        )
    return Decision((StreamMarked(stream.stream_id, command.owner),), Done())
