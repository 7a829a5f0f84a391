"""Read data files of a table, and check them against the log.

The size of a row group in memory is bounded, since its encoding may be very small: repeated values
take almost no space in a file. So files are read by row groups, and only the requested columns.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_liftbridge.archive.delta_log import delta
from pyspark_liftbridge.archive.delta_log.schema import SCHEMA
from pyspark_liftbridge.archive.digest import Digest, digest_of
from pyspark_liftbridge.archive.errors import DamagedError
from pyspark_liftbridge.archive.stores.store import Store

ROWS_MAX: Final = 20_000
BYTES_MAX: Final = 4 << 20
"""Records decoded at a time, unless one is larger."""


def decoded(
    source: BinaryIO,
    path: str,
    columns: Sequence[str],
    *,
    is_wanted: Callable[[pq.RowGroupMetaData], bool] = lambda _group: True,
    buffer_bytes: int = 0,
) -> Iterator[pa.RecordBatch]:
    """Read columns of a Parquet file, in the order of its records; a batch has one row group.

    Args:
        source: The file, which is closed at the end.
        path: Path of the file, for errors.
        columns: Columns of an archive.
        is_wanted: Whether to read a row group.
        buffer_bytes: Bytes to read at a time; 0 reads adjacent parts in one call of the store, and
            decodes columns in parallel.

    Raises:
        DamagedError: The file cannot be decoded.
        StoreError: The store does not answer.
    """
    schema = pa.schema([SCHEMA.field(name) for name in columns])
    try:
        with (
            source,
            pq.ParquetFile(
                source,
                buffer_size=buffer_bytes,
                pre_buffer=not buffer_bytes,
                page_checksum_verification=True,
            ) as file,
        ):
            for number in range(file.num_row_groups):
                group = file.metadata.row_group(number)
                if not is_wanted(group):
                    continue
                rows = BYTES_MAX * group.num_rows // max(1, group.total_byte_size)
                for batch in file.iter_batches(
                    max(1, min(ROWS_MAX, rows)),
                    row_groups=[number],
                    columns=list(columns),
                    use_threads=not buffer_bytes,
                ):
                    yield batch.select(columns).cast(schema)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise DamagedError(f"{path}: not a Parquet file of an archive ({error})") from error


def read_columns(store: Store, add: delta.Add, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Read columns of a table's file, in the order of its records; a batch has one row group.

    Raises:
        DamagedError: These columns do not match the file's action.
        StoreError: The store does not answer.
    """
    yield from decoded(_opened(store, add), add.path, columns)


def read_records(store: Store, add: delta.Add) -> Iterator[pa.RecordBatch]:
    """Read all records of a file; the error for a wrong digest comes after the last record.

    Raises:
        DamagedError: The file does not match its action.
        StoreError: The store does not answer.
    """
    digest = Digest()
    for batch in read_columns(store, add, SCHEMA.names):
        digest = digest.joined(digest_of(batch))
        yield batch
    if add.origin is not None and digest != add.origin.digest:
        raise DamagedError(
            f"{add.path}: digest {digest.text()}, but the log says {add.origin.digest.text()}: "
            "the records are not those that were written"
        )


def _opened(store: Store, add: delta.Add) -> BinaryIO:
    source = store.open(add.object_path)
    if source is None:
        raise DamagedError(
            f"{add.path}: the file is missing; if a compaction replaced it meanwhile, try again"
        )
    size = source.seek(0, io.SEEK_END)
    if size != add.size:
        source.close()
        raise DamagedError(f"{add.path}: {size} bytes, but the log says {add.size}")
    return source
