"""Runs into a partition: offsets, acks by policy, refusals, batches, faults of the disk."""

from itertools import pairwise

import pytest

from liftbridge_broker.controller.commands import AlterStream, DeleteStream, SetReadonly
from liftbridge_broker.errors import (
    IncorrectOffsetError,
    InvalidRequestError,
    LiftbridgeError,
    NotAppendedError,
    NotFoundError,
    NotLeaderError,
    OutcomeUnknownError,
    PartitionOfflineError,
    ReadonlyError,
    StorageFullError,
)
from liftbridge_broker.logformat.batch import walk
from liftbridge_broker.model.ids import StreamName
from liftbridge_broker.model.streams import FsyncPolicy, StreamOverrides
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.partition.runs import POLICY_ALL, POLICY_LEADER
from liftbridge_broker.node.partition.sealing import BATCH_BYTES_MAX
from liftbridge_broker.storage.log import lookup
from liftbridge_testkit.memory_files import Fault
from liftbridge_testkit.node_world import START_WALL_NS, NodeWorld, at_offset

S = StreamName("s")


def batch_ranges(partition: Partition) -> list[tuple[int, int, int]]:
    """First and last offset and number of records of each stored batch."""
    log = partition.log
    data = log.read_batches(log.log_start_offset, 1 << 26, log.log_end_offset)
    return [(h.base_offset, h.last_offset, h.count) for _, h in walk(data, 0, len(data))]


def test_runs_get_offsets_in_order_and_are_acked_with_time_and_epoch(world: NodeWorld) -> None:
    partition = world.create()
    first, second = world.publish(partition, b"a", b"b"), world.publish(partition, b"c")
    assert (first.offset, second.offset) == (0, 2)
    assert first.stored[0].timestamp == world.wall_ns
    assert first.stored[0].leader_epoch == partition.leader_epoch
    assert not first.stored[0].is_duplicate
    assert world.values(partition) == {0: b"a", 1: b"b", 2: b"c"}


def test_keys_and_headers_are_stored(world: NodeWorld) -> None:
    partition = world.create()
    world.publish(partition, b"a", b"b", keys=[b"k", b""], headers=[None, {"h": b"1"}])
    frames = world.subscribe(partition).frames
    assert [frame.key for frame in frames] == [b"k", b""]
    assert dict(frames[1].headers)["h"] == b"1"


def test_timestamps_never_decrease_when_the_clock_goes_back(world: NodeWorld) -> None:
    partition = world.create()
    world.publish(partition, b"a")
    world.now = type(world.now)(world.now - 500)
    answers = world.publish(partition, b"b")
    assert answers.stored[0].timestamp == world.subscribe(partition).frames[0].timestamp


@pytest.mark.parametrize("policy", [POLICY_LEADER, POLICY_ALL])
@pytest.mark.parametrize("fsync", [FsyncPolicy.NEVER, FsyncPolicy.INTERVAL])
def test_policies_that_do_not_wait_ack_at_once(
    world: NodeWorld, fsync: FsyncPolicy, policy: int
) -> None:
    partition = world.create(fsync_policy=fsync)
    assert world.publish(partition, b"a", policy=policy).offset == 0
    assert partition.log.high_watermark == 1


@pytest.mark.parametrize("policy", [POLICY_LEADER, POLICY_ALL])
@pytest.mark.parametrize("fsync", [FsyncPolicy.COMMIT, FsyncPolicy.AUTO])
def test_no_ack_and_no_read_before_the_sync_under_commit(
    world: NodeWorld, fsync: FsyncPolicy, policy: int
) -> None:
    partition = world.create(fsync_policy=fsync)
    reading = world.subscribe(partition)
    answers = world.publish(partition, b"a", policy=policy)
    assert (answers.is_answered, reading.values) == (False, [])
    world.advance(1)
    world.settle()
    assert (answers.offset, reading.values) == (0, [b"a"])
    assert partition.log.recovery_point == 1


def test_one_sync_covers_all_that_was_appended_before_it(world: NodeWorld) -> None:
    partition = world.create(fsync_policy=FsyncPolicy.COMMIT)
    answers = [world.publish(partition, value) for value in (b"a", b"b", b"c")]
    world.advance(1)
    world.settle()
    assert [answer.offset for answer in answers] == [0, 1, 2]


def test_acked_under_commit_survives_a_power_cut_and_the_rest_may_go(world: NodeWorld) -> None:
    partition = world.create(fsync_policy=FsyncPolicy.COMMIT)
    world.publish(partition, b"a")
    world.advance(1)
    world.settle()
    world.publish(partition, b"b")
    world.crash()
    assert world.values(world.partition()) == {0: b"a"}


@pytest.mark.parametrize("fsync", list(FsyncPolicy))
def test_what_a_killed_process_left_is_readable_without_another_append(
    world: NodeWorld, fsync: FsyncPolicy
) -> None:
    world.publish(world.create(fsync_policy=fsync), b"a", b"b")
    world.kill()
    world.settle()
    assert world.values(world.partition()) == {0: b"a", 1: b"b"}


def test_leaving_commit_releases_the_acks_that_waited_for_the_disk(world: NodeWorld) -> None:
    partition = world.create(fsync_policy=FsyncPolicy.COMMIT)
    waiting = world.publish(partition, b"a")
    relaxed = partition.options.overridden(StreamOverrides(fsync_policy=FsyncPolicy.NEVER))
    partition.set_options(relaxed, world.wall_ns)
    assert waiting.offset == 0


def test_acks_that_wait_when_the_broker_stops_have_an_unknown_outcome(world: NodeWorld) -> None:
    waiting = world.publish(world.create(fsync_policy=FsyncPolicy.COMMIT), b"a")
    world.node.stop()
    assert isinstance(waiting.error, OutcomeUnknownError)
    assert waiting.error.text == "outcome unknown: commit log was closed"


def test_acks_that_wait_when_the_stream_is_deleted_are_refused(world: NodeWorld) -> None:
    partition = world.create(fsync_policy=FsyncPolicy.COMMIT)
    waiting = world.publish(partition, b"a")
    # The deletion is applied before the log's sync is done.
    world.node.held.close(partition.partition_id, NotFoundError("commit log was deleted"))
    assert isinstance(waiting.error, NotFoundError)


def test_deleted_stream_is_gone_for_publishers(world: NodeWorld) -> None:
    partition = world.create()
    world.propose(DeleteStream(name=S))
    answers = world.publish(partition, b"a")
    assert answers.error.text == "not appended: commit log was deleted"
    with pytest.raises(NotFoundError, match=r"^no such stream: s$"):
        world.node.find_for_publish("s", 0)
    with pytest.raises(NotFoundError, match=r"^no such partition: s/0$"):
        world.node.find_partition("s", 0)


def test_unknown_partition_of_a_known_stream_is_named(world: NodeWorld) -> None:
    world.create()
    with pytest.raises(NotFoundError, match=r"^no such partition: 7$"):
        world.node.find_for_publish("s", 7)


def test_readonly_refuses_and_writable_again_takes(world: NodeWorld) -> None:
    partition = world.create()
    world.propose(SetReadonly(name=S, partitions=(), readonly=True))
    refused = world.publish(partition, b"a")
    assert isinstance(refused.error, ReadonlyError)
    assert refused.error.text == "readonly partition: 0"
    world.propose(SetReadonly(name=S, partitions=(), readonly=False))
    assert world.publish(partition, b"a").offset == 0


def test_partition_that_nobody_leads_takes_nothing(world: NodeWorld) -> None:
    partition = world.create()
    partition.follow(None)
    assert isinstance(world.publish(partition, b"a").error, NotLeaderError)
    assert partition.log.log_end_offset == 0


def test_readonly_survives_a_restart(world: NodeWorld) -> None:
    world.create()
    world.propose(SetReadonly(name=S, partitions=(), readonly=True))
    world.kill()
    assert isinstance(world.publish(world.partition(), b"a").error, ReadonlyError)


def test_nats_away_or_too_slow_refuses_before_anything_is_stored(world: NodeWorld) -> None:
    partition = world.create()
    world.messaging.is_connected = False
    away = world.publish(partition, b"a")
    world.messaging.is_connected = True
    world.messaging.backlog_bytes = world.messaging.backlog_bytes_max // 2
    slow = world.publish(partition, b"b")
    assert isinstance(away.error, NotAppendedError)
    assert isinstance(slow.error, NotAppendedError)
    assert partition.log.log_end_offset == 0


def test_backlog_makes_the_node_congested_before_it_refuses(world: NodeWorld) -> None:
    world.messaging.backlog_bytes = world.messaging.backlog_bytes_max // 8
    assert not world.node.is_congested
    world.messaging.backlog_bytes += 1
    assert world.node.is_congested
    assert world.node.listening.can_take("s")


@pytest.mark.parametrize(("expected", "is_taken"), [(0, False), (1, True), (-1, True), (2, False)])
def test_optimistic_concurrency_takes_the_next_offset_or_any(
    world: NodeWorld, expected: int, is_taken: bool
) -> None:
    partition = world.create(optimistic_concurrency=True)
    world.publish(partition, b"a", expected_offsets=[0])
    answers = world.publish(partition, b"b", expected_offsets=[expected])
    if is_taken:
        assert answers.offset == 1
    else:
        assert isinstance(answers.error, IncorrectOffsetError)
        assert answers.error.text == "incorrect expected offset"


def test_optimistic_concurrency_can_be_turned_on_later(world: NodeWorld) -> None:
    partition = world.create()
    assert partition.takes_runs
    world.publish(partition, b"a")
    world.propose(AlterStream(name=S, overrides=StreamOverrides(optimistic_concurrency=True)))
    assert not partition.takes_runs
    assert isinstance(world.publish(partition, b"b").error, IncorrectOffsetError)


def test_large_runs_become_batches_that_adjoin_and_stay_below_the_limit(world: NodeWorld) -> None:
    partition = world.create()
    size = BATCH_BYTES_MAX // 4
    answers = world.publish(partition, *[b"v" * size] * 9, keys=[b""] * 9)
    assert answers.offset == 0
    ranges = batch_ranges(partition)
    assert ranges == [(0, 3, 4), (4, 7, 4), (8, 8, 1)]
    assert all(after[0] == before[1] + 1 for before, after in pairwise(ranges))


def test_record_larger_than_a_batch_is_a_batch_of_its_own(world: NodeWorld) -> None:
    partition = world.create()
    world.publish(partition, b"a", b"v" * (BATCH_BYTES_MAX + 1), b"b")
    assert batch_ranges(partition) == [(0, 0, 1), (1, 1, 1), (2, 2, 1)]


# -- restore ------------------------------------------------------------------------------------


def test_restore_puts_records_where_they_were_with_their_times(world: NodeWorld) -> None:
    partition = world.create()
    times = [START_WALL_NS - 10, START_WALL_NS - 5]
    answers = world.publish(partition, b"a", b"b", offsets=[7, 8], timestamps=times)
    assert (answers.offset, answers.stored[0].timestamp) == (7, times[0])
    reading = world.subscribe(partition)
    assert reading.offsets == [7, 8]
    assert [frame.timestamp for frame in reading.frames] == times
    assert batch_ranges(partition) == [(0, 6, 0), (7, 8, 2)]
    assert lookup.offset_for_timestamp(partition.log, times[1]) == 8


def test_restore_of_a_compacted_log_keeps_gaps_and_subjects(world: NodeWorld) -> None:
    partition = world.create()
    answers = world.publish(
        partition,
        b"a",
        b"b",
        b"c",
        offsets=[2, 5, 6],
        subjects=["x.1", "x.2", "x.2"],
        replies=["", "r", "r"],
    )
    frames = world.subscribe(partition).frames
    assert answers.offset == 2
    assert [(one.offset, one.subject, one.reply_subject) for one in frames] == [
        (2, "x.1", ""),
        (5, "x.2", "r"),
        (6, "x.2", "r"),
    ]
    assert batch_ranges(partition) == [(0, 1, 0), (2, 6, 3)]
    world.kill()
    assert world.values(world.partition()) == {2: b"a", 5: b"b", 6: b"c"}


def test_restore_survives_a_restart_and_goes_on(world: NodeWorld) -> None:
    world.publish(world.create(), b"a", offsets=[5], timestamps=[1])
    world.kill()
    partition = world.partition()
    assert world.publish(partition, b"b", offsets=[6], timestamps=[2]).offset == 6
    assert world.values(partition) == {5: b"a", 6: b"b"}


def test_restore_is_not_published_to_other_listeners(world: NodeWorld) -> None:
    partition = world.create()
    beside = world.create("t", "s")
    world.publish(partition, b"a", offsets=[0])
    assert world.messaging.sent == []
    assert beside.log.log_end_offset == 0


def test_restore_works_while_nats_is_away(world: NodeWorld) -> None:
    partition = world.create()
    world.messaging.is_connected = False
    assert world.publish(partition, b"a", offsets=[0]).offset == 0


def test_restore_below_the_end_and_before_the_last_time_is_refused(world: NodeWorld) -> None:
    partition = world.create()
    world.publish(partition, b"a", b"b")
    below = world.publish(partition, b"c", offsets=[1])
    assert below.error.text == "offset 1 is below the log end offset 2"
    before = world.publish(partition, b"c", offsets=[2], timestamps=[5])
    assert isinstance(before.error, InvalidRequestError)
    assert before.error.text.startswith("timestamps: 5 is before ")
    assert partition.log.log_end_offset == 2


# -- faults -------------------------------------------------------------------------------------


def test_full_disk_refuses_definitely_and_reads_go_on(world: NodeWorld) -> None:
    partition = world.create()
    world.publish(partition, b"a")
    world.files.fail(Fault("append", "*/*.log", count=-1, is_full=True))
    refused = world.publish(partition, b"b")
    assert isinstance(refused.error, StorageFullError)
    assert refused.error.text == "not appended: storage full"
    assert world.values(partition) == {0: b"a"}
    again = world.publish(partition, b"c")
    assert isinstance(again.error, StorageFullError)
    assert not partition.offline_reason


def test_disk_with_space_again_takes_publishes_again(world: NodeWorld) -> None:
    partition = world.create()
    world.files.fail(Fault("append", "*/*.log", count=1, is_full=True))
    world.publish(partition, b"a")
    world.files.heal()
    world.advance(60 * SECOND_NS)
    assert world.publish(partition, b"b").offset == 0


@pytest.mark.parametrize("skip", [0, 1, 2])
def test_full_disk_takes_all_of_a_large_run_or_nothing(world: NodeWorld, skip: int) -> None:
    partition = world.create()
    world.files.fail(Fault("append", "*/*.log", skip=skip, count=-1, is_full=True))
    values = [b"v" * BATCH_BYTES_MAX] * 3
    for _ in range(skip):
        assert world.publish(partition, *values).stored
    answers = world.publish(partition, *values)
    assert isinstance(answers.error, StorageFullError)
    assert partition.log.log_end_offset == 3 * skip


def test_stop_waits_for_the_sync_that_acks_wait_for(world: NodeWorld) -> None:
    partition = world.create(fsync_policy=FsyncPolicy.COMMIT)
    reading = world.subscribe(partition)
    waiting = world.publish(partition, b"a")
    settled: list[bool] = []
    world.node.begin_stop(lambda: settled.append(waiting.is_answered))
    late = world.publish(partition, b"b")
    assert isinstance(late.error, NotAppendedError)
    assert (settled, waiting.is_answered) == ([], False)
    world.settle()
    assert settled == [True]
    assert waiting.offset == 0
    reading.take()
    assert reading.values == [b"a"]


def test_stop_with_nothing_owed_is_settled_at_once(world: NodeWorld) -> None:
    world.publish(world.create(fsync_policy=FsyncPolicy.NEVER), b"a")
    settled: list[bool] = []
    world.node.begin_stop(lambda: settled.append(True))
    world.settle()
    assert settled == [True]


def test_full_disk_below_a_filler_stores_nothing(world: NodeWorld) -> None:
    partition = world.create()
    world.files.fail(Fault("append", "*/*.log", count=1, is_full=True))
    answers = world.publish(partition, b"a", offsets=[4])
    assert isinstance(answers.error, StorageFullError)
    assert partition.log.log_end_offset == 0


def test_broken_disk_takes_the_partition_offline_and_tells(world: NodeWorld) -> None:
    partition = world.create(fsync_policy=FsyncPolicy.COMMIT)
    waiting = world.publish(partition, b"a")
    world.files.fail(Fault("append", "*/*.log"))
    refused = world.publish(partition, b"b")
    assert isinstance(refused.error, PartitionOfflineError)
    assert isinstance(waiting.error, OutcomeUnknownError)
    later = world.publish(partition, b"c")
    assert later.error.text.startswith("not appended: partition offline: ")
    assert [fields["stream"] for fields in world.told("partition_offline")] == ["s"]


def test_failed_read_takes_the_partition_offline_and_ends_the_subscription(
    world: NodeWorld,
) -> None:
    partition = world.create()
    world.publish(partition, b"a")
    world.stop()
    world.start()
    partition = world.partition()
    world.files.is_cold = True
    reading = world.subscribe(partition)
    world.files.fail(Fault("read", "*/*.log"))
    world.settle()
    assert isinstance(reading.end, LiftbridgeError)
    assert partition.offline_reason


def test_event_times_and_counts_tell_what_happened(world: NodeWorld) -> None:
    partition = world.create()
    world.publish(partition, b"a", b"bc", keys=[b"k", b""])
    first = world.wall_ns
    world.advance(5)
    world.deliver("s", b"d")
    assert partition.activity.messages_received.first == first
    assert partition.activity.messages_received.latest == first + 5
    assert partition.activity.received_counts == {"grpc": 2, "nats": 1, "batch": 0}
    assert partition.activity.received_bytes == {"grpc": 4, "nats": 1, "batch": 0}
    reading = world.subscribe(partition, at_offset(1))
    assert reading.offsets == [1, 2]
    assert partition.activity.delivered_count == 2
