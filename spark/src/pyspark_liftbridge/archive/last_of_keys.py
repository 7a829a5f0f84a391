"""Decide which records of a partition compaction by key keeps.

The last record of each key stays, and every record without a key. A last record with an empty value
is a tombstone: it marks the key as deleted, and is itself removed once it is old enough.

Distinct keys are held in memory. If they exceed `KEYS_BYTES_MAX`, files are read several times,
each time for a share of the keys.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_liftbridge.archive.contents import read_columns
from pyspark_liftbridge.archive.delta_log import delta
from pyspark_liftbridge.archive.digest import key_hashes
from pyspark_liftbridge.archive.errors import ArchiveError
from pyspark_liftbridge.archive.stores.store import Store

KEYS_BYTES_MAX: Final = 512 << 20
"""Maximum number of bytes of distinct keys, with their offsets, held at a time."""

SHARES: Final = (1, 8, 64)
"""Numbers of shares to divide keys into; the next number if a share is too large."""

_REDUCE_ROWS: Final = 500_000
_REDUCE_SHARE: Final = 4
"""Duplicate keys are merged when this many are buffered, or this part of the memory."""

_Offsets = npt.NDArray[np.int64]


class Kept(NamedTuple):
    """Records with a key that stay.

    Attributes:
        offsets: Offsets of these records, ascending: eight bytes for each distinct key.
        keyed: Number of records with a key in each file, whether they stay or not.
    """

    offsets: _Offsets
    keyed: tuple[int, ...]

    def is_changed(self, at: int, origin: delta.Origin) -> bool:
        """Return whether any record of a file is removed, by the file's index and range."""
        first, last = np.searchsorted(self.offsets, (origin.start, origin.end))
        return bool(self.keyed[at] > last - first)

    def of(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Filter records to those that stay."""
        offsets = records.column("offset").to_numpy()
        places = np.searchsorted(self.offsets, offsets)
        is_last = np.append(self.offsets, -1)[places] == offsets
        is_keyless = records.column("key").is_null().to_numpy(zero_copy_only=False)
        return records.filter(pa.array(is_last | is_keyless))


def last_of_keys(
    store: Store,
    files: Sequence[delta.Add],
    *,
    tombstones_from_us: int,
    memory: int = KEYS_BYTES_MAX,
) -> Kept:
    """Find the records that stay.

    Args:
        store: The folder of the table.
        files: All files of one partition.
        tombstones_from_us: Tombstones of this time or later stay, in microseconds since 1970.
        memory: Limit of memory in bytes, as `KEYS_BYTES_MAX`.

    Raises:
        ArchiveError: There are more keys than fit into memory.
        DamagedError, StoreError: As for `read_columns`.
    """
    for shares in SHARES:
        parts: list[_Offsets] = []
        for share in range(shares):
            lasts = _lasts(store, files, share, shares, memory)
            if lasts is None:
                break
            parts.append(lasts)
        else:
            dead, keyed = _dead(store, files, tombstones_from_us)
            offsets = np.setdiff1d(np.concatenate(parts), dead, assume_unique=True)
            return Kept(np.sort(offsets), keyed)
    raise ArchiveError(
        f"partition with {files[0].path}: a share of 1/{SHARES[-1]} of its keys needs more than "
        f"{memory} bytes; it cannot be compacted by key"
    )


def _lasts(
    store: Store, files: Sequence[delta.Add], share: int, shares: int, memory: int
) -> _Offsets | None:
    """Find the offset of the last record of each key of a share.

    `None` if the keys do not fit in memory.
    """
    known: pa.Table | None = None
    waiting: list[pa.RecordBatch] = []
    rows = size = 0

    def reduced() -> pa.Table:
        tables = [] if known is None else [known]
        whole = pa.concat_tables([*tables, pa.Table.from_batches(waiting)])
        grouped = whole.group_by("key", use_threads=False).aggregate([("offset", "max")])
        return pa.table([grouped["key"], grouped["offset_max"]], schema=whole.schema)

    for batch in _keyed(store, files, share, shares):
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= _REDUCE_ROWS or size >= memory // _REDUCE_SHARE:
            known, waiting, rows, size = reduced(), [], 0, 0
            if known.nbytes > memory:
                return None
    if waiting:
        known = reduced()
    if known is None:
        return np.zeros(0, np.int64)
    return None if known.nbytes > memory else known.column("offset").to_numpy()


def _keyed(
    store: Store, files: Sequence[delta.Add], share: int, shares: int
) -> Iterator[pa.RecordBatch]:
    """Read the keys and offsets of a share."""
    for add in files:
        for batch in read_columns(store, add, ["key", "offset"]):
            keyed = batch.filter(batch.column("key").is_valid())
            if shares > 1:
                own = key_hashes(keyed) % np.uint64(shares) == np.uint64(share)
                keyed = keyed.filter(pa.array(own))
            if keyed.num_rows:
                yield keyed


def _dead(
    store: Store, files: Sequence[delta.Add], tombstones_from_us: int
) -> tuple[_Offsets, tuple[int, ...]]:
    """Find the offsets of old records without a value, and count each file's records with a key."""
    parts: list[_Offsets] = [np.zeros(0, np.int64)]
    keyed = []
    for add in files:
        count = 0
        for batch in read_columns(store, add, ["key", "offset", "timestamp", "value"]):
            count += batch.num_rows - batch.column("key").null_count
            is_empty = pc.equal(pc.binary_length(batch.column("value")), 0)
            is_old = pc.less(batch.column("timestamp").cast(pa.int64()), tombstones_from_us)
            is_dead = pc.and_(is_empty, is_old)
            parts.append(batch.column("offset").filter(is_dead).to_numpy(zero_copy_only=False))
        keyed.append(count)
    return np.concatenate(parts), tuple(keyed)
