"""Replay: records change the state, and nothing else does. It never decides and never refuses."""

from dataclasses import replace
from typing import assert_never

from liftbridge_broker.controller.commands import Command
from liftbridge_broker.controller.decide import decide
from liftbridge_broker.controller.records import (
    BrokerRegistered,
    Decision,
    LeaderElected,
    PartitionsPaused,
    PartitionsResumed,
    PublisherForgotten,
    PublisherInitialised,
    ReadonlySet,
    Record,
    StreamAltered,
    StreamCreated,
    StreamDeleted,
)
from liftbridge_broker.controller.state import ClusterState, StreamPolicy, StreamState
from liftbridge_broker.model.ids import MetadataIndex, number_of, stream_of


def apply(state: ClusterState, index: MetadataIndex, command: Command) -> Decision:
    """Apply a committed command: replay what `decide` says of it now.

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
    state.applied_index = index
    return decision


def replay(state: ClusterState, record: Record) -> None:
    """Put the values of a record in place."""
    match record:
        case BrokerRegistered(broker):
            # An assignment keeps the place of a broker that registers again.
            state.brokers[broker.broker] = broker
        case LeaderElected():
            _replay_election(state, record)
        case StreamCreated():
            _replay_creation(state, record)
        case StreamDeleted():
            state.drop_stream(record.stream_id)
        case StreamAltered():
            state.streams[record.stream_id].overrides = record.overrides
        case PartitionsPaused() | PartitionsResumed() | ReadonlySet():
            _replay_flags(state.streams[record.stream_id], record)
        case PublisherInitialised() | PublisherForgotten():
            _replay_publisher(state, record)
        case _:
            assert_never(record)


def _replay_election(state: ClusterState, record: LeaderElected) -> None:
    partitions = state.streams[stream_of(record.partition_id)].partitions
    number = number_of(record.partition_id)
    before = partitions[number]
    assert record.leader in record.isr
    assert record.leader_epoch > before.leader_epoch
    partitions[number] = replace(
        before,
        leader=record.leader,
        isr=record.isr,
        leader_epoch=record.leader_epoch,
        partition_epoch=MetadataIndex(record.leader_epoch),
        unclean_epoch=record.leader_epoch if record.is_unclean else before.unclean_epoch,
    )


def _replay_creation(state: ClusterState, record: StreamCreated) -> None:
    state.add_stream(
        StreamState(
            stream_id=record.stream_id,
            name=record.name,
            subject=record.subject,
            group=record.group,
            creation_timestamp=record.creation_timestamp,
            overrides=record.overrides,
            policy=StreamPolicy(replication_factor=len(record.partitions[0].replicas)),
            partitions=list(record.partitions),
        )
    )


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
        # Entered last: the order of the dict is the order of use.
        publishers[record.publisher] = record.state
        state.publisher_epochs[record.state.publisher_id] = record.state.publisher_epoch
