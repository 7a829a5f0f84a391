"""The leader-epoch cache of one log (KIP-101, KIP-279).

An entry has an epoch and its start offset. Entries rise strictly in both fields. Epochs without
data are kept: forgetting them causes endless out-of-range answers (KAFKA-15608). The owner of the
log makes changes durable through the journal before other brokers rely on them. The rules are in
docs/spec/replication.md ("Leader-epoch cache").
"""

from bisect import bisect_right
from collections.abc import Sequence

from liftbridge_broker.model.ids import LeaderEpoch, Offset


class LeaderEpochCache:
    """Epochs of one log, owned by its `PartitionLog`."""

    __slots__ = ("_epochs", "_starts", "version")

    def __init__(self, entries: Sequence[tuple[LeaderEpoch, Offset]] = ()) -> None:
        """Load entries from the journal.

        An entry that does not rise is dropped with all after it: only damage causes it, and the
        scan of the log restores the entries.
        """
        self._epochs: list[LeaderEpoch] = []
        self._starts: list[Offset] = []
        self.version = 0
        for epoch, start in entries:
            if self._epochs and (epoch <= self._epochs[-1] or start <= self._starts[-1]):
                break
            self._epochs.append(epoch)
            self._starts.append(start)

    @property
    def entries(self) -> tuple[tuple[LeaderEpoch, Offset], ...]:
        """All entries, oldest first; what the journal stores."""
        return tuple(zip(self._epochs, self._starts, strict=True))

    @property
    def latest(self) -> LeaderEpoch | None:
        """Newest epoch, `None` when none is known."""
        return self._epochs[-1] if self._epochs else None

    def assign(self, epoch: LeaderEpoch, start: Offset) -> bool:
        """Record that an epoch starts at an offset.

        Entries that contradict the new one, with this epoch or a later one or with this start or a
        later one, are removed first. A known epoch keeps its start unless the new one is before it.

        Returns:
            Whether anything changed, so that the journal must be updated.
        """
        if self._epochs and self._epochs[-1] == epoch and self._starts[-1] <= start:
            return False
        while self._epochs and (
            self._epochs[-1] >= epoch  # guard Epochs.epoch
            or self._starts[-1] >= start  # guard Epochs.start
        ):
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start)
        self.version += 1
        return True

    def end_offset_for(
        self, epoch: LeaderEpoch, log_end_offset: Offset
    ) -> tuple[LeaderEpoch, Offset] | None:
        """Return the end of the records of an epoch, as a leader answers a fetch (L3).

        Args:
            epoch: Requested epoch.
            log_end_offset: End of the log, at which the newest epoch ends.

        Returns:
            The largest known epoch not above `epoch` with the start of the next one, or `epoch`
            with the start of the first entry if all are above; `None` if `epoch` is newer than any
            known epoch, or none is known.
        """
        if not self._epochs or epoch > self._epochs[-1]:
            return None
        behind = bisect_right(self._epochs, epoch)
        if behind == 0:
            return epoch, self._starts[0]
        end = self._starts[behind] if behind < len(self._starts) else log_end_offset
        return self._epochs[behind - 1], end

    def epoch_at(self, offset: Offset) -> LeaderEpoch | None:
        """Return the epoch of the record at `offset`, `None` below the first entry."""
        behind = bisect_right(self._starts, offset)
        return self._epochs[behind - 1] if behind else None

    def truncate(self, end: Offset) -> bool:
        """Remove entries that start at or after `end`; return whether there were any.

        An epoch without data may begin exactly at the end of the log. A truncation there for
        divergence must remove it too (KAFKA-10706).
        """
        before = len(self._epochs)
        while self._starts and self._starts[-1] >= end:  # guard Epochs.truncate
            self._epochs.pop()
            self._starts.pop()
        return self._note(before)

    def drop_beyond(self, end: Offset) -> bool:
        """Remove entries that start after `end`, which a crash left without their records."""
        before = len(self._epochs)
        while self._starts and self._starts[-1] > end:
            self._epochs.pop()
            self._starts.pop()
        return self._note(before)

    def clamp(self, log_start: Offset) -> bool:
        """Forget epochs that ended at or below `log_start`.

        The epoch in force there starts at it.
        """
        behind = bisect_right(self._starts, log_start)
        if behind == 0 or (behind == 1 and self._starts[0] == log_start):
            return False
        del self._epochs[: behind - 1]
        del self._starts[: behind - 1]
        self._starts[0] = log_start
        self.version += 1
        return True

    def clear(self) -> None:
        """Forget everything: the log restarts at another offset."""
        if self._epochs:
            self._epochs.clear()
            self._starts.clear()
            self.version += 1

    def _note(self, before: int) -> bool:
        changed = len(self._epochs) != before
        self.version += changed
        return changed
