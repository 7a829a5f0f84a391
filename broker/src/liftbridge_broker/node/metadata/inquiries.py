"""The metadata leader asks replicas for the ends of their logs, to recover a partition (C10).

Soft state: a new metadata leader asks again. Questions are repeated until they are answered or the
partition no longer needs recovery; mode `balanced` elects no replica before all that were last
complete have answered.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from liftbridge_broker.controller.commands import RecoverUnclean, ReplicaAnswer
from liftbridge_broker.controller.recovery import Inquiry, conclude, inquiries
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.model.ids import BrokerId, Instant, PartitionId
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.ports.replica_log import LogView
from liftbridge_broker.wire.peer.bodies import LogInfo

ASK_NS: Final = 500 * MILLISECOND_NS
ASK_PARTITIONS_MAX: Final = 10_000
"""Partitions in one question; the rest follow afterwards."""

Ask = Callable[[BrokerId, tuple[PartitionId, ...]], None]
"""Asks a broker for its log ends."""


def end_of(partition: PartitionId, log: LogView, *, is_damaged: bool = False) -> LogInfo:
    """Return a replica's report about its log.

    The epoch is the newest that the replica knows, even without a record of that epoch. Otherwise a
    log that retention emptied, or the log of a leader whose epoch began at its end, would seem to
    hold less than a log that lost records.
    """
    return LogInfo(partition, log.epochs.latest, log.log_end_offset, is_damaged)


@dataclass(slots=True)
class _Open:
    """An open inquiry and its answers.

    Attributes:
        inquiry: The brokers to ask.
        asked_at: Time of the first question.
        needed_at: Time at which the partition was first seen to need recovery.
        answers: Answers by broker.
    """

    inquiry: Inquiry
    asked_at: Instant
    needed_at: Instant
    answers: dict[BrokerId, ReplicaAnswer] = field(default_factory=dict)


class Inquiries:
    """Open inquiries, by partition."""

    def __init__(self) -> None:
        """Start without inquiries."""
        self._open: dict[PartitionId, _Open] = {}
        self._due: Instant | None = None

    def next_deadline(self) -> Instant | None:
        """Time to ask or conclude, `None` while no partition needs recovery."""
        return self._due

    def hurry(self, now: Instant) -> None:
        """Check soon, because a partition may need recovery from `now` on."""
        if self._due is None or now < self._due:
            self._due = now

    def on_timer(self, state: ClusterState, ask: Ask, now: Instant) -> list[RecoverUnclean]:
        """Ask brokers that have not answered; return the commands that follow from the answers."""
        if self._due is None or now < self._due:
            return []
        before, self._open = self._open, {}
        for inquiry in inquiries(state):
            entry = before.get(inquiry.partition_id)
            if entry is None or entry.inquiry != inquiry:
                entry = _Open(inquiry, now, now if entry is None else entry.needed_at)
            self._open[inquiry.partition_id] = entry
        self._due = Instant(now + ASK_NS) if self._open else None
        questions: dict[BrokerId, list[PartitionId]] = {}
        for entry in self._open.values():
            for broker in entry.inquiry.asked:
                if broker not in entry.answers:
                    questions.setdefault(broker, []).append(entry.inquiry.partition_id)
        for broker, partitions in questions.items():
            ask(broker, tuple(partitions[:ASK_PARTITIONS_MAX]))
        concluded = [self._conclude(entry, now) for entry in self._open.values()]
        return [command for command in concluded if command is not None]

    def on_answer(
        self,
        state: ClusterState,
        broker_id: BrokerId,
        broker_epoch: int,
        logs: Sequence[LogInfo],
        now: Instant,
    ) -> list[RecoverUnclean]:
        """Handle log ends from a broker's current session; return the commands that follow."""
        broker = state.brokers.get(broker_id)
        if broker is None or broker.broker_epoch != broker_epoch:
            return []
        commands: list[RecoverUnclean] = []
        for log in logs:
            entry = self._open.get(log.partition)
            if entry is None or broker_id not in entry.inquiry.asked:
                continue
            entry.answers[broker_id] = ReplicaAnswer(
                broker_id,
                broker_epoch,
                int(log.last_epoch or 0),
                log.log_end_offset,
                log.is_damaged,
            )
            command = self._conclude(entry, now)
            if command is not None:
                commands.append(command)
        return commands

    @staticmethod
    def _conclude(one: _Open, now: Instant) -> RecoverUnclean | None:
        return conclude(
            one.inquiry,
            tuple(one.answers.values()),
            asked_ns=now - one.asked_at,
            needed_ns=now - one.needed_at,
        )
