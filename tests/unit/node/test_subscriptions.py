"""Every start and stop position over logs of every kind, and how subscriptions live and end."""

import pytest

from liftbridge_broker.controller.commands import DeleteStream, PauseStream, SetReadonly
from liftbridge_broker.errors import (
    EndOfStreamError,
    FailedPreconditionError,
    FilesError,
    GrpcStatus,
    InternalError,
    InvalidRequestError,
    LiftbridgeError,
    NotFoundError,
    UnavailableError,
)
from liftbridge_broker.model.ids import Offset, StreamName
from liftbridge_broker.model.streams import FsyncPolicy
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.reading.subscription import Position, StartPosition, StopPosition
from liftbridge_testkit.memory_files import Fault
from liftbridge_testkit.node_world import (
    EARLIEST,
    NEVER,
    NodeWorld,
    Reading,
    at_offset,
    stop_at,
)

S = StreamName("s")
STEP = 100
NEW_ONLY = Position(StartPosition.NEW_ONLY, 0, 0)
LATEST = Position(StartPosition.LATEST, 0, 0)
STOP_LATEST = Position(StopPosition.LATEST, 0, 0)


def since(timestamp: int) -> Position:
    return Position(StartPosition.TIMESTAMP, 0, timestamp)


def until(timestamp: int) -> Position:
    return Position(StopPosition.TIMESTAMP, 0, timestamp)


def five(world: NodeWorld) -> tuple[Partition, int]:
    """A stream of five messages `STEP` nanoseconds apart, and the time of the first."""
    partition = world.create()
    first = world.wall_ns
    for number in range(5):
        world.publish(partition, b"%d" % number)
        world.advance(STEP)
    return partition, first


def set_readonly(world: NodeWorld) -> None:
    world.propose(SetReadonly(name=S, partitions=(), readonly=True))


def raise_log_start(world: NodeWorld, partition: Partition, offset: int) -> None:
    world.store.raise_log_start(partition.partition_id, Offset(offset), world.now)


# -- start in every log ---------------------------------------------------------------------------

AT = 10**30
"""Stands for the time of the first message in the tables below."""


def _moved(position: Position, first: int) -> Position:
    return position._replace(timestamp=position.timestamp - AT + first) if position[2] else position


@pytest.mark.parametrize(
    ("start", "begins"),
    [
        (NEW_ONLY, 5),
        (EARLIEST, 0),
        (LATEST, 4),
        (at_offset(0), 0),
        (at_offset(3), 3),
        (at_offset(4), 4),
        (at_offset(5), 5),
        (at_offset(100), 5),
        (at_offset(-7), 0),
        (since(AT - 1), 0),
        (since(AT), 0),
        (since(AT + 2 * STEP), 2),
        (since(AT + 2 * STEP + 1), 3),
        (since(AT + 4 * STEP), 4),
        (since(AT + 4 * STEP + 1), 5),
    ],
)
def test_start_in_a_log_of_five(world: NodeWorld, start: Position, begins: int) -> None:
    partition, first = five(world)
    reading = world.subscribe(partition, _moved(start, first))
    assert reading.offsets == list(range(begins, 5))
    world.publish(partition, b"next")
    assert reading.offsets == list(range(begins, 6))


@pytest.mark.parametrize(
    "start", [NEW_ONLY, EARLIEST, LATEST, at_offset(0), at_offset(10), since(1), since(10**19)]
)
def test_every_start_of_an_empty_log_delivers_the_first_message(
    world: NodeWorld, start: Position
) -> None:
    partition = world.create()
    reading = world.subscribe(partition, start)
    world.publish(partition, b"first")
    assert reading.values == [b"first"]


@pytest.mark.parametrize("start", [EARLIEST, at_offset(1), since(1)])
def test_start_below_the_oldest_begins_at_the_oldest(world: NodeWorld, start: Position) -> None:
    partition, _ = five(world)
    raise_log_start(world, partition, 3)
    assert world.subscribe(partition, start).offsets == [3, 4]


@pytest.mark.parametrize(
    ("start", "begins"),
    [
        (NEW_ONLY, 2),
        (LATEST, 2),
        (at_offset(2), 2),
        (at_offset(3), 3),
        (at_offset(4), 4),
        (at_offset(9), 2),
        (since(AT + STEP), 2),
        (since(AT + STEP + 1), 4),
    ],
)
def test_uncommitted_tail_is_delivered_when_committed_and_not_before(
    world: NodeWorld, start: Position, begins: int
) -> None:
    """Who names a place gets nothing before it, be it committed or not."""
    partition = world.create(fsync_policy=FsyncPolicy.COMMIT)
    first = world.wall_ns
    world.publish(partition, b"0", b"1")
    world.advance(1)
    world.settle()
    world.advance(STEP - (world.wall_ns - first))
    world.publish(partition, b"2", b"3")
    reading = world.subscribe(partition, _moved(start, first))
    assert reading.offsets == []
    world.advance(1)
    world.settle()
    world.publish(partition, b"4")
    world.advance(1)
    world.settle()
    assert reading.offsets == list(range(begins, 5))


def test_unknown_positions_are_refused_by_name(world: NodeWorld) -> None:
    partition, _ = five(world)
    with pytest.raises(InvalidRequestError, match=r"^Unknown StartPosition 9$"):
        world.subscribe(partition, Position(9, 0, 0))
    with pytest.raises(InvalidRequestError, match=r"^Unknown StopPosition 9$"):
        world.subscribe(partition, EARLIEST, Position(9, 0, 0))


# -- stop in every log ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stop", "last"),
    [
        (stop_at(0), 0),
        (stop_at(2), 2),
        (stop_at(4), 4),
        (STOP_LATEST, 4),
        (until(AT), 0),
        (until(AT + 2 * STEP), 2),
        (until(AT + 2 * STEP + 1), 2),
        (until(AT + 400 * STEP), 4),
    ],
)
def test_stop_in_a_log_of_five(world: NodeWorld, stop: Position, last: int) -> None:
    partition, first = five(world)
    reading = world.subscribe(partition, EARLIEST, _moved(stop, first))
    assert reading.offsets == list(range(last + 1))
    assert isinstance(reading.end, EndOfStreamError)
    assert reading.end.text == "Stop offset reached"
    assert len(partition.readers.subscribers) == 0


@pytest.mark.parametrize("stop", [NEVER, stop_at(-1), stop_at(7)])
def test_stop_that_is_not_there_yet_goes_on(world: NodeWorld, stop: Position) -> None:
    partition, _ = five(world)
    reading = world.subscribe(partition, EARLIEST, stop)
    assert (reading.offsets, reading.end) == ([0, 1, 2, 3, 4], None)
    world.publish(partition, b"5", b"6", b"7", b"8")
    if stop.offset == 7:
        assert (reading.offsets[-1], reading.end is not None) == (7, True)
    else:
        assert (reading.offsets[-1], reading.end) == (8, None)


@pytest.mark.parametrize(
    ("stop", "error", "text"),
    [
        (STOP_LATEST, EndOfStreamError, "Stream is empty"),
        (until(5), InternalError, "Failed to lookup offset for timestamp: "),
    ],
)
def test_stop_that_needs_a_message_is_refused_on_an_empty_log(
    world: NodeWorld, stop: Position, error: type[LiftbridgeError], text: str
) -> None:
    partition = world.create()
    with pytest.raises(error, match=text):
        world.subscribe(partition, EARLIEST, stop)
    assert len(partition.readers.subscribers) == 0


def test_stop_time_before_the_first_message_is_refused(world: NodeWorld) -> None:
    partition, first = five(world)
    with pytest.raises(InternalError, match="Failed to lookup offset for timestamp"):
        world.subscribe(partition, EARLIEST, until(first - 1))


@pytest.mark.parametrize(
    ("start", "stop", "text"),
    [
        (at_offset(3), stop_at(2), "2 < 3"),
        (at_offset(9), STOP_LATEST, "4 < 9"),
        (NEW_ONLY, STOP_LATEST, "4 < 5"),
    ],
)
def test_stop_before_start_is_refused(
    world: NodeWorld, start: Position, stop: Position, text: str
) -> None:
    partition, _ = five(world)
    with pytest.raises(InvalidRequestError, match=f"Stop offset is before start offset: {text}"):
        world.subscribe(partition, start, stop)


def test_stop_latest_is_fixed_when_the_subscription_opens(world: NodeWorld) -> None:
    partition = world.create(fsync_policy=FsyncPolicy.COMMIT)
    world.publish(partition, b"0")
    reading = world.subscribe(partition, EARLIEST, STOP_LATEST)
    world.publish(partition, b"1")
    world.advance(1)
    world.settle()
    assert (reading.offsets, reading.end is not None) == ([0], True)


# -- read-only logs ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "offsets"), [(EARLIEST, [0, 1, 2, 3, 4]), (LATEST, [4]), (at_offset(2), [2, 3, 4])]
)
def test_readonly_log_is_delivered_and_ends(
    world: NodeWorld, start: Position, offsets: list[int]
) -> None:
    partition, _ = five(world)
    set_readonly(world)
    reading = world.subscribe(partition, start)
    assert reading.offsets == offsets
    assert isinstance(reading.end, EndOfStreamError)


def test_new_only_on_a_readonly_log_is_a_stop_before_the_start(world: NodeWorld) -> None:
    partition, _ = five(world)
    set_readonly(world)
    with pytest.raises(InvalidRequestError, match="4 < 5"):
        world.subscribe(partition, NEW_ONLY)


@pytest.mark.parametrize("start", [NEW_ONLY, EARLIEST, LATEST, at_offset(0)])
def test_empty_readonly_log_opens_and_ends(world: NodeWorld, start: Position) -> None:
    partition = world.create()
    set_readonly(world)
    reading = world.subscribe(partition, start)
    assert reading.offsets == []
    assert reading.end is not None
    assert reading.end.text == "End of readonly partition"


@pytest.mark.parametrize("stop", [stop_at(-1), stop_at(9)])
def test_readonly_log_ends_before_a_stop_that_never_comes(world: NodeWorld, stop: Position) -> None:
    partition, _ = five(world)
    set_readonly(world)
    reading = world.subscribe(partition, EARLIEST, stop)
    assert len(reading.offsets) == 5
    assert reading.end is not None
    assert reading.end.text == "End of readonly partition"


def test_running_subscription_ends_when_the_log_becomes_readonly(world: NodeWorld) -> None:
    partition, _ = five(world)
    reading = world.subscribe(partition)
    assert reading.end is None
    set_readonly(world)
    assert reading.end is not None
    assert reading.end.text == "End of readonly partition"


# -- reverse ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "offsets"),
    [
        (NEW_ONLY, [4, 3, 2, 1, 0]),
        (LATEST, [4, 3, 2, 1, 0]),
        (at_offset(2), [2, 1, 0]),
        (at_offset(100), [4, 3, 2, 1, 0]),
        (EARLIEST, [0]),
    ],
)
def test_reverse_goes_from_the_start_to_the_oldest(
    world: NodeWorld, start: Position, offsets: list[int]
) -> None:
    partition, _ = five(world)
    reading = world.subscribe(partition, start, is_reverse=True)
    assert reading.offsets == offsets
    assert reading.end is not None
    assert (reading.end.text, reading.end.status) == ("EOF", GrpcStatus.UNKNOWN)


def test_reverse_stops_at_a_stop_offset_below_the_start(world: NodeWorld) -> None:
    partition, _ = five(world)
    reading = world.subscribe(partition, LATEST, stop_at(2), is_reverse=True)
    assert reading.offsets == [4, 3, 2]
    assert reading.end is not None
    assert reading.end.text == "Stop offset reached"


def test_reverse_refuses_a_stop_above_the_start_and_an_empty_log(world: NodeWorld) -> None:
    partition, _ = five(world)
    with pytest.raises(InvalidRequestError, match="3 > 2"):
        world.subscribe(partition, at_offset(2), stop_at(3), is_reverse=True)
    empty = world.create("empty")
    with pytest.raises(InternalError, match=r"^segment not found$"):
        world.subscribe(empty, LATEST, is_reverse=True)


def test_reverse_reads_a_readonly_log_and_one_that_lost_its_head(world: NodeWorld) -> None:
    partition, _ = five(world)
    raise_log_start(world, partition, 3)
    set_readonly(world)
    assert world.subscribe(partition, LATEST, is_reverse=True).offsets == [4, 3]


def test_reverse_reading_lags_behind_nothing(world: NodeWorld) -> None:
    partition, _ = five(world)
    world.files.is_cold = True
    world.subscribe(partition, LATEST, is_reverse=True)
    waiting = list(partition.readers.subscribers)
    assert [subscriber.next_offset for subscriber in waiting] in ([], [5])


# -- life and end -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "error", "text"),
    [
        (DeleteStream(name=S), NotFoundError, "commit log was deleted"),
        (PauseStream(name=S, partitions=()), FailedPreconditionError, "commit log was closed"),
    ],
)
def test_running_subscription_ends_with_the_reason(
    world: NodeWorld,
    command: DeleteStream | PauseStream,
    error: type[LiftbridgeError],
    text: str,
) -> None:
    partition, _ = five(world)
    reading = world.subscribe(partition)
    world.propose(command)
    assert (type(reading.end), str(reading.end)) == (error, text)
    assert len(partition.readers.subscribers) == 0


def test_stopping_broker_ends_subscriptions_so_that_clients_come_back(world: NodeWorld) -> None:
    partition, _ = five(world)
    reading = world.subscribe(partition)
    world.node.stop()
    assert (type(reading.end), str(reading.end)) == (UnavailableError, "commit log was closed")


def test_slow_subscriber_gets_the_reason_when_it_takes_again(world: NodeWorld) -> None:
    partition = world.create()
    reading = world.subscribe(partition)
    reading.is_taking = False
    world.publish(partition, b"a")
    world.propose(DeleteStream(name=S))
    assert reading.end is None
    reading.is_taking = True
    reading.take()
    assert isinstance(reading.end, NotFoundError)


def test_read_that_must_wait_is_delivered_later(world: NodeWorld) -> None:
    five(world)
    world.stop()
    world.start()
    partition = world.partition()
    world.files.is_cold = True
    reading = world.subscribe(partition)
    assert reading.offsets == []
    world.settle()
    assert reading.offsets == [0, 1, 2, 3, 4]
    reverse = world.subscribe(partition, LATEST, is_reverse=True)
    world.settle()
    assert reverse.offsets == [4, 3, 2, 1, 0]


def test_read_that_fails_ends_the_subscription_and_not_the_publish_that_woke_it(
    world: NodeWorld,
) -> None:
    partition, _ = five(world)
    readings = [world.subscribe(partition) for _ in range(2)]
    world.files.fail(Fault("read", "*/*.log", count=-1))
    answers = world.publish(partition, b"stored")
    assert answers.offset == 5
    assert [type(reading.end) for reading in readings] == [FilesError, FilesError]
    assert partition.offline_reason


def test_subscriber_that_leaves_during_a_read_is_not_called(world: NodeWorld) -> None:
    five(world)
    world.stop()
    world.start()
    partition = world.partition()
    world.files.is_cold = True
    reading = world.subscribe(partition)
    reading.close()
    reading.close()
    world.settle()
    assert (reading.wake_count, reading.offsets) == (0, [])
    assert not partition.offline_reason


def test_subscription_crosses_segments_and_survives_their_removal(world: NodeWorld) -> None:
    partition = world.create(segment_bytes_max=2_000)
    reading = world.subscribe(partition)
    reading.is_taking = False
    for number in range(40):
        world.publish(partition, b"%d" % number * 100)
    assert partition.log.segment_count > 2
    late = world.subscribe(partition)
    assert late.offsets == list(range(40))
    raise_log_start(world, partition, 30)
    world.settle()
    reading.is_taking = True
    reading.take()
    assert reading.offsets == list(range(30, 40))
    world.publish(partition, b"more")
    assert reading.offsets[-1] == late.offsets[-1] == 40


def test_small_pulls_deliver_everything_once(world: NodeWorld) -> None:
    partition = world.create()
    for number in range(20):
        world.publish(partition, *[b"%d" % number * 50] * 3)
    reading = Reading(world, pull_bytes=1).open(partition, at_offset(1), NEVER, is_reverse=False)
    assert reading.offsets == list(range(1, 60))


def test_many_subscribers_wait_and_wake_together(world: NodeWorld) -> None:
    partition = world.create()
    readings = [world.subscribe(partition) for _ in range(10)]
    readings[3].close()
    world.publish(partition, b"a")
    assert [reading.values for reading in readings] == [[b"a"] if i != 3 else [] for i in range(10)]
