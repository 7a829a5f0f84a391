"""State that the roles of one broker share: its registration, fetch sessions, and work due in them.

Roles call this module and those below it; calls upwards go through plain callables.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from liftbridge_broker.model.ids import BrokerId, Instant, MetadataIndex, PartitionId
from liftbridge_broker.model.streams import FsyncPolicy
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.context import NodeContext
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.replicas.catch_up import CatchUp
from liftbridge_broker.node.replicas.proposal_window import ProposalWindow
from liftbridge_broker.replication.fetch_sessions import (
    FollowerSession,
    LeaderSession,
    LeaderSessionLimits,
    SessionLimits,
)
from liftbridge_broker.replication.follower import FollowerLimits
from liftbridge_broker.replication.isr import LeaderLimits

LOOK_NS: Final = 50 * MILLISECOND_NS
"""Time between two checks of partitions whose in-sync set or leader may need a change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationLimits:
    """Times and bounds of the data plane; see each class."""

    leader: LeaderLimits = field(default_factory=LeaderLimits)
    follower: FollowerLimits = field(default_factory=FollowerLimits)
    session: SessionLimits = field(default_factory=SessionLimits)
    leader_session: LeaderSessionLimits = field(default_factory=LeaderSessionLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChanges:
    """Callables that report changes of a log to the owner of the partitions.

    Attributes:
        cut: Reports a truncation or restart of the log, which voids state derived from it.
        readable: Reports that the log is readable again.
        replace: Sets a damaged log aside, and starts an empty one.
    """

    cut: Callable[[Partition], None]
    readable: Callable[[Partition], None]
    replace: Callable[[PartitionId], None]


class RoleContext:
    """State that all roles of one broker share.

    Attributes:
        context: State and ports that the parts of the node share.
        is_self_fenced: Returns whether no heartbeat of this broker was answered for a session.
        log_changes: Reports changes of a log to the owner of the partitions.
        broker_epoch: Registration of this broker.
        eligible: Brokers that may join the in-sync set.
        catch_up: Throttle for replicas that reassignments add.
        fetching: Sessions with leaders, by broker.
        serving: Sessions with followers, by broker.
        watched: Led partitions whose in-sync set may have to change, with the time of the next
            check.
        refused: Followed partitions whose position was sent again after a pause.
        window: Led partitions whose proposed in-sync set awaits its answer.
        look_at: Time of the next check of both.
        is_due: Whether a session has something to send in this turn.
    """

    def __init__(
        self,
        context: NodeContext,
        is_self_fenced: Callable[[Instant], bool],
        log_changes: LogChanges,
    ) -> None:
        """Begin without sessions."""
        self.context = context
        self.is_self_fenced = is_self_fenced
        self.log_changes = log_changes
        self.broker_epoch = MetadataIndex(0)
        self.eligible: frozenset[BrokerId] = frozenset()
        self.catch_up = CatchUp(lambda: context.state.catch_up_rate)
        self.fetching: dict[BrokerId, FollowerSession] = {}
        self.serving: dict[BrokerId, LeaderSession] = {}
        self.watched: dict[PartitionId, Instant] = {}
        self.refused: dict[PartitionId, None] = {}
        self.window = ProposalWindow(self._look_now)
        self.look_at: Instant | None = None
        self.is_due = False
        self._due: dict[FollowerSession | LeaderSession, None] = {}

    def notify(self, partition_id: PartitionId) -> None:
        """Schedule answers to the followers of a partition."""
        for session in self.serving.values():
            session.notify(partition_id)
        self.wake(*self.serving.values())

    def watch(self, partition_id: PartitionId) -> None:
        """Schedule a check of the in-sync set."""
        self.watched[partition_id] = self.context.now
        self.look_soon()

    def wake(self, *sessions: FollowerSession | LeaderSession) -> None:
        """Schedule sessions to send their messages at the end of the turn."""
        for session in sessions:
            self._due[session] = None
        if not self.is_due:
            self.is_due = True
            self.context.wake_soon()

    def take_due(self) -> dict[FollowerSession | LeaderSession, None]:
        """Remove and return the scheduled sessions."""
        self.is_due = False
        due, self._due = self._due, {}
        return due

    def look_soon(self) -> None:
        """Schedule the next check of watched and refused partitions."""
        if self.look_at is None:
            self.look_at = Instant(self.context.now + LOOK_NS)
            self.context.wake_soon()

    def _look_now(self) -> None:
        self.look_at = self.context.now
        self.context.wake_soon()

    def set_policy(self, partition: Partition, *, is_commit: bool, now: Instant) -> None:
        """Set the fsync policy that a log needs for its replication."""
        if partition.offline_reason:
            return
        policy = partition.options.fsync_policy
        if policy is FsyncPolicy.AUTO:
            policy = FsyncPolicy.INTERVAL
        self.context.store.set_policy(
            partition.partition_id, FsyncPolicy.COMMIT if is_commit else policy, now
        )
