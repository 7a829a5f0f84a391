"""Pause, resume, partitions that pause by themselves: what waits, wakes and is bounded."""

import pytest

from liftbridge_broker.controller.commands import (
    AlterStream,
    DeleteStream,
    PauseStream,
    ResumeStream,
    SetReadonly,
)
from liftbridge_broker.errors import (
    FailedPreconditionError,
    LiftbridgeError,
    NotAppendedError,
    NotFoundError,
    ReadonlyError,
    UnavailableError,
)
from liftbridge_broker.model.ids import Instant, PartitionId, StreamName
from liftbridge_broker.model.streams import StreamOverrides
from liftbridge_broker.model.units import MILLISECOND_NS, SECOND_NS
from liftbridge_broker.node.partition.pause import PARKED_BYTES_MAX
from liftbridge_broker.node.partition.roles import Role
from liftbridge_broker.node.upkeep.idle import STALE_COUNT_MAX, IdleWatch
from liftbridge_testkit.node_world import NodeWorld, envelope

S = StreamName("s")
IDLE_MS = 100
IDLE_NS = IDLE_MS * MILLISECOND_NS


def pause(world: NodeWorld, *partitions: int, resume_all: bool = False) -> None:
    outcome = world.propose(PauseStream(name=S, partitions=partitions, resume_all=resume_all))
    assert not isinstance(outcome, LiftbridgeError), outcome


def test_pause_ends_subscriptions_and_is_told(world: NodeWorld) -> None:
    partition = world.create()
    reading = world.subscribe(partition)
    pause(world)
    assert isinstance(reading.end, FailedPreconditionError)
    assert reading.end.text == "commit log was closed"
    assert world.told("partition_paused") == [{"stream": "s", "partition": 0, "cause": "request"}]
    assert world.node.partition_count == 0
    assert world.subscribe(partition).end is not None


def test_publish_resumes_and_waits_for_it(world: NodeWorld) -> None:
    partition = world.create()
    pause(world)
    answers = world.publish(partition, b"a")
    more = world.publish(partition, b"b")
    assert (answers.is_answered, partition.log.log_end_offset) == (False, 0)
    world.settle()
    assert (answers.offset, more.offset) == (0, 1)
    assert not partition.is_paused
    assert len(world.messaging.sent) == 2


def test_what_waits_for_a_leadership_asks_for_a_resume_when_a_pause_comes_first(
    world: NodeWorld,
) -> None:
    partition = world.create()
    partition.role = Role.RISING
    answers = world.publish(partition, b"a")
    world.deliver(partition.subject, envelope(b"dropped"))
    pause(world)
    partition.role = Role.LEADER
    world.settle()
    assert (answers.offset, partition.is_paused) == (0, False)
    assert (partition.activity.dropped_count, partition.log.log_end_offset) == (1, 1)


def test_publish_to_one_resumes_all_when_paused_so(world: NodeWorld) -> None:
    partition = world.create(partitions=3)
    pause(world, resume_all=True)
    world.publish(partition, b"a")
    world.settle()
    assert [world.partition("s", number).is_paused for number in range(3)] == [False] * 3


def test_publish_to_one_leaves_the_others_paused(world: NodeWorld) -> None:
    partition = world.create(partitions=2)
    pause(world)
    world.publish(partition, b"a")
    world.settle()
    assert [world.partition("s", number).is_paused for number in range(2)] == [False, True]


def test_what_waits_for_a_resume_is_bounded(world: NodeWorld) -> None:
    partition = world.create()
    pause(world)
    kept = world.publish(partition, b"v" * PARKED_BYTES_MAX)
    surplus = world.publish(partition, b"v")
    assert isinstance(surplus.error, NotAppendedError)
    world.settle()
    assert kept.offset == 0
    pause(world)
    assert not world.publish(partition, b"v" * PARKED_BYTES_MAX).is_answered


def test_failed_resume_refuses_what_waited(world: NodeWorld) -> None:
    partition = world.create()
    pause(world)
    free = world.files.free_bytes()
    world.files.capacity_bytes -= free
    answers = world.publish(partition, b"a")
    world.settle()
    assert answers.error.text.startswith("Failed to resume stream: ")
    world.files.capacity_bytes += free


def test_delete_while_a_run_waits_refuses_it(world: NodeWorld) -> None:
    partition = world.create()
    pause(world)
    world.node.propose(DeleteStream(name=S), world.now, lambda _outcome: None)
    answers = world.publish(partition, b"a")
    world.settle()
    assert isinstance(answers.error, NotAppendedError)


def test_run_that_waited_meets_readonly(world: NodeWorld) -> None:
    partition = world.create()
    pause(world)
    world.propose(SetReadonly(name=S, partitions=(), readonly=True))
    answers = world.publish(partition, b"a")
    world.settle()
    assert isinstance(answers.error, ReadonlyError)


def test_stopping_broker_refuses_what_waits(world: NodeWorld) -> None:
    partition = world.create()
    pause(world)
    answers = world.publish(partition, b"a")
    world.node.stop()
    assert isinstance(answers.error, NotAppendedError)
    refused: list[object] = []
    world.node.propose(DeleteStream(name=S), world.now, refused.append)
    assert isinstance(refused[0], UnavailableError)


def test_messages_over_nats_to_a_paused_partition_are_counted_and_dropped(
    world: NodeWorld,
) -> None:
    partition = world.create()
    pause(world)
    world.deliver("s", b"a", b"b")
    world.settle()
    assert (partition.activity.dropped_count, partition.log.log_end_offset) == (2, 0)
    assert partition.is_paused


def test_pause_survives_a_restart_and_resume_is_told(world: NodeWorld) -> None:
    world.create()
    pause(world)
    world.kill()
    partition = world.partition()
    assert partition.is_paused
    world.propose(ResumeStream(name=S, partitions=(0,)))
    assert not partition.is_paused
    assert len(world.told("partition_resumed")) == 1


# -- auto-pause ---------------------------------------------------------------------------------


def test_idle_partition_pauses_by_itself(world: NodeWorld) -> None:
    partition = world.create(auto_pause_ms=IDLE_MS)
    world.advance(IDLE_NS - 1)
    assert not partition.is_paused
    world.advance(1)
    assert partition.pause.is_auto
    assert world.told("partition_paused")[0]["cause"] == "idle"


def test_publish_puts_the_pause_off(world: NodeWorld) -> None:
    partition = world.create(auto_pause_ms=IDLE_MS)
    world.advance(IDLE_NS // 2)
    world.publish(partition, b"a")
    world.advance(IDLE_NS - 1)
    assert not partition.is_paused
    world.advance(1)
    assert partition.is_paused


def test_message_over_nats_wakes_an_auto_paused_partition(world: NodeWorld) -> None:
    partition = world.create(auto_pause_ms=IDLE_MS)
    world.advance(IDLE_NS)
    world.deliver("s", envelope(b"a", ackInbox="inbox"))
    world.deliver("s", b"b")
    world.settle()
    assert not partition.is_paused
    assert world.values(partition) == {0: b"a", 1: b"b"}
    assert [ack.offset for ack in world.messaging.acks("inbox")] == [0]
    world.advance(2 * IDLE_NS)
    assert partition.is_paused


def test_subscriber_ends_when_the_partition_pauses_by_itself(world: NodeWorld) -> None:
    reading = world.subscribe(world.create(auto_pause_ms=IDLE_MS))
    world.advance(IDLE_NS)
    assert reading.end is not None


def test_subscriber_holds_the_pause_off_when_asked(world: NodeWorld) -> None:
    partition = world.create(auto_pause_ms=IDLE_MS, auto_pause_disable_if_subscribers=True)
    reading = world.subscribe(partition)
    world.advance(10 * IDLE_NS)
    assert not partition.is_paused
    reading.close()
    world.advance(2 * IDLE_NS)
    assert partition.is_paused


def test_pause_that_fails_is_tried_again(world: NodeWorld) -> None:
    partition = world.create(auto_pause_ms=IDLE_MS)
    free = world.files.free_bytes()
    world.files.capacity_bytes -= free
    world.advance(IDLE_NS)
    assert not partition.is_paused
    world.files.capacity_bytes += free
    world.advance(10 * SECOND_NS)
    assert partition.is_paused


def test_changed_options_do_not_multiply_the_looks(world: NodeWorld) -> None:
    partition = world.create(auto_pause_ms=IDLE_MS)
    for _ in range(50):
        world.node.held.set_options(partition, partition.options, world.now)
    assert len(world.node.held._idle) == 1  # the bound is not seen from outside


def test_auto_pause_can_be_turned_on_and_off_later(world: NodeWorld) -> None:
    partition = world.create()
    world.propose(AlterStream(name=S, overrides=StreamOverrides(auto_pause_ms=IDLE_MS)))
    world.propose(AlterStream(name=S, overrides=StreamOverrides(auto_pause_ms=0)))
    world.advance(3 * IDLE_NS)
    assert not partition.is_paused
    world.propose(AlterStream(name=S, overrides=StreamOverrides(auto_pause_ms=IDLE_MS)))
    world.advance(IDLE_NS)
    assert partition.is_paused


def test_deleted_partition_is_not_looked_at(world: NodeWorld) -> None:
    world.create(auto_pause_ms=IDLE_MS)
    world.propose(DeleteStream(name=S))
    world.advance(2 * IDLE_NS)
    assert world.told("partition_paused") == []
    with pytest.raises(NotFoundError):
        world.partition()


def test_new_defaults_reach_running_partitions(world: NodeWorld) -> None:
    partition = world.create()
    world.node.set_defaults(
        world.defaults.overridden(StreamOverrides(auto_pause_ms=IDLE_MS)), world.now
    )
    world.advance(IDLE_NS)
    assert partition.is_paused


# -- the watch itself ---------------------------------------------------------------------------


def test_watch_keeps_the_earlier_time_and_gives_each_partition_once() -> None:
    watch = IdleWatch()
    first, second = PartitionId(1), PartitionId(2)
    watch.watch(first, Instant(10))
    watch.watch(first, Instant(20))
    watch.watch(first, Instant(5))
    watch.watch(second, Instant(7))
    assert watch.next_deadline() == 5
    assert watch.take_due(Instant(7)) == [first, second]
    assert watch.take_due(Instant(100)) == []
    assert watch.next_deadline() is None


def test_watch_sweeps_out_what_was_replaced() -> None:
    watch = IdleWatch()
    for due in range(3 * STALE_COUNT_MAX, 0, -1):
        watch.watch(PartitionId(1), Instant(due))
    assert len(watch) <= STALE_COUNT_MAX + 1
    assert watch.take_due(Instant(1)) == [PartitionId(1)]


def test_watch_forgets() -> None:
    watch = IdleWatch()
    watch.watch(PartitionId(1), Instant(1))
    watch.forget(PartitionId(1))
    watch.forget(PartitionId(1))
    assert watch.take_due(Instant(1)) == []
