"""However large the metadata are, a snapshot is made, and one of a leader read, in short turns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import pytest

from liftbridge_broker.controller.commands import CreateStream, RegisterBroker
from liftbridge_broker.controller.replay import apply, skip
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.model.ids import BrokerId, Instant, MetadataIndex, StreamName
from liftbridge_broker.node.metadata.driver import COMMANDS_PER_TURN, MetadataDriver
from liftbridge_broker.ports.metadata import (
    Committed,
    MetadataEvent,
    ProposalToken,
    RecoveredMetadata,
    Restored,
)
from liftbridge_broker.wire.metadata import encode_command
from liftbridge_broker.wire.snapshots import STEP_ENTRIES, decode_state, encode_state
from liftbridge_testkit.turn_time import Longest, garbage_as_in_a_process, share_of_a_turn

PARTITIONS = 25_000
THRESHOLD = 3
NOTHING = ProposalToken(0)

SHAPES = {"many streams": PARTITIONS, "one stream": 1, "some streams": 50}


@dataclass
class Log:
    """A log that tells what it is given, and keeps snapshots; counts the turns it had."""

    is_leader = False
    events: list[MetadataEvent] = field(default_factory=list)
    snapshots: list[tuple[MetadataIndex, bytes]] = field(default_factory=list)
    turns: int = 0

    def on_timer(self, _now: Instant) -> None:
        self.turns += 1

    def take_events(self) -> Sequence[MetadataEvent]:
        events, self.events = self.events, []
        return events

    def snapshot(self, index: MetadataIndex, state: bytes) -> None:
        self.snapshots.append((index, state))


class World:
    """A driver of an empty state on such a log."""

    def __init__(
        self, watch: Longest | None = None, *, on_restored: Callable[[], None] = lambda: None
    ) -> None:
        self.log = Log()
        self.watch = watch or Longest()
        self.driver = MetadataDriver(
            self.log,  # type: ignore[arg-type]  # as much as is asked for
            RecoveredMetadata(MetadataIndex(0), b"", (), ()),
            on_change=lambda *_: None,
            on_failed=lambda _: None,
            on_restored=on_restored,
            snapshot_entries=THRESHOLD,
        )

    def turn(self) -> None:
        with self.watch:
            self.driver.on_timer(Instant(0))

    def tell(self, *events: MetadataEvent) -> None:
        """What the log tells, and all turns that it takes."""
        self.log.events += events
        self.turn()
        while self.driver.is_behind:
            self.turn()


def state_of(stream_count: int) -> ClusterState:
    """A state with many partitions."""
    state, indexes = ClusterState(), count(1)
    broker = RegisterBroker(broker=BrokerId("a"), incarnation_id="i", data_dir_id="d")
    apply(state, MetadataIndex(next(indexes)), broker)
    for number in range(stream_count):
        name = StreamName(f"s{number}")
        partitions = PARTITIONS // stream_count
        command = CreateStream(
            name=name, subject=name, partitions=partitions, partitions_max=partitions
        )
        apply(state, MetadataIndex(next(indexes)), command)
    return state


@pytest.fixture(scope="module", params=SHAPES)
def large(request: pytest.FixtureRequest) -> tuple[MetadataIndex, bytes]:
    """A snapshot of many partitions, and its index."""
    state = state_of(SHAPES[request.param])
    return state.applied_index, encode_state(state)


def entries(start: MetadataIndex, number: int) -> list[Committed]:
    """Entries behind an index that are no commands."""
    return [Committed(MetadataIndex(start + 1 + one), b"", NOTHING) for one in range(number)]


def test_no_turn_is_long_while_a_snapshot_is_read_and_another_one_is_made(
    large: tuple[MetadataIndex, bytes],
) -> None:
    index, data = large

    def read_and_make(watch: Longest) -> None:
        world = World(watch)
        with garbage_as_in_a_process():
            world.tell(Restored(index, data), *entries(index, THRESHOLD))

        state = decode_state(data)
        for entry in entries(index, THRESHOLD):
            skip(state, entry.entry_index)
        assert world.driver.state == state
        assert world.log.snapshots == [(state.applied_index, encode_state(state))]
        # The log has its turn in each of those.
        assert world.log.turns >= 2 * PARTITIONS // (COMMANDS_PER_TURN * STEP_ENTRIES)

    assert share_of_a_turn(read_and_make, enough=1) <= 1


def test_the_state_is_replaced_at_once_and_only_when_it_is_whole(
    large: tuple[MetadataIndex, bytes],
) -> None:
    index, data = large
    restored: list[int] = []
    world = World(on_restored=lambda: restored.append(world.driver.state.applied_index))
    world.log.events.append(Restored(index, data))
    world.turn()
    while world.driver.is_behind:
        assert world.driver.state == ClusterState()
        assert not restored
        world.turn()
    assert encode_state(world.driver.state) == data
    assert restored == [index]


def test_nothing_is_applied_while_a_snapshot_is_made(large: tuple[MetadataIndex, bytes]) -> None:
    index, data = large
    world = World()
    world.tell(Restored(index, data))
    world.log.events += entries(index, THRESHOLD)
    world.turn()
    assert world.driver.is_behind
    last = MetadataIndex(index + THRESHOLD)
    added = encode_command(CreateStream(name=StreamName("new"), subject="new"))
    world.log.events.append(Committed(MetadataIndex(last + 1), added, NOTHING))
    while not world.log.snapshots:
        assert world.driver.state.applied_index == last
        world.turn()
    ((taken, state),) = world.log.snapshots
    assert taken == last
    assert decode_state(state).stream("new") is None
    world.tell()
    assert world.driver.state.stream("new") is not None
