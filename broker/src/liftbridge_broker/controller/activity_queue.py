"""Events about changes of streams that wait to be stored in the stream `__activity` (ADR 0022).

The queue is part of the state, so that neither a failover nor a snapshot loses an event or repeats
one. The first pending event belongs at `end_offset` of the stream's partition, the next one behind
it, and so on: only the leader of the partition writes there, so the end of its log shows how many
of the pending events it has.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from typing import Final, NamedTuple

from liftbridge_broker.model.ids import BrokerId, MetadataIndex

PENDING_MAX: Final = 20_000
"""Limit of the pending events, each with its ranges of partitions and its streams: some 10 MB."""


class ActivityKind(IntEnum):
    """Kind of an event, with the number that the original gives it."""

    CREATE_STREAM = 0
    DELETE_STREAM = 1
    PAUSE_STREAM = 2
    RESUME_STREAM = 3
    SET_STREAM_READONLY = 4
    JOIN_CONSUMER_GROUP = 5
    LEAVE_CONSUMER_GROUP = 6


class NumberRange(NamedTuple):
    """Partition numbers without gaps, from `first` on."""

    first: int
    length: int


def ranges_of(numbers: Iterable[int]) -> tuple[NumberRange, ...]:
    """Return distinct numbers as ranges, in order: all partitions of a stream are one range."""
    given = sorted(numbers)
    if not given:
        return ()
    ends = [at for at, (one, other) in enumerate(pairwise(given), 1) if other > one + 1]
    starts = [0, *ends]
    return tuple(
        NumberRange(given[start], end - start)
        for start, end in zip(starts, [*ends, len(given)], strict=True)
    )


class ActivityEvent(NamedTuple):
    """A change of a stream or of a consumer group.

    Attributes:
        event_id: Metadata index of the command; a command makes at most one event.
        kind: Kind of the change.
        name: Stream, or consumer group.
        partitions: Partitions that it concerns.
        flag: `resumeAll` of a pause, `readonly`, or `expired` of a member that left.
        consumer: Member of the group; empty for streams.
        streams: Streams that the member reads; empty for streams.
        lost_before: Events lost between the one before it in the stream and this one.
    """

    event_id: MetadataIndex
    kind: ActivityKind
    name: str
    partitions: tuple[NumberRange, ...] = ()
    flag: bool = False
    consumer: str = ""
    streams: tuple[str, ...] = ()
    lost_before: int = 0

    @property
    def weight(self) -> int:
        """Return how much of `PENDING_MAX` the event takes."""
        return 1 + len(self.partitions) + len(self.streams)


@dataclass(slots=True, kw_only=True)
class ActivityQueue:
    """Events that are not known to be stored yet, and who wants them.

    Attributes:
        wanted_by: Brokers whose settings turn the activity stream on; it is off for none.
        events: Pending events, by id.
        end_offset: Offset of the first pending event in the partition.
        lost_count: Events that were lost so far.
        gap: Those of them behind the last event that was queued; the next one counts them.
        weight: Sum of the events' weights; follows from `events`.
    """

    wanted_by: tuple[BrokerId, ...] = ()
    events: list[ActivityEvent] = field(default_factory=list)
    end_offset: int = 0
    lost_count: int = 0
    gap: int = 0
    weight: int = 0

    def set_wanted(self, broker: BrokerId, *, is_wanted: bool) -> None:
        """Record the setting of a broker; for `replay`."""
        others = tuple(one for one in self.wanted_by if one != broker)
        self.wanted_by = (*others, broker) if is_wanted else others

    def add(self, event: ActivityEvent) -> None:
        """Queue an event, or count it as lost when the queue is full; for `replay`."""
        if self.weight + event.weight > PENDING_MAX:
            # A change of a stream must not fail because no broker can store its event.
            self.lost_count += 1
            self.gap += 1
            return
        self.events.append(event._replace(lost_before=self.gap))
        self.weight += event.weight
        self.gap = 0

    def count_to(self, last_id: int) -> int:
        """Return the number of pending events up to an id."""
        return bisect_right(self.events, last_id, key=lambda event: event.event_id)

    def confirm(self, count: int, end_offset: int, lost: int) -> None:
        """Remove stored events; `lost` of those stored before are no more. For `replay`."""
        self.weight -= sum(event.weight for event in self.events[:count])
        del self.events[:count]
        self.end_offset = end_offset
        self.lost_count += lost
        if self.events:
            first = self.events[0]
            self.events[0] = first._replace(lost_before=first.lost_before + lost)
        else:
            self.gap += lost
