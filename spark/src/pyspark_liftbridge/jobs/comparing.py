"""Compare copies of the same records: by buckets first, then by offsets.

A compacted log may hold a record that another copy no longer holds. That is no difference if a
later record has its key, or if the record is a tombstone.
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
"""Number of offsets that one digest covers."""

Numbers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]

_EPOCH_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Copy:
    """One holder's records of a range of offsets; each array has an element for each record.

    Attributes:
        name: Name of the holder.
        start: First offset that the copy must have.
        end: First offset that it need not have.
        offsets: Offsets of the records, ascending.
        hashes: Hashes of the fields that all copies must have in common.
        epochs: Leader epochs, `None` if the holder does not preserve them.
        keys: Hashes of keys.
        may_go: Whether compaction may remove it without a later record: it is a tombstone.
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
        """Cut the copy to a range."""
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
    """Offsets at which two copies differ, each ascending.

    Attributes:
        lacks_first: The second has a record that the first lacks.
        lacks_second: The first has a record that the second lacks.
        contents: Both have a record, and the records differ.
        epochs: Both have the same record, with different leader epochs.
    """

    lacks_first: Numbers
    lacks_second: Numbers
    contents: Numbers
    epochs: Numbers


def copy_of(
    name: str, start: int, end: int, batches: Iterable[pa.RecordBatch], *, has_epochs: bool
) -> Copy:
    """Build a copy from its records in the order of offsets.

    Args:
        name: Name of the holder.
        start: First offset.
        end: First offset not in it.
        batches: Records with the columns of an archive, except stream, partition and timestamp.
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
    """Iterate over the differences of two copies at offsets that both must have, by bucket."""
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
    """Compute the digest of each bucket that has a record."""
    hashes = copy.hashes
    if has_epochs:
        assert copy.epochs is not None, "the caller checked that"
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
        gone: Offsets of records that compaction may have removed.
        open: Offsets of the other records, for which no later record of the key is known yet.
        open_keys: Hashes of their keys, to search for in the records after the range.
        open_is_kept: Whether they have no key, so that no later record can explain them.
    """

    gone: Numbers
    open: Numbers
    open_keys: Hashes
    open_is_kept: Flags


def lacking(holder: Copy, offsets: Numbers) -> Lacking:
    """Decide which records of one copy compaction may have removed from the other copy.

    Args:
        holder: The copy that has the records.
        offsets: Offsets of the records.
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
    """Find the open records whose key occurs in later records.

    Args:
        found: The records.
        read: Returns their holder's records of a range.
        at: First offset of the later records.
        end: First offset after them.
        step: Number of offsets read at a time.
    """
    is_found = np.zeros(len(found.open), np.bool_)
    while at < end and not (is_found | found.open_is_kept).all():
        later = read(at, min(at + step, end))
        is_found |= np.isin(found.open_keys, later.keys[~later.is_kept]) & ~found.open_is_kept
        at += step
    return is_found


def runs(offsets: Numbers) -> list[tuple[int, int]]:
    """Join adjacent offsets to ranges with exclusive ends."""
    if not len(offsets):
        return []
    cuts = np.flatnonzero(np.diff(offsets) != 1) + 1
    return [(int(part[0]), int(part[-1]) + 1) for part in np.split(offsets, cuts)]
