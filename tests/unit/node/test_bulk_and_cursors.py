"""Reads of whole batches, and cursor look-ups from the log of `__cursors`."""

import pytest

from liftbridge_broker.controller.commands import DeleteStream, PauseStream, SetReadonly
from liftbridge_broker.errors import (
    EndOfStreamError,
    FailedPreconditionError,
    FilesError,
    InvalidRequestError,
    LiftbridgeError,
    NotFoundError,
    OutOfRangeError,
)
from liftbridge_broker.groups.cursors import UNKNOWN_OFFSET, Cursor, CursorIndex
from liftbridge_broker.logformat.batch import walk
from liftbridge_broker.model.ids import Offset, StreamName
from liftbridge_broker.model.streams import FsyncPolicy
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.reading.bulk import BulkRange, BulkRead, Chunk
from liftbridge_broker.wire.cursors import encode_cursor
from liftbridge_testkit.memory_files import Fault
from liftbridge_testkit.node_world import NAMESPACE, NodeWorld

S = StreamName("s")


def wanted(
    start: int = 0,
    end: int = 0,
    bytes_max: int = 0,
    *,
    follows: bool = False,
    is_strict: bool = False,
) -> BulkRange:
    return BulkRange(Offset(start), Offset(end), bytes_max, follows, is_strict=is_strict)


class Bulk:
    """A bulk reader that takes all it gets."""

    def __init__(self, world: NodeWorld, partition: Partition, range_: BulkRange) -> None:
        self.chunks: list[Chunk] = []
        self.error: LiftbridgeError | None = None
        self.is_done = False
        self.read = BulkRead(partition, world.node.client_reads, self.take, range_)
        self.take()

    def take(self) -> None:
        try:
            while not self.is_done:
                chunk = self.read.pull(1 << 20)
                if chunk is None:
                    return
                self.is_done = not chunk.data
                self.chunks += [chunk] if chunk.data else []
        except LiftbridgeError as error:
            self.error = error
            self.is_done = True

    @property
    def ranges(self) -> list[tuple[int, int]]:
        return [
            (header.base_offset, header.last_offset)
            for chunk in self.chunks
            for _, header in walk(chunk.data, 0, len(chunk.data))
        ]


def three_batches(world: NodeWorld) -> Partition:
    partition = world.create()
    for values in ((b"0", b"1"), (b"2", b"3"), (b"4",)):
        world.publish(partition, *values)
    return partition


@pytest.mark.parametrize(
    ("start", "end", "ranges"),
    [
        (0, 0, [(0, 1), (2, 3), (4, 4)]),
        (1, 4, [(1, 1), (2, 3)]),
        (3, 99, [(3, 3), (4, 4)]),
        (5, 0, []),
        (99, 0, []),
        (2, 2, []),
    ],
)
def test_range_is_cut_to_what_was_asked_for(
    world: NodeWorld, start: int, end: int, ranges: list[tuple[int, int]]
) -> None:
    bulk = Bulk(world, three_batches(world), wanted(start, end))
    assert (bulk.ranges, bulk.is_done, bulk.error) == (ranges, True, None)
    assert sum(chunk.count for chunk in bulk.chunks) == sum(b - a + 1 for a, b in ranges)


@pytest.mark.parametrize("start", [1, 6])
@pytest.mark.parametrize("follows", [False, True])
def test_strict_read_refuses_a_start_that_the_log_does_not_hold(
    world: NodeWorld, start: int, follows: bool
) -> None:
    partition = three_batches(world)
    partition.log.set_log_start(Offset(2))
    assert Bulk(world, partition, wanted(start, follows=follows)).error is None
    with pytest.raises(OutOfRangeError, match=f"offset {start} .* from 2 on, .* up to 5"):
        Bulk(world, partition, wanted(start, follows=follows, is_strict=True))


@pytest.mark.parametrize(("start", "ranges"), [(2, [(2, 3), (4, 4)]), (5, [])])
def test_strict_read_of_what_is_there_is_as_any_other(
    world: NodeWorld, start: int, ranges: list[tuple[int, int]]
) -> None:
    partition = three_batches(world)
    partition.log.set_log_start(Offset(2))
    bulk = Bulk(world, partition, wanted(start, is_strict=True))
    assert (bulk.ranges, bulk.error) == (ranges, None)


def test_strict_read_tells_what_retention_removed_before_it_came_there(world: NodeWorld) -> None:
    partition = three_batches(world)
    read = BulkRead(partition, world.node.client_reads, lambda: None, wanted(is_strict=True))
    assert read.pull(1) is not None
    partition.log.set_log_start(Offset(3))
    with pytest.raises(OutOfRangeError, match="offset 2 is out of range"):
        read.pull(1)


def test_end_is_known_before_a_strict_read_is_refused_as_beyond_it(world: NodeWorld) -> None:
    partition = three_batches(world)
    for follows, end in ((True, 0), (False, 5)):
        assert wanted(5, end, follows=follows, is_strict=True).question(partition) == "records"
        assert wanted(6, end and 6, follows=follows, is_strict=True).question(partition) == "end"


def test_bytes_are_bounded_with_at_least_one_batch(world: NodeWorld) -> None:
    partition = three_batches(world)
    bulk = Bulk(world, partition, wanted(bytes_max=1))
    assert bulk.ranges == [(0, 1)]
    assert bulk.read.next_offset == 2


def test_range_ends_at_the_high_watermark_of_the_call(world: NodeWorld) -> None:
    partition = three_batches(world)
    read = BulkRead(partition, world.node.client_reads, lambda: None, wanted())
    world.publish(partition, b"5")
    chunk = read.pull(1 << 20)
    assert chunk is not None
    assert chunk.next_offset == 5
    last = read.pull(1 << 20)
    assert last is not None
    assert last.data == b""


def test_uncommitted_records_are_not_read_whatever_end_is_asked_for(world: NodeWorld) -> None:
    partition = world.create(fsync_policy=FsyncPolicy.COMMIT)
    world.publish(partition, b"0")
    assert Bulk(world, partition, wanted(0, 99)).chunks == []


def test_follower_goes_on_and_ends_with_the_partition(world: NodeWorld) -> None:
    partition = three_batches(world)
    bulk = Bulk(world, partition, wanted(3, follows=True))
    assert bulk.ranges == [(3, 3), (4, 4)]
    world.publish(partition, b"5")
    assert bulk.ranges[-1] == (5, 5)
    world.propose(PauseStream(name=S, partitions=()))
    assert isinstance(bulk.error, FailedPreconditionError)


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (DeleteStream(name=S), NotFoundError),
        (SetReadonly(name=S, partitions=(), readonly=True), EndOfStreamError),
    ],
)
def test_follower_is_told_why_it_ends(
    world: NodeWorld, command: DeleteStream | SetReadonly, error: type[LiftbridgeError]
) -> None:
    bulk = Bulk(world, three_batches(world), wanted(follows=True))
    world.propose(command)
    assert type(bulk.error) is error


def test_paused_partition_may_be_read_and_not_followed(world: NodeWorld) -> None:
    partition = three_batches(world)
    world.propose(PauseStream(name=S, partitions=()))
    assert len(Bulk(world, partition, wanted()).ranges) == 3
    follower = Bulk(world, partition, wanted(follows=True))
    assert isinstance(follower.error, FailedPreconditionError)


def test_bulk_read_that_must_wait_and_one_that_fails(world: NodeWorld) -> None:
    three_batches(world)
    world.stop()
    world.start()
    partition = world.partition()
    world.files.is_cold = True
    bulk = Bulk(world, partition, wanted())
    assert (bulk.chunks, bulk.read.pull(1)) == ([], None)
    world.settle()
    assert len(bulk.ranges) == 3
    failing = Bulk(world, partition, wanted())
    world.files.fail(Fault("read", "*/*.log"))
    world.settle()
    assert isinstance(failing.error, FilesError)
    assert partition.offline_reason == failing.error.text


def test_bulk_read_that_fails_at_once_takes_the_partition_offline(world: NodeWorld) -> None:
    partition = three_batches(world)
    world.files.fail(Fault("read", "*/*.log"))
    failing = Bulk(world, partition, wanted())
    assert isinstance(failing.error, FilesError)
    assert partition.offline_reason == failing.error.text


def test_bulk_reader_that_leaves_during_a_read_is_not_called(world: NodeWorld) -> None:
    three_batches(world)
    world.stop()
    world.start()
    world.files.is_cold = True
    bulk = Bulk(world, world.partition(), wanted())
    bulk.read.close(world.now)
    bulk.read.close(world.now)
    world.settle()
    assert bulk.chunks == []


@pytest.mark.parametrize(
    ("range_", "text"),
    [
        (wanted(-1), "must not be negative"),
        (wanted(0, -1), "must not be negative"),
        (wanted(0, 0, -1), "must not be negative"),
        (wanted(5, 4), "end_offset 4 is before start_offset 5"),
        (wanted(0, 4, follows=True), "follow cannot be combined with"),
        (wanted(0, 0, 4, follows=True), "follow cannot be combined with"),
    ],
)
def test_senseless_ranges_are_refused(range_: BulkRange, text: str) -> None:
    with pytest.raises(InvalidRequestError, match=text):
        range_.check()


# -- cursors ------------------------------------------------------------------------------------


@pytest.fixture
def cursors(world: NodeWorld) -> Partition:
    """The one partition of `__cursors`."""
    return world.create("__cursors", f"{NAMESPACE}.cursors", is_internal=True)


def key_of(name: str) -> bytes:
    return Cursor("s", 0, name, 0).key


def set_cursor(world: NodeWorld, partition: Partition, name: str, offset: int) -> None:
    cursor = Cursor("s", 0, name, offset)
    world.publish(partition, encode_cursor(cursor), keys=[cursor.key])


def test_latest_value_is_found_and_an_unknown_cursor_is_minus_one(
    world: NodeWorld, cursors: Partition
) -> None:
    for offset in (5, 9, 3):
        set_cursor(world, cursors, "a", offset)
    assert world.look_up_cursor(cursors, key_of("a")) == [3]
    set_cursor(world, cursors, "a", 4)
    assert world.look_up_cursor(cursors, key_of("a")) == [4]
    assert world.look_up_cursor(cursors, key_of("b")) == [UNKNOWN_OFFSET]


def test_garbage_in_the_cursors_stream_is_skipped(world: NodeWorld, cursors: Partition) -> None:
    world.publish(cursors, b"no key")
    world.publish(cursors, b"\xff\xff", keys=[key_of("a")])
    set_cursor(world, cursors, "a", 7)
    world.publish(cursors, b"\xff\xff", keys=[key_of("a")])
    assert world.look_up_cursor(cursors, key_of("a")) == [7]


def test_empty_value_removes_a_cursor(world: NodeWorld, cursors: Partition) -> None:
    set_cursor(world, cursors, "a", 7)
    world.publish(cursors, b"", keys=[key_of("a")])
    assert world.look_up_cursor(cursors, key_of("a")) == [UNKNOWN_OFFSET]


def test_look_ups_wait_while_the_log_is_loaded(world: NodeWorld, cursors: Partition) -> None:
    set_cursor(world, cursors, "a", 7)
    set_cursor(world, cursors, "b", 8)
    world.stop()
    world.start()
    world.files.is_cold = True
    partition = world.partition("__cursors")
    first = world.look_up_cursor(partition, key_of("a"))
    second = world.look_up_cursor(partition, key_of("b"))
    assert (first, second) == ([], [])
    world.settle()
    assert (first, second) == ([7], [8])


def test_cursor_that_memory_had_no_room_for_is_found_in_the_log(
    world: NodeWorld, cursors: Partition
) -> None:
    set_cursor(world, cursors, "a", 7)
    world.look_up_cursor(cursors, key_of("a"))
    table = world.node.cursors._tables[cursors.partition_id]  # makes the memory small
    table._index = CursorIndex(cursors.log.log_start_offset, cursors_max=1)
    set_cursor(world, cursors, "b", 8)
    set_cursor(world, cursors, "c", 9)
    assert world.look_up_cursor(cursors, key_of("a")) == [7]
    assert world.look_up_cursor(cursors, key_of("none")) == [UNKNOWN_OFFSET]


def test_failed_read_is_told_and_the_next_look_up_works(
    world: NodeWorld, cursors: Partition
) -> None:
    set_cursor(world, cursors, "a", 7)
    world.stop()
    world.start()
    world.files.is_cold = True
    partition = world.partition("__cursors")
    answers = world.look_up_cursor(partition, key_of("a"))
    world.files.fail(Fault("read", "*/*.log"))
    world.settle()
    assert isinstance(answers[0], LiftbridgeError)
    again = world.look_up_cursor(partition, key_of("a"))
    world.settle()
    assert again == [7]


def test_stop_during_a_look_up_is_told(world: NodeWorld, cursors: Partition) -> None:
    set_cursor(world, cursors, "a", 7)
    world.stop()
    world.start()
    world.files.is_cold = True
    answers = world.look_up_cursor(world.partition("__cursors"), key_of("a"))
    world.node.stop()
    world.settle()
    assert isinstance(answers[0], LiftbridgeError)
