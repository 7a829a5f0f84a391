"""What committed metadata means for the partitions of this node.

The one place where partitions come into being, change and go; it matches on the controller's
records, each of which tells an outcome (architecture 5).
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from liftbridge_broker.controller.records import (
    LeaderElected,
    PartitionsPaused,
    PartitionsResumed,
    PublisherInitialised,
    ReadonlySet,
    Record,
    StreamAltered,
    StreamCreated,
    StreamDeleted,
)
from liftbridge_broker.errors import FilesError, NotFoundError
from liftbridge_broker.model.ids import (
    Instant,
    PartitionId,
    PartitionNumber,
    StreamId,
    partition_id,
)

if TYPE_CHECKING:
    from liftbridge_broker.node.node import Node


def take_records(node: "Node", records: Sequence[Record], now: Instant, wall_ns: int) -> None:
    """Bring the partitions in line with records that were just applied."""
    for record in records:
        match record:
            case StreamCreated():
                _create(node, record, now)
            case StreamDeleted():
                _delete(node, record, now, wall_ns)
            case StreamAltered():
                _alter(node, record, now)
            case LeaderElected():
                _lead(node, record)
            case PartitionsPaused():
                _pause(node, record, now, wall_ns)
            case PartitionsResumed():
                _resume(node, record, now, wall_ns)
            case PublisherInitialised():
                _watch_publishers(node, record)
            case ReadonlySet():
                _set_readonly(node, record, wall_ns)
            case _:
                pass  # brokers: read from the state where they matter


def _ids(stream_id: StreamId, numbers: Sequence[PartitionNumber]) -> list[PartitionId]:
    return [partition_id(stream_id, number) for number in numbers]


def _create(node: "Node", record: StreamCreated, now: Instant) -> None:
    stream = node.state.streams[record.stream_id]
    for state in record.partitions:
        try:
            node.open_partition(stream, state, now)
        except FilesError as error:
            node.transition(
                "partition_offline",
                {"stream": stream.name, "partition": state.number, "reason": error.text},
            )
    node.transition(
        "stream_created",
        {
            "stream": record.name,
            "subject": record.subject,
            "partitions": len(record.partitions),
        },
    )


def _delete(node: "Node", record: StreamDeleted, now: Instant, wall_ns: int) -> None:
    for number in record.partition_ids:
        node.close_partition(number, NotFoundError("commit log was deleted"))
        node.store.delete(number, now, wall_ns)
    node.transition("stream_deleted", {"stream": record.name})


def _alter(node: "Node", record: StreamAltered, now: Instant) -> None:
    stream = node.state.streams[record.stream_id]
    options = node.options_of(stream)
    for state in stream.partitions:
        partition = node.partitions.get(state.partition_id)
        if partition is not None:
            node.set_options(partition, options, now)
    overrides = record.overrides
    changed = [f.name for f in fields(overrides) if getattr(overrides, f.name) is not None]
    node.transition("stream_altered", {"stream": record.name, "changes": changed})


def _lead(node: "Node", record: LeaderElected) -> None:
    partition = node.partitions.get(record.partition_id)
    if partition is not None and record.leader == node.broker:
        partition.leader_epoch = record.leader_epoch
        partition.log.epochs.assign(record.leader_epoch, partition.log.log_end_offset)


def _watch_publishers(node: "Node", record: PublisherInitialised) -> None:
    """From the first publisher on, the store keeps snapshots of their state."""
    for state in node.state.streams[record.stream_id].partitions:
        partition = node.partitions.get(state.partition_id)
        if partition is not None and not partition.offline_reason:
            node.store.set_snapshot_source(state.partition_id, partition.publishers.snapshot)


def _pause(node: "Node", record: PartitionsPaused, now: Instant, wall_ns: int) -> None:
    for numbers, is_auto in ((record.explicit, False), (record.automatic, True)):
        for number in _ids(record.stream_id, numbers):
            partition = node.partitions.get(number)
            if partition is not None:
                partition.set_paused(is_paused=True, is_auto=is_auto, now=now, wall_ns=wall_ns)
                node.transition(
                    "partition_paused",
                    {
                        "stream": record.name,
                        "partition": partition.number,
                        "cause": "idle" if is_auto else "request",
                    },
                )


def _resume(node: "Node", record: PartitionsResumed, now: Instant, wall_ns: int) -> None:
    for number in _ids(record.stream_id, record.partitions):
        partition = node.partitions.get(number)
        if partition is not None:
            partition.set_paused(is_paused=False, is_auto=False, now=now, wall_ns=wall_ns)
            node.watch_idle(partition, now)
            node.transition(
                "partition_resumed",
                {"stream": record.name, "partition": partition.number, "cause": "request"},
            )


def _set_readonly(node: "Node", record: ReadonlySet, wall_ns: int) -> None:
    for number in _ids(record.stream_id, record.partitions):
        partition = node.partitions.get(number)
        if partition is not None:
            partition.set_readonly(is_readonly=record.readonly, wall_ns=wall_ns)
            node.transition(
                "partition_readonly_changed",
                {
                    "stream": record.name,
                    "partition": partition.number,
                    "is_readonly": record.readonly,
                },
            )
