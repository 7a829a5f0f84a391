"""Events for the activity stream: queued once each, removed once stored, lost only visibly."""

from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Final

import pytest

from liftbridge_broker.controller.activity import ACTIVITY_LEVEL
from liftbridge_broker.controller.activity_queue import (
    PENDING_MAX,
    ActivityEvent,
    ActivityKind,
    ActivityQueue,
    NumberRange,
    ranges_of,
)
from liftbridge_broker.controller.commands import (
    Command,
    ConfirmActivity,
    CreateStream,
    DeleteStream,
    FenceBroker,
    PauseStream,
    RemoveBroker,
    ResumeStream,
    SetActivity,
    SetFeatureLevel,
    SetReadonly,
)
from liftbridge_broker.controller.consumer_groups.commands import DeleteGroup, JoinGroup, LeaveGroup
from liftbridge_broker.errors import (
    FailedPreconditionError,
    FencedLeaderEpochError,
    NotFoundError,
    StaleBrokerEpochError,
)
from liftbridge_broker.model.ids import BrokerId, MetadataIndex, StreamName
from liftbridge_broker.model.subjects import ACTIVITY_STREAM
from liftbridge_broker.wire.snapshots import decode_state, encode_state
from liftbridge_testkit.controller_commands import CommandMaker
from liftbridge_testkit.controller_world import ControllerWorld

S: Final = StreamName("s")
KINDS: Final = (
    ("create", 6), ("delete", 3), ("pause", 6), ("alter", 1), ("publisher", 1), ("resign", 1),
    ("set_activity", 1), ("confirm_activity", 4),
)  # fmt: skip
"""Kinds of commands with their weights."""


def world_of(*, on: str = "a", level: int = ACTIVITY_LEVEL) -> ControllerWorld:
    """Three brokers, some of which turn the activity stream on, and that stream."""
    world = ControllerWorld()
    world.start("abc")
    world.ok(SetFeatureLevel(feature_level=level))
    for name in on:
        world.ok(setting(world, name))
    world.ok(
        CreateStream(
            name=StreamName(ACTIVITY_STREAM),
            subject="a",
            replication_factor=3,
            is_internal=True,
        )
    )
    return world


def setting(world: ControllerWorld, name: str, *, is_wanted: bool = True) -> SetActivity:
    return SetActivity(broker=BrokerId(name), broker_epoch=world.epoch(name), is_wanted=is_wanted)


def confirmation(world: ControllerWorld, count: int, end_offset: int = -1) -> ConfirmActivity:
    """What the leader proposes that stored so many events, at the offset expected by default."""
    queue = world.state.activity
    stream = world.state.stream(ACTIVITY_STREAM)
    assert stream is not None
    return ConfirmActivity(
        partition_id=stream.partitions[0].partition_id,
        leader_epoch=stream.partitions[0].leader_epoch,
        start_offset=queue.end_offset,
        last_id=queue.events[count - 1].event_id if count else 0,
        end_offset=queue.end_offset + count if end_offset < 0 else end_offset,
    )


def test_changes_are_queued_while_a_broker_wants_them() -> None:
    world = world_of(on="")
    world.ok(CreateStream(name=S, subject="s", partitions=3))
    world.ok(setting(world, "a"))
    world.ok(PauseStream(name=S, partitions=(2, 0), resume_all=True))
    world.ok(SetReadonly(name=S))
    world.ok(ResumeStream(name=S, partitions=(0,)))
    world.ok(ResumeStream(name=S))  # of none: nothing changes
    index = world.index
    world.ok(setting(world, "a", is_wanted=False))
    world.ok(DeleteStream(name=S))
    assert world.state.activity.events == [
        ActivityEvent(
            MetadataIndex(index - 3),
            ActivityKind.PAUSE_STREAM,
            "s",
            (NumberRange(0, 1), NumberRange(2, 1)),
            flag=True,
        ),
        ActivityEvent(
            MetadataIndex(index - 2),
            ActivityKind.SET_STREAM_READONLY,
            "s",
            (NumberRange(0, 3),),
            flag=True,
        ),
        ActivityEvent(
            MetadataIndex(index - 1),
            ActivityKind.RESUME_STREAM,
            "s",
            (NumberRange(0, 1), NumberRange(2, 1)),
        ),
    ]


def test_members_that_join_and_leave_groups_are_queued() -> None:
    world = world_of()
    world.ok(CreateStream(name=S, subject="s", partitions=3))
    begin = len(world.state.activity.events)

    def join(member: str) -> None:
        world.ok(JoinGroup(group_id="g", member_id=member, streams=(S,)))

    def leave(member: str, *, is_expired: bool = False, is_evicted: bool = False) -> None:
        group = world.state.groups["g"]
        world.ok(
            LeaveGroup(
                group_id="g",
                member_id=member,
                is_expired=is_expired,
                is_evicted=is_evicted,
                coordinator=group.coordinator,
                coordinator_epoch=group.coordinator_epoch,
            )
        )

    for member in "wxyz":
        join(member)
    leave("w")
    leave("x", is_expired=True)
    leave("y", is_evicted=True)
    leave("z", is_expired=True)
    world.ok(DeleteStream(name=S))
    joined, left = ActivityKind.JOIN_CONSUMER_GROUP, ActivityKind.LEAVE_CONSUMER_GROUP
    queued = [
        (one.kind, one.name, one.consumer, one.streams, one.flag)
        for one in world.state.activity.events[begin:-1]
    ]
    assert queued == [
        *((joined, "g", member, (S,), False) for member in "wxyz"),
        (left, "g", "w", (), False),
        (left, "g", "x", (), True),
        (left, "g", "y", (), False),
        (left, "g", "z", (), True),
    ]


def test_a_new_subscription_or_assignment_is_no_event() -> None:
    world = world_of()
    world.ok(CreateStream(name=S, subject="s"))
    join = JoinGroup(group_id="g", member_id="m", streams=(S,), is_incremental=True)
    world.ok(join)
    (member,) = world.state.groups["g"].members
    before = list(world.state.activity.events)
    world.ok(replace(join, streams=("t",), member_epoch=member.member_epoch))
    world.ok(DeleteGroup(group_id="g"))
    assert world.state.activity.events == before


def test_it_is_on_until_no_broker_of_the_cluster_wants_it() -> None:
    world = world_of(on="ab")
    world.ok(setting(world, "a", is_wanted=False))
    assert set(world.state.activity.wanted_by) == {BrokerId("b")}
    world.ok(FenceBroker(broker=BrokerId("b"), broker_epoch=world.epoch("b")))
    assert set(world.state.activity.wanted_by) == {BrokerId("b")}
    world.ok(DeleteStream(name=StreamName(ACTIVITY_STREAM), is_internal=True))
    world.ok(RemoveBroker(broker=BrokerId("b"), broker_epoch=world.epoch("b")))
    assert not world.state.activity.wanted_by


def test_setting_of_a_process_that_is_over_is_refused() -> None:
    world = world_of(on="")
    former = setting(world, "a")
    world.register("a")
    assert world.refused(former) == StaleBrokerEpochError.code
    assert world.refused(SetActivity(broker=BrokerId("x"), broker_epoch=1, is_wanted=True)) == (
        NotFoundError.code
    )


@pytest.mark.parametrize("kind", ["setting", "confirmation"])
def test_commands_wait_for_the_feature_level(kind: str) -> None:
    world = world_of(on="", level=ACTIVITY_LEVEL - 1)
    command: Command = setting(world, "a") if kind == "setting" else confirmation(world, 0)
    answer = world.decide(command).answer
    assert isinstance(answer, FailedPreconditionError)
    assert "needs feature level 4, 3 is in force" in answer.text


def test_stored_events_are_removed_at_once() -> None:
    world = world_of()
    for number in range(3):
        world.ok(CreateStream(name=StreamName(f"s{number}"), subject="s"))
    world.ok(confirmation(world, 3))
    queue = world.state.activity
    assert [event.name for event in queue.events] == ["s2"]
    assert (queue.end_offset, queue.weight, queue.lost_count) == (3, 2, 0)


def test_confirmation_of_a_former_leader_is_refused() -> None:
    world = world_of()
    former = confirmation(world, 1)
    world.ok(FenceBroker(broker=BrokerId("a"), broker_epoch=world.epoch("a")))
    assert world.refused(former) == FencedLeaderEpochError.code


def test_repeated_confirmation_is_refused() -> None:
    world = world_of()
    world.ok(CreateStream(name=S, subject="s"))
    first = confirmation(world, 1)
    world.ok(first)
    world.ok(confirmation(world, 1))
    assert world.refused(first) == FailedPreconditionError.code
    assert world.state.activity.end_offset == 2


def test_confirmation_of_another_partition_is_refused() -> None:
    world = world_of()
    other = world.create(1)
    forged = replace(confirmation(world, 1), partition_id=other)
    assert world.refused(forged) == NotFoundError.code


def test_lost_events_are_counted_and_shown_by_the_next_one() -> None:
    world = world_of()
    for number in range(3):
        world.ok(CreateStream(name=StreamName(f"s{number}"), subject="s"))
    world.ok(confirmation(world, 3))
    world.ok(confirmation(world, 0, end_offset=1))
    queue = world.state.activity
    assert (queue.end_offset, queue.lost_count) == (1, 2)
    assert [event.lost_before for event in queue.events] == [2]
    world.ok(confirmation(world, 1))
    world.ok(confirmation(world, 0, end_offset=0))
    world.ok(CreateStream(name=S, subject="s"))
    assert [event.lost_before for event in queue.events] == [2]
    assert queue.lost_count == 4


def test_log_that_is_ahead_of_the_metadata_loses_nothing() -> None:
    """After a recovery of the metadata group from an old member."""
    world = world_of()
    world.ok(confirmation(world, 1, end_offset=7))
    queue = world.state.activity
    assert (queue.events, queue.end_offset, queue.lost_count) == ([], 7, 0)


def test_full_queue_counts_what_it_cannot_keep() -> None:
    queue = ActivityQueue()
    for index in range(1, PENDING_MAX):
        event = ActivityEvent(MetadataIndex(index), ActivityKind.DELETE_STREAM, "s")
        queue.add(event)
    wide = ActivityEvent(
        MetadataIndex(PENDING_MAX), ActivityKind.CREATE_STREAM, "s", (NumberRange(0, 9),)
    )
    queue.add(wide)
    queue.add(wide)
    assert (len(queue.events), queue.lost_count) == (PENDING_MAX - 1, 2)
    queue.confirm(2, 2, 0)
    queue.add(wide)
    assert [event.lost_before for event in queue.events[-2:]] == [0, 2]
    assert queue.weight == sum(event.weight for event in queue.events)


def test_numbers_become_ranges() -> None:
    random = Random(1)
    for _ in range(200):
        numbers = set(random.sample(range(12), random.randrange(12)))
        ranges = ranges_of(numbers)
        assert [n for first, count in ranges for n in range(first, first + count)] == sorted(
            numbers
        )
        assert all(a.first + a.length < b.first for a, b in pairwise(ranges))
    assert ranges_of(range(1_000_000)) == (NumberRange(0, 1_000_000),)


@pytest.mark.parametrize("seed", range(10))
def test_each_change_is_stored_once_or_counted_as_lost(seed: int) -> None:
    """Random commands, on a state that goes through snapshots; the stored log is a model."""
    random = Random(seed)
    world = world_of()
    log: list[MetadataIndex] = []
    changes = [event.event_id for event in world.state.activity.events]
    lost = 0
    kinds, weights = zip(*KINDS, strict=True)
    for _ in range(200):
        (kind,) = random.choices(kinds, weights)
        command = CommandMaker(random, world.state).make(kind)
        queue = world.state.activity
        start, events, is_on = queue.end_offset, list(queue.events), bool(queue.wanted_by)
        decision = world.apply(command)
        if kind in ("create", "delete", "pause") and decision.records and is_on:
            changes.append(world.state.applied_index)
        if isinstance(command, ConfirmActivity) and decision.records:
            assert start == len(log)
            log += [event.event_id for event in events if event.event_id <= command.last_id]
            lost += len(log) - command.end_offset
            del log[command.end_offset :]
        world.state = decode_state(encode_state(world.state))
    queue = world.state.activity
    pending = [event.event_id for event in queue.events]
    assert len(changes) > 3
    assert [one for one in changes if one in {*log, *pending}] == [*log, *pending]
    assert len(log) + len(pending) + lost == len(changes)
    assert queue.lost_count == lost
    assert queue.weight == sum(event.weight for event in queue.events)
