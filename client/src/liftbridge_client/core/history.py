"""The history of a log that a reader has read, by leader epochs (KIP-320).

A record keeps its offset for good, unless an unclean election elects a replica that lacks records:
from its log end offset on, the next epoch assigns the offsets again. Within a leader epoch, all
records before the start of the next epoch stay the same. The elected replica may also have
uncommitted records of a former leader at offsets where the reader has read those of a later one:
then its log lacks that later epoch.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

EPOCHS_MAX: Final = 100
"""Maximum number of leader epochs that a reader keeps, the newest ones."""


class ReadHistory:
    """Leader epochs of the records that a reader has read, with the start offset of each.

    Attributes:
        epochs: Each with its start offset, as far as the reader knows, ascending.
    """

    __slots__ = ("epochs",)

    def __init__(self) -> None:
        self.epochs: deque[tuple[int, int]] = deque(maxlen=EPOCHS_MAX)

    @property
    def latest(self) -> int:
        """Latest leader epoch, 0 for none."""
        return self.epochs[-1][0] if self.epochs else 0

    def note(self, epoch: int, start: int) -> None:
        """Note that records of an epoch follow; an earlier epoch belongs to another history."""
        if epoch < self.latest:
            self.epochs.clear()
        if epoch != self.latest:
            self.epochs.append((epoch, start))


def cut_at(
    epochs: Iterable[tuple[int, int]], unclean_epoch: int, read: ReadHistory, position: int
) -> int | None:
    """Find the offset at which a log was truncated below a reader's position.

    Args:
        epochs: Leader epochs of the log with their start offsets, ascending.
        unclean_epoch: Leader epoch of the last election that may have lost records, 0 for none.
        read: Records that the reader has read.
        position: First offset not read.

    Returns:
        First offset that now holds another record, or no record; `None` if the log still has all
        records read. If the log shares no epoch with the reader, the first offset that either
        knows.
    """
    cut = _fork(dict(epochs), unclean_epoch, read, position)
    if cut >= position or not read.epochs:
        return None
    return max(cut, read.epochs[0][1])


def _fork(log: Mapping[int, int], unclean_epoch: int, read: ReadHistory, position: int) -> int:
    """Find the first offset at which a log differs, `position` if it does not."""
    latest = read.latest
    end = min((start for epoch, start in log.items() if epoch > latest), default=position)
    # A replica without records from after the election proves nothing.
    if latest in log or not max(log, default=0) >= unclean_epoch > latest:
        return end
    first = min(log.values())
    for epoch, start in reversed(read.epochs):
        if epoch in log:
            end = min([end, *(start for one, start in log.items() if one > epoch)])
            break
        end = min(end, start)
    return max(end, first)  # records that retention removed cannot be compared
