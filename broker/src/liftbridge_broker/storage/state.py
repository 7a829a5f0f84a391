"""What the journal remembers of a partition's log, and the log starts from."""

from typing import NamedTuple

from liftbridge_broker.model.ids import LeaderEpoch, Offset


class LogState(NamedTuple):
    """Small state of one log (storage policy 10). Ends are exclusive.

    Attributes:
        log_start: First offset that may be read.
        recovery_point: Everything below it was synced.
        high_watermark: First offset not known to be committed.
        epochs: Leader epochs and the offset each began at, strictly rising in both.
    """

    log_start: Offset
    recovery_point: Offset
    high_watermark: Offset
    epochs: tuple[tuple[LeaderEpoch, Offset], ...]
