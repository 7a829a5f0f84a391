"""Write files that replace other files.

Either small files are joined, or records are left out that a later record of their key has
replaced. Files to remove are read completely and compared with the log, so that damage never
becomes part of a new file. New files are part of the table once their entry is written.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa

from pyspark_liftbridge.archive.compaction import Group
from pyspark_liftbridge.archive.contents import read_records
from pyspark_liftbridge.archive.delta_log import delta
from pyspark_liftbridge.archive.fence import Rewrite
from pyspark_liftbridge.archive.files import Chance, Place, Sizes, write_files
from pyspark_liftbridge.archive.last_of_keys import last_of_keys
from pyspark_liftbridge.archive.stores.store import Store


class Target(NamedTuple):
    """Place to write files to, and their stream.

    Attributes:
        store: The folder of the table.
        stream: Name of the stream.
        stream_id: Id of the stream.
        chance: Random names and the time.
        sizes: Sizes at which files end.
    """

    store: Store
    stream: str
    stream_id: int
    chance: Chance
    sizes: Sizes = Sizes()


def join_files(target: Target, group: Group) -> Rewrite:
    """Join adjacent files to one file or a few.

    Raises:
        DamagedError: A file does not match its action.
        StoreError: The store does not answer.
    """
    adds = _write(target, group, _records(target.store, group.files))
    return Rewrite(group.span, group.files, adds)


def keep_last_of_keys(target: Target, group: Group, *, tombstones_from_us: int) -> Rewrite | None:
    """Rewrite the files of a partition that hold a record to remove.

    Args:
        target: Place to write to.
        group: All files of the partition.
        tombstones_from_us: Tombstones of this time or later stay, in microseconds since 1970.

    Returns:
        `None` if every record stays.

    Raises:
        ArchiveError: There are more keys than fit into memory.
        DamagedError, StoreError: As for `join_files`.
    """
    kept = last_of_keys(target.store, group.files, tombstones_from_us=tombstones_from_us)
    changed = [kept.is_changed(at, _origin(one)) for at, one in enumerate(group.files)]
    removes: list[delta.Add] = []
    adds: list[delta.Add] = []
    neighbours = groupby(zip(changed, group.files, strict=True), lambda one: one[0])
    for is_changed, found in neighbours:
        if is_changed:
            files = [one for _, one in found]
            removes += files
            records = map(kept.of, _records(target.store, files))
            adds += _write(target, Group(group.partition, tuple(files)), records)
    return Rewrite(group.span, tuple(removes), tuple(adds), is_by_key=True) if removes else None


def _origin(add: delta.Add) -> delta.Origin:
    assert add.origin is not None, add.path
    return add.origin


def _records(store: Store, files: Iterable[delta.Add]) -> Iterator[pa.RecordBatch]:
    for file in files:
        yield from read_records(store, file)


def _write(
    target: Target, group: Group, records: Iterable[pa.RecordBatch]
) -> tuple[delta.Add, ...]:
    """Write the records that replace a group."""
    place = Place(target.stream, target.stream_id, group.span)
    return write_files(target.store, place, records, target.chance, target.sizes).adds
