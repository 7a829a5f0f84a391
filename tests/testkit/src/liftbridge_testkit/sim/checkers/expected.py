"""Optimistic concurrency: a write that expected an offset and was acked has that offset."""

from liftbridge_testkit.sim.broken import BrokenInvariantError
from liftbridge_testkit.sim.history import Checker, Write


class ExpectedOffsets(Checker):
    """Compares each ack with what was expected."""

    def on_ack(self, write: Write) -> None:
        """The offset must be the one asked for."""
        if write.expected_offset not in {-1, write.offset}:
            raise BrokenInvariantError(
                "expected",
                f"{write.identity} expected {write.expected_offset}, was stored at {write.offset}",
            )
