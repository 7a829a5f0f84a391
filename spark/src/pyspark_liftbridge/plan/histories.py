"""Decide whether a log still has the records read from it, across unclean elections.

An unclean election begins another history of a partition, in which offsets may have other records;
`unclean_epoch` names it. Often it loses nothing. Then the log still has the last record that was
read, with the same leader epoch, and all records below it are the same (KIP-101). If the log no
longer has a record there, this cannot be decided.
"""

from collections.abc import Iterator
from typing import NamedTuple

from pyspark_liftbridge.plan.offsets import History, Offsets, PartitionId, StreamOffsets
from pyspark_liftbridge.plan.places import Bounds, Known


class DivergedError(RuntimeError):
    """A log may have other records at offsets that were read, and `failOnDataLoss` is set."""


class Read(NamedTuple):
    """History and end offset of the records read from a partition.

    Attributes:
        unclean_epoch: History of the partition.
        leader_epoch: Leader epoch of the record before `end`; 0 if unknown.
        end: First offset not read.
    """

    unclean_epoch: int
    leader_epoch: int
    end: int


def read_of(known: Known, end: int) -> Read | None:
    """Describe a read up to an offset by current bounds; `None` if the history is unknown."""
    if known.unclean_epoch is None:
        return None
    return Read(known.unclean_epoch, known.leader_epoch_at(end - 1) or 0, end)


def has_diverged(read: Read, known: Known) -> bool:
    """Return whether a log may have other records at offsets that were read before.

    Args:
        read: The earlier read.
        known: Bounds of the log from a leader. Their history is not earlier: brokers refuse reads
            that name a later history.
    """
    if known.unclean_epoch is None or known.unclean_epoch <= read.unclean_epoch:
        return False
    # Retention may have removed the record. Then the first record kept decides: below a record of
    # the same leader epoch, the two logs are the same.
    at = max(read.end - 1, known.earliest)
    return known.leader_epoch_at(at) != read.leader_epoch


def divergence(
    stream: str, partition: int, read: Read, known: Known, done: str = "archived"
) -> str:
    """Format the error for a log that has diverged from the records archived or read from it."""
    at = known.leader_epoch_at(read.end - 1)
    has = "nothing" if at is None or read.end > known.latest else f"one of leader epoch {at}"
    return (
        f"{stream}/{partition}: offsets up to {read.end - 1} were {done} in history "
        f"{read.unclean_epoch}, the last one by leader epoch {read.leader_epoch}, but the log is "
        f"in history {known.unclean_epoch} and has {has} there: an unclean election may have "
        f"given {done} offsets to other records"
    )


def with_histories(end: Offsets, start: Offsets, bounds: Bounds) -> Offsets:
    """Add to the end of a micro-batch the history in which each partition is read.

    A partition without records to read keeps the history in `start`, so that equal offsets stay
    equal. Nothing is read from a new partition.
    """
    streams = {
        name: stream._replace(
            histories=dict(_histories(name, stream, start.streams.get(name), bounds))
        )
        for name, stream in end.streams.items()
    }
    return Offsets(streams)


def _histories(
    name: str, stream: StreamOffsets, former: StreamOffsets | None, bounds: Bounds
) -> Iterator[tuple[int, History]]:
    if former is None or former.stream_id != stream.stream_id:
        return
    for number, begin in former.next_offsets.items():
        end = stream.next_offsets.get(number)
        if end == begin:
            history = former.histories.get(number)
        else:
            history = _history(bounds.get(PartitionId(name, number)), end)
        if history is not None:
            yield number, history


def _history(known: Known | None, end: int | None) -> History | None:
    read = None if known is None or end is None else read_of(known, end)
    return None if read is None else History(read.unclean_epoch, read.leader_epoch)


def divergences(read: Offsets, bounds: Bounds) -> Iterator[str]:
    """Yield a text for each log that may have other records at offsets that a query has read."""
    for one, end in read.partitions():
        stream, known = read.streams[one.stream], bounds.get(one)
        history = stream.histories.get(one.number)
        if history is None or known is None or known.stream_id != stream.stream_id:
            continue
        was = Read(*history, end)
        if has_diverged(was, known):  # guard Source.history
            yield divergence(one.stream, one.number, was, known, "read")
