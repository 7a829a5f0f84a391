"""Commands of consumer groups; see `controller.commands`."""

from dataclasses import dataclass

from liftbridge_broker.model.ids import NOBODY, BrokerId, PartitionId


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroup:
    """Join a consumer group, which begins with its first member, or change the subscription.

    Attributes:
        group_id: Name of the group.
        member_id: Name of the member, unique in the group.
        streams: Names of existing streams; in an incremental group any names, and patterns.
        is_incremental: Kind of the group; all members must be of the same kind.
        member_epoch: Membership whose streams change; 0 to join.
        instance_id: Name that the member keeps when it restarts; empty for none.
        zone: Zone or rack of the member; empty when unknown.
    """

    group_id: str
    member_id: str
    streams: tuple[str, ...]
    is_incremental: bool = False
    member_epoch: int = 0
    instance_id: str = ""
    zone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroup:
    """Remove a member from its group, which ends with its last member.

    Attributes:
        group_id: Name of the group.
        member_id: Name of the member.
        member_epoch: Its membership; 0 for any.
        is_expired: Whether its coordinator has not heard from it for too long.
        coordinator: That coordinator.
        coordinator_epoch: Metadata index since which it coordinates.
        is_evicted: Whether an operator removes it.
    """

    group_id: str
    member_id: str
    member_epoch: int = 0
    is_expired: bool = False
    coordinator: BrokerId = NOBODY
    coordinator_epoch: int = 0
    is_evicted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeCoordinator:
    """Replace the coordinator of a group, which most of its members cannot reach.

    Attributes:
        group_id: Name of the group.
        coordinator: Coordinator that they cannot reach.
        coordinator_epoch: Metadata index since which it coordinates.
    """

    group_id: str
    coordinator: BrokerId
    coordinator_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasePartitions:
    """Release partitions that a member of an incremental group has let go of.

    Attributes:
        group_id: Name of the group.
        member_id: Name of the member.
        member_epoch: Its membership.
        partition_ids: The partitions; those that it is to read are ignored.
        group_epoch: Group epoch that the member has acted on, before it said that it let go.
    """

    group_id: str
    member_id: str
    member_epoch: int
    partition_ids: tuple[PartitionId, ...]
    group_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroup:
    """End a group with all its members."""

    group_id: str


GroupCommand = JoinGroup | LeaveGroup | ChangeCoordinator | ReleasePartitions | DeleteGroup
