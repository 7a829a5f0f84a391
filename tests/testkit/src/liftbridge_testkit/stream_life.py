"""The controller with several streams: concurrent clients, managers, operators and idle leaders.

Requests are lost, duplicated, reordered and late. Clients name streams that are not theirs and make
impossible requests. After each request the controller's invariants must hold (`ControllerWorld`),
and those of this module: places and number of replicas, rights to change settings, the owner of a
stream, and that a manual pause persists.
"""

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Final

from liftbridge_broker.controller.commands import (
    AlterStream,
    Bootstrap,
    Command,
    CordonBroker,
    CreateStream,
    DeleteStream,
    MarkStream,
    PauseStream,
    ResumeStream,
    SetReadonly,
    StartReassignment,
)
from liftbridge_broker.controller.state import StreamState
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import BrokerId, PartitionId, StreamId, StreamName
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.streams import StreamOverrides
from liftbridge_broker.model.subjects import RESERVED_STREAMS
from liftbridge_testkit.controller_world import ControllerWorld
from liftbridge_testkit.replica_brokers import require

BROKERS: Final = "abcde"
CURSORS: Final = StreamName(min(RESERVED_STREAMS))
OURS: Final = (StreamName("one"), StreamName("two"))
MANAGERS: Final = ("first", "second")
MESSAGES_MAX: Final = 30
LATE_MAX: Final = 12
Asking = Callable[[], Command | None]
"""Makes a request; `None` when there is none to make."""


class StreamLife:
    """A run.

    Attributes:
        world: The controller.
        counts: Counts of events.
        faults: Whether brokers fail, messages are lost, and clients make random requests.
    """

    def __init__(self, seed: int) -> None:
        """Start the brokers, one of which creates the brokers' own stream."""
        self.rng = Random(seed)
        self.faults = True
        self.counts: Counter[str] = Counter()
        self.world = ControllerWorld()
        self.world.ok(Bootstrap(cluster_id="one"))
        for name in BROKERS:
            self.world.start(name, replicas_max=self.rng.choice((0, 0, 2, 4)))
        self._messages: list[Command] = []
        self._late: list[Command] = []
        self._by_hand: set[tuple[StreamId, int]] = set()
        self._apply(CreateStream(name=CURSORS, subject="c", replication_factor=3, is_internal=True))
        self._asking: tuple[Asking, ...] = (
            self._create,
            self._create,
            self._delete,
            self._alter,
            self._alter,
            self._pause,
            self._idle,
            self._idle,
            self._resume,
            self._readonly,
            self._mark,
            self._mark,
            self._cordon,
        )

    # Steps.

    def step(self) -> None:
        """Take one random step, and check all invariants."""
        steps: list[tuple[Callable[[], None], int]] = [
            (self._step_deliver, 10),
            (self._step_join, 6),
            (self._step_unfence, 3),
        ]
        if self.faults:
            steps += [
                (self._step_ask, 10),
                (self._step_late, 2),
                (self._step_fence, 2),
                (self._step_lag, 2),
                (self._step_move, 2),
            ]
        (act,) = self.rng.choices([act for act, _ in steps], [weight for _, weight in steps])
        act()
        self._check()

    def heal(self, steps: int) -> None:
        """Stop all requests; continue until everything is in order."""
        self.faults = False
        for _ in range(steps):
            if self.is_well:
                return
            self.step()

    @property
    def is_well(self) -> bool:
        """Return whether all replicas are in sync, and no request is pending."""
        return not self._messages and all(
            set(one.isr) == set(one.replicas) and not one.is_reassigning
            for _, one in self.world.state.partitions()
        )

    def _step_ask(self) -> None:
        command = self.rng.choice(self._asking)()
        if command is None or self.rng.random() < 0.1:
            return
        self._messages += [command] * self.rng.choice((1, 1, 1, 2))
        self._late.append(command)
        if len(self._late) > LATE_MAX:
            del self._late[self.rng.randrange(LATE_MAX)]
        del self._messages[:-MESSAGES_MAX]

    def _step_deliver(self) -> None:
        if self._messages:
            self._apply(self._messages.pop(self.rng.randrange(len(self._messages))))

    def _step_late(self) -> None:
        """Deliver a copy of an old message."""
        if self._late:
            self._messages.append(self.rng.choice(self._late))

    # Brokers.

    def _step_fence(self) -> None:
        name = self.rng.choice(BROKERS)
        if not self.world.state.brokers[BrokerId(name)].fenced:
            self.world.fence(name)

    def _step_unfence(self) -> None:
        self.world.apply_unfencing(self.rng.choice(BROKERS))

    def _led(self) -> PartitionState | None:
        found = [one for _, one in self.world.state.partitions() if one.leader is not None]
        return self.rng.choice(found) if found else None

    def _step_join(self) -> None:
        """Add all live replicas to the in-sync set, as a leader does."""
        partition = self._led()
        if partition is None:
            return
        brokers = self.world.state.brokers
        able = [replica for replica in partition.replicas if brokers[replica].can_lead]
        if set(able) - set(partition.isr):
            self.counts["join"] += 1
            self.world.apply(self.world.alteration(partition.partition_id, able))

    def _step_lag(self) -> None:
        """Let a follower fall behind."""
        partition = self._led()
        if partition is not None and len(partition.isr) > 1:
            others = [one for one in partition.isr if one != partition.leader]
            left = [one for one in partition.isr if one != self.rng.choice(others)]
            self.world.apply(self.world.alteration(partition.partition_id, left))

    def _step_move(self) -> None:
        """Move a partition manually, possibly to a stopped broker."""
        partition = self._led()
        if partition is None:
            return
        target = self.rng.sample(BROKERS, len(partition.target or partition.replicas))
        self.world.apply(
            StartReassignment(
                partition_id=partition.partition_id,
                target=tuple(BrokerId(name) for name in target),
            )
        )

    # Requests.

    def _name(self) -> StreamName:
        """Return a stream, seldom one of the brokers' own."""
        return CURSORS if self.rng.random() < 0.1 else self.rng.choice(OURS)

    def _create(self) -> Command:
        return CreateStream(
            name=self._name(),
            subject="s",
            replication_factor=self.rng.choice((1, 2, 3, 3, 4, -1)),
            partitions=self.rng.randint(1, 2),
            overrides=StreamOverrides(min_isr=self.rng.choice((None, 1, 2))),
        )

    def _delete(self) -> Command:
        return DeleteStream(name=self._name())

    def _alter(self) -> Command:
        return AlterStream(
            name=self._name(),
            overrides=StreamOverrides(min_isr=self.rng.choice((None, 1, 2, 3))),
            replication_factor=self.rng.choice((0, 0, 0, 1, 2, 3, 4, 7, -2)),
        )

    def _pause(self) -> Command:
        return PauseStream(name=self._name(), resume_all=self.rng.random() < 0.3)

    def _idle(self) -> Command | None:
        """Pause a partition without publishers, as its leader does by itself."""
        partition = self._led()
        if partition is None:
            return None
        name = next(s.name for s, one in self.world.state.partitions() if one is partition)
        numbers = (int(partition.number),)
        return PauseStream(name=name, partitions=numbers, is_automatic=True, is_internal=True)

    def _resume(self) -> Command:
        return ResumeStream(name=self._name())

    def _readonly(self) -> Command:
        return SetReadonly(name=self._name(), readonly=self.rng.random() < 0.5)

    def _mark(self) -> Command | None:
        """Let a manager take a stream without an owner, or release its own."""
        stream = self.world.state.stream(self.rng.choice(OURS))
        manager = self.rng.choice(MANAGERS)
        if stream is None or stream.owner not in ("", manager):
            return None
        expected, owner = ("", manager) if not stream.owner else (manager, "")
        return MarkStream(
            name=stream.name, stream_id=stream.stream_id, expected=expected, owner=owner
        )

    def _cordon(self) -> Command:
        broker = BrokerId(self.rng.choice(BROKERS))
        return CordonBroker(broker=broker, cordoned=self.rng.random() < 0.5)

    # Checks of the observer.

    def _apply(self, command: Command) -> None:
        state = self.world.state
        placeable = {
            broker.broker
            for broker in state.brokers.values()
            if not broker.fenced and not broker.in_controlled_shutdown and not broker.cordoned
        }
        held = {one.partition_id: frozenset(one.replicas) for _, one in state.partitions()}
        name = getattr(command, "name", None)
        stream = None if name is None else state.stream(name)
        owner = "" if stream is None else stream.owner
        kept = _told(state.stream(CURSORS))
        answer = self.world.apply(command).answer
        self.counts[type(command).__name__] += 1
        if name == CURSORS and not getattr(command, "is_internal", True):
            same = _told(state.stream(CURSORS)) == kept
            require("clients do not change what brokers keep", holds=same)
        self._check_placement(held, placeable)
        if isinstance(answer, LiftbridgeError):
            return
        self.counts["done"] += 1
        match command:
            case CreateStream():
                self._check_created(command, len(placeable))
            case PauseStream() | ResumeStream():
                self._note_pause(command)
            case MarkStream():
                self._check_mark(command, owner)
            case _:
                pass

    def _check_placement(
        self, held: dict[PartitionId, frozenset[BrokerId]], placeable: set[BrokerId]
    ) -> None:
        for _, partition in self.world.state.partitions():
            added = set(partition.replicas) - held.get(partition.partition_id, frozenset())
            require("replicas are placed where they may be", holds=added <= placeable)

    def _check_created(self, command: CreateStream, placeable_count: int) -> None:
        stream = self.world.state.stream(command.name)
        assert stream is not None
        asked = command.replication_factor
        wanted = placeable_count if asked == -1 else asked
        counts = {len(partition.replicas) for partition in stream.partitions}
        require("as many replicas as were asked for", holds=counts == {wanted})

    def _note_pause(self, command: PauseStream | ResumeStream) -> None:
        stream = self.world.state.stream(command.name)
        assert stream is not None
        numbers = command.partitions or tuple(
            int(partition.number) for partition in stream.partitions
        )
        if isinstance(command, PauseStream):
            if not command.is_automatic:
                self._by_hand |= {(stream.stream_id, number) for number in numbers}
            return
        for partition in stream.partitions:
            if not partition.paused:
                self._by_hand.discard((stream.stream_id, int(partition.number)))

    def _check_mark(self, command: MarkStream, before: str) -> None:
        stream = self.world.state.stream(command.name)
        assert stream is not None
        if stream.owner == before:
            return
        self.counts["mark"] += 1
        manager = command.owner or command.expected
        require("one manager of a stream", holds=before in ("", manager))
        require("the stream that was meant", holds=command.stream_id == stream.stream_id)

    def _check(self) -> None:
        for stream in self.world.state.streams.values():
            factor = stream.replication_factor
            for partition in stream.partitions:
                count = len(partition.target or partition.replicas)
                require("on the way to the number of replicas", holds=count == factor)
                if (stream.stream_id, int(partition.number)) in self._by_hand:
                    is_by_hand = partition.paused and not partition.auto_paused
                    require("a pause by hand stays one", holds=is_by_hand)


def _told(stream: StreamState | None) -> object:
    """Return the settings of a stream that clients could change."""
    if stream is None:
        return None
    partitions = tuple(
        (partition.paused, partition.auto_paused, partition.readonly)
        for partition in stream.partitions
    )
    return stream.stream_id, stream.overrides, stream.policy, stream.resume_all, partitions


def life(seed: int) -> StreamLife:
    """Return the run of a seed."""
    return StreamLife(seed)
