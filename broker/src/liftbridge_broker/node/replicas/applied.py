"""Apply committed metadata to the partitions of this owner.

Only this module creates, changes and closes partitions. It matches on the controller's records,
each of which states an outcome (ADR 0006).
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Protocol

from liftbridge_broker.controller.records import (
    PartitionChanged,
    PartitionsPaused,
    PartitionsResumed,
    PublisherInitialised,
    ReadonlySet,
    Record,
    StreamAltered,
    StreamCreated,
    StreamDeleted,
)
from liftbridge_broker.controller.state import ClusterState, StreamState
from liftbridge_broker.errors import FilesError, LiftbridgeError, NotFoundError
from liftbridge_broker.model.ids import (
    BrokerId,
    Instant,
    PartitionId,
    PartitionNumber,
    StreamId,
    partition_id,
    stream_of,
)
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.streams import StreamOptions
from liftbridge_broker.node.metadata.driver import MetadataDriver
from liftbridge_broker.node.partition.opening import watch_publishers
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.refusals import leader_changed
from liftbridge_broker.node.scheduling.chores import Chores
from liftbridge_broker.node.scheduling.opening_queue import OpeningQueue
from liftbridge_broker.storage.store import LogStore


class PartitionOwner(Protocol):
    """The part of the node that applied metadata changes."""

    partitions: dict[PartitionId, Partition]
    store: LogStore
    metadata: MetadataDriver
    openings: OpeningQueue
    chores: Chores

    @property
    def broker(self) -> BrokerId:
        """Id of this broker."""
        ...

    @property
    def state(self) -> ClusterState:
        """Applied metadata, these records included."""
        ...

    @property
    def has_stopped(self) -> bool:
        """Return whether all partitions were closed, while their logs may still be open."""
        ...

    @property
    def is_caught_up(self) -> bool:
        """Return whether the metadata hold all decisions made before this process started."""
        ...

    def open_partition(self, stream: StreamState, state: PartitionState, now: Instant) -> None:
        """Serve a partition."""
        ...

    def assign_role(
        self, partition: Partition, stream: StreamState, state: PartitionState, now: Instant
    ) -> None:
        """Lead or follow, as the metadata say."""
        ...

    def close_partition(self, partition_id: PartitionId, error: LiftbridgeError) -> None:
        """Stop serving a partition."""
        ...

    def options_of(self, stream: StreamState) -> StreamOptions:
        """Settings in force of a stream."""
        ...

    def set_options(self, partition: Partition, options: StreamOptions, now: Instant) -> None:
        """Put settings into force."""
        ...

    def watch_idle(self, partition: Partition, now: Instant) -> None:
        """Restart the idle check of a partition."""
        ...

    def transition(self, kind: str, fields: Mapping[str, object]) -> None:
        """Report a transition to the observer."""
        ...


def take_records(
    owner: PartitionOwner, records: Sequence[Record], now: Instant, wall_ns: int
) -> None:
    """Bring the partitions in line with records that were just applied.

    Before this process is registered it only opens logs: a replica that was removed meanwhile may
    have been assigned again, so the rest waits for `take_state` on the metadata of that moment
    (S74). After the stop, the next process applies the records.
    """
    if owner.has_stopped:
        return
    for record in records:
        if owner.is_caught_up:  # guard C1.barrier
            _take_record(owner, record, now, wall_ns)
        else:
            _open_given(owner, record, now)


def _take_record(owner: PartitionOwner, record: Record, now: Instant, wall_ns: int) -> None:
    match record:
        case StreamCreated():
            _create(owner, record, now)
        case StreamDeleted():
            _delete(owner, record, now, wall_ns)
        case StreamAltered():
            _alter(owner, record, now)
        case PartitionChanged(state):
            _change(owner, state, now, wall_ns)
        case PartitionsPaused():
            _pause(owner, record, now, wall_ns)
            _refresh(owner, record.stream_id, (*record.explicit, *record.automatic), now)
        case PartitionsResumed():
            _refresh(owner, record.stream_id, record.partitions, now)
            _resume(owner, record, now, wall_ns)
        case PublisherInitialised():
            _watch_publishers(owner, owner.state.streams[record.stream_id])
        case ReadonlySet():
            _set_readonly(owner, record, wall_ns)
            _refresh(owner, record.stream_id, record.partitions, now)
        case _:
            pass  # brokers: read from the state where they matter


def is_waiting(owner: PartitionOwner) -> bool:
    """Return whether work is left for a later turn."""
    return owner.openings.is_waiting or owner.metadata.is_behind or owner.chores.is_waiting


def do_waiting(owner: PartitionOwner, now: Instant, wall_ns: int) -> None:
    """Open and permanently close some waiting replicas, and do some of the chores."""
    deleted = owner.openings.take_deleted()
    if deleted:
        _close_deleted(owner, deleted, now, wall_ns)
    for waiting in owner.openings.take():
        state = owner.state.partition(waiting)
        if state is not None and owner.broker in state.replicas:
            _open_now(owner, owner.state.streams[stream_of(waiting)], state, now)
    owner.openings.settle()
    owner.chores.go_on()


def finish_deletions(owner: PartitionOwner, now: Instant) -> None:
    """Remove logs that are not open and whose partitions are known to be deleted.

    Such logs remain after a kill between a committed deletion and the move of the logs.
    """
    known, streams = owner.metadata.deleted, owner.state.deleted
    unopened = owner.store.unopened()
    deleted = {one for one in unopened if one in known or stream_of(one) in streams}
    owner.store.finish_deletions(deleted, now)


def _open_given(owner: PartitionOwner, record: Record, now: Instant) -> None:
    """Open the logs that a record assigns to this broker."""
    match record:
        case StreamCreated(partitions=given):
            pass
        case PartitionChanged(state):
            given = (state,)
        case _:
            return
    for state in given:
        if owner.broker in state.replicas:
            _open(owner, owner.state.streams[stream_of(state.partition_id)], state, now)


def take_state(owner: PartitionOwner, now: Instant, wall_ns: int) -> None:
    """Bring the partitions in line with a whole state, as from a snapshot.

    Removes only logs that the state proves to be deleted or held elsewhere; other files stay.
    """
    state = owner.state
    if owner.has_stopped:
        return
    if not owner.is_caught_up:
        for stream, found in state.partitions():
            if owner.broker in found.replicas:
                _open(owner, stream, found, now)
        return
    _drop_others(owner, now, wall_ns)
    for stream in state.streams.values():
        _watch_publishers(owner, stream)
    for stream, found in state.partitions():
        if owner.broker in found.replicas:
            _open(owner, stream, found, now)
            partition = owner.partitions.get(found.partition_id)
            if partition is not None:
                _follow(owner, partition, stream, found, now, wall_ns)


def _follow(
    owner: PartitionOwner,
    partition: Partition,
    stream: StreamState,
    found: PartitionState,
    now: Instant,
    wall_ns: int,
) -> None:
    """Bring an open partition in line with its state."""
    owner.set_options(partition, owner.options_of(stream), now)
    owner.assign_role(partition, stream, found, now)
    is_paused, is_auto = found.paused, found.auto_paused
    if (partition.is_paused, partition.is_auto_paused) != (is_paused, is_auto):
        partition.set_paused(is_paused=is_paused, is_auto=is_auto, now=now, wall_ns=wall_ns)
    if partition.is_readonly != found.readonly:
        partition.set_readonly(is_readonly=found.readonly, wall_ns=wall_ns)


def _drop_others(owner: PartitionOwner, now: Instant, wall_ns: int) -> None:
    state = owner.state
    for held in list(owner.partitions):
        found = state.partition(held)
        if found is not None and owner.broker not in found.replicas:
            _remove(owner, held, now, wall_ns)
        elif found is None:
            owner.close_partition(held, _deleted())
            if stream_of(held) in state.deleted:  # guard C14.evidence
                owner.store.delete((held,), now, wall_ns)


def _ids(stream_id: StreamId, numbers: Sequence[PartitionNumber]) -> list[PartitionId]:
    return [partition_id(stream_id, number) for number in numbers]


def _create(owner: PartitionOwner, record: StreamCreated, now: Instant) -> None:
    stream = owner.state.streams[record.stream_id]
    held = [state for state in record.partitions if owner.broker in state.replicas]
    with suppress(FilesError):  # each without a directory is reported when it is opened
        owner.store.make([state.partition_id for state in held], stream.name)
    for state in held:
        _open(owner, stream, state, now)
    owner.transition(
        "stream_created",
        {
            "stream": record.name,
            "subject": record.subject,
            "partitions": len(record.partitions),
        },
    )


def _open(owner: PartitionOwner, stream: StreamState, state: PartitionState, now: Instant) -> None:
    """Take the role that a partition's state says; an unopened partition may be queued."""
    is_open = state.partition_id in owner.partitions
    if is_open or not owner.is_caught_up or owner.openings.admits(state.partition_id, now):
        _open_now(owner, stream, state, now)


def _open_now(
    owner: PartitionOwner, stream: StreamState, state: PartitionState, now: Instant
) -> None:
    try:
        owner.open_partition(stream, state, now)
    except FilesError as error:
        owner.transition(
            "partition_offline",
            {"stream": stream.name, "partition": state.number, "reason": error.text},
        )


def _delete(owner: PartitionOwner, record: StreamDeleted, now: Instant, wall_ns: int) -> None:
    for number in record.partition_ids:
        partition = owner.partitions.get(number)
        if partition is not None:
            partition.refuse_appends(_deleted())
    admitted = owner.openings.admit_deleted(record.partition_ids, now)
    _close_deleted(owner, admitted, now, wall_ns)
    owner.transition("stream_deleted", {"stream": record.name})


def _close_deleted(
    owner: PartitionOwner, partitions: Sequence[PartitionId], now: Instant, wall_ns: int
) -> None:
    for number in partitions:
        owner.close_partition(number, _deleted())
    owner.store.delete(partitions, now, wall_ns)


def _deleted() -> NotFoundError:
    return NotFoundError("commit log was deleted")


def _alter(owner: PartitionOwner, record: StreamAltered, now: Instant) -> None:
    stream = owner.state.streams[record.stream_id]
    options = owner.options_of(stream)
    for state in stream.partitions:
        partition = owner.partitions.get(state.partition_id)
        # A smaller factor may have removed this broker's replica, which `_change` handles.
        if partition is not None and owner.broker in state.replicas:
            owner.set_options(partition, options, now)
            owner.assign_role(partition, stream, state, now)
    applied_index = owner.state.applied_index
    if record.policy.fsync_index == applied_index:
        owner.store.note_known(applied_index, now)
    overrides = record.overrides
    changed = [f.name for f in fields(overrides) if getattr(overrides, f.name) is not None]
    owner.transition("stream_altered", {"stream": record.name, "changes": changed})


def _change(owner: PartitionOwner, state: PartitionState, now: Instant, wall_ns: int) -> None:
    """Take the role that a partition's new state says; delete a removed replica."""
    if owner.broker in state.replicas:
        _open(owner, owner.state.streams[stream_of(state.partition_id)], state, now)
    elif state.partition_id in owner.partitions:
        _remove(owner, state.partition_id, now, wall_ns)


def _remove(owner: PartitionOwner, number: PartitionId, now: Instant, wall_ns: int) -> None:
    owner.close_partition(number, leader_changed())
    owner.store.delete((number,), now, wall_ns)


def replace_log(owner: PartitionOwner, number: PartitionId, now: Instant, wall_ns: int) -> None:
    """Set a damaged log aside and start an empty one; no commit depends on it any more."""
    state = owner.state.partition(number)
    if state is None or owner.broker not in state.replicas:
        return
    _remove(owner, number, now, wall_ns)
    _open_now(owner, owner.state.streams[stream_of(number)], state, now)


def _refresh(
    owner: PartitionOwner,
    stream_id: StreamId,
    numbers: Sequence[PartitionNumber],
    now: Instant,
) -> None:
    """Pass the new partition epochs on to the replicas."""
    stream = owner.state.streams[stream_id]
    for number in numbers:
        state = stream.partitions[number]
        partition = owner.partitions.get(state.partition_id)
        if partition is not None:
            owner.assign_role(partition, stream, state, now)


def _watch_publishers(owner: PartitionOwner, stream: StreamState) -> None:
    """Have the store keep snapshots of publisher state, from the first publisher on."""
    for state in stream.partitions if stream.publishers else ():
        partition = owner.partitions.get(state.partition_id)
        if partition is not None:
            watch_publishers(owner, partition)


def _pause(owner: PartitionOwner, record: PartitionsPaused, now: Instant, wall_ns: int) -> None:
    for numbers, is_auto in ((record.explicit, False), (record.automatic, True)):
        for number in _ids(record.stream_id, numbers):
            partition = owner.partitions.get(number)
            if partition is not None:
                partition.set_paused(is_paused=True, is_auto=is_auto, now=now, wall_ns=wall_ns)
                owner.transition(
                    "partition_paused",
                    {
                        "stream": record.name,
                        "partition": partition.number,
                        "cause": "idle" if is_auto else "request",
                    },
                )


def _resume(owner: PartitionOwner, record: PartitionsResumed, now: Instant, wall_ns: int) -> None:
    for number in _ids(record.stream_id, record.partitions):
        partition = owner.partitions.get(number)
        if partition is not None:
            partition.set_paused(is_paused=False, is_auto=False, now=now, wall_ns=wall_ns)
            owner.watch_idle(partition, now)
            owner.transition(
                "partition_resumed",
                {"stream": record.name, "partition": partition.number, "cause": "request"},
            )


def _set_readonly(owner: PartitionOwner, record: ReadonlySet, wall_ns: int) -> None:
    for number in _ids(record.stream_id, record.partitions):
        partition = owner.partitions.get(number)
        if partition is not None:
            partition.set_readonly(is_readonly=record.readonly, wall_ns=wall_ns)
            owner.transition(
                "partition_readonly_changed",
                {
                    "stream": record.name,
                    "partition": partition.number,
                    "is_readonly": record.readonly,
                },
            )
