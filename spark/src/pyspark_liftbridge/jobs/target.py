"""Check that a target holds a prefix of the replayed records, and nothing else.

Its records are compared with the archive one by one. It may lack records that are not selected, and
those that its own compaction removed.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from liftbridge_client import PartitionBounds
from pyspark_liftbridge.archive.delta_log import log
from pyspark_liftbridge.archive.reading import by_partition
from pyspark_liftbridge.archive.records import Wanted, records
from pyspark_liftbridge.archive.stores.store import Below, opened
from pyspark_liftbridge.jobs.comparing import (
    Copy,
    Numbers,
    appear_later,
    compare,
    copy_of,
    lacking,
)
from pyspark_liftbridge.jobs.holders import STREAM, Access, Holder, copy_at, is_compacted
from pyspark_liftbridge.jobs.selection import Selection

CHECK_OFFSETS: Final = 500_000
"""Number of offsets compared at a time."""


class Target(NamedTuple):
    """Partition to write, and the archive to compare with.

    Attributes:
        stream: Name of the stream.
        partition: Number of the partition.
        access: Access to the partition and the archive.
        table: Folder of the archived stream below the root; ends with `/`.
        selection: Records of the table to replay.
        start: First offset of these records.
    """

    stream: str
    partition: int
    access: Access
    table: str
    selection: Selection
    start: int


def refusal(target: Target) -> str:
    """Return why a target must not be written; empty if it may be written.

    Raises:
        LiftbridgeError: The target cannot be read.
        ArchiveError: The archive cannot be read.
    """
    client = target.access.client(target.stream)
    (bounds,) = client.streams.get(target.stream).bounds(target.partition)
    where = f"{target.stream}/{target.partition}"
    if bounds.log_start > target.start:
        return (
            f"{where} starts at offset {bounds.log_start}, but the replay at {target.start}: "
            "removed records cannot be compared or restored; use an empty stream that keeps "
            f"records long enough, or replay from there on (--offsets {bounds.log_start}:)"
        )
    check = _Check(target, bounds, may_lack=is_compacted(client, target.stream))
    for at in range(bounds.log_start, bounds.high_watermark, CHECK_OFFSETS):
        text = check.refusal(at, min(at + CHECK_OFFSETS, bounds.high_watermark))
        if text:
            return f"{where} {text}; replay into an empty stream"
    return ""


class _Check:
    """Compares a target's records with the archive."""

    def __init__(self, target: Target, bounds: PartitionBounds, *, may_lack: bool) -> None:
        self._partition = target.partition
        self._selection = target.selection
        self._access = target.access
        self._store = Below(opened(target.access.root, target.access.store), target.table)
        self._files = by_partition(log.load(self._store))
        self._target = Holder(
            STREAM,
            "",
            target.stream,
            bounds.stream_id,
            bounds.log_start,
            bounds.high_watermark,
            may_lack,
        )

    def refusal(self, start: int, end: int) -> str:
        """Describe a difference of a range between target and archive; empty for none."""
        chosen: list[Numbers] = []
        archived = self._archived(start, end, chosen)
        held = copy_at(self._access, self._target, self._partition, start, end)
        for unlike in compare(archived, held):
            if len(unlike.lacks_first):
                return f"holds offset {unlike.lacks_first[0]}, which the archive does not"
            if len(unlike.contents):
                return f"holds another record than the archive at offset {unlike.contents[0]}"
            lost = np.intersect1d(unlike.lacks_second, np.concatenate(chosen), assume_unique=True)
            if len(lost := self._not_compacted(archived, lost)):
                return f"lacks offset {lost[0]}, which the archive holds"
        return ""

    def _archived(self, start: int, end: int, chosen: list[Numbers] | None = None) -> Copy:
        """Read a range of the archive; add the offsets to replay to `chosen`."""

        def batches() -> Iterator[pa.RecordBatch]:
            wanted = Wanted(self._partition, start, end)
            for batch in records(self._store, self._files, wanted):
                if chosen is not None:
                    chosen.append(self._selection.has(batch))
                yield batch

        return copy_of("archive", start, end, batches(), has_epochs=False)

    def _not_compacted(self, archived: Copy, lost: Numbers) -> Numbers:
        """Return the lost records that compaction of the target cannot have removed."""
        if not (self._target.may_lack and len(lost)):
            return lost
        missing = lacking(archived, lost)
        is_later = appear_later(
            missing, self._archived, archived.end, self._target.end, CHECK_OFFSETS
        )
        left: Numbers = missing.open[~is_later]
        return left
