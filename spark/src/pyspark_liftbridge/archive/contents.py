"""Read data files of a table, and see that they hold what the log says.

A row group of ours is bounded in memory, whatever its file has made of it: values that repeat take
next to nothing there. So files are read by row groups, and of each no more than what is wanted.
"""

import io
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_liftbridge.archive import delta
from pyspark_liftbridge.archive.digest import Digest, digest_of
from pyspark_liftbridge.archive.errors import DamagedError
from pyspark_liftbridge.archive.schema import SCHEMA
from pyspark_liftbridge.archive.store import Store

_ROWS: Final = 20_000


def read_columns(store: Store, add: delta.Add, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Some columns of a file, in the order of its records; batches are of one row group each.

    Raises:
        DamagedError: It is not what its action says, as far as that can be seen.
        StoreError: The store does not answer.
    """
    schema = pa.schema([SCHEMA.field(name) for name in columns])
    with _opened(store, add) as source:
        file = _parquet(source, add)
        try:
            for number in range(file.num_row_groups):
                for batch in file.iter_batches(_ROWS, row_groups=[number], columns=list(columns)):
                    yield batch.select(columns).cast(schema)
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise DamagedError(f"{add.path}: cannot be decoded ({error})") from error


def read_records(store: Store, add: delta.Add) -> Iterator[pa.RecordBatch]:
    """All records of a file; the error for a wrong digest comes behind the last of them.

    Raises:
        DamagedError: It is not what its action says.
        StoreError: The store does not answer.
    """
    digest = Digest()
    for batch in read_columns(store, add, SCHEMA.names):
        digest = digest.joined(digest_of(batch))
        yield batch
    if add.origin is not None and digest != add.origin.digest:
        raise DamagedError(
            f"{add.path}: digest {digest.text()}, the log says {add.origin.digest.text()}: the "
            "records are not those that were written"
        )


def _opened(store: Store, add: delta.Add) -> BinaryIO:
    source = store.open(add.object_path)
    if source is None:
        raise DamagedError(
            f"{add.path}: the file is missing; if it was compacted away since, try again"
        )
    size = source.seek(0, io.SEEK_END)
    if size != add.size:
        source.close()
        raise DamagedError(f"{add.path}: {size} bytes, the log says {add.size}")
    return source


def _parquet(source: BinaryIO, add: delta.Add) -> pq.ParquetFile:
    try:
        # Columns of a row group that adjoin are one call of the store.
        return pq.ParquetFile(source, pre_buffer=True, page_checksum_verification=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DamagedError(f"{add.path}: no Parquet file of an archive ({error})") from error
