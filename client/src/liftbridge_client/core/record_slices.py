"""Slices of records in columns, each small enough for one request."""

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from liftbridge_client.core.message_parts import REQUEST_HEADERS_MAX
from liftbridge_client.errors import UsageError

_SIZED: Final = ("value", "key", "subject", "reply_subject")


def slices(
    records: pa.RecordBatch, *, count_max: int, bytes_max: int
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Cut records into slices, each with its bytes and at least one record, however large.

    No slice has more than `REQUEST_HEADERS_MAX` headers, except for a single record with more.

    Args:
        records: Any of the columns `value`, `key`, `subject`, `reply_subject` and `headers`.
        count_max: Maximum number of records of a slice.
        bytes_max: Maximum number of variable-length bytes of a slice.
    """
    ends = np.cumsum(_sizes(records))
    headers = _header_counts(records)
    start = 0
    while start < records.num_rows:
        before = int(ends[start - 1]) if start else 0
        fitting = int(np.searchsorted(ends, before + bytes_max, side="right"))
        if headers is not None:
            known = int(headers[start - 1]) if start else 0
            few = int(np.searchsorted(headers, known + REQUEST_HEADERS_MAX, side="right"))
            fitting = min(fitting, few)
        end = min(max(fitting, start + 1), start + count_max)
        yield records.slice(start, end - start), int(ends[end - 1]) - before
        start = end


def _sizes(records: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Sum the variable-length bytes of each record."""
    sizes = np.zeros(records.num_rows, np.int64)
    for name in _SIZED:
        if name in records.schema.names:
            sizes += _lengths(records.column(name))
    if "headers" in records.schema.names:
        headers = records.column("headers")
        entries = np.concatenate(([0], np.cumsum(_lengths(headers.keys) + _lengths(headers.items))))
        edges = entries[headers.offsets.to_numpy()]
        sizes += edges[1:] - edges[:-1]
    return sizes


def _header_counts(records: pa.RecordBatch) -> npt.NDArray[np.int64] | None:
    """Count headers cumulatively up to and including each record; `None` without the column."""
    if "headers" not in records.schema.names:
        return None
    edges = records.column("headers").offsets.to_numpy()
    return np.asarray(edges[1:] - edges[0], np.int64)


def _lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    lengths = pc.binary_length(column).fill_null(0)
    return np.asarray(lengths.to_numpy(zero_copy_only=False), np.int64)


def check_batch(records: object) -> None:
    """Refuse a value that is not a record batch, such as rows or a table's columns.

    Raises:
        UsageError: It is not a record batch.
    """
    if not isinstance(records, pa.RecordBatch):
        raise UsageError(
            f"a batch is of type {type(records).__name__}: batches must be pyarrow.RecordBatch; "
            "use a list of them, such as table.to_batches()"
        )
