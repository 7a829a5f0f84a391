"""The single gate for every answer about the offsets of a partition's log.

A broker's role for a partition determines which questions it may answer. Any replica may return
the log start and committed records. Only a replica that cannot have missed records may return the
end of the log (the committed end, the latest record, the offset for a time): a leader that knows
its high watermark, or an in-sync follower that has learned it. Neither can tell from local state
whether another broker leads by now, because metadata may arrive late. So the broker first asks the
metadata group, as for any linearizable read (Raft, dissertation 6.4), and then knows every leader
that acknowledged before the question. Refusals are retriable and name the leader.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from liftbridge_broker.errors import (
    LiftbridgeError,
    NotLeaderError,
    OffsetNotAvailableError,
    UnavailableError,
)
from liftbridge_broker.model.ids import Instant, LeaderEpoch, Offset
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.context import NodeContext
from liftbridge_broker.node.partition.partition import NOT_LEADER_TEXT, Partition
from liftbridge_broker.node.partition.roles import Role
from liftbridge_broker.node.refusals import leader_changed

WAIT_NS: Final = 2_000 * MILLISECOND_NS
"""Longest wait of a question for the high watermark to become known."""

LOOK_NS: Final = 50 * MILLISECOND_NS
"""Time between two checks of waiting questions: role changes do not trigger one."""

QUESTIONS_MAX: Final = 10_000
"""Questions that wait on one broker; more are refused."""


class Standing(StrEnum):
    """Role and state of a broker for a partition, as far as answers depend on them."""

    CERTAIN = "certain"
    """Leader that knows all records that may be committed."""
    UNCERTAIN = "uncertain"
    """Leader that does not know yet which records former leaders committed."""
    RECOVERING = "recovering"
    """Leader by an unclean election that does not serve yet."""
    FENCED = "fenced"
    """Leader by metadata that may be outdated."""
    OFFLINE = "offline"
    """The files of its log failed or are damaged."""
    FOLLOWER = "follower"
    """Another broker leads."""
    NOBODY = "nobody"
    """No leader, or none known to this broker."""


class Question(StrEnum):
    """Kind of information that a client requests."""

    START = "start"
    """The first offset kept."""
    RECORDS = "records"
    """Committed records from an offset on; the reader waits for uncommitted ones."""
    END = "end"
    """The end of the log, or anything derived from it."""


_NOTHING: Final = frozenset[Question]()
_BELOW: Final = frozenset({Question.START, Question.RECORDS})
_ALL: Final = frozenset(Question)

AS_LEADER: Final[Mapping[Standing, frozenset[Question]]] = {
    Standing.CERTAIN: _ALL,
    Standing.UNCERTAIN: _BELOW,
    Standing.RECOVERING: _BELOW,
    Standing.FENCED: _NOTHING,
    Standing.OFFLINE: _BELOW,
    Standing.FOLLOWER: _NOTHING,
    Standing.NOBODY: _NOTHING,
}
"""Questions that each standing may answer when the caller asks for the leader."""

AS_REPLICA: Final[Mapping[Standing, frozenset[Question]]] = {
    **dict.fromkeys(Standing, _BELOW),
    Standing.CERTAIN: _ALL,
    Standing.FOLLOWER: _ALL,
}
"""The same for callers that accept any replica; a follower must be in sync for `END`."""


def standing_of(partition: Partition) -> Standing:
    """Return this broker's standing for a partition by its applied metadata."""
    if partition.role is Role.NONE:
        return Standing.NOBODY
    if partition.role is Role.FOLLOWER:
        return Standing.FOLLOWER
    replication = partition.replication
    if replication is not None and replication.is_cut_off:  # guard A.fenced
        return Standing.FENCED
    if partition.offline_reason:
        return Standing.OFFLINE
    if replication is not None and replication.is_recovering:
        return Standing.RECOVERING
    return Standing.CERTAIN if partition.is_latest_known else Standing.UNCERTAIN  # guard A.certain


def refusal(
    partition: Partition, question: Question, *, as_replica: bool = False, leader: str = ""
) -> LiftbridgeError | None:
    """Return the refusal of a question that this broker must not answer now, `None` if it may.

    Args:
        partition: The partition.
        question: The kind of question.
        as_replica: Whether any replica may answer.
        leader: The leader by the metadata, for the text; empty for none.
    """
    standing = standing_of(partition)
    allowed = (AS_REPLICA if as_replica else AS_LEADER)[standing]
    if question in allowed:
        return None
    where = f"{partition.stream}/{partition.number}"
    match standing:
        case Standing.FENCED:
            return leader_changed()
        case Standing.FOLLOWER | Standing.NOBODY:
            return not_leader(where, leader)
        case Standing.OFFLINE:
            return UnavailableError(f"partition {where} is offline: {partition.offline_reason}")
        case Standing.RECOVERING:
            return OffsetNotAvailableError(f"{where} recovers from an unclean election")
        case _:
            return OffsetNotAvailableError("the new leader does not know its high watermark yet")


def not_leader(where: str, leader: str) -> NotLeaderError:
    """Return the refusal of a broker that does not lead; it names the leader."""
    reason = f"broker {leader} leads {where}" if leader else f"no leader of {where} is known"
    return NotLeaderError(f"{NOT_LEADER_TEXT}: {reason}")


def check(partition: Partition, question: Question, *, as_replica: bool = False) -> None:
    """Raise the error that `refusal` returns.

    Raises:
        LiftbridgeError: This broker must not answer the question now; retriable.
    """
    error = refusal(partition, question, as_replica=as_replica)
    if error is not None:
        raise error


def check_still(partition: Partition, seen: Offset, *, as_replica: bool) -> None:
    """Check again, in a later turn than the first check, that a log's end may be returned.

    Args:
        partition: Partition of the question.
        seen: High watermark in that turn.
        as_replica: Whether any replica may answer.

    Raises:
        LiftbridgeError: The answer is not allowed any more; retriable.
    """
    if partition.closed_error is not None:
        raise partition.closed_error
    check(partition, Question.END, as_replica=as_replica)
    if partition.log.high_watermark < seen:
        raise OffsetNotAvailableError("the log was truncated during the request")


Done = Callable[[LiftbridgeError | None], None]
"""Callback, called once: `None` when the question may be answered, else the refusal."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """A question about the end of a log that cannot be answered yet.

    Attributes:
        until: Offset that this broker's high watermark must reach; `None` on the leader.
        leader_epoch: Leader epoch in which `until` was determined; another epoch voids it.
    """

    partition: Partition
    as_replica: bool
    done: Done
    deadline: Instant
    until: Offset | None = None
    leader_epoch: LeaderEpoch | None = None


class Answers:
    """Clients' questions that wait until they may be answered.

    Questions that arrive during a round with the metadata group share the next round.
    """

    def __init__(self, context: NodeContext) -> None:
        """Start without questions."""
        self._context = context
        self._now = Instant(0)
        self._asked: list[_Waiting] = []
        self._next: list[_Waiting] = []
        self._waiting: dict[_Waiting, None] = {}
        self._look_at: Instant | None = None

    def __len__(self) -> int:
        """Questions that wait."""
        return len(self._asked) + len(self._next) + len(self._waiting)

    def ask(
        self,
        partition: Partition,
        question: Question,
        done: Done,
        now: Instant,
        *,
        as_replica: bool = False,
    ) -> None:
        """Call `done` with `None` when a question may be answered, at once or within a bound.

        A read of the partition within `done` reflects every answer given before the call, and every
        record acknowledged with policy ALL before it.
        """
        self._now = now
        error = self._refusal(partition, question, as_replica=as_replica)
        is_alone = partition.replication is None  # no other leader or replica exists
        is_over = error is not None and not isinstance(error, OffsetNotAvailableError)
        if question is not Question.END or is_over or (is_alone and error is None):
            done(error)
            return
        if len(self) >= QUESTIONS_MAX:
            done(UnavailableError(f"{QUESTIONS_MAX} requests for offsets already wait here"))
            return
        waiting = _Waiting(partition, as_replica, done, Instant(now + WAIT_NS))
        (self._next if self._asked else self._asked).append(waiting)
        if not self._next:
            self._confirm()

    def _refusal(
        self, partition: Partition, question: Question, *, as_replica: bool
    ) -> LiftbridgeError | None:
        leader = self._leader(partition)
        error = refusal(partition, question, as_replica=as_replica, leader=leader)
        is_followers = error is None and partition.role is Role.FOLLOWER
        if is_followers and question is Question.END and not self._is_in_sync(partition):
            return not_leader(f"{partition.stream}/{partition.number}", leader)
        return error

    def _leader(self, partition: Partition) -> str:
        state = self._context.state.partition(partition.partition_id)
        return "" if state is None else state.leader or ""

    def _is_in_sync(self, partition: Partition) -> bool:
        """Return whether this replica is in sync: it has all committed records (I2)."""
        state = self._context.state.partition(partition.partition_id)
        return state is not None and self._context.broker in state.isr  # guard A.in_sync

    def _confirm(self) -> None:
        """Ask the metadata group for changes that this broker may have missed."""
        self._context.metadata.read(self._confirmed)  # guard A.confirm
        self._context.wake_soon()

    def _confirmed(self, error: LiftbridgeError | None) -> None:
        asked, self._asked, self._next = self._asked, self._next, []
        if self._asked:
            self._confirm()
        for waiting in asked:
            if error is not None:
                waiting.done(UnavailableError(f"the metadata group does not answer: {error.text}"))
            else:
                self._settle(waiting)

    def _settle(self, waiting: _Waiting) -> None:
        """Answer or delay a question, now that the metadata hold all earlier decisions."""
        partition = waiting.partition
        waiting.leader_epoch = self._epoch(partition)
        if partition.role is Role.FOLLOWER:
            # An in-sync replica holds all committed records; it learns the high watermark a little
            # later.
            waiting.until = partition.log.log_end_offset  # guard A.until
        if not self._is_over(waiting):
            self._waiting[waiting] = None
            partition.readers.wait_for_data(self._look)
            self._look_soon()

    def _epoch(self, partition: Partition) -> LeaderEpoch | None:
        state = self._context.state.partition(partition.partition_id)
        return None if state is None else state.leader_epoch

    def _is_over(self, waiting: _Waiting) -> bool:
        """Answer a question if possible; return whether it is done."""
        partition = waiting.partition
        if partition.closed_error is not None:
            waiting.done(partition.closed_error)
            return True
        error = self._refusal(partition, Question.END, as_replica=waiting.as_replica)
        if error is None and self._epoch(partition) != waiting.leader_epoch:  # guard A.epoch
            error = leader_changed()
        is_behind = waiting.until is not None and partition.log.high_watermark < waiting.until
        if error is None and is_behind:
            error = OffsetNotAvailableError("the high watermark of this replica is still behind")
        if isinstance(error, OffsetNotAvailableError) and self._now < waiting.deadline:
            return False
        waiting.done(error)
        return True

    def _look(self) -> None:
        """Check waiting questions after a commit or after time has passed."""
        waiting, self._waiting = self._waiting, {}
        for question in waiting:
            if not self._is_over(question):
                self._waiting[question] = None
                question.partition.readers.wait_for_data(self._look)
        self._look_soon()

    def _look_soon(self) -> None:
        if self._waiting and self._look_at is None:
            self._look_at = Instant(self._now + LOOK_NS)
            self._context.wake_soon()

    def end(self) -> None:
        """End all waiting questions, because the broker stops."""
        ended = [*self._asked, *self._next, *self._waiting]
        self._asked, self._next, self._waiting = [], [], {}
        for waiting in ended:
            waiting.done(UnavailableError("broker is stopping"))

    def on_timer(self, now: Instant) -> None:
        """Check the waiting questions if that is due."""
        self._now = now
        if self._look_at is not None and now >= self._look_at:
            self._look_at = None
            self._look()

    def next_deadline(self) -> Instant | None:
        """Time of the next `on_timer` call, `None` for never."""
        return self._look_at


def ask(
    answers: Answers | None,
    partition: Partition,
    question: Question,
    done: Done,
    now: Instant,
    *,
    as_replica: bool = False,
) -> None:
    """Call `answers.ask`; a sole broker answers at once, as no other broker can know more."""
    if answers is None:
        done(refusal(partition, question, as_replica=as_replica))
    else:
        answers.ask(partition, question, done, now, as_replica=as_replica)
