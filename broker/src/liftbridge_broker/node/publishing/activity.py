"""The stream `__activity`: turns it on, and stores its pending events (ADR 0022).

The events wait in the metadata state. The broker that leads the stream's one partition appends them
in order. The end of its log shows which of them it has, from a former leader too, and the epoch of
its leadership keeps out a leader that was replaced: what such a leader appends is never committed,
and its confirmations are refused. A confirmation removes many events at once from the metadata.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from liftbridge_broker.controller.activity import ACTIVITY_LEVEL
from liftbridge_broker.controller.activity_queue import ActivityEvent, ActivityQueue
from liftbridge_broker.controller.commands import (
    Command,
    ConfirmActivity,
    CreateStream,
    SetActivity,
)
from liftbridge_broker.controller.state import StreamState
from liftbridge_broker.errors import AlreadyExistsError, LiftbridgeError
from liftbridge_broker.model.ids import Instant, MetadataIndex, Offset, PartitionId, StreamName
from liftbridge_broker.model.streams import StreamOverrides
from liftbridge_broker.model.subjects import ACTIVITY_STREAM, internal_subject
from liftbridge_broker.model.units import MILLISECOND_NS, SECOND_NS
from liftbridge_broker.node.context import NodeContext
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.partition.roles import Role
from liftbridge_broker.node.partition.runs import POLICY_LEADER, PendingAck, PublishRun, Stored
from liftbridge_broker.wire.acks import AckPolicy
from liftbridge_broker.wire.activity import encode_event, headers_of

BATCH_EVENTS_MAX: Final = 500
BATCH_BYTES_MAX: Final = 256 * 1024
"""Limits of the events that one turn appends; the last event may exceed the bytes."""

CONFIRM_NS: Final = 1 * SECOND_NS
CONFIRM_EVENTS: Final = 1_000
"""Stored events are confirmed after this time, or once there are this many."""

LOOK_NS: Final = 100 * MILLISECOND_NS
"""Time between two checks of a leader that does not accept records yet."""

RETRY_NS: Final = 1 * SECOND_NS
RETRY_NS_MAX: Final = 10 * SECOND_NS
"""Time after a refusal until the next attempt; doubled by each, as in the original."""


class _Refusals:
    """Ack of events: only a refusal counts, since the log shows what was stored.

    Attributes:
        text: The last refusal; empty for none.
    """

    text: str = ""

    def acked(self, stored: Stored) -> None:
        """Ignore it."""

    def refused(self, error: LiftbridgeError) -> None:
        """Keep the reason."""
        self.text = error.text


class ActivityStream:
    """This broker's part in the activity stream.

    Attributes:
        appended_count: Events that it appended.
    """

    def __init__(self, context: NodeContext, partitions: Mapping[PartitionId, Partition]) -> None:
        """Do nothing until `begin`.

        Args:
            context: State and ports that the parts of the node share.
            partitions: Partitions of which a replica is held here.
        """
        self._context = context
        self._options = context.options.activity
        self._partitions = partitions
        self._broker_epoch: MetadataIndex | None = None
        self._look_at: Instant | None = None
        self._is_proposing = False
        self._retry_at = Instant(0)
        self._retry_ns = RETRY_NS
        self._confirm_at: Instant | None = None
        self._lost_count = 0
        self._refusals = _Refusals()
        self._awaited: object = None
        self._awaited_since = Instant(0)
        self._is_delayed = False
        self.appended_count = 0

    # -- events -------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start, now that all metadata from before the registration of this process is applied."""
        own = self._context.state.brokers.get(self._context.broker)
        self._broker_epoch = None if own is None else own.broker_epoch
        self._lost_count = self._queue.lost_count
        self._look_soon()

    def on_change(self) -> None:
        """Handle applied metadata."""
        queue = self._queue
        is_changed = bool(queue.events) or queue.lost_count != self._lost_count
        if self._broker_epoch is not None and (is_changed or self._needs_setting):
            self._look_soon()

    def on_timer(self, now: Instant) -> None:
        """Do what is due."""
        if self._look_at is None or now < self._look_at or self._context.is_stopping:
            return
        self._look_at = None
        self._report_lost()
        if self._context.state.feature_level < ACTIVITY_LEVEL:
            if self._options.is_enabled:
                self._report_delay(
                    f"it needs feature level {ACTIVITY_LEVEL}, which is not in force"
                )
            return  # no broker may propose what an older one cannot read
        confirmation = self._store(now)
        command = self._missing() or confirmation
        if command is not None:
            self._propose(command, now)
        self._watch(now)

    def next_deadline(self) -> Instant | None:
        """Time of the next `on_timer` call, `None` for never."""
        return None if self._context.is_stopping else self._look_at

    def _look_soon(self) -> None:
        self._look_by(self._context.now)
        self._context.wake_soon()

    def _look_by(self, deadline: Instant) -> None:
        if self._look_at is None or deadline < self._look_at:
            self._look_at = deadline

    # -- the setting --------------------------------------------------------------------------

    @property
    def _queue(self) -> ActivityQueue:
        return self._context.state.activity

    @property
    def _stream(self) -> StreamState | None:
        return self._context.state.stream(ACTIVITY_STREAM)

    @property
    def _is_wrong(self) -> bool:
        """Return whether the metadata record another setting than this broker has."""
        return (self._context.broker in self._queue.wanted_by) != self._options.is_enabled

    @property
    def _needs_setting(self) -> bool:
        return self._is_wrong or self._needs_stream

    @property
    def _needs_stream(self) -> bool:
        """Return whether the stream is to be created; also for events from before it was off."""
        is_used = self._options.is_enabled or bool(self._queue.events)
        return is_used and self._stream is None

    def _missing(self) -> Command | None:
        """Return the command that brings the metadata in line with the setting, if any."""
        context = self._context
        if self._is_wrong:
            assert self._broker_epoch is not None
            return SetActivity(
                broker=context.broker,
                broker_epoch=self._broker_epoch,
                is_wanted=self._options.is_enabled,
            )
        if not self._needs_setting:
            return None
        return CreateStream(
            name=StreamName(ACTIVITY_STREAM),
            subject=internal_subject(context.options.namespace, "activity"),
            replication_factor=-1,
            # Whatever the defaults: a pause would be an event that ends the pause, records have no
            # keys, and a batch of events has no expected offset.
            overrides=StreamOverrides(
                auto_pause_ms=0, compact_enabled=False, optimistic_concurrency=False
            ),
            creation_timestamp=context.wall_ns,
            is_internal=True,
        ).with_defaults(context.options.defaults)

    def _propose(self, command: Command, now: Instant) -> None:
        """Propose a command, one at a time; its effect on the metadata calls for the next look."""
        if self._is_proposing:
            return
        if now < self._retry_at:
            self._look_by(self._retry_at)
            return
        self._is_proposing = True
        self._context.propose(command, now, self._answered)

    def _answered(self, outcome: object) -> None:
        self._is_proposing = False
        self._confirm_at = None
        if isinstance(outcome, LiftbridgeError) and not isinstance(outcome, AlreadyExistsError):
            self._refusals.refused(outcome)
            self._back_off(self._context.now)
        else:
            self._retry_ns = RETRY_NS
        self._look_soon()

    def _back_off(self, now: Instant) -> None:
        self._retry_at = Instant(now + self._retry_ns)
        self._retry_ns = min(2 * self._retry_ns, RETRY_NS_MAX)
        self._look_by(self._retry_at)

    # -- storing events -----------------------------------------------------------------------

    def _led(self) -> Partition | None:
        """Return the partition if this broker leads it by its metadata, and may write to it."""
        stream = self._stream
        state = None if stream is None else stream.partitions[0]
        if state is None or state.leader != self._context.broker:
            return None
        partition = self._partitions.get(state.partition_id)
        if (
            partition is not None
            and partition.role is Role.LEADER
            and partition.leader_epoch == state.leader_epoch
            and not (partition.replication is not None and partition.replication.is_cut_off)
        ):
            return partition
        if self._queue.events:
            self._look_by(Instant(self._context.now + LOOK_NS))
        return None

    def _store(self, now: Instant) -> ConfirmActivity | None:
        """Append pending events if this broker leads; return what it can confirm, if anything."""
        partition, queue = self._led(), self._queue
        if partition is None or not queue.events:
            self._confirm_at = None
            return None
        log, start = partition.log, queue.end_offset
        stored = log.log_end_offset - start  # guard Activity.end
        if not 0 <= stored <= len(queue.events):  # guard Activity.lost
            # Stored events are gone with a replica, or the metadata are older than the log: from
            # here on, the next event belongs at the end of the log.
            last_id = queue.events[-1].event_id if stored > 0 else 0
            return _confirmation(partition, start, last_id, log.log_end_offset)
        if stored < len(queue.events) and now >= self._retry_at:
            stored += self._append(partition, queue.events[stored : stored + BATCH_EVENTS_MAX], now)
        if stored < len(queue.events):
            self._look_by(max(now, self._retry_at))
        is_all = self._options.policy is AckPolicy.ALL
        end = log.high_watermark if is_all else log.log_end_offset  # guard Activity.committed
        count = end - start
        if count < stored:
            partition.readers.wait_for_data(self._look_soon)
        if count <= 0:
            return None
        if self._confirm_at is None:
            self._confirm_at = Instant(now + CONFIRM_NS)
        if now < self._confirm_at and count < CONFIRM_EVENTS:
            self._look_by(self._confirm_at)
            return None
        return _confirmation(partition, start, queue.events[count - 1].event_id, end)

    def _append(self, partition: Partition, events: Sequence[ActivityEvent], now: Instant) -> int:
        """Append some of the events; return how many, none if the partition refuses them."""
        values: list[bytes] = []
        size = 0
        for event in events:
            if size >= BATCH_BYTES_MAX:
                break
            values.append(encode_event(event, self._context.options.record_bytes_max))
            size += len(values[-1])
        headers = [headers_of(event) for event in events[: len(values)]]
        run = PublishRun(
            values,
            partition.subject,
            "batch",
            (PendingAck(POLICY_LEADER, self._refusals),),
            headers=headers if any(headers) else None,
        )
        end = partition.log.log_end_offset
        partition.publish(run, now, self._context.wall_ns)
        if partition.log.log_end_offset == end:
            self._back_off(now)
            return 0
        self.appended_count += len(values)
        self._retry_ns = RETRY_NS
        return len(values)

    # -- reports ------------------------------------------------------------------------------

    def _report_lost(self) -> None:
        """Report events that were lost since the last look."""
        total = self._queue.lost_count
        if total > self._lost_count:
            lost = total - self._lost_count
            self._context.transition("activity_lost", {"events": lost, "total": total})
        self._lost_count = total

    def _watch(self, now: Instant) -> None:
        """Report once when nothing changes for too long that should."""
        queue = self._queue
        awaited: object = None
        if self._needs_setting:
            awaited = self._is_wrong
        elif queue.events:
            awaited = queue.end_offset, queue.events[0].event_id
        if awaited != self._awaited:
            self._awaited, self._awaited_since, self._is_delayed = awaited, now, False
        if awaited is None:
            self._refusals.text = ""
            return
        # Events that are stored stay in the metadata until the next confirmation.
        due = Instant(self._awaited_since + self._options.timeout_ns + CONFIRM_NS)
        if now < due:
            self._look_by(due)
        else:
            self._report_delay(self._reason())

    def _reason(self) -> str:
        if self._refusals.text:
            return self._refusals.text
        stream = self._stream
        if stream is None:
            return f"{ACTIVITY_STREAM} does not exist"
        leader = stream.partitions[0].leader
        return f"{'no broker' if leader is None else leader} leads {ACTIVITY_STREAM}"

    def _report_delay(self, reason: str) -> None:
        if not self._is_delayed:
            self._is_delayed = True
            fields = {"pending": len(self._queue.events), "reason": reason}
            self._context.transition("activity_delayed", fields)


def _confirmation(
    partition: Partition, start: int, last_id: int, end_offset: Offset
) -> ConfirmActivity:
    return ConfirmActivity(
        partition_id=partition.partition_id,
        leader_epoch=partition.leader_epoch,
        start_offset=start,
        last_id=last_id,
        end_offset=end_offset,
    )
