"""Which history of a log a reader was given, by leader epochs (KIP-320).

A record keeps its offset for good, except where an unclean election made a replica the leader that
lacked some: from there on the next epoch gives the offsets out again. Of a leader epoch, everything
before the start of the next one is still the same. The elected replica may also have records of a
former leader that were never committed, where the reader was given those of a later one: then its
log knows nothing of that later epoch.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

EPOCHS_MAX: Final = 100
"""Leader epochs that a reader keeps, the newest ones."""


class ReadHistory:
    """Leader epochs of the records that a reader was given, with where each begins.

    Attributes:
        epochs: Each with the offset that it begins at, as far as the reader knows, ascending.
    """

    __slots__ = ("epochs",)

    def __init__(self) -> None:
        self.epochs: deque[tuple[int, int]] = deque(maxlen=EPOCHS_MAX)

    @property
    def latest(self) -> int:
        """The latest one, 0 for none."""
        return self.epochs[-1][0] if self.epochs else 0

    def note(self, epoch: int, start: int) -> None:
        """Note that records of an epoch follow; an earlier one follows in another history only."""
        if epoch < self.latest:
            self.epochs.clear()
        if epoch != self.latest:
            self.epochs.append((epoch, start))


def cut_at(
    epochs: Iterable[tuple[int, int]], unclean_epoch: int, read: ReadHistory, position: int
) -> int | None:
    """Where a log was cut below a reader.

    Args:
        epochs: Leader epochs of the log with the offset that each begins at, ascending.
        unclean_epoch: That of the last election that may have lost records, 0 for none.
        read: What the reader was given.
        position: First offset that it was not given.

    Returns:
        First offset that holds another record now, or none; `None` while all it was given stands.
        Where the log shares no epoch with the reader, it is the first offset that either knows.
    """
    cut = _fork(dict(epochs), unclean_epoch, read, position)
    if cut >= position or not read.epochs:
        return None
    return max(cut, read.epochs[0][1])


def _fork(log: Mapping[int, int], unclean_epoch: int, read: ReadHistory, position: int) -> int:
    """First offset at which a log differs, `position` when it does not."""
    latest = read.latest
    end = min((start for epoch, start in log.items() if epoch > latest), default=position)
    # A replica that has nothing of after the election yet proves nothing.
    if latest in log or not max(log, default=0) >= unclean_epoch > latest:
        return end
    first = min(log.values())
    for epoch, start in reversed(read.epochs):
        if epoch in log:
            end = min([end, *(start for one, start in log.items() if one > epoch)])
            break
        end = min(end, start)
    return max(end, first)  # what retention removed cannot be compared
