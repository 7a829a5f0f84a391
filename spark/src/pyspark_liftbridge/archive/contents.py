"""Read data files of a table, and see that they hold what the log says."""

import io
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_liftbridge.archive import delta
from pyspark_liftbridge.archive.digest import Digest, digest_of
from pyspark_liftbridge.archive.errors import DamagedError
from pyspark_liftbridge.archive.schema import SCHEMA
from pyspark_liftbridge.archive.store import Store

FILE_BYTES_MAX: Final = 4 << 30
_ROWS: Final = 20_000


def read_columns(store: Store, add: delta.Add, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Some columns of a file, in the order of its records.

    Raises:
        DamagedError: It is not what its action says, as far as that can be seen.
        StoreError: The store does not answer.
    """
    schema = pa.schema([SCHEMA.field(name) for name in columns])
    file = _opened(store, add)
    try:
        for batch in file.iter_batches(_ROWS, columns=list(columns)):
            yield batch.select(columns).cast(schema)
    except (pa.ArrowException, OSError, ValueError) as error:
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


def _opened(store: Store, add: delta.Add) -> pq.ParquetFile:
    data = store.read(add.object_path, bytes_max=FILE_BYTES_MAX)
    if data is None:
        raise DamagedError(
            f"{add.path}: the file is missing; if it was compacted away since, plan again"
        )
    if len(data) != add.size:
        raise DamagedError(f"{add.path}: {len(data)} bytes, the log says {add.size}")
    try:
        return pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DamagedError(f"{add.path}: no Parquet file of an archive ({error})") from error
