"""Replay of records, which alone changes the state. It never decides and never refuses."""

from dataclasses import replace
from hashlib import blake2b
from typing import assert_never

from liftbridge_broker.controller.activity import event_of
from liftbridge_broker.controller.commands import Command
from liftbridge_broker.controller.decide import decide
from liftbridge_broker.controller.records import (
    AccessSwitched,
    ActivityConfirmed,
    ActivitySet,
    Bootstrapped,
    BrokerChanged,
    CatchUpRateSet,
    DataKeySet,
    Decision,
    FeatureLevelSet,
    GroupChanged,
    GroupEnded,
    MasterKeySet,
    PartitionChanged,
    PartitionsPaused,
    PartitionsResumed,
    PublisherForgotten,
    PublisherInitialised,
    QuotaChanged,
    ReadonlySet,
    Record,
    RulesChanged,
    StreamAltered,
    StreamCreated,
    StreamDeleted,
    StreamMarked,
    TokenChanged,
    TokensForgotten,
)
from liftbridge_broker.controller.state import DELETED_MAX, ClusterState, StreamState
from liftbridge_broker.model.ids import MetadataIndex, number_of, stream_of
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.subjects import ACTIVITY_STREAM


def apply(state: ClusterState, index: MetadataIndex, command: Command) -> Decision:
    """Apply a committed command: replay the result of `decide`.

    A refused command changes nothing but the applied index.

    Args:
        state: State after entry `index - 1`; changed in place.
        index: Index of the command.
        command: The command.
    """
    assert index == state.applied_index + 1
    decision = decide(state, index, command)
    for record in decision.records:
        replay(state, record)
    if state.activity.wanted_by:
        _queue_event(state, index, decision.records)
    _advance(state, index, decision.records)
    return decision


def _queue_event(state: ClusterState, index: MetadataIndex, records: tuple[Record, ...]) -> None:
    """Queue the event of a command for the activity stream, if it makes one."""
    events = [event for record in records if (event := event_of(index, record)) is not None]
    assert len(events) <= 1  # the index of the command is the id of its event
    for event in events:
        state.activity.add(event)


def skip(state: ClusterState, index: MetadataIndex) -> None:
    """Advance over a log entry that is not a command.

    Args:
        state: State after entry `index - 1`; changed in place.
        index: Index of the entry.
    """
    assert index == state.applied_index + 1
    _advance(state, index, ())


def _advance(state: ClusterState, index: MetadataIndex, records: tuple[Record, ...]) -> None:
    """Advance over an entry, and add its records to the chained hash.

    Nodes compare the chain at equal indices, which detects a node that decided differently (I16).
    The hash covers Python's `repr` of the records, so only nodes of one version can be compared.
    """
    done = repr((state.chain, index, records)).encode()
    state.chain = int.from_bytes(blake2b(done, digest_size=8).digest())
    state.applied_index = index


def replay(state: ClusterState, record: Record) -> None:
    """Set the values of a record in the state."""
    match record:
        case Bootstrapped() | FeatureLevelSet() | CatchUpRateSet() | BrokerChanged():
            _replay_cluster(state, record)
        case PartitionChanged():
            _replay_partition(state, record.state)
        case StreamCreated() | StreamDeleted() | StreamAltered() | StreamMarked():
            _replay_stream(state, record)
        case PartitionsPaused() | PartitionsResumed() | ReadonlySet():
            _replay_flags(state.streams[record.stream_id], record)
        case PublisherInitialised() | PublisherForgotten():
            _replay_publisher(state, record)
        case (
            TokenChanged() | TokensForgotten() | AccessSwitched() | RulesChanged() | QuotaChanged()
        ):
            _replay_callers(state, record)
        case GroupChanged() | GroupEnded():
            _replay_group(state, record)
        case ActivitySet() | ActivityConfirmed():
            _replay_activity(state, record)
        case DataKeySet() | MasterKeySet():
            _replay_keys(state, record)
        case _:
            assert_never(record)


def _replay_callers(
    state: ClusterState,
    record: TokenChanged | TokensForgotten | AccessSwitched | RulesChanged | QuotaChanged,
) -> None:
    """Set who may call, what it may do, and how much it may use."""
    match record:
        case QuotaChanged():
            _replay_quota(state, record)
        case TokenChanged(token):
            state.tokens[token.token_id] = token
        case TokensForgotten(token_ids):
            for token_id in token_ids:
                del state.tokens[token_id]
        case AccessSwitched(is_on):
            state.access.is_on = is_on
        case RulesChanged(rules):
            for rule in rules:
                state.access.rules.put(rule)
        case _:
            assert_never(record)


def _replay_group(state: ClusterState, record: GroupChanged | GroupEnded) -> None:
    match record:
        case GroupChanged(group):
            assert group.members
            state.groups[group.group_id] = group
        case GroupEnded(group_id):
            del state.groups[group_id]
        case _:
            assert_never(record)


def _replay_activity(state: ClusterState, record: ActivitySet | ActivityConfirmed) -> None:
    match record:
        case ActivitySet(broker, is_wanted):
            state.activity.set_wanted(broker, is_wanted=is_wanted)
        case ActivityConfirmed(count, end_offset, lost):
            state.activity.confirm(count, end_offset, lost)
        case _:
            assert_never(record)


def _replay_keys(state: ClusterState, record: DataKeySet | MasterKeySet) -> None:
    match record:
        case DataKeySet():
            state.set_data_key(record.stream_id, record.key)
        case MasterKeySet():
            state.master_key = record.master_key
        case _:
            assert_never(record)


def _replay_cluster(
    state: ClusterState, record: Bootstrapped | FeatureLevelSet | CatchUpRateSet | BrokerChanged
) -> None:
    match record:
        case Bootstrapped():
            state.cluster_id = record.cluster_id
            state.feature_level = record.feature_level
        case FeatureLevelSet():
            state.feature_level = record.feature_level
        case CatchUpRateSet():
            state.catch_up_rate = record.bytes_per_second
        case BrokerChanged(broker):
            # An assignment keeps the dict position of a broker that registers again.
            state.brokers[broker.broker] = broker
            if broker.removed:
                state.activity.set_wanted(broker.broker, is_wanted=False)
        case _:
            assert_never(record)


def _replay_stream(
    state: ClusterState, record: StreamCreated | StreamDeleted | StreamAltered | StreamMarked
) -> None:
    match record:
        case StreamCreated():
            _replay_creation(state, record)
        case StreamDeleted():
            state.drop_stream(record.stream_id)
            state.deleted[record.stream_id] = record.deleted_index
            if len(state.deleted) > DELETED_MAX:
                del state.deleted[next(iter(state.deleted))]
        case StreamAltered():
            stream = state.streams[record.stream_id]
            stream.overrides = record.overrides
            stream.policy = record.policy
        case StreamMarked():
            state.streams[record.stream_id].owner = record.owner
        case _:
            assert_never(record)


def _replay_partition(state: ClusterState, after: PartitionState) -> None:
    partitions = state.streams[stream_of(after.partition_id)].partitions
    number = number_of(after.partition_id)
    before = partitions[number]
    assert after.partition_epoch > before.partition_epoch
    assert after.leader_epoch >= before.leader_epoch
    assert after.unclean_epoch >= before.unclean_epoch
    assert after.leader is None or after.leader in after.isr
    assert not set(after.isr) & set(after.elr)
    assert len(after.replica_epochs) == len(after.replicas)
    partitions[number] = after
    if after.replicas != before.replicas:
        state.replica_counts.update(after.replicas)
        state.replica_counts.subtract(before.replicas)


def _replay_quota(state: ClusterState, record: QuotaChanged) -> None:
    if record.quota is None:
        del state.quotas[record.key]
    else:
        state.quotas[record.key] = record.quota


def _replay_creation(state: ClusterState, record: StreamCreated) -> None:
    state.add_stream(
        StreamState(
            stream_id=record.stream_id,
            name=record.name,
            subject=record.subject,
            group=record.group,
            creation_timestamp=record.creation_timestamp,
            overrides=record.overrides,
            policy=record.policy,
            partitions=list(record.partitions),
            created_by=record.created_by,
        )
    )
    if record.name == ACTIVITY_STREAM:
        state.activity.end_offset = 0


def _replay_flags(
    stream: StreamState, record: PartitionsPaused | PartitionsResumed | ReadonlySet
) -> None:
    match record:
        case PartitionsPaused():
            _replay_pause(stream, record)
        case PartitionsResumed():
            _replay_resume(stream, record)
        case ReadonlySet():
            _replay_readonly(stream, record)
        case _:
            assert_never(record)


def _replay_pause(stream: StreamState, record: PartitionsPaused) -> None:
    stream.resume_all = record.resume_all
    for numbers, auto_paused in ((record.explicit, False), (record.automatic, True)):
        for number in numbers:
            stream.partitions[number] = replace(
                stream.partitions[number],
                paused=True,
                auto_paused=auto_paused,
                partition_epoch=record.partition_epoch,
            )


def _replay_resume(stream: StreamState, record: PartitionsResumed) -> None:
    stream.resume_all = False
    for number in record.partitions:
        stream.partitions[number] = replace(
            stream.partitions[number],
            paused=False,
            auto_paused=False,
            partition_epoch=record.partition_epoch,
        )


def _replay_readonly(stream: StreamState, record: ReadonlySet) -> None:
    for number in record.partitions:
        stream.partitions[number] = replace(
            stream.partitions[number],
            readonly=record.readonly,
            partition_epoch=record.partition_epoch,
        )


def _replay_publisher(
    state: ClusterState, record: PublisherInitialised | PublisherForgotten
) -> None:
    publishers = state.streams[record.stream_id].publishers
    before = publishers.pop(record.publisher, None)
    if before is not None:
        del state.publisher_epochs[before.publisher_id]
    if isinstance(record, PublisherInitialised):
        # Inserted last, because the dict is ordered by last use.
        publishers[record.publisher] = record.state
        state.publisher_epochs[record.state.publisher_id] = record.state.publisher_epoch
