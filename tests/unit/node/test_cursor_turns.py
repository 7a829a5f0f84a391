"""However many cursors there are, and whoever asks, a turn looks at so many records and no more."""

from collections.abc import Iterator

import pytest

from liftbridge_broker.errors import LiftbridgeError, LimitError
from liftbridge_broker.groups.cursors import (
    Cursor,
    CursorIndex,
    CursorPosition,
    CursorScan,
    cursor_key,
)
from liftbridge_broker.model.ids import Offset
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.reading.cursors import (
    ANSWER_WEIGHT,
    LOOK_UPS_MAX,
    RECORD_WEIGHT,
    STEP_BYTES,
    CursorTable,
)
from liftbridge_broker.node.scheduling.chores import SLICE_WEIGHT, TURN_WEIGHT_MAX
from liftbridge_broker.wire.cursors import encode_cursor
from liftbridge_testkit.node_world import NAMESPACE, NodeWorld

CURSORS = 6_000
FRAME_BYTES_MIN = 60
RECORDS_PER_TURN = TURN_WEIGHT_MAX // RECORD_WEIGHT + STEP_BYTES // FRAME_BYTES_MIN
ANSWERS_PER_TURN = (TURN_WEIGHT_MAX + SLICE_WEIGHT) // ANSWER_WEIGHT


@pytest.fixture
def cursors(world: NodeWorld) -> Partition:
    """A partition of `__cursors` with many cursors, of which none is in memory."""
    partition = world.create("__cursors", f"{NAMESPACE}.cursors", is_internal=True)
    stored = [Cursor("s", 0, f"{number}", number) for number in range(CURSORS)]
    values = [encode_cursor(cursor) for cursor in stored]
    world.publish(partition, *values, keys=[cursor.key for cursor in stored])
    world.settle()
    return partition


def key_of(name: int | str) -> bytes:
    return cursor_key("s", 0, f"{name}")


def table_of(world: NodeWorld, partition: Partition) -> CursorTable:
    """The table, which is made when it is asked first."""
    tables = world.node.cursors
    return tables._tables.setdefault(
        partition.partition_id, CursorTable(partition, world.node.context)
    )


def with_small_memory(world: NodeWorld, partition: Partition) -> None:
    index = CursorIndex(partition.log.log_start_offset, cursors_max=10)
    table_of(world, partition)._index = index
    world.look_up_cursor(partition, key_of(CURSORS - 1))
    world.settle()


class Counting(CursorScan):
    """Counts the records that a target is fed with."""

    def __init__(self, target: CursorIndex | CursorScan, count: "Count") -> None:
        super().__init__((), target.next_offset)
        self._feed = target.feed
        self._count = count

    def feed(self, key: bytes, position: CursorPosition | None, offset: Offset) -> None:
        """Take one record."""
        self._count.count += 1
        self._feed(key, position, offset)


class Count:
    """Records that anything was fed with, by turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        begin = CursorTable._feed
        monkeypatch.setattr(
            CursorTable,
            "_feed",
            lambda table, target, done: begin(table, Counting(target, self), done),
        )

    def take(self) -> int:
        """Those since the last call."""
        count, self.count = self.count, 0
        return count


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> Count:
    return Count(monkeypatch)


def turns(world: NodeWorld) -> Iterator[None]:
    """One turn after the other until nothing is left; the first is over."""
    yield
    while world.armed is not None and world.armed <= world.now:
        world.armed = None
        for event in world.files.calls.pump():
            world.node.on_file_event(event, world.now, world.wall_ns)
            yield
        world.node.on_timer(world.now, world.wall_ns)
        yield


def test_first_look_up_loads_the_partition_in_several_turns(
    world: NodeWorld, cursors: Partition, count: Count
) -> None:
    answers = world.look_up_cursor(cursors, key_of(7))
    fed = [count.take() for _ in turns(world)]
    assert sum(fed) == CURSORS
    assert max(fed) <= RECORDS_PER_TURN
    assert answers == [7]


def test_scans_look_at_a_bounded_number_of_records_in_a_turn(
    world: NodeWorld, cursors: Partition, count: Count
) -> None:
    """However many ask for cursors that memory has no room for, at most two scans answer all."""
    with_small_memory(world, cursors)
    count.take()
    names = [*range(50), "none"]
    answers = [world.look_up_cursor(cursors, key_of(name)) for name in names]
    fed = [count.take() for _ in turns(world)]
    assert max(fed) <= RECORDS_PER_TURN
    assert sum(fed) == 2 * CURSORS
    assert answers == [*([number] for number in range(50)), [-1]]


def test_all_who_wait_are_answered_in_several_turns(world: NodeWorld, cursors: Partition) -> None:
    answers = [world.look_up_cursor(cursors, key_of(number)) for number in range(1_000)]
    told, before = [], 0
    for _ in turns(world):
        now = sum(map(len, answers))
        told.append(now - before)
        before = now
    assert answers == [[number] for number in range(1_000)]
    assert max(told) <= ANSWERS_PER_TURN


def test_cursor_set_during_a_scan_is_found_by_who_asks_after(
    world: NodeWorld, cursors: Partition
) -> None:
    with_small_memory(world, cursors)
    first = world.look_up_cursor(cursors, key_of(0))
    assert first == []
    again = Cursor("s", 0, "1", 99)
    world.publish(cursors, encode_cursor(again), keys=[again.key])
    second = world.look_up_cursor(cursors, key_of(1))
    world.settle()
    assert (first, second) == ([0], [99])


def test_look_ups_that_wait_are_bounded(world: NodeWorld, cursors: Partition) -> None:
    answers = [world.look_up_cursor(cursors, key_of(0)) for _ in range(LOOK_UPS_MAX)]
    assert answers[-1] == []
    refused = world.look_up_cursor(cursors, key_of(0))
    assert isinstance(refused[0], LimitError)
    world.settle()
    assert answers == [[0]] * LOOK_UPS_MAX
    assert world.look_up_cursor(cursors, key_of(0)) == [0]


def test_broker_that_stops_during_a_scan_tells_all(world: NodeWorld, cursors: Partition) -> None:
    with_small_memory(world, cursors)
    answers = [world.look_up_cursor(cursors, key_of(name)) for name in range(20)]
    world.node.stop()
    world.settle()
    assert [isinstance(one, LiftbridgeError) for [one] in answers] == [True] * 20
