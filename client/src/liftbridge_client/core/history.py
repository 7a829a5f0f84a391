"""Which history of a log a reader was given, by leader epochs (KIP-320).

A record keeps its offset for good, except where an unclean election made a replica the leader that
lacked some: from there on the next epoch gives the offsets out again. Of a leader epoch, everything
before the start of the next one is still the same.
"""

from collections.abc import Iterable


def cut_at(epochs: Iterable[tuple[int, int]], epoch: int, position: int) -> int | None:
    """Where a log was cut below a reader.

    Args:
        epochs: Leader epochs of the log with the offset that each begins at.
        epoch: Latest epoch that the reader was given records of.
        position: First offset that it was not given.

    Returns:
        First offset that holds another record now, or none; `None` while all it was given stands.
    """
    later = min((start for one, start in epochs if one > epoch), default=position)
    return later if later < position else None
