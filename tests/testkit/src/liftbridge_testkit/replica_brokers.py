"""Brokers of a `ReplicaCluster`, their messages and their knowledge of the metadata."""

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
    """A fetch in flight, with the contents of the log when it was sent."""

    follower: BrokerId
    leader: BrokerId
    correlation: int
    position: FetchPosition
    held: tuple[int, tuple[Record, ...]]


class Reply(NamedTuple):
    """An answer in flight."""

    follower: BrokerId
    correlation: int
    head: FetchedHead
    data: bytes


class Request(NamedTuple):
    """A request in flight to the controller."""

    leader: BrokerId
    run: int
    broker_epoch: int
    proposal: IsrProposal


class Outcome(NamedTuple):
    """The controller's answer in flight."""

    leader: BrokerId
    run: int
    proposal: IsrProposal
    outcome: ProposalOutcome


class Command(NamedTuple):
    """A command in flight to the controller, from any sender.

    Attributes:
        command: Command of the controller's union.
        then: Callback of its sender for the answer, `LiftbridgeError` for a refusal; `None` without
            one.
    """

    command: object
    then: Callable[[object], None] | None = None


class Answer(NamedTuple):
    """The answer to a `Command`, in flight."""

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
        is_running: Whether the process runs.
        is_clean: Whether it lost nothing since it was last in sync.
        seen: Place in the history of the metadata that it has learned.
        broker_epoch: Its session.
        leader: Its core while its metadata name it as leader.
        follower: Its core while its metadata name another leader.
        correlation: Fetch without an answer yet.
        clock: Fetches of its session at the present leader.
        asked: Proposal without an answer yet, and the time at which it was sent.
        feature_level: Latest decision rules that its software supports.
        data_dir: Its data directory; a generated one by default.
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
        """Generate a data directory if there is none."""
        self.data_dir = self.data_dir or f"disk-{self.broker}"


class BrokenError(AssertionError):
    """A broken invariant."""


def require(claim: str, *, holds: bool) -> None:
    """Raise `BrokenError` with the name of the invariant if it does not hold."""
    if not holds:
        raise BrokenError(claim)
