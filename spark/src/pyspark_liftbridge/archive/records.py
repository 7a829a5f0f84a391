"""Whole records of an archived partition, chosen by offsets and times."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_liftbridge.archive.delta_log import delta
from pyspark_liftbridge.archive.delta_log.fields import WHOLE_MAX
from pyspark_liftbridge.archive.delta_log.schema import SCHEMA
from pyspark_liftbridge.archive.errors import DamagedError
from pyspark_liftbridge.archive.reading import files_of, records_of
from pyspark_liftbridge.archive.stores.store import Store

TIME_MIN: Final = -(2**63)
TIME_MAX: Final = 2**63 - 1


class Wanted(NamedTuple):
    """Records of a partition to read; ends are exclusive.

    Attributes:
        partition: Number of the partition.
        start: First offset.
        end: First offset not read.
        start_ns: First time, in nanoseconds since 1970.
        end_ns: First time not read.
    """

    partition: int
    start: int = 0
    end: int = WHOLE_MAX
    start_ns: int = TIME_MIN
    end_ns: int = TIME_MAX

    @property
    def span(self) -> delta.Span:
        """Return its offsets."""
        return delta.Span(self.partition, self.start, self.end)


def records(
    store: Store,
    files: Mapping[int | None, Sequence[delta.Add]],
    wanted: Wanted,
    columns: Sequence[str] = SCHEMA.names,
) -> Iterator[pa.RecordBatch]:
    """Read records in the order of offsets.

    Args:
        store: The folder of the table.
        files: Result of `reading.by_partition`.
        wanted: Records to read.
        columns: Columns of an archive, `offset` and `timestamp_ns` among them.

    Raises:
        FileGoneError, DamagedError, StoreError: As for `reading.records_of`; `DamagedError` also
            for a table that has an offset twice.
    """
    at, chosen = wanted.start, files_of(files, wanted.span)
    for batch in records_of(store, chosen, wanted.span, columns):
        offsets = batch.column("offset").to_numpy()
        if offsets[0] < at or (np.diff(offsets) <= 0).any():
            raise DamagedError(
                f"offsets of partition {wanted.partition} do not increase after {at}, in one of "
                f"{', '.join(one.path for one in chosen)}: run `spark verify` for details"
            )
        at = int(offsets[-1]) + 1
        rows = _of_times(batch, wanted)
        if rows.num_rows:
            yield rows


def _of_times(batch: pa.RecordBatch, wanted: Wanted) -> pa.RecordBatch:
    if (wanted.start_ns, wanted.end_ns) == (TIME_MIN, TIME_MAX):
        return batch
    times = batch.column("timestamp_ns")
    return batch.filter(
        pc.and_(pc.greater_equal(times, wanted.start_ns), pc.less(times, wanted.end_ns))
    )
