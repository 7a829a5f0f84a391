"""Idempotent publishers on a partition: nothing twice, over restarts, snapshots and fencing."""

import pytest

from liftbridge_broker.controller.state import PublisherState
from liftbridge_broker.errors import (
    FencedPublisherError,
    InvalidRequestError,
    LiftbridgeError,
    NotAppendedError,
    OutOfOrderError,
    StorageFullError,
)
from liftbridge_broker.model.ids import PublisherId
from liftbridge_broker.model.streams import FsyncPolicy
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.partition.sealing import BATCH_BYTES_MAX
from liftbridge_broker.replication.publishers import PublisherStamp
from liftbridge_broker.storage.publishers import PUBLISHERS
from liftbridge_broker.storage.smallfile import write_small_file
from liftbridge_testkit.memory_files import Fault
from liftbridge_testkit.node_world import Answers, NodeWorld

LARGE = [b"%d" % number + b"v" * BATCH_BYTES_MAX for number in range(4)]


def send(
    world: NodeWorld, partition: Partition, known: PublisherState, sequence: int, *values: bytes
) -> Answers:
    stamp = PublisherStamp(known.publisher_id, known.publisher_epoch, sequence)
    return world.publish(partition, *values, publisher=stamp)


def test_duplicate_gets_the_offset_of_the_original_and_is_stored_once(world: NodeWorld) -> None:
    partition = world.create()
    known = world.init_publisher()
    first = send(world, partition, known, 0, b"a", b"b")
    again = send(world, partition, known, 0, b"a", b"b")
    part = send(world, partition, known, 1, b"b")
    assert (first.offset, again.offset, part.offset) == (0, 0, 1)
    assert [answer.stored[0].is_duplicate for answer in (first, again, part)] == [False, True, True]
    assert world.values(partition) == {0: b"a", 1: b"b"}


def test_duplicate_is_not_published_to_nats_again(world: NodeWorld) -> None:
    partition = world.create()
    known = world.init_publisher()
    send(world, partition, known, 0, b"a")
    send(world, partition, known, 0, b"a")
    assert len(world.messaging.sent) == 1


def test_duplicate_is_acked_only_once_the_original_is_committed(world: NodeWorld) -> None:
    partition = world.create(fsync_policy=FsyncPolicy.COMMIT)
    known = world.init_publisher()
    first = send(world, partition, known, 0, b"a")
    again = send(world, partition, known, 0, b"a")
    assert (first.is_answered, again.is_answered) == (False, False)
    world.advance(1)
    world.settle()
    assert (first.offset, again.offset) == (0, 0)


def test_gap_is_refused_and_the_right_sequence_taken(world: NodeWorld) -> None:
    partition = world.create()
    known = world.init_publisher()
    gap = send(world, partition, known, 3, b"x")
    assert isinstance(gap.error, OutOfOrderError)
    assert "expected 0" in gap.error.text
    assert send(world, partition, known, 0, b"a").offset == 0
    assert isinstance(send(world, partition, known, 2, b"c").error, OutOfOrderError)
    assert send(world, partition, known, 1, b"b").offset == 1


def test_new_epoch_fences_the_old_one_and_begins_where_it_stood(world: NodeWorld) -> None:
    partition = world.create()
    old = world.init_publisher()
    send(world, partition, old, 0, b"a")
    new = world.init_publisher()
    assert (new.publisher_id, new.publisher_epoch) == (old.publisher_id, old.publisher_epoch + 1)
    assert isinstance(send(world, partition, old, 1, b"x").error, FencedPublisherError)
    assert partition.writer.publishers.next_sequence(new.publisher_id) == 1
    assert send(world, partition, new, 1, b"b").offset == 1


@pytest.mark.parametrize(
    ("stamp", "error"),
    [
        (PublisherStamp(PublisherId(1), 0, 0), FencedPublisherError),
        (PublisherStamp(PublisherId(999), 0, 0), NotAppendedError),
        (PublisherStamp(PublisherId(0), 9, 0), NotAppendedError),
        (PublisherStamp(PublisherId(0), 0, -1), InvalidRequestError),
        (PublisherStamp(PublisherId(0), 0, 2**63 - 1), InvalidRequestError),
    ],
)
def test_stamps_that_cannot_be_are_refused(
    world: NodeWorld, stamp: PublisherStamp, error: type[LiftbridgeError]
) -> None:
    partition = world.create()
    known = world.init_publisher()
    if not stamp.publisher_id:
        stamp = stamp._replace(publisher_id=known.publisher_id)
    assert type(world.publish(partition, b"a", publisher=stamp).error) is error
    assert partition.log.log_end_offset == 0


def test_each_partition_counts_by_itself(world: NodeWorld) -> None:
    world.create(partitions=2)
    known = world.init_publisher()
    send(world, world.partition(), known, 0, b"a")
    assert send(world, world.partition("s", 1), known, 0, b"b").offset == 0


def test_run_of_several_batches_is_one_sequence(world: NodeWorld) -> None:
    partition = world.create()
    known = world.init_publisher()
    values = [b"v" * (BATCH_BYTES_MAX // 2)] * 5
    send(world, partition, known, 0, *values)
    assert send(world, partition, known, 0, *values).stored[0].is_duplicate
    assert send(world, partition, known, 5, b"next").offset == 5


def test_large_run_that_met_a_full_disk_is_stored_by_a_retry(world: NodeWorld) -> None:
    partition = world.create()
    known = world.init_publisher()
    world.files.fail(Fault("append", "*/*.log", skip=1, count=-1, is_full=True))
    assert send(world, partition, known, 0, b"first").offset == 0
    assert isinstance(send(world, partition, known, 1, *LARGE).error, StorageFullError)
    world.files.heal()
    world.advance(60_000_000_000)
    assert send(world, partition, known, 1, *LARGE).offset == 1
    assert partition.log.log_end_offset == 1 + len(LARGE)


def after_a_crash_in_a_large_run(world: NodeWorld) -> PublisherState:
    """A log with `before` and the first two records of `LARGE`, one in each batch."""
    partition = world.create(fsync_policy=FsyncPolicy.INTERVAL)
    known = world.init_publisher()
    send(world, partition, known, 0, b"before")
    send(world, partition, known, 1, *LARGE)
    path = partition.log.segments()[-1].path
    data = world.files.content(path)
    world.files.put(path, data[: -BATCH_BYTES_MAX - 1000])
    world.kill()
    assert world.partition().log.log_end_offset == 3
    world.messaging.sent.clear()
    return known


def test_retry_of_a_run_that_a_crash_cut_stores_the_rest(world: NodeWorld) -> None:
    known = after_a_crash_in_a_large_run(world)
    again = send(world, world.partition(), known, 1, *LARGE)
    assert (again.offset, again.stored[0].is_duplicate) == (1, False)
    assert [value[:1] for value in world.values(world.partition()).values()] == [
        b"b",
        *[value[:1] for value in LARGE],
    ]
    assert len(world.messaging.sent) == 2
    once_more = send(world, world.partition(), known, 1, *LARGE)
    assert (once_more.offset, once_more.stored[0].is_duplicate) == (1, True)
    assert send(world, world.partition(), known, 5, b"next").offset == 5


def test_rest_of_a_run_is_stored_behind_what_others_stored_meanwhile(world: NodeWorld) -> None:
    known = after_a_crash_in_a_large_run(world)
    world.publish(world.partition(), b"somebody else")
    again = send(world, world.partition(), known, 1, *LARGE)
    assert again.stored[0].pieces == ((1, 2), (4, 2))
    assert (again.offset, again.stored[0].is_duplicate) == (1, False)
    once_more = send(world, world.partition(), known, 1, *LARGE)
    assert once_more.stored[0].pieces == ((1, 2), (4, 2))
    assert once_more.stored[0].is_duplicate
    assert send(world, world.partition(), known, 5, b"next").offset == 6
    assert [value[:1] for value in world.values(world.partition()).values()] == [
        b"b", b"0", b"1", b"s", b"2", b"3", b"n"
    ]  # fmt: skip


def test_duplicate_in_pieces_is_acked_once_its_last_piece_is_committed(world: NodeWorld) -> None:
    partition = world.create(fsync_policy=FsyncPolicy.COMMIT)
    known = world.init_publisher()
    for number in range(2):
        send(world, partition, known, number, b"mine")
        world.publish(partition, b"others")
    world.advance(1)
    world.settle()
    send(world, partition, known, 2, b"mine")
    again = send(world, partition, known, 0, b"mine", b"mine", b"mine")
    assert not again.is_answered
    world.advance(1)
    world.settle()
    assert again.stored[0].pieces == ((0, 1), (2, 1), (4, 1))


@pytest.mark.parametrize("is_clean", [True, False])
def test_state_survives_a_restart(world: NodeWorld, is_clean: bool) -> None:
    partition = world.create()
    known = world.init_publisher()
    send(world, partition, known, 0, b"a", b"b")
    if is_clean:
        world.stop()
        world.start()
    else:
        world.kill()
    partition = world.partition()
    again = send(world, partition, known, 0, b"a", b"b")
    assert (again.offset, again.stored[0].is_duplicate) == (0, True)
    assert send(world, partition, known, 2, b"c").offset == 2


def test_publisher_registered_before_the_restart_and_silent_may_begin(world: NodeWorld) -> None:
    world.create()
    known = world.init_publisher()
    world.kill()
    assert send(world, world.partition(), known, 0, b"a").offset == 0


def test_state_comes_from_the_snapshot_of_a_rolled_segment_and_the_rest(world: NodeWorld) -> None:
    partition = world.create(segment_bytes_max=2_000)
    known = world.init_publisher()
    for sequence in range(40):
        send(world, partition, known, sequence, b"v" * 100)
    world.settle()
    world.crash()
    partition = world.partition()
    assert world.store.notes.read_snapshot(partition.partition_id) is not None
    end = partition.log.log_end_offset
    assert partition.writer.publishers.next_sequence(known.publisher_id) == end
    assert send(world, partition, known, end, b"next").offset == end


def test_damaged_snapshot_is_left_aside(world: NodeWorld) -> None:
    partition = world.create()
    known = world.init_publisher()
    send(world, partition, known, 0, b"a")
    world.stop()
    paths = [path for path in world.files.paths() if "publisher" in path or "snapshot" in path]
    of_logs = [path for path in paths if not path.startswith("metadata")]
    assert of_logs
    for path in of_logs:
        world.files.put(path, b"garbage")
    world.start()
    assert world.partition().writer.publishers.next_sequence(known.publisher_id) == 1


@pytest.mark.parametrize("payload", [b"", b"not a snapshot", "cut", "longer"])
def test_state_is_rebuilt_from_headers_when_the_snapshot_is_no_state(
    world: NodeWorld, payload: bytes | str
) -> None:
    partition = world.create()
    known = world.init_publisher()
    for sequence in range(3):
        send(world, partition, known, sequence, b"v")
    good = partition.writer.publishers.snapshot()
    world.stop()
    if isinstance(payload, str):
        payload = good[:-1] if payload == "cut" else good + b"x"
    # The file is whole: it is what it holds that this version does not know.
    write_small_file(world.files, f"{partition.log.directory}/{PUBLISHERS}", payload)
    world.start()
    partition = world.partition()
    assert partition.writer.publishers.snapshot() == good
    again = send(world, partition, known, 1, b"v")
    assert (again.offset, again.stored[0].is_duplicate) == (1, True)
    assert send(world, partition, known, 3, b"next").offset == 3


def test_forgotten_silent_publishers_are_bounded() -> None:
    world = NodeWorld(publishers_max=2)
    partition = world.create()
    known = [world.init_publisher(name) for name in "abc"]
    for publisher in known:
        send(world, partition, publisher, 0, b"x")
    assert len(partition.writer.publishers) == 2
    assert send(world, partition, known[0], 0, b"y").stored[0].is_duplicate is False
