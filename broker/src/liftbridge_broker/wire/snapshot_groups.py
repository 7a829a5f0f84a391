"""Consumer groups in a snapshot <-> bytes (`Group` in `internal/v1/metadata.proto`).

Part of `wire.snapshots`, whose rules apply.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final

from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.model.groups import MEMBERS_MAX, Group, Member
from liftbridge_broker.model.ids import BrokerId, MetadataIndex, PartitionId
from liftbridge_proto.internal.v1 import metadata_pb2 as pb

STEP_PARTITIONS: Final = 64
"""Partitions of a member that are read like one entry."""


def fill_group(target: pb.Group, group: Group, is_due: Callable[[], bool]) -> Iterator[None]:
    """Write a group into its message; yield where a step ends."""
    target.group_id = group.group_id
    target.group_epoch = group.group_epoch
    target.coordinator = group.coordinator
    target.coordinator_epoch = group.coordinator_epoch
    target.is_incremental = group.is_incremental
    for member in group.members:
        if is_due():
            yield
        target.members.add(
            member_id=member.member_id,
            member_epoch=member.member_epoch,
            streams=member.streams,
            target=member.target,
            held=member.held if group.is_incremental else (),
            held_since=member.held_since,
            instance_id=member.instance_id,
            zone=member.zone,
        )


def read_group(
    message: pb.Group, state: ClusterState, is_due: Callable[[], bool]
) -> Generator[None, None, Group]:
    """Read a group from its message; yield where a step ends.

    Args:
        message: The group.
        state: The state, complete but for the groups that follow.
        is_due: Returns whether a step ends before an entry.

    Raises:
        CorruptionError: The group contradicts itself or the state.
    """
    name = message.group_id
    _require(name not in state.groups, f"group {name} twice")
    _require(bool(message.members), f"group {name} without members")
    _require(message.coordinator in state.brokers, f"group {name} with an unknown coordinator")
    _require(
        message.coordinator_epoch <= message.group_epoch <= state.applied_index,
        f"group {name} with disordered epochs",
    )
    _require(len(message.members) <= MEMBERS_MAX, f"group {name} with too many members")
    members: list[Member] = []
    targets: set[PartitionId] = set()
    held: set[PartitionId] = set()
    for given in message.members:
        if is_due():
            yield
        member = _member(given, is_incremental=message.is_incremental)
        _require(
            not members or members[-1].member_id < member.member_id,
            f"group {name} with disordered members",
        )
        _require(
            0 < member.member_epoch <= message.group_epoch,
            f"group {name} with a member epoch ahead of it",
        )
        _require(
            len(member.held_since) == (len(member.held) if message.is_incremental else 0)
            and max(member.held_since, default=0) <= message.group_epoch,
            f"group {name} with disordered epochs of what is held",
        )
        for kind, known, partitions in (
            ("assigned", targets, member.target),
            ("held", held, member.held),
        ):
            fault = f"group {name} with a partition {kind} twice or unknown"
            yield from _check_partitions(partitions, known, state, fault, is_due)
        members.append(member)
    return Group(
        group_id=name,
        group_epoch=MetadataIndex(message.group_epoch),
        coordinator=BrokerId(message.coordinator),
        coordinator_epoch=MetadataIndex(message.coordinator_epoch),
        is_incremental=message.is_incremental,
        members=tuple(members),
    )


def _member(message: pb.Member, *, is_incremental: bool) -> Member:
    target = tuple(PartitionId(one) for one in message.target)
    held, since = tuple(PartitionId(one) for one in message.held), tuple(message.held_since)
    return Member(
        member_id=message.member_id,
        member_epoch=MetadataIndex(message.member_epoch),
        streams=tuple(message.streams),
        target=target,
        held=held if is_incremental else target,
        held_since=tuple(MetadataIndex(one) for one in since or (0,) * len(held)),
        instance_id=message.instance_id,
        zone=message.zone,
    )


def _check_partitions(
    partitions: Sequence[PartitionId],
    known: set[PartitionId],
    state: ClusterState,
    fault: str,
    is_due: Callable[[], bool],
) -> Iterator[None]:
    """Check that partitions exist, in order, and that no other member has them."""
    last = 0
    for count, partition in enumerate(partitions):
        if count % STEP_PARTITIONS == 0 and is_due():
            yield
        is_new = last < partition and partition not in known
        _require(is_new and state.partition(partition) is not None, fault)
        last = partition
        known.add(partition)


def _require(holds: bool, fault: str) -> None:
    if not holds:
        raise CorruptionError(f"metadata snapshot: {fault}")
