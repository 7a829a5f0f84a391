"""Check that a log holds only published messages, each at most once (I18).

A refused write is not stored. A write with an unknown outcome may be stored once. An idempotent
write may be sent many times and is stored once.
"""

from liftbridge_broker.model.ids import PartitionId
from liftbridge_testkit.sim.broken import BrokenInvariantError
from liftbridge_testkit.sim.history import Checker, FinalLog, History, Outcome, Record, Write


class OnlyWhatWasPublished(Checker):
    """Looks each record up in the history."""

    def __init__(self, history: History) -> None:
        self._history = history

    def _write_of(self, partition: PartitionId, record: Record) -> Write:
        write = self._history.find(record)
        if write is None or write.partition != partition:
            raise BrokenInvariantError(
                "published",
                f"offset {record.offset} of {partition} holds what nobody published there: "
                f"{record.name[:24]!r}",
            )
        if write.outcome is Outcome.REFUSED:
            raise BrokenInvariantError(
                "refused", f"{write.identity} was refused and is at {record.offset} of {partition}"
            )
        return write

    def on_seen(self, partition: PartitionId, reader: str, record: Record, log_start: int) -> None:
        """Check that a delivered record was published."""
        del reader, log_start
        self._write_of(partition, record)

    def at_end(self, log: FinalLog) -> None:
        """Check that every stored record was published, and is stored once."""
        places: dict[tuple[int, int], int] = {}
        for record in log.records:
            identity = self._write_of(log.partition, record).identity
            other = places.setdefault(identity, record.offset)
            if other != record.offset:
                raise BrokenInvariantError(
                    "I18", f"{identity} is at {other} and at {record.offset} of {log.partition}"
                )
