"""Compare copies of the same records: by buckets first, then by offsets.

A log that is compacted may hold a record that another copy of it does not hold any more. That is no
difference when a later record has its key, or when it was itself the mark of a removed key.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_liftbridge.archive.digest import Digest, key_hashes, record_hashes

BUCKET: Final = 10_000
"""Offsets that are compared by one digest."""

Numbers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]

_EPOCH_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Copy:
    """Records of a range of offsets as one holder has them; an element of each array for a record.

    Attributes:
        name: Of the holder.
        start: First offset that it is to have.
        end: First offset that it need not have.
        offsets: Ascending.
        hashes: Of what all copies must have in common.
        epochs: Leader epochs, `None` where they are not kept as they were.
        keys: Hashes of keys.
        may_go: Whether compaction may remove it with nothing behind it: it marks a removed key.
        is_kept: Whether compaction never removes it: it has no key.
    """

    name: str
    start: int
    end: int
    offsets: Numbers
    hashes: Hashes
    epochs: Numbers | None
    keys: Hashes
    may_go: Flags
    is_kept: Flags

    def within(self, start: int, end: int) -> "Copy":
        """What of it lies in a range, which is cut to its own."""
        start, end = max(start, self.start), min(end, self.end)
        low, high = np.searchsorted(self.offsets, (start, max(start, end)))
        part = slice(int(low), int(high))
        return replace(
            self,
            start=start,
            end=end,
            offsets=self.offsets[part],
            hashes=self.hashes[part],
            epochs=None if self.epochs is None else self.epochs[part],
            keys=self.keys[part],
            may_go=self.may_go[part],
            is_kept=self.is_kept[part],
        )


class Unlike(NamedTuple):
    """Offsets at which two copies are not the same, each ascending.

    Attributes:
        lacks_first: The second has a record that the first has not.
        lacks_second: The first has a record that the second has not.
        contents: Both have a record, and they are not the same.
        epochs: Both have the same record, of other leader epochs.
    """

    lacks_first: Numbers
    lacks_second: Numbers
    contents: Numbers
    epochs: Numbers


def copy_of(
    name: str, start: int, end: int, batches: Iterable[pa.RecordBatch], *, has_epochs: bool
) -> Copy:
    """A copy, of its records in the order of offsets.

    Args:
        name: Of the holder.
        start: First offset.
        end: First offset not in it.
        batches: With the columns of an archive, but for stream, partition and timestamp.
        has_epochs: Whether leader epochs are those of the log.
    """
    parts = [_arrays(batch) for batch in batches if batch.num_rows]
    columns = [np.concatenate(column) for column in zip(_NOTHING, *parts, strict=True)]
    offsets, hashes, epochs, keys, may_go, is_kept = columns
    return Copy(
        name, start, end, offsets, hashes, epochs if has_epochs else None, keys, may_go, is_kept
    )


_NOTHING: Final = (
    np.zeros(0, np.int64),
    np.zeros(0, np.uint64),
    np.zeros(0, np.int64),
    np.zeros(0, np.uint64),
    np.zeros(0, np.bool_),
    np.zeros(0, np.bool_),
)


def _arrays(batch: pa.RecordBatch) -> tuple[npt.NDArray[np.generic], ...]:
    is_kept = pc.is_null(batch.column("key")).to_numpy(zero_copy_only=False)
    is_empty = pc.equal(pc.binary_length(batch.column("value")), 0).to_numpy(zero_copy_only=False)
    epochs = batch.column("leader_epoch").fill_null(-1)
    return (
        batch.column("offset").to_numpy(),
        record_hashes(batch),
        epochs.to_numpy(),
        key_hashes(batch),
        is_empty & ~is_kept,
        is_kept,
    )


def compare(first: Copy, second: Copy) -> Iterator[Unlike]:
    """Where two copies are not the same, of offsets that both are to have; a bucket at a time."""
    start, end = max(first.start, second.start), min(first.end, second.end)
    if start >= end:
        return
    one, other = first.within(start, end), second.within(start, end)
    has_epochs = one.epochs is not None and other.epochs is not None
    digests = _digests(one, has_epochs=has_epochs), _digests(other, has_epochs=has_epochs)
    for bucket in sorted(digests[0].keys() | digests[1].keys()):
        if digests[0].get(bucket) != digests[1].get(bucket):
            at = bucket * BUCKET
            yield _unlike(one.within(at, at + BUCKET), other.within(at, at + BUCKET))


def _digests(copy: Copy, *, has_epochs: bool) -> dict[int, Digest]:
    """Digest of each bucket that has a record."""
    hashes = copy.hashes
    if has_epochs:
        assert copy.epochs is not None, "the caller looked"
        hashes = hashes * np.uint64(3) + copy.epochs.view(np.uint64) * _EPOCH_FACTOR
    if not len(hashes):
        return {}
    buckets = copy.offsets // BUCKET
    starts = np.concatenate(([0], np.flatnonzero(np.diff(buckets)) + 1))
    counts = np.diff(np.concatenate((starts, [len(hashes)])))
    xors = np.bitwise_xor.reduceat(hashes, starts)
    totals = np.add.reduceat(hashes, starts)
    rows = zip(buckets[starts], counts, xors, totals, strict=True)
    return {
        int(bucket): Digest(int(count), int(xor), int(total)) for bucket, count, xor, total in rows
    }


def _unlike(one: Copy, other: Copy) -> Unlike:
    both, at_one, at_other = np.intersect1d(
        one.offsets, other.offsets, assume_unique=True, return_indices=True
    )
    is_same = one.hashes[at_one] == other.hashes[at_other]
    is_other_epoch = np.zeros(len(both), np.bool_)
    if one.epochs is not None and other.epochs is not None:
        is_other_epoch = is_same & (one.epochs[at_one] != other.epochs[at_other])
    return Unlike(
        np.setdiff1d(other.offsets, both, assume_unique=True),
        np.setdiff1d(one.offsets, both, assume_unique=True),
        both[~is_same],
        both[is_other_epoch],
    )


class Lacking(NamedTuple):
    """Records that another copy lacks.

    Attributes:
        gone: Offsets of those that compaction may have removed.
        open: Offsets of those that it may not, as far as is known.
        open_keys: Hashes of their keys, for a look at what follows the range.
        open_is_kept: Whether they have none, so that nothing that follows helps.
    """

    gone: Numbers
    open: Numbers
    open_keys: Hashes
    open_is_kept: Flags


def lacking(holder: Copy, offsets: Numbers) -> Lacking:
    """What compaction may have to do with records that only one copy has.

    Args:
        holder: The copy that has them.
        offsets: Theirs.
    """
    at = np.searchsorted(holder.offsets, offsets)
    # The first of each key in reverse order is its last.
    _, last = np.unique(holder.keys[::-1], return_index=True)
    is_last = np.zeros(len(holder.offsets), np.bool_)
    is_last[len(is_last) - 1 - last] = True
    may_go = ~holder.is_kept[at] & (holder.may_go[at] | ~is_last[at])
    left = at[~may_go]
    return Lacking(offsets[may_go], offsets[~may_go], holder.keys[left], holder.is_kept[left])


def appear_later(
    found: Lacking, read: Callable[[int, int], Copy], at: int, end: int, step: int
) -> Flags:
    """Which of the open records have their key in what follows.

    Args:
        found: The records.
        read: Gives what their holder has of a range.
        at: Where what follows begins.
        end: Where it ends.
        step: Offsets that are read at a time.
    """
    is_found = np.zeros(len(found.open), np.bool_)
    while at < end and not (is_found | found.open_is_kept).all():
        later = read(at, min(at + step, end))
        is_found |= np.isin(found.open_keys, later.keys[~later.is_kept]) & ~found.open_is_kept
        at += step
    return is_found


def runs(offsets: Numbers) -> list[tuple[int, int]]:
    """Neighbouring offsets as ranges, the ends exclusive."""
    if not len(offsets):
        return []
    cuts = np.flatnonzero(np.diff(offsets) != 1) + 1
    return [(int(part[0]), int(part[-1]) + 1) for part in np.split(offsets, cuts)]
