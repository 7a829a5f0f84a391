"""Decisions about consumer groups; for random lives see tests/property/test_group_lives.py."""

from dataclasses import replace

import pytest

from liftbridge_broker.controller.commands import (
    Bootstrap,
    CreateStream,
    DeleteStream,
    SetFeatureLevel,
    ShutDownBroker,
)
from liftbridge_broker.controller.consumer_groups.assignment import Place, Reader, assign
from liftbridge_broker.controller.consumer_groups.commands import (
    ChangeCoordinator,
    DeleteGroup,
    JoinGroup,
    LeaveGroup,
    ReleasePartitions,
)
from liftbridge_broker.controller.consumer_groups.coordinator_reports import CoordinatorReports
from liftbridge_broker.errors import CorruptionError, LiftbridgeError
from liftbridge_broker.model.groups import (
    GROUP_PARTITIONS_MAX,
    MEMBERS_MAX,
    PATTERNS_MAX,
    SUBSCRIPTIONS_MAX,
    Group,
    Member,
)
from liftbridge_broker.model.ids import BrokerId, Instant, PartitionId, StreamName
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_broker.wire.snapshots import decode_state, encode_state
from liftbridge_proto.internal.v1 import metadata_pb2 as pb
from liftbridge_testkit.controller_world import ControllerWorld


class Groups(ControllerWorld):
    """Three brokers with streams, and short words for commands about groups."""

    def __init__(self, *, level: int = 4) -> None:
        super().__init__()
        self.ok(Bootstrap(cluster_id="c", feature_level=level))
        for name, zone in zip("abc", "xyz", strict=True):
            self.start(name, zone=zone)
        self.create(1, name="orders", partitions=4)

    def group(self, group_id: str = "g") -> Group:
        return self.state.groups[group_id]

    def member(self, member_id: str, group_id: str = "g") -> Member:
        found = self.group(group_id).member(member_id)
        assert found is not None
        return found

    def join(self, member_id: str, *streams: str, **given: object) -> Member:
        command = JoinGroup(group_id="g", member_id=member_id, streams=streams or ("orders",))
        self.ok(replace(command, **given))  # type: ignore[arg-type]  # names of fields
        return self.member(member_id)

    def joined(self, member_id: str, *streams: str, **given: object) -> Member:
        """Join an incremental group."""
        return self.join(member_id, *streams, is_incremental=True, **given)

    def release(self, member_id: str) -> ReleasePartitions:
        member = self.member(member_id)
        return ReleasePartitions(
            group_id="g",
            member_id=member_id,
            member_epoch=member.member_epoch,
            partition_ids=tuple(one for one in member.held if one not in member.target),
            group_epoch=self.group().group_epoch,
        )

    def expiry(self, member_id: str) -> LeaveGroup:
        group = self.group()
        return LeaveGroup(
            group_id="g",
            member_id=member_id,
            member_epoch=self.member(member_id).member_epoch,
            is_expired=True,
            coordinator=group.coordinator,
            coordinator_epoch=group.coordinator_epoch,
        )

    def text(self, command: JoinGroup | LeaveGroup | ReleasePartitions | ChangeCoordinator) -> str:
        answer = self.apply(command).answer
        assert isinstance(answer, LiftbridgeError), answer
        return answer.text


@pytest.fixture
def world() -> Groups:
    return Groups()


def counts(world: Groups) -> list[int]:
    return [len(member.target) for member in world.group().members]


# -- assignment -----------------------------------------------------------------------------------


def test_a_joining_member_takes_only_its_share_and_the_others_keep_theirs(world: Groups) -> None:
    before = world.join("m1").target
    world.join("m2")
    assert len(before) == 4
    assert counts(world) == [2, 2]
    assert set(world.member("m1").target) < set(before)
    third = world.join("m3")
    assert counts(world) == [1, 2, 1] or counts(world) == [2, 1, 1]
    world.ok(LeaveGroup(group_id="g", member_id="m3"))
    assert set(third.target) <= {*world.member("m1").target, *world.member("m2").target}


def test_members_with_different_streams_are_balanced_by_all_of_them(world: Groups) -> None:
    world.create(1, name="bills", partitions=2)
    world.create(1, name="returns", partitions=6)
    world.join("m1", "orders", "bills", "returns")
    world.join("m2", "orders")
    world.join("m3", "returns")
    assert counts(world) == [4, 4, 4]


def test_partitions_go_to_the_zone_of_their_leader() -> None:
    near = [Place(PartitionId(number), "xyz"[number % 3]) for number in range(9)]
    readers = [Reader(f"m{zone}", frozenset({"s"}), zone) for zone in "zxy"]
    owners = assign(readers, {"s": near}, {})
    assert all(owners[place.partition].zone == place.zone for place in near)

    late = Reader("late", frozenset({"s"}), "x")
    for reader in readers:
        reader.load = 0
    fourth = assign([late, *readers], {"s": near}, owners)
    taken = [place.zone for place in near if fourth[place.partition] is late]
    assert "x" in taken
    assert len(taken) == 2


# -- kinds, names and bounds ----------------------------------------------------------------------


def test_a_group_has_members_of_one_kind(world: Groups) -> None:
    world.join("m1")
    other = JoinGroup(group_id="g", member_id="m2", streams=("orders",), is_incremental=True)
    assert world.text(other) == (
        "consumer group g is classic, its members join by JoinConsumerGroup; use another group id"
    )
    world.ok(DeleteGroup(group_id="g"))
    world.ok(other)
    assert "is incremental" in world.text(replace(other, member_id="m3", is_incremental=False))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"group_id": ""}, "No groupId provided"),
        ({"member_id": "x" * 256}, "Invalid consumerId"),
        ({"streams": ()}, "No streams provided"),
        ({"streams": ("orders", "nowhere")}, "stream does not exist"),
        ({"streams": ("orders", "a..b"), "is_incremental": True}, "Invalid stream a..b"),
        ({"streams": ("o*",), "is_incremental": True}, "Invalid stream o*"),
        ({"instance_id": "a\nb", "is_incremental": True}, "Invalid instanceId"),
        ({"zone": "x" * 256, "is_incremental": True}, "Invalid zone"),
        ({"member_epoch": 5, "is_incremental": True}, "consumer group does not exist"),
    ],
)
def test_what_a_member_names_is_checked(world: Groups, given: dict[str, object], text: str) -> None:
    command = JoinGroup(group_id="g", member_id="m", streams=("orders",))
    assert text in world.text(replace(command, **given))  # type: ignore[arg-type]  # names of fields
    assert world.state.groups == {}


def test_bounds_of_a_group_are_reached(world: Groups) -> None:
    join = JoinGroup(group_id="g", member_id="m", streams=("orders",))
    patterns = tuple(f"{number}.*" for number in range(PATTERNS_MAX + 1))
    many = replace(join, streams=patterns, is_incremental=True)
    assert f"{PATTERNS_MAX + 1} different patterns, limit {PATTERNS_MAX}" in world.text(many)
    world.create(1, name="wide", partitions=GROUP_PARTITIONS_MAX)
    assert "would read 10004 partitions" in world.text(replace(join, streams=("orders", "wide")))
    names = tuple(f"s{number}" for number in range(SUBSCRIPTIONS_MAX + 1))
    named = replace(join, streams=names, is_incremental=True)
    assert f"limit {SUBSCRIPTIONS_MAX}" in world.text(named)
    members = tuple(
        Member(member_id=f"m{number:04}", member_epoch=world.state.applied_index, streams=("s",))
        for number in range(MEMBERS_MAX)
    )
    world.join("m")
    world.state.groups["g"] = replace(world.group(), members=members)
    assert f"limit {MEMBERS_MAX}" in world.text(join)


def test_no_group_begins_below_its_level() -> None:
    world = Groups(level=3)
    join = JoinGroup(group_id="g", member_id="m", streams=("orders",))
    assert world.text(join).startswith("consumer groups need feature level 4")
    world.ok(SetFeatureLevel(feature_level=4))
    world.ok(join)


# -- expiry and coordinators ----------------------------------------------------------------------


def test_an_expiry_is_refused_once_the_member_joined_again(world: Groups) -> None:
    world.join("m1")
    late = world.expiry("m1")
    world.ok(LeaveGroup(group_id="g", member_id="m1"))
    world.join("m1")
    # The group began anew, so that only the membership tells the difference.
    again = world.group()
    late = replace(late, coordinator_epoch=again.coordinator_epoch, coordinator=again.coordinator)
    assert world.text(late) == "consumer is not a member of the consumer group"


def test_an_expiry_is_refused_once_another_broker_coordinates(world: Groups) -> None:
    world.join("m1")
    late = world.expiry("m1")
    first = world.group().coordinator
    world.fence(first)
    world.unfence(first)
    assert world.group().coordinator != first
    assert "no longer coordinates" in world.text(late)
    group = world.group()
    back = ChangeCoordinator(
        group_id="g", coordinator=group.coordinator, coordinator_epoch=group.coordinator_epoch
    )
    while world.group().coordinator != first:
        group = world.group()
        world.ok(
            replace(back, coordinator=group.coordinator, coordinator_epoch=group.coordinator_epoch)
        )
    assert "no longer coordinates" in world.text(late)
    world.ok(world.expiry("m1"))


def test_a_coordinator_that_nobody_replaced_begins_anew_when_it_returns(world: Groups) -> None:
    world.join("m1")
    late, first = world.expiry("m1"), world.group().coordinator
    for name in "abc":
        world.fence(name)
    last = world.group().coordinator
    assert last != first
    late = world.expiry("m1")
    world.unfence(last)
    assert world.group().coordinator == last
    assert "no longer coordinates" in world.text(late)


def test_a_broker_that_stops_in_order_coordinates_no_more(world: Groups) -> None:
    world.join("m1")
    first = world.group().coordinator
    world.ok(ShutDownBroker(broker=first, broker_epoch=world.epoch(first)))
    assert world.group().coordinator != first


def test_groups_of_a_lost_broker_are_spread(world: Groups) -> None:
    for number in range(6):
        world.ok(JoinGroup(group_id=f"g{number}", member_id="m", streams=("orders",)))
    world.fence("a")
    found = [group.coordinator for group in world.state.groups.values()]
    assert sorted(found) == ["b"] * 3 + ["c"] * 3


def test_a_report_of_a_former_coordinator_changes_nothing(world: Groups) -> None:
    world.join("m1")
    group = world.group()
    change = ChangeCoordinator(
        group_id="g", coordinator=group.coordinator, coordinator_epoch=group.coordinator_epoch
    )
    world.ok(change)
    second = world.group()
    assert second.coordinator != group.coordinator
    assert "by now" in world.text(change)
    forged = replace(change, coordinator=second.coordinator)
    assert "by now" in world.text(forged)
    for name in {"a", "b", "c"} - {second.coordinator}:
        world.fence(name)
    present = replace(forged, coordinator_epoch=second.coordinator_epoch)
    assert "no other broker" in world.text(present)


def test_only_present_members_report_within_the_time(world: Groups) -> None:
    for member in ("m1", "m2", "m3"):
        world.join(member)
    group, reports = world.group(), CoordinatorReports()

    def report(member: str, seconds: int) -> object:
        return reports.on_report(
            world.state,
            "g",
            member,
            group.coordinator,
            group.coordinator_epoch,
            15 * SECOND_NS,
            Instant(seconds * SECOND_NS),
        )

    assert report("m1", 1) is None
    assert report("m1", 2) is None
    assert report("stranger", 2) is None
    assert report("m2", 18) is None  # the first reports are too old
    assert report("m3", 19) is not None


# -- incremental groups ---------------------------------------------------------------------------


def test_a_partition_moves_once_its_holder_let_go(world: Groups) -> None:
    world.joined("m1")
    second = world.joined("m2")
    assert (len(second.target), second.held) == (2, ())
    assert len(world.member("m1").held) == 4
    assert len(world.member("m1").assigned) == 2

    world.ok(world.release("m1"))
    assert world.member("m2").held == second.target
    assert len(world.member("m1").held) == 2


def test_a_partition_is_held_since_the_assignment_that_gave_it(world: Groups) -> None:
    """A release grants in the group epoch of the assignment, which its new holder may know."""
    founded = world.joined("m1").member_epoch
    world.joined("m2")
    divided = world.group().group_epoch
    world.ok(world.release("m1"))
    (one, two), (three, four) = world.member("m1").held, world.member("m2").held
    assert world.member("m1").holds == {one: founded, two: founded}
    assert world.member("m2").holds == {three: divided, four: divided}
    world.ok(LeaveGroup(group_id="g", member_id="m2"))
    left = world.group().group_epoch
    again = {one: founded, two: founded, three: left, four: left}
    assert world.member("m1").holds == again
    assert divided < left


def test_a_snapshot_tells_since_when_partitions_are_held_or_that_it_is_unknown(
    world: Groups,
) -> None:
    since = world.joined("m1").held_since
    snapshot = pb.Snapshot.FromString(encode_state(world.state))
    (member,) = snapshot.groups[0].members
    assert tuple(member.held_since) == since
    for damaged in (since[1:], (*since, since[0]), (99, *since[1:])):
        member.held_since[:] = damaged
        with pytest.raises(CorruptionError, match="disordered epochs of what is held"):
            decode_state(snapshot.SerializeToString())
    member.ClearField("held_since")
    restored = decode_state(snapshot.SerializeToString()).groups["g"]
    assert restored.members[0].held_since == (0, 0, 0, 0)


def test_a_late_release_takes_nothing_that_was_assigned_again(world: Groups) -> None:
    world.joined("m1")
    world.joined("m2")
    late = world.release("m1")
    world.ok(LeaveGroup(group_id="g", member_id="m2"))
    assert world.text(late).startswith("consumer group g is at group epoch")
    assert len(world.member("m1").assigned) == 4
    world.joined("m2")
    late = world.release("m1")
    world.joined("m1")  # a new membership
    late = replace(late, group_epoch=world.group().group_epoch)
    assert world.text(late) == "consumer is not a member of the consumer group"


def test_a_release_that_is_older_than_the_assignment_is_refused(world: Groups) -> None:
    world.joined("m1")
    world.joined("m2")
    late = world.release("m1")
    world.ok(LeaveGroup(group_id="g", member_id="m2"))
    world.joined("m2")  # m1 may read again since, what it had let go of
    assert world.text(late).startswith("consumer group g is at group epoch")
    assert len(world.member("m1").held) == 4
    world.ok(world.release("m1"))


def test_what_an_expired_member_held_is_granted_at_once(world: Groups) -> None:
    world.joined("m1")
    world.joined("m2")
    world.ok(world.expiry("m1"))
    assert len(world.member("m2").held) == 4


def test_a_member_that_restarts_under_its_instance_continues_in_its_place(world: Groups) -> None:
    first = world.joined("m1", instance_id="pod-1")
    world.joined("m2", instance_id="pod-2")
    world.ok(world.release("m1"))
    second = world.joined("m3", instance_id="pod-1")

    assert second.held == second.target
    assert set(second.held) < set(first.held)
    assert world.group().member("m1") is None
    assert world.member("m2").held == world.member("m2").target


def test_a_pattern_takes_streams_that_come_later(world: Groups) -> None:
    world.joined("m1", "returns.*", "orders")
    world.create(1, name="returns.eu", partitions=2)
    world.create(1, name="elsewhere")
    assert len(world.member("m1").held) == 6
    world.ok(DeleteStream(name=StreamName("returns.eu")))
    assert len(world.member("m1").held) == 4
    world.create(1, name="returns.eu", partitions=1)
    assert len(world.member("m1").held) == 5


def test_a_pattern_takes_no_stream_of_the_brokers(world: Groups) -> None:
    world.joined("m1", ">")
    cursors = CreateStream(name=StreamName("__cursors"), subject="c", is_internal=True)
    world.ok(cursors)
    assert len(world.member("m1").held) == 4


def test_a_member_changes_its_streams_in_its_membership(world: Groups) -> None:
    world.create(1, name="bills", partitions=2)
    first = world.joined("m1", "orders", zone="x", instance_id="i")
    change = JoinGroup(
        group_id="g",
        member_id="m1",
        streams=("bills",),
        is_incremental=True,
        member_epoch=first.member_epoch,
    )
    world.ok(change)
    second = world.member("m1")
    assert (second.member_epoch, second.zone, second.instance_id) == (first.member_epoch, "x", "i")
    assert (len(second.target), len(second.held)) == (2, 6)
    world.ok(world.release("m1"))
    assert world.member("m1").held == second.target
    stale = replace(change, member_epoch=first.member_epoch - 1)
    assert world.text(stale) == "consumer is not a member of the consumer group"


def test_the_only_broker_that_is_left_coordinates_all(world: Groups) -> None:
    world.join("m1")
    for name in "ab":
        world.fence(name)
    assert world.group().coordinator == BrokerId("c")
