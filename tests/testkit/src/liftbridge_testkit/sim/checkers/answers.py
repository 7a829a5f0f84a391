"""Check answers about logs.

Ends never decrease, bounded reads are complete, epochs show truncations.

The offset for a time is between the records before it and those from it on.

An answer is compared with everything known when the question began: any offset reported as
committed, and any record acknowledged permanently, to any client.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from liftbridge_broker.model.ids import PartitionId
from liftbridge_client.core.history import ReadHistory, cut_at
from liftbridge_testkit.sim.broken import BrokenInvariantError
from liftbridge_testkit.sim.history import Checker, Write

_Kept = TypeVar("_Kept")


@dataclass(slots=True, eq=False)
class Asked:
    """One question about a partition.

    Attributes:
        who: Client, for error texts.
        partition: Partition of the question.
        told: First offset that no client knew to be committed at the time.
        acked: Values acknowledged permanently at the time, by offset.
        times: Timestamps of committed records that any client had read at the time, by offset.
        lost_from: Offset from which records may have been lost since.
    """

    who: str
    partition: PartitionId
    told: int
    acked: dict[int, bytes]
    times: dict[int, int] = field(default_factory=dict)
    lost_from: int | None = None

    @property
    def known_end(self) -> int:
        """Return the first offset that was not known to be committed."""
        return max(self.told, *(offset + 1 for offset in self.acked), 0)


@dataclass(slots=True)
class Held:
    """Records that one reader received of a partition.

    Attributes:
        epochs: Leader epochs of the log that it came from, with the offset that each begins at.
        position: First offset that it has not received.
        values: Received values, by offset.
    """

    epochs: list[tuple[int, int]] = field(default_factory=list)
    position: int = 0
    values: dict[int, bytes] = field(default_factory=dict)


class AnswersAreTrue(Checker):
    """Keeps acknowledged and reported facts, and the pending questions."""

    def __init__(self) -> None:
        self._told: dict[PartitionId, int] = {}
        self._acked: dict[PartitionId, dict[int, bytes]] = {}
        self._times: dict[PartitionId, dict[int, int]] = {}
        self._asked: dict[Asked, None] = {}
        self._lost: dict[PartitionId, None] = {}

    def on_ack(self, write: Write) -> None:
        """Note a record that is stored permanently."""
        if write.is_committed:
            self._acked.setdefault(write.partition, {})[write.offset] = write.name

    def on_loss(self, partition: PartitionId, end: int) -> None:
        """Drop all knowledge from `end` on, acknowledged or not."""
        self._lost[partition] = None
        self._told[partition] = min(self._told.get(partition, 0), end)
        self._cut(self._acked.get(partition, {}), end)
        self._cut(self._times.get(partition, {}), end)
        for asked in self._asked:
            if asked.partition == partition:
                asked.told = min(asked.told, end)
                self._cut(asked.acked, end)
                self._cut(asked.times, end)
                before = asked.lost_from
                asked.lost_from = end if before is None else min(before, end)

    @staticmethod
    def _cut(values: dict[int, _Kept], end: int) -> None:
        for offset in [offset for offset in values if offset >= end]:
            del values[offset]

    def has_lost(self, partition: PartitionId) -> bool:
        """Return whether replicas may differ in committed records, each with its own history."""
        return partition in self._lost

    def ask(self, who: str, partition: PartitionId) -> Asked:
        """Begin a question."""
        acked = dict(self._acked.get(partition, {}))
        times = dict(self._times.get(partition, {}))
        asked = Asked(who, partition, self._told.get(partition, 0), acked, times)
        self._asked[asked] = None
        return asked

    def gave_up(self, asked: Asked) -> None:
        """Note that the question was refused, or its answer lost."""
        self._asked.pop(asked, None)

    def told_end(self, asked: Asked, end: int) -> None:
        """Note the answer: everything below `end` is committed.

        Raises:
            BrokenInvariantError: A higher end was reported or acknowledged before.
        """
        self.gave_up(asked)
        known = asked.known_end
        if end < known:
            raise BrokenInvariantError(
                "answers",
                f"{asked.who} was told that {asked.partition} is committed up to {end}, and "
                f"before it asked that was {known}",
            )
        self._told[asked.partition] = max(self._told.get(asked.partition, 0), end)

    def told_place(self, asked: Asked, timestamp: int, place: int, bounds: tuple[int, int]) -> None:
        """Note the answer: offset of the first committed record with a timestamp >= `timestamp`.

        Args:
            asked: The question.
            timestamp: The requested time.
            place: Returned offset, the committed end when there is no such record.
            bounds: First offset kept, below which nothing counts, and the committed end, told with
                the place. A log that is compacted may lack records: all of it is below the first.

        Raises:
            BrokenInvariantError: The place is not committed, or a record that was known before is
                on its wrong side.
        """
        start, end = bounds
        self.told_end(asked, end)
        if place > end:
            raise BrokenInvariantError(
                "answers",
                f"{asked.who} was told that {timestamp} is at {place} of {asked.partition}, which "
                f"is committed up to {end}",
            )
        for offset, at in asked.times.items():
            if (start <= offset < place and at >= timestamp) or (
                offset >= place and at < timestamp
            ):
                raise BrokenInvariantError(
                    "answers",
                    f"{asked.who} was told that {timestamp} is at {place} of {asked.partition}, "
                    f"and the record at {offset} is of {at}",
                )

    def read_from_time(
        self, asked: Asked, timestamp: int, given: Mapping[int, bytes], start: int
    ) -> None:
        """Check a read from a time to the end, of a log without gaps from `start` on.

        Raises:
            BrokenInvariantError: A record from that time on, known before, is missing.
        """
        self.gave_up(asked)
        for offset, at in asked.times.items():
            if at >= timestamp and offset >= start and offset not in given:
                raise BrokenInvariantError(
                    "answers",
                    f"{asked.who} read {asked.partition} from {timestamp} on and did not get "
                    f"the record at {offset}, which is of {at}",
                )

    def learn_times(self, asked: Asked, times: Mapping[int, int], timestamp: int = 0) -> None:
        """Note the timestamps of the records of a read, by offset.

        Args:
            asked: The read.
            times: Timestamps.
            timestamp: Requested start time of the read.

        Raises:
            BrokenInvariantError: A record is older than the requested time.
        """
        for offset, at in times.items():
            if at < timestamp:
                raise BrokenInvariantError(
                    "answers",
                    f"{asked.who} read {asked.partition} from {timestamp} on and got the record "
                    f"at {offset}, which is of {at}",
                )
        self._times.setdefault(asked.partition, {}).update(times)
        if asked.lost_from is not None:
            self._cut(self._times[asked.partition], asked.lost_from)

    def refused_as_out_of_range(self, asked: Asked, start: int, wanted: int) -> None:
        """Check that a strict read was refused correctly.

        The log lacks `wanted`, and begins at `start`.

        Raises:
            BrokenInvariantError: It is between the start and the known committed end.
        """
        self.gave_up(asked)
        if start <= wanted <= asked.known_end:
            raise BrokenInvariantError(
                "answers",
                f"{asked.who} was refused {wanted} of {asked.partition} as out of range, which "
                f"begins at {start} and was committed up to {asked.known_end} before",
            )

    def read_to_end(
        self,
        asked: Asked,
        given: Mapping[int, bytes],
        start: int,
        wanted: int = 0,
        last: int | None = None,
    ) -> None:
        """Check a completed bounded read.

        Args:
            asked: The read.
            given: Returned values, by offset.
            start: First offset kept when it ended; records before it may be missing.
            wanted: First offset requested.
            last: Last offset requested, `None` for all.

        Raises:
            BrokenInvariantError: An acknowledged record is missing or differs, or the read returned
                a record that was not requested.
        """
        self.gave_up(asked)
        for offset in given:
            if offset < wanted or (last is not None and offset > last):
                raise BrokenInvariantError(
                    "answers",
                    f"{asked.who} read {asked.partition} from {wanted} to "
                    f"{'its end' if last is None else last} and got {offset}",
                )
        for offset, value in asked.acked.items():
            is_wanted = offset >= max(start, wanted) and (last is None or offset <= last)
            if is_wanted and given.get(offset) != value:
                raise BrokenInvariantError(
                    "answers",
                    f"{asked.who} read {asked.partition} to its end and got "
                    f"{given.get(offset, b'nothing')[:24]!r} at {offset}, where {value[:24]!r} "
                    "had been acknowledged before",
                )


def check_history(
    who: str,
    held: Held,
    given: Mapping[int, bytes],
    epochs: Iterable[tuple[int, int]],
    unclean_epoch: int,
) -> int | None:
    """Check that epochs announce each record that differs from the one received before.

    Args:
        who: Reader, for error texts.
        held: Values received before.
        given: Values received now, by offset.
        epochs: Leader epochs of the log that was read.
        unclean_epoch: Epoch of the last unclean election of the partition, 0 for none.

    Returns:
        Offset from which the reader must discard its records, `None` for none.

    Raises:
        BrokenInvariantError: One offset has two records, and no epoch explains it.
    """
    read = ReadHistory()
    for epoch, first in held.epochs:
        read.note(epoch, first if read.epochs else 0)
    cut = cut_at(epochs, unclean_epoch, read, held.position)
    for offset, value in given.items():
        known = held.values.get(offset, value)
        if known != value and (cut is None or offset < cut):
            raise BrokenInvariantError(
                "answers",
                f"{who} got {value[:24]!r} at offset {offset}, where {known[:24]!r} was, and the "
                f"epochs say {'nothing of it' if cut is None else f'that only {cut} on is new'}",
            )
    return cut
