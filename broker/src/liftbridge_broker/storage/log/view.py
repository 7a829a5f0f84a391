"""Interface of a log for its readers and look-ups."""

from typing import Protocol

from liftbridge_broker.model.ids import Offset
from liftbridge_broker.storage.log.segment import Segment


class LogView(Protocol):
    """Part of `PartitionLog` that readers use.

    Attributes:
        log_start_offset: First offset that readers may read.
        log_end_offset: First offset after the log.
        generation: Changes when segments are cut, dropped or replaced.
    """

    log_start_offset: Offset
    log_end_offset: Offset
    generation: int

    def segment_at(self, offset: Offset) -> Segment | None:
        """Return the segment whose range holds an offset, `None` outside of the log."""
        ...

    def live_segments(self) -> tuple[Segment, ...]:
        """Return all segments, oldest first."""
        ...
