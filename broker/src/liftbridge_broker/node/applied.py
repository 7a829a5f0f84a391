"""Applies committed metadata to the partitions held here.

Only this module decides which partitions are created, changed and closed. It matches on the
controller's records, each of which states an outcome (ADR 0006).
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from typing import assert_never

from liftbridge_broker.controller.records import (
    ActivitySet,
    DataKeySet,
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
from liftbridge_broker.controller.state import StreamState
from liftbridge_broker.errors import FilesError, NotFoundError
from liftbridge_broker.model.ids import (
    Instant,
    PartitionId,
    PartitionNumber,
    StreamId,
    partition_id,
    stream_of,
)
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.node.context import NodeContext
from liftbridge_broker.node.held import HeldPartitions
from liftbridge_broker.node.partition.opening import watch_publishers
from liftbridge_broker.node.partition.partition import Partition


class AppliedMetadata:
    """Applies committed metadata to the partitions of one broker."""

    def __init__(self, context: NodeContext, held: HeldPartitions) -> None:
        """Start with the partitions of `held`."""
        self._context = context
        self._held = held

    def take_records(self, records: Sequence[Record], now: Instant, wall_ns: int) -> None:
        """Bring the partitions in line with records that were just applied.

        Before this process is registered it only opens logs: a replica that was removed meanwhile
        may have been assigned again, so the rest waits for `take_state` with the metadata as of the
        registration (S74). After the stop, the next process applies the records.
        """
        if self._context.has_stopped:
            return
        for record in records:
            if self._context.is_caught_up:  # guard C1.barrier
                self._take_record(record, now, wall_ns)
            else:
                self._open_given(record, now)

    def _take_record(self, record: Record, now: Instant, wall_ns: int) -> None:
        match record:
            case StreamCreated():
                self._create(record, now)
            case StreamDeleted():
                self._delete(record, now, wall_ns)
            case StreamAltered():
                self._alter(record, now)
            case PartitionChanged(state):
                self._change(state, now, wall_ns)
            case PartitionsPaused() | PartitionsResumed() | ReadonlySet():
                self._take_flags(record, now, wall_ns)
            case PublisherInitialised():
                self._watch_publishers(self._context.state.streams[record.stream_id])
            case ActivitySet(broker):
                is_on = bool(self._context.state.activity.wanted_by)
                self._context.transition("activity_set", {"broker": broker, "is_on": is_on})
            case DataKeySet():
                stream = self._context.state.streams[record.stream_id]
                self._context.data_keys.on_key_set(stream, now)
            case _:
                pass  # brokers: read from the state where they matter

    def _take_flags(
        self,
        record: PartitionsPaused | PartitionsResumed | ReadonlySet,
        now: Instant,
        wall_ns: int,
    ) -> None:
        match record:
            case PartitionsPaused():
                self._pause(record, now, wall_ns)
                self._refresh(record.stream_id, (*record.explicit, *record.automatic), now)
            case PartitionsResumed():
                self._refresh(record.stream_id, record.partitions, now)
                self._resume(record, now, wall_ns)
            case ReadonlySet():
                self._set_readonly(record, wall_ns)
                self._refresh(record.stream_id, record.partitions, now)
            case _:
                assert_never(record)

    @property
    def is_waiting(self) -> bool:
        """Return whether work is left for a later turn."""
        return (
            self._context.openings.is_waiting
            or self._context.metadata.is_behind
            or self._context.chores.is_waiting
        )

    def do_waiting(self, now: Instant, wall_ns: int) -> None:
        """Open some waiting replicas, close some deleted ones, and run some of the chores."""
        deleted = self._context.openings.take_deleted()
        if deleted:
            self._close_deleted(deleted, now, wall_ns)
        for waiting in self._context.openings.take():
            state = self._context.state.partition(waiting)
            if state is not None and self._context.broker in state.replicas:
                self._held.open_or_report(
                    self._context.state.streams[stream_of(waiting)], state, now
                )
        self._context.openings.settle()
        self._context.chores.go_on()

    def finish_deletions(self, now: Instant) -> None:
        """Remove logs that are not open and whose partitions are known to be deleted.

        Such logs remain after a kill between a committed deletion and the move of the logs.
        """
        known, streams = self._context.metadata.deleted, self._context.state.deleted
        unopened = self._context.store.unopened()
        deleted = {one for one in unopened if one in known or stream_of(one) in streams}
        self._context.store.finish_deletions(deleted, now)

    def _open_given(self, record: Record, now: Instant) -> None:
        """Open the logs that a record assigns to this broker."""
        match record:
            case StreamCreated(partitions=given):
                pass
            case PartitionChanged(state):
                given = (state,)
            case _:
                return
        for state in given:
            if self._context.broker in state.replicas:
                self._open(self._context.state.streams[stream_of(state.partition_id)], state, now)

    def take_state(self, now: Instant, wall_ns: int) -> None:
        """Bring the partitions in line with a whole state, as from a snapshot.

        Removes only logs that the state proves to be deleted or held elsewhere; other files stay.
        """
        state = self._context.state
        if self._context.has_stopped:
            return
        if not self._context.is_caught_up:
            for stream, assigned in state.partitions():
                if self._context.broker in assigned.replicas:
                    self._open(stream, assigned, now)
            return
        self._drop_others(now, wall_ns)
        for stream in state.streams.values():
            self._watch_publishers(stream)
            self._context.data_keys.on_key_set(stream, now)
        for stream, assigned in state.partitions():
            if self._context.broker in assigned.replicas:
                self._open(stream, assigned, now)
                partition = self._held.partitions.get(assigned.partition_id)
                if partition is not None:
                    self._follow(partition, stream, assigned, now, wall_ns)

    def _follow(
        self,
        partition: Partition,
        stream: StreamState,
        found: PartitionState,
        now: Instant,
        wall_ns: int,
    ) -> None:
        """Bring an open partition in line with its state."""
        self._held.set_options(partition, self._context.options_of(stream), now)
        self._held.assign_role(partition, stream, found, now)
        is_paused, is_auto = found.paused, found.auto_paused
        if (partition.is_paused, partition.pause.is_auto) != (is_paused, is_auto):
            partition.set_paused(is_paused=is_paused, is_auto=is_auto, now=now, wall_ns=wall_ns)
        if partition.is_readonly != found.readonly:
            partition.set_readonly(is_readonly=found.readonly, wall_ns=wall_ns)

    def _drop_others(self, now: Instant, wall_ns: int) -> None:
        state = self._context.state
        for held in list(self._held.partitions):
            current = state.partition(held)
            if current is not None and self._context.broker not in current.replicas:
                self._held.remove(held, now, wall_ns)
            elif current is None:
                self._held.close(held, _deleted())
                if stream_of(held) in state.deleted:  # guard C14.evidence
                    self._context.store.delete((held,), now, wall_ns)

    def _create(self, record: StreamCreated, now: Instant) -> None:
        stream = self._context.state.streams[record.stream_id]
        held = [state for state in record.partitions if self._context.broker in state.replicas]
        with suppress(FilesError):  # a replica without a directory is reported when it opens
            self._context.store.make([state.partition_id for state in held], stream.name)
        for state in held:
            self._open(stream, state, now)
        self._context.transition(
            "stream_created",
            {
                "stream": record.name,
                "subject": record.subject,
                "partitions": len(record.partitions),
            },
        )

    def _open(self, stream: StreamState, state: PartitionState, now: Instant) -> None:
        """Take the role that a partition's state assigns; an unopened partition may be queued."""
        is_open = state.partition_id in self._held.partitions
        if (
            is_open
            or not self._context.is_caught_up
            or self._context.openings.admits(state.partition_id, now)
        ):
            self._held.open_or_report(stream, state, now)

    def _delete(self, record: StreamDeleted, now: Instant, wall_ns: int) -> None:
        for number in record.partition_ids:
            partition = self._held.partitions.get(number)
            if partition is not None:
                partition.refuse_appends(_deleted())
        admitted = self._context.openings.admit_deleted(record.partition_ids, now)
        self._close_deleted(admitted, now, wall_ns)
        self._context.transition("stream_deleted", {"stream": record.name})

    def _close_deleted(self, partitions: Sequence[PartitionId], now: Instant, wall_ns: int) -> None:
        for number in partitions:
            self._held.close(number, _deleted())
        self._context.store.delete(partitions, now, wall_ns)

    def _alter(self, record: StreamAltered, now: Instant) -> None:
        stream = self._context.state.streams[record.stream_id]
        options = self._context.options_of(stream)
        for state in stream.partitions:
            partition = self._held.partitions.get(state.partition_id)
            # A smaller factor may have removed this broker's replica, which `_change` handles.
            if partition is not None and self._context.broker in state.replicas:
                self._held.set_options(partition, options, now)
                self._held.assign_role(partition, stream, state, now)
        applied_index = self._context.state.applied_index
        if record.policy.fsync_index == applied_index:
            self._context.store.note_known(applied_index, now)
        overrides = record.overrides
        changed = [f.name for f in fields(overrides) if getattr(overrides, f.name) is not None]
        self._context.transition("stream_altered", {"stream": record.name, "changes": changed})

    def _change(self, state: PartitionState, now: Instant, wall_ns: int) -> None:
        """Take the role that a partition's new state assigns; delete a removed replica."""
        if self._context.broker in state.replicas:
            self._open(self._context.state.streams[stream_of(state.partition_id)], state, now)
        elif state.partition_id in self._held.partitions:
            self._held.remove(state.partition_id, now, wall_ns)

    def _refresh(
        self,
        stream_id: StreamId,
        numbers: Sequence[PartitionNumber],
        now: Instant,
    ) -> None:
        """Pass the new partition epochs on to the replicas."""
        stream = self._context.state.streams[stream_id]
        for number in numbers:
            state = stream.partitions[number]
            partition = self._held.partitions.get(state.partition_id)
            if partition is not None:
                self._held.assign_role(partition, stream, state, now)

    def _watch_publishers(self, stream: StreamState) -> None:
        """Have the store keep snapshots of publisher state, from the first publisher on."""
        for state in stream.partitions if stream.publishers else ():
            partition = self._held.partitions.get(state.partition_id)
            if partition is not None:
                watch_publishers(self._held.context, partition)

    def _pause(self, record: PartitionsPaused, now: Instant, wall_ns: int) -> None:
        for numbers, is_auto in ((record.explicit, False), (record.automatic, True)):
            for number in _ids(record.stream_id, numbers):
                partition = self._held.partitions.get(number)
                if partition is not None:
                    partition.set_paused(is_paused=True, is_auto=is_auto, now=now, wall_ns=wall_ns)
                    self._context.transition(
                        "partition_paused",
                        {
                            "stream": record.name,
                            "partition": partition.number,
                            "cause": "idle" if is_auto else "request",
                        },
                    )

    def _resume(self, record: PartitionsResumed, now: Instant, wall_ns: int) -> None:
        for number in _ids(record.stream_id, record.partitions):
            partition = self._held.partitions.get(number)
            if partition is not None:
                partition.set_paused(is_paused=False, is_auto=False, now=now, wall_ns=wall_ns)
                self._held.watch_idle(partition, now)
                self._context.transition(
                    "partition_resumed",
                    {"stream": record.name, "partition": partition.number, "cause": "request"},
                )

    def _set_readonly(self, record: ReadonlySet, wall_ns: int) -> None:
        for number in _ids(record.stream_id, record.partitions):
            partition = self._held.partitions.get(number)
            if partition is not None:
                partition.set_readonly(is_readonly=record.readonly, wall_ns=wall_ns)
                self._context.transition(
                    "partition_readonly_changed",
                    {
                        "stream": record.name,
                        "partition": partition.number,
                        "is_readonly": record.readonly,
                    },
                )


def _ids(stream_id: StreamId, numbers: Sequence[PartitionNumber]) -> list[PartitionId]:
    return [partition_id(stream_id, number) for number in numbers]


def _deleted() -> NotFoundError:
    return NotFoundError("commit log was deleted")
