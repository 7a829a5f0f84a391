"""Groups in a snapshot: what contradicts itself or the state is refused."""

from collections.abc import Callable
from random import Random

import pytest

from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.wire.snapshots import decode_state, encode_state
from liftbridge_proto.internal.v1 import metadata_pb2 as pb
from liftbridge_testkit.group_life import GroupLife


def snapshot() -> pb.Snapshot:
    """A state whose incremental group has two members, one of which waits for the other."""
    life = GroupLife(Random(0))
    for _ in range(3_000):
        life.step()
        group = life.state.groups.get("h")
        if group is not None and group.is_incremental and len(group.members) > 1:
            first, second, *_ = group.members
            if first.target and second.target and set(first.held) - set(first.target):
                return pb.Snapshot.FromString(encode_state(life.state))
    raise AssertionError("no such group came up")


SNAPSHOT = snapshot()


def group_of(message: pb.Snapshot) -> pb.Group:
    return next(group for group in message.groups if group.group_id == "h")


def two_groups(message: pb.Snapshot) -> None:
    message.groups.add().CopyFrom(group_of(message))


def no_members(message: pb.Snapshot) -> None:
    del group_of(message).members[:]


def strange_coordinator(message: pb.Snapshot) -> None:
    group_of(message).coordinator = "nobody"


def late_epoch(message: pb.Snapshot) -> None:
    group_of(message).group_epoch = message.applied_index + 1


def late_coordinator(message: pb.Snapshot) -> None:
    group = group_of(message)
    group.coordinator_epoch = group.group_epoch + 1


def late_member(message: pb.Snapshot) -> None:
    group = group_of(message)
    group.members[0].member_epoch = group.group_epoch + 1


def disorder(message: pb.Snapshot) -> None:
    group_of(message).members.reverse()


def assigned_twice(message: pb.Snapshot) -> None:
    first, second, *_ = group_of(message).members
    del second.target[:]
    second.target.extend(first.target)


def held_twice(message: pb.Snapshot) -> None:
    first, second, *_ = group_of(message).members
    del second.held[:]
    second.held.extend(first.held)


def unknown_partition(message: pb.Snapshot) -> None:
    group_of(message).members[0].held.append(1 << 60)


@pytest.mark.parametrize(
    "damage",
    [
        two_groups,
        no_members,
        strange_coordinator,
        late_epoch,
        late_coordinator,
        late_member,
        disorder,
        assigned_twice,
        held_twice,
        unknown_partition,
    ],
)
def test_a_group_that_contradicts_itself_is_refused(damage: Callable[[pb.Snapshot], None]) -> None:
    message = pb.Snapshot()
    message.CopyFrom(SNAPSHOT)
    decode_state(message.SerializeToString(deterministic=True))
    damage(message)
    with pytest.raises(CorruptionError, match="group h"):
        decode_state(message.SerializeToString(deterministic=True))
