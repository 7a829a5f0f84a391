"""The log of a replica, as the cores of its partition read it."""

from typing import Protocol

from liftbridge_broker.model.ids import LeaderEpoch, Offset
from liftbridge_broker.model.partitions import Copied


class Epochs(Protocol):
    """Leader epochs of a log; `LeaderEpochCache` is one."""

    @property
    def latest(self) -> LeaderEpoch | None:
        """Newest epoch, `None` if unknown."""
        ...

    def end_offset_for(
        self, epoch: LeaderEpoch, log_end_offset: Offset, /
    ) -> tuple[LeaderEpoch, Offset] | None:
        """Return the largest known epoch not above `epoch`, and its end offset.

        If all known epochs are above, return `epoch` with the start of the first entry. If `epoch`
        is newer than any known epoch, return `None`.
        """
        ...


class LogBounds(Protocol):
    """Offsets between which a log holds records."""

    @property
    def log_start_offset(self) -> Offset:
        """First offset that the log holds."""
        ...

    @property
    def log_end_offset(self) -> Offset:
        """Offset the next record will get."""
        ...

    @property
    def high_watermark(self) -> Offset:
        """First offset not known to be committed; the owner stores the cores' value."""
        ...


class LogView(LogBounds, Protocol):
    """The log of a replica as its core reads it; `PartitionLog` is one.

    Invariants: log_start_offset <= high_watermark <= log_end_offset, and recovery_point <=
    log_end_offset.
    """

    @property
    def recovery_point(self) -> Offset:
        """Offset below which all records are on disk."""
        ...

    @property
    def compacted_offset(self) -> Offset:
        """Offset below which each key has only its newest record."""
        ...

    @property
    def compacted_from(self) -> Offset:
        """Offset below which compaction has removed nothing; the log end without compaction."""
        ...

    @property
    def dropped_offset(self) -> Offset:
        """Offset below which tombstones may be removed; the records they deleted are removed."""
        ...

    @property
    def copied(self) -> Copied:
        """Return the end that a copy of a compacted log must reach."""
        ...

    @property
    def epochs(self) -> Epochs:
        """Leader epochs."""
        ...
