"""Interface between data plane and node, with times and bounds."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from liftbridge_broker.controller.commands import Command
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import BrokerId, Instant, PartitionId
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.replication.follower import FollowerLimits
from liftbridge_broker.replication.isr import LeaderLimits
from liftbridge_broker.replication.leader_session import LeaderSessionLimits
from liftbridge_broker.replication.sessions import SessionLimits
from liftbridge_broker.storage.store import LogStore
from liftbridge_broker.storage.types import ReadNeed


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationLimits:
    """Times and bounds of the data plane; see each."""

    leader: LeaderLimits = field(default_factory=LeaderLimits)
    follower: FollowerLimits = field(default_factory=FollowerLimits)
    session: SessionLimits = field(default_factory=SessionLimits)
    leader_session: LeaderSessionLimits = field(default_factory=LeaderSessionLimits)


class ReplicasHost(Protocol):
    """The part of the node that the data plane needs."""

    partitions: dict[PartitionId, Partition]
    store: LogStore

    @property
    def broker(self) -> BrokerId:
        """Id of this broker."""
        ...

    @property
    def now(self) -> Instant:
        """Time of this turn."""
        ...

    @property
    def wall_ns(self) -> int:
        """Unix nanoseconds of this turn."""
        ...

    @property
    def state(self) -> ClusterState:
        """Applied metadata."""
        ...

    def note_append(self, partition: Partition, now: Instant) -> None:
        """Note that bytes wait for a sync."""
        ...

    def note_change(self, partition: Partition, *, is_cut: bool) -> None:
        """Note that a log was cut or is readable again, which voids state derived from it."""
        ...

    def submit_read(self, need: ReadNeed, done: Callable[[bytes | LiftbridgeError], None]) -> None:
        """Read off the loop."""
        ...

    def propose(self, command: Command, now: Instant, reply: Callable[[object], None]) -> None:
        """Propose a command to the metadata group."""
        ...

    def start_intake(self, partition: Partition) -> None:
        """Start to receive the messages of a partition."""
        ...

    def stop_intake(self, partition: Partition) -> None:
        """Stop receiving the messages of a partition."""
        ...

    def replace_log(self, partition_id: PartitionId) -> None:
        """Set a damaged log aside."""
        ...

    def wake_soon(self) -> None:
        """Fire the timer at the end of this turn."""
        ...

    def transition(self, kind: str, fields: dict[str, object]) -> None:
        """Report a transition to the observer."""
        ...
