"""Brokers of a `ReplicaCluster`, what travels between them and what they know."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from liftbridge_broker.controller.commands import FEATURE_LEVEL
from liftbridge_broker.model.fetching import FetchedHead, FetchPosition, SessionClock
from liftbridge_broker.model.ids import BrokerId, Instant
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.replication.follower import FollowerCore
from liftbridge_broker.replication.isr import IsrProposal, ProposalOutcome
from liftbridge_broker.replication.leader import LeaderCore
from liftbridge_testkit.replica_logs import Record, ReplicaLog


class View(NamedTuple):
    """Metadata after one command.

    Attributes:
        applied_index: Index of the command.
        partition: The partition.
        eligible: Brokers that may be in sync.
    """

    applied_index: int
    partition: PartitionState
    eligible: frozenset[BrokerId]


class Fetch(NamedTuple):
    """A fetch on its way, with what the log behind it held when it was sent."""

    follower: BrokerId
    leader: BrokerId
    correlation: int
    position: FetchPosition
    held: tuple[int, tuple[Record, ...]]


class Reply(NamedTuple):
    """An answer on its way."""

    follower: BrokerId
    correlation: int
    head: FetchedHead
    data: bytes


class Request(NamedTuple):
    """A proposal on its way to the controller."""

    leader: BrokerId
    run: int
    broker_epoch: int
    proposal: IsrProposal


class Outcome(NamedTuple):
    """The controller's answer on its way back."""

    leader: BrokerId
    run: int
    proposal: IsrProposal
    outcome: ProposalOutcome


class Command(NamedTuple):
    """A command on its way to the controller, from whoever may send one.

    Attributes:
        command: Command of the controller's union.
        then: Callback of its sender for the answer, `LiftbridgeError` for a refusal; `None` when
            it expects none.
    """

    command: object
    then: Callable[[object], None] | None = None


class Answer(NamedTuple):
    """The answer to a `Command` on its way back."""

    answer: object
    then: Callable[[object], None]


Message = Fetch | Reply | Request | Outcome | Command | Answer


@dataclass(slots=True)
class Broker:
    """A broker process with its replica.

    Attributes:
        broker: Its id.
        log: Its log, which outlives the process.
        run: Number of the process.
        is_running: Whether the process is there.
        is_clean: Whether nothing was lost since it was in sync last.
        seen: Place in the history of what it knows of the metadata.
        broker_epoch: Its session.
        leader: Its core while it leads by what it knows.
        follower: Its core while it follows.
        correlation: Fetch that it waits for an answer to.
        clock: Fetches of its session at the present leader.
        asked: Proposal that it waits for an answer to, and since when.
        feature_level: Latest rules of decision that its software knows.
        data_dir: Its data directory, a name made up of its own when there is none.
    """

    broker: BrokerId
    log: ReplicaLog
    run: int = 0
    is_running: bool = True
    is_clean: bool = True
    seen: int = 0
    broker_epoch: int = 0
    leader: LeaderCore | None = None
    follower: FollowerCore | None = None
    correlation: int = 0
    clock: SessionClock = field(default_factory=lambda: SessionClock(Instant(0)))
    asked: tuple[IsrProposal, Instant] | None = None
    feature_level: int = FEATURE_LEVEL
    data_dir: str = ""

    def __post_init__(self) -> None:
        """Have a data directory."""
        self.data_dir = self.data_dir or f"disk-{self.broker}"


class BrokenError(AssertionError):
    """An invariant does not hold."""


def require(claim: str, *, holds: bool) -> None:
    """Fail with the name of the invariant."""
    if not holds:
        raise BrokenError(claim)
