"""Check optimistic concurrency: an acked write with an expected offset has that offset."""

from liftbridge_testkit.sim.broken import BrokenInvariantError
from liftbridge_testkit.sim.history import Checker, Write


class ExpectedOffsets(Checker):
    """Compares each ack with the expected offset."""

    def on_ack(self, write: Write) -> None:
        """Check that the offset is the expected one."""
        if write.expected_offset not in {-1, write.offset}:
            raise BrokenInvariantError(
                "expected",
                f"{write.identity} expected {write.expected_offset}, was stored at {write.offset}",
            )
