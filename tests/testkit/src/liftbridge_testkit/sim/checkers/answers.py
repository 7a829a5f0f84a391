"""What brokers tell of logs is true: ends never go back, bounded reads are whole, epochs tell cuts.

An answer is held against what was known when it was asked for: anything told as committed, and any
record acknowledged for good, to whomever, before the question began.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from liftbridge_broker.model.ids import PartitionId
from liftbridge_client.core.history import cut_at
from liftbridge_testkit.sim.broken import BrokenInvariantError
from liftbridge_testkit.sim.history import Checker, Write


@dataclass(slots=True, eq=False)
class Asked:
    """One question about a partition.

    Attributes:
        who: Who asks, for the text.
        partition: What about.
        told: First offset that nobody had been told to be committed then.
        acked: Values acknowledged for good then, by offset.
    """

    who: str
    partition: PartitionId
    told: int
    acked: dict[int, bytes]


@dataclass(slots=True)
class Held:
    """What one reader was given of a partition.

    Attributes:
        epoch: Latest leader epoch of the log that it came from.
        position: First offset that was not given.
        values: What was, by offset.
    """

    epoch: int = 0
    position: int = 0
    values: dict[int, bytes] = field(default_factory=dict)


class AnswersAreTrue(Checker):
    """Keeps what was told and acknowledged, and the questions under way."""

    def __init__(self) -> None:
        self._told: dict[PartitionId, int] = {}
        self._acked: dict[PartitionId, dict[int, bytes]] = {}
        self._asked: dict[Asked, None] = {}

    def on_ack(self, write: Write) -> None:
        """A record is there for good."""
        if write.is_committed:
            self._acked.setdefault(write.partition, {})[write.offset] = write.value

    def on_loss(self, partition: PartitionId, end: int) -> None:
        """From `end` on nothing that was told or acknowledged counts any more."""
        self._told[partition] = min(self._told.get(partition, 0), end)
        self._cut(self._acked.get(partition, {}), end)
        for asked in self._asked:
            if asked.partition == partition:
                asked.told = min(asked.told, end)
                self._cut(asked.acked, end)

    @staticmethod
    def _cut(values: dict[int, bytes], end: int) -> None:
        for offset in [offset for offset in values if offset >= end]:
            del values[offset]

    def ask(self, who: str, partition: PartitionId) -> Asked:
        """A question begins."""
        acked = dict(self._acked.get(partition, {}))
        asked = Asked(who, partition, self._told.get(partition, 0), acked)
        self._asked[asked] = None
        return asked

    def gave_up(self, asked: Asked) -> None:
        """It was refused, or its answer is lost."""
        self._asked.pop(asked, None)

    def told_end(self, asked: Asked, end: int) -> None:
        """It was answered: everything below `end` is committed.

        Raises:
            BrokenInvariantError: Others were told more, or more was acknowledged, before.
        """
        self.gave_up(asked)
        known = max(asked.told, *(offset + 1 for offset in asked.acked), 0)
        if end < known:
            raise BrokenInvariantError(
                "answers",
                f"{asked.who} was told that {asked.partition} is committed up to {end}, and "
                f"before it asked that was {known}",
            )
        self._told[asked.partition] = max(self._told.get(asked.partition, 0), end)

    def read_to_end(
        self, asked: Asked, given: Mapping[int, bytes], start: int, wanted: int = 0
    ) -> None:
        """A bounded read ended well.

        Args:
            asked: The read.
            given: What it gave, by offset.
            start: First offset kept when it ended; what lies before may be missing.
            wanted: First offset that it asked for.

        Raises:
            BrokenInvariantError: Something acknowledged before is missing or another record, or
                records came that were not asked for.
        """
        self.gave_up(asked)
        if min(given, default=wanted) < wanted:
            raise BrokenInvariantError(
                "answers",
                f"{asked.who} read {asked.partition} from {wanted} on and got {min(given)}",
            )
        for offset, value in asked.acked.items():
            if offset >= max(start, wanted) and given.get(offset) != value:
                raise BrokenInvariantError(
                    "answers",
                    f"{asked.who} read {asked.partition} to its end and got "
                    f"{given.get(offset, b'nothing')[:24]!r} at {offset}, where {value[:24]!r} "
                    "had been acknowledged before",
                )


def check_history(
    who: str, held: Held, given: Mapping[int, bytes], epochs: Iterable[tuple[int, int]]
) -> int | None:
    """See that a reader learns by epochs of every record that is another one than it had.

    Args:
        who: Who reads, for the text.
        held: What it had been given before.
        given: What it is given now, by offset.
        epochs: Leader epochs of the log that this comes from.

    Returns:
        From where on it is told to forget what it had, `None` for nowhere.

    Raises:
        BrokenInvariantError: Two contents of one offset, and no epoch that says so.
    """
    cut = cut_at(epochs, held.epoch, held.position)
    for offset, value in given.items():
        known = held.values.get(offset, value)
        if known != value and (cut is None or offset < cut):
            raise BrokenInvariantError(
                "answers",
                f"{who} got {value[:24]!r} at offset {offset}, where {known[:24]!r} was, and the "
                f"epochs say {'nothing of it' if cut is None else f'that only {cut} on is new'}",
            )
    return cut
