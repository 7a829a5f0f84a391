"""How far consumer groups are behind in the partitions led here, measured again and again.

The leader of a partition knows its log and its retention. It asks the leader of `__cursors` for the
positions of the groups that read the partition, as it does for retention cursors. Measurements are
for people: nothing in the broker depends on them, and a position may be some seconds old.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from liftbridge_broker.errors import CorruptionError, FilesError, UnavailableError
from liftbridge_broker.groups.cursors import CursorPosition
from liftbridge_broker.groups.lag import Forecast, History, Limits, Observation, place
from liftbridge_broker.model.groups import CURSOR_PREFIX, Group
from liftbridge_broker.model.ids import Instant, Offset, PartitionId, stream_of
from liftbridge_broker.model.streams import StreamOptions
from liftbridge_broker.model.units import MILLISECOND_NS, SECOND_NS
from liftbridge_broker.node.context import NodeContext
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.scheduling.steps import STEP
from liftbridge_broker.node.upkeep.retention_cursors import RetentionCursors
from liftbridge_broker.storage.cleaning.retention import CursorUnknown
from liftbridge_broker.storage.log.lookup import timestamp_from

ROUND_NS: Final = 10 * SECOND_NS
"""Time between two rounds of measurements."""

PAIRS_MAX: Final = 1_000
"""Partitions of groups that are measured in a round; the rest is only counted."""

WINDOW: Final = 50
"""Positions that one round or call asks for at a time."""

LOOK_UPS_MAX: Final = 10
"""Calls whose look-ups run at a time: with the round, retention keeps half of its own look-ups."""

GROUPS_MAX: Final = 15
"""Groups with metrics of their own; those of further groups are combined."""

PAIR_WEIGHT: Final = 1
STEP_WEIGHT: Final = 100
MEASURE_WEIGHT: Final = 150
"""Weights of the steps of a round; see `node.scheduling.chores`."""

Pair = tuple[str, PartitionId]
"""A group, and a partition that it reads."""

Found = CursorPosition | CursorUnknown
Positions = Mapping[Pair, Found]


class GroupLag(NamedTuple):
    """Lag of a group in the partitions led here.

    Attributes:
        messages: Offsets that it has not processed.
        lag_ns: Age of its oldest message.
        left_ns: Time until retention overtakes it; `None` for never.
    """

    messages: int = 0
    lag_ns: int = 0
    left_ns: int | None = None

    def joined(self, other: "GroupLag") -> "GroupLag":
        """Return both as one."""
        left = [one for one in (self.left_ns, other.left_ns) if one is not None]
        return GroupLag(
            self.messages + other.messages,
            max(self.lag_ns, other.lag_ns),
            min(left, default=None),
        )


class Measured(NamedTuple):
    """Lag of a group in one partition.

    Attributes:
        seen: What was seen.
        forecast: When retention overtakes the group; `None` for never.
        position: Last offset that the group has processed; `None` without a position.
    """

    seen: Observation
    forecast: Forecast | None
    position: int | None


@dataclass(slots=True)
class Lags:
    """Outcome of the last round.

    Attributes:
        by_group: Lag of each measured group.
        endangered_count: Partitions of groups that are in an episode of danger.
        unmeasured_count: Partitions of groups beyond `PAIRS_MAX`.
    """

    by_group: Mapping[str, GroupLag] = field(default_factory=dict)
    endangered_count: int = 0
    unmeasured_count: int = 0


@dataclass(slots=True, eq=False)
class _LookUp:
    """Look-up of many positions, a few at a time."""

    ask: Callable[[Pair, Callable[[Found, Instant], None]], None]
    waiting: deque[Pair]
    done: Callable[[Positions], None]
    open_count: int = 0
    found: dict[Pair, Found] = field(default_factory=dict)
    is_asking: bool = False

    def go_on(self) -> None:
        """Ask for the next positions; answers may come at once."""
        if self.is_asking:
            return
        self.is_asking = True
        while self.waiting and self.open_count < WINDOW:
            pair = self.waiting.popleft()
            self.open_count += 1
            self.ask(pair, partial(self._take, pair))
        self.is_asking = False
        if not self.waiting and not self.open_count:
            self.done(self.found)

    def _take(self, pair: Pair, position: Found, now: Instant) -> None:
        del now
        self.open_count -= 1
        self.found[pair] = position
        self.go_on()


class GroupLags:
    """Measures the lag of groups in the partitions led here.

    Attributes:
        lags: Outcome of the last round.
    """

    def __init__(
        self,
        context: NodeContext,
        partitions: Mapping[PartitionId, Partition],
        cursors: RetentionCursors,
    ) -> None:
        """Start without measurements.

        Args:
            context: State and ports that the parts of the node share.
            partitions: Partitions of which a replica is held here.
            cursors: Finds positions, wherever they are kept.
        """
        self._context = context
        self._partitions = partitions
        self._cursors = cursors
        self._histories: dict[Pair, History] = {}
        self._look_ups_count = 0
        self._is_measuring = False
        self._due: Instant | None = None
        self.lags = Lags()

    # -- calls --------------------------------------------------------------------------------

    def look_up(self, pairs: Sequence[Pair], done: Callable[[Positions], None]) -> None:
        """Call `done` with the positions of groups, or why they are unknown.

        Raises:
            UnavailableError: Too many calls look up positions.
        """
        if self._look_ups_count >= LOOK_UPS_MAX:
            raise UnavailableError(f"{LOOK_UPS_MAX} calls already look up positions here")
        self._look_ups_count += 1

        def found(positions: Positions) -> None:
            self._look_ups_count -= 1
            done(positions)

        self._begin(pairs, found)

    def _begin(self, pairs: Iterable[Pair], done: Callable[[Positions], None]) -> None:
        _LookUp(self._ask, deque(pairs), done).go_on()

    def _ask(self, pair: Pair, found: Callable[[Found, Instant], None]) -> None:
        group_id, partition_id = pair
        name = CURSOR_PREFIX + group_id
        self._cursors.find_position(partition_id, name, found, self._context.now)

    def measure(self, pair: Pair, partition: Partition, found: Found) -> Measured:
        """Measure the lag of a group in a partition led here, from its position.

        Reads about 4 KiB of the log; an unreadable message counts as new.
        """
        position = _position(partition.partition_id, found)
        seen = self._observe(partition, position)
        history = self._histories.get(pair, History())
        limits = limits_of(partition.options, pair[0])
        return Measured(seen, history.forecast(seen, limits), position)

    def _observe(self, partition: Partition, position: int | None) -> Observation:
        log, now = partition.log, self._context.now
        high_watermark = Offset(max(log.high_watermark, log.log_start_offset))
        start, lost = place(position, log.log_start_offset, high_watermark)
        lag_ns = 0
        if start < high_watermark:
            try:
                stored_at = timestamp_from(log, start)
            except (CorruptionError, FilesError):
                stored_at = None  # whoever reads it will report it
            if stored_at is not None:
                lag_ns = self._context.clock.stamp(self._context.wall_ns, now) - stored_at
        return Observation(
            at=now,
            next_offset=start,
            log_start=log.log_start_offset,
            high_watermark=high_watermark,
            log_bytes=log.size_bytes,
            lag_ns=max(0, lag_ns),
            lost=lost,
            has_position=position is not None,
        )

    # -- rounds -------------------------------------------------------------------------------

    def on_timer(self, now: Instant) -> None:
        """Begin a round if one is due."""
        if self._is_measuring or self._context.is_stopping:
            return
        has_groups = bool(self._context.state.groups)
        if not has_groups and not self._histories:
            self._due = None
        elif self._due is None:
            self._due = Instant(now + ROUND_NS)
        elif self._due <= now:
            self._due = Instant(now + ROUND_NS)
            self._is_measuring = True
            self._context.chores.begin(self._gather())

    def next_deadline(self) -> Instant | None:
        """Time of the next `on_timer` call, `None` for never."""
        return None if self._is_measuring or self._context.is_stopping else self._due

    def on_groups(self, now: Instant) -> None:
        """Arm the first round, after groups may have been founded."""
        if self._due is None and self._context.state.groups:
            self._due = Instant(now + ROUND_NS)

    def _gather(self) -> Iterator[int]:
        """Find the partitions led here that groups read, and look up the positions."""
        pairs: list[Pair] = []
        unmeasured_count = seen_count = 0
        for group in list(self._context.state.groups.values()):
            for partition_id in _targets(group):
                seen_count += 1
                partition = self._partitions.get(partition_id)
                if partition is not None and partition.is_led:
                    if len(pairs) < PAIRS_MAX:
                        pairs.append((group.group_id, partition_id))
                    else:
                        unmeasured_count += 1
                if seen_count % STEP == 0:
                    yield STEP_WEIGHT
        yield PAIR_WEIGHT

        def found(positions: Positions) -> None:
            self._context.chores.begin(self._take(positions, unmeasured_count))

        self._begin(pairs, found)

    def _take(self, positions: Positions, unmeasured_count: int) -> Iterator[int]:
        """Measure all partitions of the round."""
        by_group: dict[str, GroupLag] = {}
        kept: dict[Pair, History] = {}
        for pair, found in positions.items():
            partition = self._partitions.get(pair[1])
            if partition is None or not partition.is_led:
                continue
            if found is CursorUnknown.UNANSWERED:
                # The leader of its position did not answer: keep the last observation.
                if pair in self._histories:
                    kept[pair] = self._histories[pair]
                    _join(by_group, pair[0], kept[pair].latest, None)
                continue
            measured = self.measure(pair, partition, found)
            history = kept[pair] = self._histories.get(pair) or History()
            history.add(measured.seen)
            self._report(pair[0], partition, history, measured)
            _join(by_group, pair[0], measured.seen, measured.forecast)
            yield MEASURE_WEIGHT
        self._histories = kept
        endangered_count = sum(one.is_in_danger for one in kept.values())
        self.lags = Lags(by_group, endangered_count, unmeasured_count)
        self._is_measuring = False
        self._context.arm()

    def _report(
        self, group_id: str, partition: Partition, history: History, measured: Measured
    ) -> None:
        if not history.begins_danger(measured.forecast):
            return
        assert measured.forecast is not None
        fields = {
            "group": group_id,
            "stream": partition.stream,
            "partition": partition.number,
            "limit": str(measured.forecast.limit),
            "left_ms": measured.forecast.left_ns // MILLISECOND_NS,
            "lag_messages": measured.seen.lag,
            "lag_ms": measured.seen.lag_ns // MILLISECOND_NS,
        }
        self._context.transition("retention_overtakes_group", fields)


def limits_of(options: StreamOptions, group_id: str) -> Limits:
    """Return the limits of retention that can remove messages which a group has not processed.

    Where retention waits for the position of the group, only a partition that is too large goes on.
    """
    if options.retention_cursor == CURSOR_PREFIX + group_id:
        return Limits(0, 0, options.retention_cursor_bytes_max)
    return Limits(
        options.retention_age_ms_max * MILLISECOND_NS,
        options.retention_messages_max,
        options.retention_bytes_max,
    )


def _position(partition_id: PartitionId, found: Found) -> int | None:
    """Return the offset of a position in the present stream, `None` without one.

    A broker of an old version stored positions without the id of the stream.
    """
    if isinstance(found, CursorUnknown) or found.offset < 0:
        return None
    return found.offset if found.stream_id in (0, stream_of(partition_id)) else None


def _join(
    by_group: dict[str, GroupLag], name: str, seen: Observation | None, found: Forecast | None
) -> None:
    """Add what was seen of one partition to the lag of a group."""
    if seen is not None:
        lag = GroupLag(seen.lag, seen.lag_ns, None if found is None else found.left_ns)
        by_group[name] = by_group.get(name, GroupLag()).joined(lag)


def _targets(group: Group) -> Iterator[PartitionId]:
    for member in group.members:
        yield from member.target


def with_own_series(by_group: Mapping[str, GroupLag], other: str) -> Mapping[str, GroupLag]:
    """Return the `GROUPS_MAX` groups that are furthest behind in time, and the rest as one.

    Args:
        by_group: Lag of each group.
        other: Name of the rest, which no group keeps for itself.
    """
    own = sorted(
        (name for name in by_group if name != other),
        key=lambda name: (-by_group[name].lag_ns, -by_group[name].messages, name),
    )[:GROUPS_MAX]
    shown = {name: by_group[name] for name in own}
    for name, lag in by_group.items():
        if name not in own:
            shown[other] = shown[other].joined(lag) if other in shown else lag
    return shown
