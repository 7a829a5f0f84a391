"""Choose which files of a table to rewrite together, based on a snapshot alone.

Small files are joined with adjacent files of the same partition and UTC day: readers of any day
would have to read a file of several days. A compaction by key rewrites all files of a partition
together, since only all files together show which record is the last of its key.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from itertools import groupby
from typing import Final, NamedTuple

from pyspark_liftbridge.archive import fence
from pyspark_liftbridge.archive.delta_log import delta
from pyspark_liftbridge.archive.delta_log.log import Snapshot
from pyspark_liftbridge.archive.errors import UnsupportedTableError
from pyspark_liftbridge.archive.files import FILE_BYTES

FILES_MAX: Final = 10_000
"""Maximum number of files that one commit replaces."""

KEY_FILES_MAX: Final = 50_000
"""Maximum number of files of a compaction by key, before and after: an entry names all of them."""

_DAY: Final = timedelta(days=1)


class Group(NamedTuple):
    """Files of one partition that one task rewrites.

    Attributes:
        partition: Number of the partition.
        files: Files in the order of offsets, all with a range.
    """

    partition: int
    files: tuple[delta.Add, ...]

    @property
    def span(self) -> delta.Span:
        """Return the offsets from the first file to the last."""
        return delta.Span(self.partition, _place(self.files[0]).start, _place(self.files[-1]).end)


def small_groups(snapshot: Snapshot, target_bytes: int) -> list[Group]:
    """Choose adjacent files to join; at most `FILES_MAX` files.

    Files of three quarters of the target are large enough. Files without a range belong to another
    writer and are not changed.

    Args:
        snapshot: Snapshot of the table.
        target_bytes: Size at which a file ends.
    """
    groups: list[Group] = []
    left = FILES_MAX
    for partition, adds in _by_partition(snapshot):
        for run in _runs(adds, target_bytes * 3 // 4, _by_key_end(snapshot, partition)):
            for files in _cut(run, target_bytes):
                if 2 <= len(files) <= left:
                    left -= len(files)
                    groups.append(Group(partition, tuple(files)))
    return groups


def key_groups(snapshot: Snapshot, target_bytes: int = FILE_BYTES) -> list[Group]:
    """Group all files of each partition.

    Args:
        snapshot: Snapshot of the table.
        target_bytes: As for `small_groups`.

    Raises:
        UnsupportedTableError: Another writer has joined files, whose partition is unknown; or there
            are too many files for an entry.
    """
    foreign = [file.path for file in snapshot.files.values() if not _is_ours(file)]
    if foreign:
        raise UnsupportedTableError(
            f"{foreign[0]} and {len(foreign) - 1} others are of another writer, which has merged "
            "files: only a table whose files all come from this package can be compacted by key"
        )
    count = len(snapshot.files)
    if count + sum(file.size for file in snapshot.files.values()) // target_bytes > KEY_FILES_MAX:
        raise UnsupportedTableError(
            f"{count:,} files are too many for one entry, which holds {KEY_FILES_MAX:,} with "
            f"the new ones of {target_bytes:,} bytes: merge small files first, or use a larger "
            "target size"
        )
    return [Group(partition, tuple(adds)) for partition, adds in _by_partition(snapshot)]


def _is_ours(add: delta.Add) -> bool:
    return add.origin is not None and add.stats is not None


def _place(add: delta.Add) -> delta.Origin:
    assert add.origin is not None, add.path
    return add.origin


def _by_partition(snapshot: Snapshot) -> Iterator[tuple[int, list[delta.Add]]]:
    """Iterate over partitions, with their files in the order of offsets."""
    ours = sorted(filter(_is_ours, snapshot.files.values()), key=_place)
    for partition, adds in groupby(ours, lambda one: _place(one).partition):
        yield partition, list(adds)


def _by_key_end(snapshot: Snapshot, partition: int) -> int:
    assert snapshot.metadata is not None, "a table with files has metadata"
    txn = snapshot.ends.get(fence.by_key_id(snapshot.metadata.stream_id, partition))
    return 0 if txn is None else txn.version


def _runs(adds: Iterable[delta.Add], size_most: int, by_key_end: int) -> Iterator[list[delta.Add]]:
    """Iterate over runs of adjacent files that may be joined.

    A gap between two files is accepted below the end of a compaction by key, which may have caused
    it; elsewhere, it may be lost records.
    """
    run: list[delta.Add] = []
    for add in adds:
        may_go_on = (
            run
            and _day_of(add) == _day_of(run[-1])
            and _place(add).start <= max(_place(run[-1]).end, by_key_end)
        )
        if run and not may_go_on:
            yield run
            run = []
        if add.size < size_most and _day_of(add) is not None:
            run.append(add)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _cut(run: Iterable[delta.Add], target_bytes: int) -> Iterator[list[delta.Add]]:
    """Cut a run into pieces that reach the target size; the last piece may be smaller."""
    files: list[delta.Add] = []
    size = 0
    for add in run:
        files.append(add)
        size += add.size
        if size >= target_bytes:
            yield files
            files, size = [], 0
    if files:
        yield files


def _day_of(add: delta.Add) -> datetime | None:
    """Return the day of all records of a file, `None` for several days, or if unknown."""
    if add.stats is None or add.stats.timestamps is None:
        return None
    try:
        first, last = map(datetime.fromisoformat, add.stats.timestamps)
    except ValueError:
        return None
    day = first.replace(hour=0, minute=0, second=0, microsecond=0)
    # The last time was rounded up, so it may be the midnight after the day.
    return day if last <= day + _DAY else None
