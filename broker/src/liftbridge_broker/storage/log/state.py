"""State of a partition's log that the journal stores and from which the log starts."""

from typing import NamedTuple

from liftbridge_broker.model.ids import LeaderEpoch, Offset


class LogState(NamedTuple):
    """Small state of one log (storage policy 10). Ends are exclusive.

    Attributes:
        log_start: First readable offset.
        recovery_point: Offset below which everything is synced.
        high_watermark: First offset not known to be committed.
        epochs: Leader epochs with their start offsets, strictly rising in both.
    """

    log_start: Offset
    recovery_point: Offset
    high_watermark: Offset
    epochs: tuple[tuple[LeaderEpoch, Offset], ...]
