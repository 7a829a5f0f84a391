"""The stream `__activity` on several brokers: each change once, in order, whatever fails."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pytest

from liftbridge_broker.controller.activity_queue import PENDING_MAX
from liftbridge_broker.controller.commands import (
    Command,
    CreateStream,
    DeleteStream,
    PauseStream,
    ResumeStream,
    SetActivity,
    SetFeatureLevel,
    SetReadonly,
)
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import BrokerId, StreamName
from liftbridge_broker.model.streams import StreamOptions
from liftbridge_broker.model.subjects import ACTIVITY_STREAM
from liftbridge_broker.model.units import MILLISECOND_NS, SECOND_NS
from liftbridge_broker.node.options import ActivityOptions
from liftbridge_broker.node.publishing.activity import BATCH_EVENTS_MAX, CONFIRM_NS
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.wire.acks import AckPolicy
from liftbridge_broker.wire.activity import LOST_HEADER
from liftbridge_proto import api_pb2 as pb
from liftbridge_testkit.batches import frames_of
from liftbridge_testkit.cluster_world import ClusterWorld, Member

LEVEL: Final = 4
ON: Final = ActivityOptions(is_enabled=True)
BROKERS: Final = tuple(BrokerId(f"b{number}") for number in (1, 2, 3))
S: Final = StreamName("s")
WHOLE: Final = 20_000
"""Milliseconds within which a broken cluster recovers."""


def world_of(
    options: ActivityOptions = ON,
    *,
    on: Sequence[BrokerId] = BROKERS,
    size: int = 3,
    level: int = LEVEL,
    defaults: StreamOptions | None = None,
) -> ClusterWorld:
    """Brokers at a feature level, some of which turn the activity stream on."""
    world = ClusterWorld(
        size,
        activity=dict.fromkeys(on, options),
        snapshot_entries=20,
        defaults=defaults or StreamOptions(),
    )
    change(world, SetFeatureLevel(feature_level=level))
    if on and level >= LEVEL:
        world.until(lambda: world.alive[0].node.state.stream(ACTIVITY_STREAM) is not None)
        world.until(lambda: world.leader(ACTIVITY_STREAM) is not None)
    return world


def change(world: ClusterWorld, *commands: Command) -> None:
    """Make changes, of which none fails."""
    world.until(lambda: any(one.consensus.is_leader for one in world.alive))
    for command in commands:
        outcome = world.propose(command)
        assert not isinstance(outcome, LiftbridgeError), outcome


def creation(name: str) -> CreateStream:
    return CreateStream(name=StreamName(name), subject=name, replication_factor=1)


def stored(member: Member) -> list[tuple[pb.ActivityStreamEvent, int]]:
    """Return the committed events that a replica holds, each with the lost ones before it."""
    log = member.node.find_replica(ACTIVITY_STREAM, 0).log
    reader = log.reader(log.log_start_offset)
    found = []
    while (result := reader.read(1 << 20, log.high_watermark)).slices:
        for frame in frames_of(result.slices):
            lost = dict(frame.headers).get(LOST_HEADER, b"0")
            found.append((pb.ActivityStreamEvent.FromString(frame.value), int(lost)))
    reader.close()
    return found


def names_of(member: Member) -> list[str]:
    """Return the committed events of a replica as `OPERATION stream`, checked to be in order."""
    events = [event for event, _ in stored(member)]
    ids = [event.id for event in events]
    assert ids == sorted(set(ids))
    operations = [pb.ActivityStreamOp.Name(event.op).removesuffix("_STREAM") for event in events]
    streams = [next(value.stream for _, value in one.ListFields()[-1:]) for one in events]
    return [f"{operation} {name}" for operation, name in zip(operations, streams, strict=True)]


def silence(world: ClusterWorld, leader: Member) -> None:
    """Let no record of a leader through, while it goes on to receive metadata."""
    for other in world.alive:
        world.deaf |= {
            (leader.broker, other.broker, Channel.DATA),
            (other.broker, leader.broker, Channel.DATA),
        }


def is_wanted(world: ClusterWorld) -> bool:
    """Return whether any broker knows that the activity stream is on."""
    return any(member.node.state.activity.wanted_by for member in world.alive)


def pending(world: ClusterWorld) -> int:
    """Return the events that some broker does not know to be stored."""
    return max(len(member.node.state.activity.events) for member in world.alive)


def settle(world: ClusterWorld) -> list[str]:
    """Wait until all brokers know that all events are stored; return them as all replicas agree."""
    world.until(lambda: pending(world) == 0, milliseconds=WHOLE)
    logs = [names_of(member) for member in world.alive]

    def agree() -> bool:
        logs[:] = [names_of(member) for member in world.alive]
        return all(one == logs[0] for one in logs)

    world.until(agree)
    return logs[0]


def test_each_change_of_a_stream_is_an_event() -> None:
    world = world_of()
    change(
        world,
        CreateStream(name=S, subject="s", partitions=3),
        PauseStream(name=S, partitions=(2, 0), resume_all=True),
        ResumeStream(name=S, partitions=(0,)),
        SetReadonly(name=S, partitions=(1,)),
        SetReadonly(name=S, readonly=False),
        DeleteStream(name=S),
    )
    assert settle(world) == [
        f"CREATE {ACTIVITY_STREAM}",
        "CREATE s",
        "PAUSE s",
        "RESUME s",
        "SET_STREAM_READONLY s",
        "SET_STREAM_READONLY s",
        "DELETE s",
    ]
    _, created, paused, resumed, closed, opened, _ = (event for event, _ in stored(world[1]))
    assert created.createStreamOp.partitions == [0, 1, 2]
    assert paused.pauseStreamOp.partitions == [0, 2]
    assert paused.pauseStreamOp.resumeAll
    assert resumed.resumeStreamOp.partitions == [0, 1, 2][::2]
    assert closed.setStreamReadonlyOp.partitions == [1]
    assert closed.setStreamReadonlyOp.readonly
    assert opened.setStreamReadonlyOp.partitions == [0, 1, 2]
    assert len(world.state(ACTIVITY_STREAM).replicas) == 3


def test_refused_changes_elections_and_settings_are_no_events() -> None:
    world = world_of()
    change(world, creation("s"))
    assert isinstance(world.propose(creation("s")), LiftbridgeError)
    change(world, ResumeStream(name=S))
    world[3].kill()
    world.run(3_000)
    world[3].restart()
    world.until(lambda: world.is_whole)
    assert settle(world) == [f"CREATE {ACTIVITY_STREAM}", "CREATE s"]


@pytest.mark.parametrize("victim", ["metadata", "activity", "both"])
def test_failovers_neither_lose_nor_repeat_an_event(victim: str) -> None:
    world = world_of()
    expected = [f"CREATE {ACTIVITY_STREAM}"]
    for number in range(12):
        if number % 4 == 2:
            leads = next(one for one in world.alive if one.consensus.is_leader)
            world.until(lambda: world.leader(ACTIVITY_STREAM) is not None)
            stores = world.leader(ACTIVITY_STREAM)
            assert stores is not None
            if victim == "both" and leads is not stores:
                leads.kill()
                leads.restart()
            failed = leads if victim == "metadata" else stores
            failed.kill()
            world.until(lambda: any(one.consensus.is_leader for one in world.alive))
        name = f"s{number}"
        answers: list[object] = []
        world.alive[0].node.propose(creation(name), world.now, answers.append)
        world.until(lambda: bool(answers), milliseconds=10_000)  # noqa: B023 - called at once
        if not isinstance(answers[0], LiftbridgeError):
            expected.append(f"CREATE {name}")
        for member in world.members.values():
            if not member.is_alive:
                member.restart()
        world.until(lambda: world.is_whole, milliseconds=WHOLE)
    found = settle(world)
    assert [one for one in found if one in expected] == expected
    known = {f"CREATE {name}" for name in world[1].node.state.stream_ids}
    assert set(found) == known


def test_restart_of_all_brokers_from_snapshots_loses_nothing() -> None:
    world = world_of()
    names = [f"s{number}" for number in range(30)]
    change(world, *(creation(name) for name in names))
    for member in world.members.values():
        member.kill(power_cut=True)
        member.restart()
    world.until(lambda: world.is_whole, milliseconds=WHOLE)
    expected = [f"CREATE {name}" for name in (ACTIVITY_STREAM, *names)]
    assert settle(world) == expected


def test_leader_that_was_replaced_repeats_nothing() -> None:
    world = world_of()
    old = world.leader(ACTIVITY_STREAM)
    assert old is not None
    world.cut(old)
    others = [one for one in world.alive if one is not old]
    world.until(lambda: world.leader(ACTIVITY_STREAM) in others)
    at = next(one for one in others if one.consensus.leader is not None)
    assert not isinstance(world.propose(creation("s"), at), LiftbridgeError)
    world.run(2_000)
    world.heal()
    world.until(lambda: world.is_whole, milliseconds=WHOLE)
    assert settle(world) == [f"CREATE {ACTIVITY_STREAM}", "CREATE s"]


def test_what_a_leader_did_not_commit_is_stored_by_the_next() -> None:
    world = world_of()
    settle(world)
    old = world.leader(ACTIVITY_STREAM)
    assert old is not None
    log = old.node.find_replica(ACTIVITY_STREAM, 0).log
    end = log.log_end_offset
    others = [one for one in world.alive if one is not old]
    # The leader dies between the append and the commit.
    silence(world, old)
    change(world, creation("s"), creation("t"))
    world.until(lambda: log.log_end_offset > end + 1)
    change(world, ResumeStream(name=S))
    assert (log.high_watermark, log.log_end_offset) == (end, end + 2)
    old.kill()
    world.heal()
    world.until(lambda: world.leader(ACTIVITY_STREAM) in others)
    world.until(lambda: pending(world) == 0)
    old.restart()
    world.until(lambda: world.is_whole, milliseconds=WHOLE)
    assert settle(world) == [f"CREATE {name}" for name in (ACTIVITY_STREAM, "s", "t")]


def test_uncommitted_event_stays_in_the_metadata() -> None:
    world = world_of()
    settle(world)
    old = world.leader(ACTIVITY_STREAM)
    assert old is not None
    change(world, creation("first"))
    world.run(CONFIRM_NS // MILLISECOND_NS - 200)
    silence(world, old)
    change(world, creation("kept"))
    world.run(400)
    assert [event.name for event in old.node.state.activity.events] == ["kept"]
    old.kill(power_cut=True)
    world.heal()
    old.restart()
    world.until(lambda: world.is_whole, milliseconds=WHOLE)
    assert settle(world) == [f"CREATE {name}" for name in (ACTIVITY_STREAM, "first", "kept")]
    assert old.node.state.activity.lost_count == 0


@pytest.mark.parametrize("policy", [AckPolicy.LEADER, AckPolicy.NONE])
def test_weaker_policy_may_lose_events_and_the_next_one_counts_them(policy: AckPolicy) -> None:
    world = world_of(replace(ON, policy=policy))
    settle(world)
    old = world.leader(ACTIVITY_STREAM)
    assert old is not None
    others = [one for one in world.alive if one is not old]
    change(world, creation("first"))
    world.run(CONFIRM_NS // MILLISECOND_NS - 200)
    silence(world, old)
    change(world, creation("lost"))
    world.until(lambda: pending(world) == 0, milliseconds=400)
    old.kill(power_cut=True)
    world.heal()
    world.until(lambda: world.leader(ACTIVITY_STREAM) in others)
    change(world, creation("kept"))
    old.restart()
    world.until(lambda: world.is_whole, milliseconds=WHOLE)
    assert settle(world) == [f"CREATE {name}" for name in (ACTIVITY_STREAM, "first", "kept")]
    assert [lost for _, lost in stored(world[1])] == [0, 0, 1]
    assert others[0].node.state.activity.lost_count == 1
    assert ("activity_lost", {"events": 1, "total": 1}) in others[0].told


def test_it_is_on_while_one_broker_wants_it() -> None:
    world = world_of(on=())
    change(world, creation("before"))
    for number, is_enabled in ((1, True), (2, True), (1, False)):
        world.activity[BROKERS[number - 1]] = ActivityOptions(is_enabled=is_enabled)
        world[number].kill()
        world.run(2_000)
        world[number].restart()
        world.until(lambda: world.is_whole, milliseconds=WHOLE)
        world.until(lambda: is_wanted(world))
        change(world, creation(f"on{number}{is_enabled}"))
        settle(world)
        assert is_wanted(world)
    world.activity.clear()
    world[2].kill()
    world[2].restart()
    world.until(lambda: world.is_whole, milliseconds=WHOLE)
    world.until(lambda: not is_wanted(world))
    change(world, creation("off"))
    world.activity[BROKERS[2]] = ON
    world[3].kill()
    world[3].restart()
    world.until(lambda: world.is_whole and is_wanted(world))
    change(world, creation("again"))
    streams = ["on1True", "on2True", "on1False", "again"]
    assert settle(world) == [f"CREATE {name}" for name in (ACTIVITY_STREAM, *streams)]


def test_changes_are_stored_if_it_is_off_before_the_stream_exists() -> None:
    """The broker that turned it on is killed before it creates the stream, and then without it."""
    world = world_of(on=())
    broker_epoch = world[1].node.state.brokers[BROKERS[0]].broker_epoch
    world[1].kill()
    change(
        world,
        SetActivity(broker=BROKERS[0], broker_epoch=broker_epoch, is_wanted=True),
        creation("on"),
    )
    world[1].restart()
    world.until(lambda: world.is_whole and not is_wanted(world), milliseconds=WHOLE)
    change(world, creation("off"))
    assert settle(world) == ["CREATE on", f"CREATE {ACTIVITY_STREAM}"]


def test_many_changes_need_few_commands() -> None:
    world = world_of(size=1, on=BROKERS[:1])
    count = 3 * BATCH_EVENTS_MAX
    answers: list[object] = []
    settle(world)
    before = world[1].node.state.applied_index
    for number in range(count):
        world[1].node.propose(creation(f"s{number}"), world.now, answers.append)
    world.until(lambda: len(answers) == count)
    assert len(settle(world)) == count + 1
    assert world[1].node.state.applied_index - before - count <= 10
    assert world[1].node.activity.appended_count == count + 1


def test_full_queue_fails_no_change_and_the_gap_shows() -> None:
    world = world_of(replace(ON, timeout_ns=SECOND_NS))
    settle(world)
    for member in world.alive:
        member.messaging.is_connected = False
    queues = [member.node.state.activity for member in world.alive]
    told = world[1].told_count("activity_delayed")  # before the level was in force
    for queue in queues:
        queue.weight += PENDING_MAX - 4  # as if other events waited
    change(world, *(creation(f"s{number}") for number in range(5)))
    world.run(3_000)
    assert all(member.told_count("activity_lost") > 0 for member in world.alive)
    assert all(member.told_count("activity_delayed") == told + 1 for member in world.alive)
    assert {queue.lost_count for queue in queues} == {3}
    for queue in queues:
        queue.weight -= PENDING_MAX - 4
    for member in world.alive:
        member.messaging.is_connected = True
    change(world, creation("last"))
    assert settle(world) == [f"CREATE {name}" for name in (ACTIVITY_STREAM, "s0", "s1", "last")]
    assert [lost for _, lost in stored(world[1])] == [0, 0, 0, 3]


def test_refused_events_are_tried_again_ever_more_rarely() -> None:
    world = world_of()
    settle(world)
    leader = world.leader(ACTIVITY_STREAM)
    assert leader is not None
    leader.messaging.is_connected = False
    change(world, creation("s"))
    world.run(60_000)
    attempts = sum(leader.node.context.refused_counts.values())
    assert 5 <= attempts <= 10
    assert leader.told[-1][0] == "activity_delayed"
    leader.messaging.is_connected = True
    world.until(lambda: pending(world) == 0, milliseconds=12_000)
    assert settle(world)[-1] == "CREATE s"


def test_older_brokers_are_not_asked_for_it() -> None:
    world = world_of(level=LEVEL - 1)
    world.run(3_000)
    assert not world[1].node.state.activity.wanted_by
    assert world[1].node.state.stream(ACTIVITY_STREAM) is None
    assert world[1].told_count("activity_delayed") == 1
    change(world, SetFeatureLevel(feature_level=LEVEL), creation("s"))
    world.until(lambda: world[1].node.state.stream(ACTIVITY_STREAM) is not None)
    change(world, creation("t"))
    assert settle(world)[-1] == "CREATE t"


def test_defaults_of_brokers_do_not_pause_or_compact_it() -> None:
    world = world_of(
        defaults=StreamOptions(auto_pause_ms=100, compact_enabled=True, optimistic_concurrency=True)
    )
    settle(world)
    world.run(1_000)
    change(world, creation("s"), creation("t"))
    assert settle(world)[:1] == [f"CREATE {ACTIVITY_STREAM}"]
    partition = world.replica(1, ACTIVITY_STREAM)
    assert not partition.is_paused
    assert not partition.options.compact_enabled
