"""Who may say what about a partition's log: the one gate that every answer about offsets passes.

What a broker is to a partition decides what it may tell. Its log start and committed records
anybody with a replica may give. How far the log goes - the committed end, the latest record, the
place of a time - only who cannot have missed anything: a leader that knows what is committed, or a
replica in sync that has heard of it. Neither can know alone that nobody else leads by now, because
metadata may come late; so the metadata group is asked first, as for any linearizable read (Raft,
dissertation 6.4): whoever led and acknowledged before the question is known then. Refusals are
retriable and name the leader.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.errors import (
    LiftbridgeError,
    NotLeaderError,
    OffsetNotAvailableError,
    UnavailableError,
)
from liftbridge_broker.model.ids import BrokerId, Instant, LeaderEpoch, Offset
from liftbridge_broker.model.streams import MILLISECOND_NS
from liftbridge_broker.node.metadata import ReadReply
from liftbridge_broker.node.partition import NOT_LEADER_TEXT, Partition
from liftbridge_broker.node.refusals import leader_changed
from liftbridge_broker.node.roles import Role

WAIT_NS: Final = 2_000 * MILLISECOND_NS
"""Longest wait of a question for what is committed to become known."""

LOOK_NS: Final = 50 * MILLISECOND_NS
"""Between two looks at questions that wait: roles change without waking anybody."""

QUESTIONS_MAX: Final = 10_000
"""Questions that wait on one broker; more are refused."""


class Standing(StrEnum):
    """What a broker is to a partition that it is asked about."""

    CERTAIN = "certain"
    """It leads and knows all that may be committed."""
    UNCERTAIN = "uncertain"
    """It leads, and does not know yet what former leaders committed."""
    RECOVERING = "recovering"
    """It was elected uncleanly and has not begun."""
    FENCED = "fenced"
    """It leads by metadata that may be outdated."""
    OFFLINE = "offline"
    """The files of its log failed or are damaged."""
    FOLLOWER = "follower"
    """Another broker leads."""
    NOBODY = "nobody"
    """Nobody leads, or this broker does not know who."""


class Question(StrEnum):
    """What a broker is asked to tell."""

    START = "start"
    """The first offset kept."""
    RECORDS = "records"
    """Committed records from a place on; what is not committed is waited for."""
    END = "end"
    """How far the log goes, or anything that follows from it."""


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
"""What may be told to who wants to hear it of the leader."""

AS_REPLICA: Final[Mapping[Standing, frozenset[Question]]] = {
    **dict.fromkeys(Standing, _BELOW),
    Standing.CERTAIN: _ALL,
    Standing.FOLLOWER: _ALL,
}
"""What may be told to who takes any replica; a follower tells the end only while in sync."""


def standing_of(partition: Partition) -> Standing:
    """What this broker is to a partition at present, by the metadata that it has applied."""
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
    """Why a question must not be answered here and now, `None` when it may be.

    Args:
        partition: What is asked about.
        question: What is to be told.
        as_replica: Whether any replica may tell.
        leader: Who leads by the metadata, for the text; empty for nobody.
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
            return OffsetNotAvailableError("the new leader does not know yet what is committed")


def not_leader(where: str, leader: str) -> NotLeaderError:
    """The refusal of a broker that does not lead; it names who does."""
    told = f"broker {leader} leads" if leader else "nobody is known to lead"
    return NotLeaderError(f"{NOT_LEADER_TEXT}: {told} {where}")


def check(partition: Partition, question: Question, *, as_replica: bool = False) -> None:
    """As `refusal`, raised.

    Raises:
        LiftbridgeError: The question must not be answered here and now; retriable.
    """
    error = refusal(partition, question, as_replica=as_replica)
    if error is not None:
        raise error


def check_still(partition: Partition, seen: Offset, *, as_replica: bool) -> None:
    """Check again, before the end of a log is told later than in the turn that allowed it.

    Args:
        partition: What is asked about.
        seen: Where what was committed ended in that turn.
        as_replica: Whether any replica may tell.

    Raises:
        LiftbridgeError: It must not be told any more; retriable.
    """
    if partition.closed_error is not None:
        raise partition.closed_error
    check(partition, Question.END, as_replica=as_replica)
    if partition.log.high_watermark < seen:
        raise OffsetNotAvailableError("the log was cut while the answer was made")


class Metadata(Protocol):
    """The metadata log, as far as it is read."""

    def read(self, reply: ReadReply) -> None:
        """Ask to be told when the state holds everything that was answered before now."""
        ...


class AnswersHost(Protocol):
    """The node, as far as questions are answered."""

    @property
    def broker(self) -> BrokerId:
        """Id of this broker."""
        ...

    @property
    def state(self) -> ClusterState:
        """Applied metadata."""
        ...

    @property
    def metadata(self) -> Metadata:
        """The metadata log."""
        ...

    def wake_soon(self) -> None:
        """Have the timer called."""
        ...


Done = Callable[[LiftbridgeError | None], None]
"""Gets `None` once a question may be answered, or why it must not be; once."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """A question about the end of a log that cannot be answered yet.

    Attributes:
        until: Offset that must be committed here as far as this broker knows, `None` as the leader.
        leader_epoch: Epoch in which that was found out; another one voids it.
    """

    partition: Partition
    as_replica: bool
    done: Done
    deadline: Instant
    until: Offset | None = None
    leader_epoch: LeaderEpoch | None = None


class Answers:
    """Questions of clients that are not answered at once.

    Questions that come while the metadata group is asked share the next round.
    """

    def __init__(self, host: AnswersHost) -> None:
        """Begin without questions."""
        self._host = host
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
        """Have a question answered: `done` gets `None` when it may be, at once or within a bound.

        What is read of the partition within `done` is true then. It holds everything that anybody
        was told before the call, and every record acknowledged with policy ALL before it.
        """
        self._now = now
        error = self._refusal(partition, question, as_replica=as_replica)
        is_alone = partition.replication is None  # nobody else can lead, or have a record
        is_over = error is not None and not isinstance(error, OffsetNotAvailableError)
        if question is not Question.END or is_over or (is_alone and error is None):
            done(error)
            return
        if len(self) >= QUESTIONS_MAX:
            done(UnavailableError(f"{QUESTIONS_MAX} questions about offsets wait already"))
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
        state = self._host.state.partition(partition.partition_id)
        return "" if state is None else state.leader or ""

    def _is_in_sync(self, partition: Partition) -> bool:
        """Whether this replica has everything committed (I2), by the metadata."""
        state = self._host.state.partition(partition.partition_id)
        return state is not None and self._host.broker in state.isr  # guard A.in_sync

    def _confirm(self) -> None:
        """Ask the metadata group what this broker may have missed."""
        self._host.metadata.read(self._confirmed)  # guard A.confirm
        self._host.wake_soon()

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
        """The metadata here hold everything that was decided before the question."""
        partition = waiting.partition
        waiting.leader_epoch = self._epoch(partition)
        if partition.role is Role.FOLLOWER:
            # In sync it holds all that is committed; how much of it is, it hears a little later.
            waiting.until = partition.log.log_end_offset  # guard A.until
        if not self._is_over(waiting):
            self._waiting[waiting] = None
            partition.wait_for_data(self._look)
            self._look_soon()

    def _epoch(self, partition: Partition) -> LeaderEpoch | None:
        state = self._host.state.partition(partition.partition_id)
        return None if state is None else state.leader_epoch

    def _is_over(self, waiting: _Waiting) -> bool:
        """Answer a question if that is possible by now."""
        partition = waiting.partition
        if partition.closed_error is not None:
            waiting.done(partition.closed_error)
            return True
        error = self._refusal(partition, Question.END, as_replica=waiting.as_replica)
        if error is None and self._epoch(partition) != waiting.leader_epoch:  # guard A.epoch
            error = leader_changed()
        is_behind = waiting.until is not None and partition.log.high_watermark < waiting.until
        if error is None and is_behind:
            error = OffsetNotAvailableError("this replica has not heard yet what is committed")
        if isinstance(error, OffsetNotAvailableError) and self._now < waiting.deadline:
            return False
        waiting.done(error)
        return True

    def _look(self) -> None:
        """More is committed somewhere, or time went by."""
        waiting, self._waiting = self._waiting, {}
        for one in waiting:
            if not self._is_over(one):
                self._waiting[one] = None
                one.partition.wait_for_data(self._look)
        self._look_soon()

    def _look_soon(self) -> None:
        if self._waiting and self._look_at is None:
            self._look_at = Instant(self._now + LOOK_NS)
            self._host.wake_soon()

    def end(self) -> None:
        """The broker stops: nobody waits any longer."""
        ended = [*self._asked, *self._next, *self._waiting]
        self._asked, self._next, self._waiting = [], [], {}
        for waiting in ended:
            waiting.done(UnavailableError("broker is stopping"))

    def on_timer(self, now: Instant) -> None:
        """Look at the questions that wait."""
        self._now = now
        if self._look_at is not None and now >= self._look_at:
            self._look_at = None
            self._look()

    def next_deadline(self) -> Instant | None:
        """When `on_timer` wants to be called, `None` for never."""
        return self._look_at


class AnswersOwner(Protocol):
    """A member of a cluster, which others may lead partitions of."""

    @property
    def answers(self) -> Answers:
        """Questions that are not answered at once."""
        ...


class AskedNode(Protocol):
    """A broker, perhaps alone."""

    @property
    def cluster(self) -> AnswersOwner | None:
        """What makes it a member of a cluster."""
        ...


def ask(
    node: AskedNode,
    partition: Partition,
    question: Question,
    done: Done,
    now: Instant,
    *,
    as_replica: bool = False,
) -> None:
    """As `Answers.ask`, of a broker that may be alone: then nobody else can know more."""
    cluster = node.cluster
    if cluster is None:
        done(refusal(partition, question, as_replica=as_replica))
    else:
        cluster.answers.ask(partition, question, done, now, as_replica=as_replica)
