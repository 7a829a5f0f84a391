"""Forwards published messages over NATS to the broker that stores them, and awaits the ack.

A message for a queue group goes to whichever member NATS picks. Any other message is bound to the
leader that it was sent to. When the metadata name another leader, the ack may never come: messages
that the next leader recognises by their stamp are sent again (`node.publishing.repeating`). All
others fail with an unknown outcome once no ack can be in flight any more.

Unsent messages wait in one queue per partition: for a resume, because a leader drops messages of a
manually paused partition, or for a leader that listens.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from liftbridge_broker.controller.commands import ResumeStream
from liftbridge_broker.errors import (
    LiftbridgeError,
    LimitError,
    NotAppendedError,
    NotFoundError,
    OutcomeUnknownError,
)
from liftbridge_broker.model.ids import BrokerId, Instant, PartitionId, StreamName, earliest
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.context import NodeContext
from liftbridge_broker.node.partition.intake import UNKNOWN_PREFIX
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.partition.pause import PARKED_BYTES_MAX
from liftbridge_broker.node.partition.runs import POLICY_NONE, PublishRun
from liftbridge_broker.node.publishing.remote_partition import Target
from liftbridge_broker.node.publishing.repeating import (
    SENDS_MAX,
    Recognised,
    recognised_by,
    repeated,
)
from liftbridge_broker.node.publishing.stream_readiness import StreamReadiness
from liftbridge_broker.node.publishing.subjects import (
    ACK_WAIT_NS,
    WAITING_COUNT_MAX,
    SubjectPublisher,
    Waiter,
    forward_ack,
    group_message,
    no_ack,
    nothing,
    settle_unacked,
)
from liftbridge_broker.node.refusals import stopped
from liftbridge_proto import api_pb2

SETTLE_NS: Final = 500 * MILLISECOND_NS
"""Time for which an ack may still be in flight after a leader change."""

LOST_NS: Final = 5_000 * MILLISECOND_NS
"""Time for which a message may still be acknowledged after a connection was lost: the leader may
have appended it, and wait for its followers."""


@dataclass(slots=True, eq=False)
class _Forwarded:
    """A run of one message, forwarded or about to be.

    Attributes:
        deadline: Time at which it fails.
        sent_count: Number of times it was sent.
        bound: State of the partition when it was last sent.
        forget: Cancels the wait for its ack.
        lost: Reason for an earlier deadline; empty for none.
    """

    partition: Target
    run: PublishRun
    deadline: Instant
    sent_count: int = 0
    bound: PartitionState | None = None
    forget: Callable[[], None] = nothing
    lost: str = ""

    @property
    def is_sent(self) -> bool:
        """Return whether it was sent to a broker that has not answered."""
        return self.forget is not nothing

    def no_ack(self) -> LiftbridgeError:
        """Return the error at its deadline."""
        if not self.sent_count:
            return _never_sent(self.partition)
        return OutcomeUnknownError(UNKNOWN_PREFIX + self.lost) if self.lost else no_ack()


class _Doubt(NamedTuple):
    """Pending refusal of a run after a leader change: the error and its time."""

    settle_at: Instant
    refusal: LiftbridgeError


@dataclass(slots=True)
class _Line:
    """Runs that wait for one partition, in order, and their bytes.

    Attributes:
        is_waiting: Whether a resume or a leader is awaited already.
    """

    runs: dict[_Forwarded, None] = field(default_factory=dict)
    size_bytes: int = 0
    is_waiting: bool = False


class Forwarding:
    """Runs that are forwarded to other brokers, until their acks or refusals.

    Invariant: every run of `_all` is in exactly one of `_sent`, `_doubtful` and a line, or belongs
    to a queue group, of which any member may ack.
    """

    def __init__(
        self,
        context: NodeContext,
        find: Callable[[str, int], Target],
        subjects: SubjectPublisher,
        readiness: StreamReadiness | None,
    ) -> None:
        """Start with empty queues.

        Args:
            context: State and ports that the parts of the node share.
            find: Returns a partition by stream and number, wherever it is led.
            subjects: Publishes over NATS.
            readiness: Reports when a leader listens; `None` for a sole broker.
        """
        self._context = context
        self._find = find
        self._subjects = subjects
        self._readiness = readiness
        self._all: dict[_Forwarded, None] = {}  # by deadline
        self._sent: dict[PartitionId, dict[_Forwarded, None]] = {}  # all bound to one leader epoch
        self._doubtful: dict[_Forwarded, _Doubt] = {}  # by `settle_at`
        self._lines: dict[PartitionId, _Line] = {}

    def publish(self, partition: Target, run: PublishRun, now: Instant) -> None:
        """Send a run of one message to the partition's leader, or to its queue group."""
        if len(self._all) >= WAITING_COUNT_MAX:
            run.refuse(LimitError(f"more than {WAITING_COUNT_MAX} acks are pending"))
            return
        forwarded = _Forwarded(partition, run, Instant(now + ACK_WAIT_NS))
        partition_id = partition.partition_id
        state = self._context.state.partition(partition_id)
        is_led = partition.group or (state is not None and state.leader is not None)
        self._all[forwarded] = None
        if partition_id not in self._lines and not partition.is_paused and is_led:
            self._send(forwarded, now)
            return
        line = self._lines.setdefault(partition_id, _Line())
        awaited = "the resume" if partition.is_paused else "a leader"
        text = f"not appended: more than {PARKED_BYTES_MAX} bytes wait for {awaited}"
        self._join(line, forwarded, NotAppendedError(text))
        self._move(partition_id)

    # -- sending ------------------------------------------------------------------------------

    def _send(self, forwarded: _Forwarded, now: Instant) -> None:
        """Send a run over NATS, bound to the current leader."""
        partition, run = forwarded.partition, forwarded.run
        forwarded.bound = self._context.state.partition(partition.partition_id)
        forwarded.sent_count += 1
        message = group_message(partition, run)
        try:
            if run.policy == POLICY_NONE:
                self._drop(forwarded)
                self._subjects.publish(message, now, None)
                settle_unacked(run)
                return

            def acked(ack: api_pb2.Ack) -> None:
                self._drop(forwarded)
                forward_ack(run, ack)

            waiter = Waiter(acked, takes=lambda ack: self._is_meant(partition, ack.stream))
            forwarded.forget = self._subjects.publish(message, now, waiter)
        except LiftbridgeError as error:
            self._refuse(forwarded, error)
            return
        if not partition.group:
            assert forwarded.bound is not None
            self._sent.setdefault(partition.partition_id, {})[forwarded] = None

    def _is_meant(self, partition: Target, stream: str) -> bool:
        """Return whether an ack is of the run's stream; other streams on the subject ack too."""
        if stream == partition.stream or not partition.group:
            return stream == partition.stream
        other = self._context.state.stream(stream)
        return other is not None and other.group == partition.group

    def _drop(self, forwarded: _Forwarded) -> None:
        """Remove a run that is answered, or about to be."""
        partition_id = forwarded.partition.partition_id
        self._all.pop(forwarded, None)
        self._doubtful.pop(forwarded, None)
        sent = self._sent.get(partition_id)
        if sent is not None:
            sent.pop(forwarded, None)
            if not sent:
                del self._sent[partition_id]
        line = self._lines.get(partition_id)
        if line is not None and forwarded in line.runs:
            del line.runs[forwarded]
            line.size_bytes -= forwarded.run.size_bytes
        forwarded.forget()

    def _refuse(self, forwarded: _Forwarded, error: LiftbridgeError) -> None:
        self._drop(forwarded)
        forwarded.run.refuse(error)

    # -- lines --------------------------------------------------------------------------------

    def _join(self, line: _Line, forwarded: _Forwarded, refusal: LiftbridgeError) -> None:
        """Append a run to the queue, within the bound."""
        size = forwarded.run.size_bytes
        if line.size_bytes + size > PARKED_BYTES_MAX:
            self._refuse(forwarded, refusal)
        else:
            line.size_bytes += size
            line.runs[forwarded] = None

    def _move(self, partition_id: PartitionId) -> None:
        """Request what a queue waits for; without a leader, wait for the next metadata change."""
        line = self._lines[partition_id]
        state = self._context.state.partition(partition_id)
        if not line.runs:
            del self._lines[partition_id]
        elif state is None:
            self._end_line(partition_id, NotFoundError("commit log was deleted"))
        elif line.is_waiting:
            return
        elif state.paused:
            line.is_waiting = True
            self._resume(partition_id, line)
        elif state.leader is not None:
            own = self._own(line)
            if own is not None:
                self._take_here(partition_id, own)
            else:
                line.is_waiting = True
                self._await_leader(partition_id)

    def _own(self, line: _Line) -> Partition | None:
        """Return the queue's partition if this broker now leads it and no other may store."""
        partition = next(iter(line.runs)).partition
        target = self._find(partition.stream, partition.number)
        return target if isinstance(target, Partition) and not target.group else None

    def _take_here(self, partition_id: PartitionId, partition: Partition) -> None:
        """Publish a queue locally, as this broker now leads, before new runs of clients."""
        for forwarded in self._lines.pop(partition_id).runs:
            self._drop(forwarded)
            partition.publish(forwarded.run, self._context.now, self._context.wall_ns)

    def _resume(self, partition_id: PartitionId, line: _Line) -> None:
        partition = next(iter(line.runs)).partition

        def answered(outcome: object) -> None:
            if isinstance(outcome, LiftbridgeError):
                self._end_line(partition_id, outcome)
            else:
                self._await_leader(partition_id)

        command = ResumeStream(name=StreamName(partition.stream), partitions=(partition.number,))
        self._context.propose(command, self._context.now, answered)

    def _await_leader(self, partition_id: PartitionId) -> None:
        """Send a queue once the leader listens, or does not answer in time."""
        if self._readiness is None:
            self._let_go(partition_id)
        else:
            self._readiness.wait(
                (partition_id,), partial(self._let_go, partition_id), self._context.now
            )

    def _let_go(self, partition_id: PartitionId) -> None:
        line = self._lines.get(partition_id)
        if line is None:
            return
        line.is_waiting = False
        state = self._context.state.partition(partition_id)
        if not line.runs or state is None or state.leader is None or state.paused:
            self._move(partition_id)
            return
        own = self._own(line)
        if own is not None:
            self._take_here(partition_id, own)
            return
        del self._lines[partition_id]
        for forwarded in line.runs:
            self._send(forwarded, self._context.now)

    def _end_line(self, partition_id: PartitionId, error: LiftbridgeError) -> None:
        line = self._lines.pop(partition_id, None)
        for forwarded in line.runs if line is not None else ():
            self._refuse(forwarded, error)

    # -- changes of leaders -------------------------------------------------------------------

    def on_change(self, now: Instant) -> None:
        """Handle applied metadata: the leader of forwarded runs may have changed."""
        state = self._context.state
        changed: list[tuple[PartitionId, PartitionState | None]] = []
        for partition_id, sent in self._sent.items():
            current = state.partition(partition_id)
            bound = next(iter(sent)).bound
            assert bound is not None
            if current is None or current.leader_epoch != bound.leader_epoch:
                changed.append((partition_id, current))
        if changed:
            recognised = recognised_by(state)
            for partition_id, current in changed:
                if current is None:
                    for forwarded in list(self._sent[partition_id]):
                        self._refuse(forwarded, NotFoundError("commit log was deleted"))
                else:
                    self._lose_leader(partition_id, current, recognised, now)
        for partition_id in list(self._lines):
            self._move(partition_id)

    def _lose_leader(
        self, partition_id: PartitionId, found: PartitionState, recognised: Recognised, now: Instant
    ) -> None:
        """Handle a new leader, a new epoch of the same leader, or the loss of the leader."""
        line = self._lines.setdefault(partition_id, _Line())
        behind, line.runs = line.runs, {}
        sent = self._sent.pop(partition_id)
        publishers = recognised(next(iter(sent)).partition)
        for forwarded in sent:
            error, stamp = _leader_changed(forwarded, found), forwarded.run.publisher
            is_safe = stamp is not None and stamp.publisher_id in publishers  # guard Forward.stamp
            if is_safe and forwarded.sent_count < SENDS_MAX:  # guard Forward.bound
                forwarded.forget()
                forwarded.forget = nothing
                forwarded.run = repeated(forwarded.run)
                self._join(line, forwarded, error)
            else:
                self._doubtful[forwarded] = _Doubt(Instant(now + SETTLE_NS), error)
        line.runs.update(behind)

    # -- lost connections ---------------------------------------------------------------------

    def on_messages_lost(self, broker: BrokerId, *, is_own: bool, now: Instant) -> None:
        """Shorten the wait for acks after a broker lost a connection to NATS.

        Args:
            broker: The broker. A message of a queue group may have been sent to any member.
            is_own: Whether it is this broker, which may have missed acks of all other brokers.
            now: Time now.
        """
        latest, is_changed = Instant(now + LOST_NS), False
        # A flood may cost a broker its connection many times a second: visit only later deadlines.
        for forwarded in reversed(self._all):
            if forwarded.deadline <= latest:
                break
            bound, is_any = forwarded.bound, is_own or forwarded.partition.group
            is_from = is_any or (bound is not None and bound.leader == broker)
            if is_from and forwarded.is_sent:
                is_changed, forwarded.deadline = True, latest
                forwarded.lost = (
                    f"no ack within {LOST_NS // 10**9} s after broker {broker} had lost a "
                    "connection to NATS"
                )
        if is_changed:
            self._all = dict.fromkeys(sorted(self._all, key=lambda one: one.deadline))

    # -- time ---------------------------------------------------------------------------------

    def on_timer(self, now: Instant) -> None:
        """Fail runs without an ack in time."""
        for forwarded, doubt in list(self._doubtful.items()):
            if doubt.settle_at > now:
                break
            self._refuse(forwarded, doubt.refusal)
        while (first := next(iter(self._all), None)) is not None and first.deadline <= now:
            self._refuse(first, first.no_ack())

    def next_deadline(self) -> Instant | None:
        """Time of the next `on_timer` call, `None` for never."""
        doubt, first = next(iter(self._doubtful.values()), None), next(iter(self._all), None)
        return earliest(
            None if doubt is None else doubt.settle_at,
            None if first is None else first.deadline,
        )

    def end(self) -> None:
        """Refuse all unsent runs, because the broker stops."""
        for partition_id in list(self._lines):
            self._end_line(partition_id, stopped())


def _never_sent(partition: Target) -> LiftbridgeError:
    return NotAppendedError(
        f"not appended: no broker accepted messages for {partition.stream}/{partition.number} "
        f"within {ACK_WAIT_NS // 10**9} s"
    )


def _leader_changed(forwarded: _Forwarded, found: PartitionState) -> LiftbridgeError:
    where, bound = f"{forwarded.partition.stream}/{forwarded.partition.number}", forwarded.bound
    assert bound is not None
    leader = "no broker" if found.leader is None else f"broker {found.leader}"
    return OutcomeUnknownError(
        f"{UNKNOWN_PREFIX}broker {bound.leader} led {where} in leader epoch {bound.leader_epoch} "
        f"when the message was forwarded to it, and {leader} leads in epoch {found.leader_epoch}"
    )
