"""Check idempotent publishers: the log holds their messages in sequence order (I19)."""

from liftbridge_testkit.sim.broken import BrokenInvariantError
from liftbridge_testkit.sim.history import Checker, FinalLog, History


class PublisherOrder(Checker):
    """Scans the log once."""

    def __init__(self, history: History) -> None:
        self._history = history

    def at_end(self, log: FinalLog) -> None:
        """Check that the sequence numbers of each publisher rise."""
        last: dict[int, int] = {}
        for record in log.records:
            write = self._history.find(record)
            if write is None or not write.is_idempotent:
                continue
            publisher, sequence = write.identity
            if sequence <= last.get(publisher, -1):
                raise BrokenInvariantError(
                    "I19",
                    f"message {sequence} of publisher {publisher} at {record.offset} of "
                    f"{log.partition} follows its message {last[publisher]}",
                )
            last[publisher] = sequence
