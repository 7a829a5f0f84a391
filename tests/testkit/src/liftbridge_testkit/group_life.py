"""A life of consumer groups in the controller alone: commands at random, promises checked.

Commands are mostly those of honest members and coordinators, now and then forged, late or repeated.
The promises are derived from the commands and from the states before and after, not from the code
that decides.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final

from liftbridge_broker.controller.commands import (
    FEATURE_LEVEL,
    Bootstrap,
    Command,
    CreateStream,
    DeleteStream,
    FenceBroker,
    ShutDownBroker,
)
from liftbridge_broker.controller.consumer_groups.commands import (
    ChangeCoordinator,
    DeleteGroup,
    JoinGroup,
    LeaveGroup,
    ReleasePartitions,
)
from liftbridge_broker.controller.records import Decision
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.groups import Group, Member
from liftbridge_broker.model.ids import BrokerId, PartitionId, StreamName, stream_of
from liftbridge_broker.wire.snapshots import decode_state, encode_state
from liftbridge_testkit.controller_world import ControllerWorld

BROKERS: Final = "abc"
GROUPS: Final = ("g", "h")
MEMBERS: Final = ("m1", "m2", "m3", "m4")
STREAMS: Final = ("orders", "returns.eu", "returns.us", "bills")
FORGED_ONE_IN: Final = 8


@dataclass(slots=True)
class GroupLife:
    """A cluster of three brokers whose clients form groups.

    Attributes:
        random: Source of the commands.
        world: The controller.
        seen: How often each cause of a change, and each code of a refusal, occurred.
    """

    random: Random
    world: ControllerWorld = field(default_factory=ControllerWorld)
    seen: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.world.ok(Bootstrap(cluster_id="c", feature_level=FEATURE_LEVEL))
        for name, zone in zip(BROKERS, ("x", "y", ""), strict=True):
            self.world.start(name, zone=zone)
        for name in STREAMS:
            self.world.create(1, name=name, partitions=3)

    @property
    def state(self) -> ClusterState:
        """Applied metadata."""
        return self.world.state

    def step(self) -> Command:
        """Apply a command; check all promises.

        Raises:
            AssertionError: A promise is broken.
        """
        kinds, weights = tuple(_KINDS), tuple(weight for _, weight in _KINDS.values())
        (kind,) = self.random.choices(kinds, weights)
        command = _KINDS[kind][0](self)
        groups = dict(self.state.groups)
        decision = self.world.apply(command)
        for record in decision.records:
            self.seen[str(getattr(record, "cause", type(record).__name__))] += 1
        if isinstance(decision.answer, LiftbridgeError):
            self.seen[decision.answer.code] += 1
        broken = _broken(groups, self.state, command, decision)
        assert broken == [], f"{broken}: {command}"
        return command

    def heal(self, steps_max: int) -> None:
        """No-op: nothing waits in the controller."""
        del steps_max

    @property
    def is_well(self) -> bool:
        """Return whether the state survives as bytes."""
        return decode_state(encode_state(self.state)) == self.state

    # -- commands -----------------------------------------------------------------------------

    def _is_forged(self) -> bool:
        return self.random.randrange(FORGED_ONE_IN) == 0

    def _number(self, honest: int) -> int:
        return max(1, honest - self.random.randrange(1, 4)) if self._is_forged() else honest

    def _group(self) -> Group | None:
        return self.random.choice(list(self.state.groups.values()) or [None])

    def _membership(self) -> tuple[str, Member]:
        group = self._group()
        if group is None:
            return "g", Member(member_id="m1", member_epoch=self.state.applied_index, streams=())
        return group.group_id, self.random.choice(group.members)

    def join(self) -> JoinGroup:
        """A consumer joins, joins again, or changes what it subscribes to."""
        group_id, member = self.random.choice(GROUPS), self.random.choice(MEMBERS)
        group = self.state.groups.get(group_id)
        is_incremental = group_id == "h"
        if self._is_forged():
            is_incremental = not is_incremental
        known = [name for name in STREAMS if name in self.state.stream_ids]
        names = known if known and not self._is_forged() else list(STREAMS)
        names = self.random.sample(names, self.random.randint(1, len(names)))
        if is_incremental and self.random.randrange(2):
            names.append(self.random.choice(("returns.*", ">", "__cursors")))
        present = None if group is None else group.member(member)
        changes = is_incremental and present is not None and self.random.randrange(2)
        return JoinGroup(
            group_id=group_id,
            member_id=member,
            streams=tuple(names),
            is_incremental=is_incremental,
            member_epoch=self._number(present.member_epoch) if changes and present else 0,
            instance_id=self.random.choice(("", "", "i1", "i2")) if is_incremental else "",
            zone=self.random.choice(("", "x", "y")) if is_incremental else "",
        )

    def leave(self) -> LeaveGroup:
        """A member leaves, or an operator removes it."""
        group_id, member = self._membership()
        return LeaveGroup(
            group_id=group_id,
            member_id=member.member_id,
            member_epoch=self.random.choice((0, self._number(member.member_epoch))),
            is_evicted=self.random.randrange(3) == 0,
        )

    def expire(self) -> LeaveGroup:
        """A coordinator has not heard from a member."""
        group_id, member = self._membership()
        group = self.state.groups.get(group_id)
        coordinator = BrokerId("a") if group is None else group.coordinator
        return LeaveGroup(
            group_id=group_id,
            member_id=member.member_id,
            member_epoch=self._number(member.member_epoch),
            is_expired=True,
            coordinator=BrokerId("b") if self._is_forged() else coordinator,
            coordinator_epoch=self._number(1 if group is None else group.coordinator_epoch),
        )

    def report(self) -> ChangeCoordinator:
        """Members cannot reach their coordinator."""
        group = self._group()
        return ChangeCoordinator(
            group_id="g" if group is None else group.group_id,
            coordinator=BrokerId("a") if group is None else group.coordinator,
            coordinator_epoch=self._number(1 if group is None else group.coordinator_epoch),
        )

    def release(self) -> ReleasePartitions:
        """A member lets go of what it is no longer to read, sometimes of more."""
        group_id, member = self._membership()
        held = set(member.held)
        released = held if self._is_forged() else held - set(member.target)
        return ReleasePartitions(
            group_id=group_id,
            member_id=member.member_id,
            member_epoch=self._number(member.member_epoch),
            partition_ids=tuple(sorted(released)),
            group_epoch=self._number(
                self.state.groups[group_id].group_epoch if group_id in self.state.groups else 1
            ),
        )

    def end(self) -> DeleteGroup:
        """An operator ends a group."""
        return DeleteGroup(group_id=self.random.choice(GROUPS))

    def create(self) -> CreateStream:
        """A stream comes up."""
        name = self.random.choice((*STREAMS, "__cursors"))
        return CreateStream(
            name=StreamName(name),
            subject="s",
            partitions=self.random.randint(1, 6),
            is_internal=name.startswith("__"),
        )

    def delete(self) -> DeleteStream:
        """A stream is deleted."""
        return DeleteStream(name=StreamName(self.random.choice(STREAMS)))

    def broker(self) -> Command:
        """A broker falls silent, stops, or returns."""
        name = self.random.choice(BROKERS)
        broker = self.state.brokers[BrokerId(name)]
        if broker.fenced or broker.in_controlled_shutdown:
            if not broker.fenced:
                self.world.fence(name)
            self.world.register(name, zone=broker.zone)
            self.world.unfence(name)
        kind = self.random.choice((FenceBroker, ShutDownBroker))
        return kind(broker=BrokerId(name), broker_epoch=self.world.epoch(name))


_KINDS: Final[Mapping[str, tuple[Callable[[GroupLife], Command], int]]] = {
    "join": (GroupLife.join, 12),
    "leave": (GroupLife.leave, 2),
    "expire": (GroupLife.expire, 2),
    "report": (GroupLife.report, 2),
    "release": (GroupLife.release, 8),
    "end": (GroupLife.end, 1),
    "create": (GroupLife.create, 4),
    "delete": (GroupLife.delete, 1),
    "broker": (GroupLife.broker, 2),
}


def life(seed: int) -> GroupLife:
    """Return the life of a seed."""
    return GroupLife(Random(seed))


# -- promises -------------------------------------------------------------------------------------


def _broken(
    before: Mapping[str, Group], state: ClusterState, command: Command, decision: Decision
) -> list[str]:
    """Return the promises about groups that a command broke; empty for none."""
    broken: list[str] = []
    able = [name for name, broker in state.brokers.items() if broker.can_lead]
    for group_id, group in state.groups.items():
        broken += [f"{group_id}: {fault}" for fault in broken_group(state, group)]
        if able and group.coordinator not in able:
            broken.append(f"{group_id} is coordinated by a broker that is not able to")
        former = before.get(group_id)
        if former is not None and former != group:
            is_release = isinstance(command, ReleasePartitions)
            if group.group_epoch != (former.group_epoch if is_release else state.applied_index):
                broken.append(f"{group_id} changed in its epoch")
            broken += _broken_moves(former, group, state, command)
    for group_id, former in before.items():
        if group_id not in state.groups and not isinstance(command, LeaveGroup | DeleteGroup):
            broken.append(f"{group_id} ended, with members {former.members}")
    if isinstance(command, JoinGroup) and not command.member_epoch:
        return broken
    if isinstance(command, JoinGroup | LeaveGroup | ReleasePartitions) and decision.records:
        broken += _broken_fence(before[command.group_id], command)
    return broken


def broken_group(state: ClusterState, group: Group) -> list[str]:
    """Return the promises that a group breaks by itself; empty for none."""
    targets = Counter(one for member in group.members for one in member.target)
    held = Counter(one for member in group.members for one in member.held)
    wanted: dict[PartitionId, list[Member]] = {}
    for stream in state.streams.values():
        readers = [member for member in group.members if _reads(member, stream.name)]
        for partition in stream.partitions:
            if readers:
                wanted[partition.partition_id] = readers
    claims = {
        "it has members": bool(group.members),
        "each partition has one reader": set(targets.values()) <= {1},
        "each partition is held once": set(held.values()) <= {1},
        "every partition has a reader, and no other has": targets.keys() == wanted.keys(),
        "what is held exists": all(state.partition(one) is not None for one in held),
        "a classic member holds its target": group.is_incremental
        or all(member.held == member.target for member in group.members),
        "what nobody holds is granted": targets.keys() <= held.keys(),
        "only subscribers read": all(
            member in wanted.get(one, ()) for member in group.members for one in member.target
        ),
        "it is balanced": not any(
            len(member.target) > len(other.target) + 1
            for member in group.members
            for one in member.target
            for other in wanted.get(one, ())
        ),
    }
    return [claim for claim, holds in claims.items() if not holds]


def _reads(member: Member, stream: str) -> bool:
    """Whether a member subscribes to a stream: rules of NATS, written once more."""
    if stream in member.streams:
        return True
    if stream.startswith("__"):
        return False
    if ">" in member.streams or ("*" in member.streams and "." not in stream):
        return True
    return "returns.*" in member.streams and stream.startswith("returns.")


def _broken_moves(before: Group, after: Group, state: ClusterState, command: Command) -> list[str]:
    """Return the moves of partitions that no member agreed to, or that were needless."""
    broken: list[str] = []
    broken += _broken_holds(before, after)
    was_held = {one: member for member in before.members for one in member.held}
    is_held = {one: member for member in after.members for one in member.held}
    for partition, member in was_held.items():
        holder = is_held.get(partition)
        if not before.is_incremental or state.partition(partition) is None:
            continue
        left = after.member(member.member_id) is None
        released = (
            isinstance(command, ReleasePartitions)
            and command.member_id == member.member_id
            and partition in command.partition_ids
        )
        is_other = holder is None or holder.member_id != member.member_id
        if is_other and not left and not released:
            broken.append(f"{member.member_id} did not let go of {partition}")
    subscriptions = {member.streams for member in after.members}
    stay = {member.member_id for member in before.members} & {
        member.member_id for member in after.members
    }
    if len(subscriptions) > 1 or not isinstance(command, JoinGroup | LeaveGroup):
        return broken
    if {member.streams for member in before.members} != subscriptions:
        return broken
    was_read = {one: m.member_id for m in before.members for one in m.target}
    for member in after.members:
        for partition in member.target:
            former = was_read.get(partition, "")
            if member.member_id in stay and former in stay and former != member.member_id:
                broken.append(f"needless move of {partition} of stream {stream_of(partition)}")
    return broken


def _broken_holds(before: Group, after: Group) -> list[str]:
    """Return the holds whose begin is not that of the assignment that gave the partition."""
    if not after.is_incremental:
        return [f"{one.member_id} is classic" for one in after.members if one.held_since]
    began = {
        (member.member_id, member.instance_id, partition): since
        for member in before.members
        for partition, since in member.holds.items()
    }
    return [
        f"{member.member_id} holds {partition} since {since}"
        for member in after.members
        for partition, since in member.holds.items()
        if since != began.get((member.member_id, member.instance_id, partition), after.group_epoch)
        and member.member_epoch != after.group_epoch
    ]


def _broken_fence(before: Group, command: JoinGroup | LeaveGroup | ReleasePartitions) -> list[str]:
    """Return the fences that a change ignored."""
    member = before.member(command.member_id)
    claims = {
        "a member changes, releases or leaves in the membership meant": member is not None
        and command.member_epoch in (0, member.member_epoch),
    }
    if isinstance(command, ReleasePartitions):
        is_present = command.group_epoch == before.group_epoch
        claims["a member releases what it knows to be another's"] = is_present
    if isinstance(command, LeaveGroup) and command.is_expired:
        claims["only the present coordinator lets members expire"] = (
            command.coordinator,
            command.coordinator_epoch,
        ) == (before.coordinator, before.coordinator_epoch)
    return [claim for claim, holds in claims.items() if not holds]
