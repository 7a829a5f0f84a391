"""The log as readers and look-ups see it."""

from typing import Protocol

from liftbridge_broker.model.ids import Offset
from liftbridge_broker.storage.segment import Segment


class LogView(Protocol):
    """The reading side of `PartitionLog`, so that its readers do not depend on all of it.

    Attributes:
        log_start_offset: First offset readers may see.
        log_end_offset: First offset after the log.
        generation: Changes when segments are cut, dropped or replaced.
    """

    log_start_offset: Offset
    log_end_offset: Offset
    generation: int

    def segment_at(self, offset: Offset) -> Segment | None:
        """The segment whose range holds an offset, `None` outside of the log."""
        ...

    def live_segments(self) -> tuple[Segment, ...]:
        """All segments, oldest first."""
        ...
