"""Check the outcome: compare the table, as three readers see it, with the published records."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from liftbridge_testkit.spark_soak.records import values
from pyspark_liftbridge.archive.delta_log import log
from pyspark_liftbridge.archive.delta_log.schema import SCHEMA
from pyspark_liftbridge.archive.digest import Digest, digest_of
from pyspark_liftbridge.plan.options import read_source

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt
    from pyspark.sql import SparkSession

    from pyspark_liftbridge.archive.stores.store import Store

FILE_BYTES_MAX: Final = 1 << 30
_LOG: Final = "_delta_log/"
SPARK_BYTES: Final = 32 << 20
"""Bytes of files that Spark reads at a time; this process receives all of it at once."""


@dataclass
class Ledger:
    """Counts of records by partition and offset.

    Args:
        wanted: Records of each partition.

    Attributes:
        digest: Digest of all records.
        wrong: Records with another content or offset than published.
    """

    wanted: Mapping[int, int]
    digest: Digest = field(default_factory=Digest)
    wrong: int = 0
    _seen: dict[int, npt.NDArray[np.uint8]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._seen = {one: np.zeros(count, np.uint8) for one, count in self.wanted.items()}

    def filled(self, found: Iterable[pa.RecordBatch]) -> Self:
        """Return this ledger after adding all records."""
        for batch in found:
            self.add(batch)
        return self

    def add(self, records: pa.RecordBatch) -> None:
        """Add records, of any partitions and in any order."""
        self.digest = self.digest.joined(digest_of(records))
        partitions = records.column("partition").to_numpy()
        for partition in np.unique(partitions):
            rows = records.filter(pa.array(partitions == partition))
            offsets = rows.column("offset").to_numpy()
            seen = self._seen.get(int(partition), np.zeros(0, np.uint8))
            is_known = (offsets >= 0) & (offsets < len(seen))
            is_right = rows.column("value").to_numpy(zero_copy_only=False) == values(
                int(partition), offsets
            ).to_numpy(zero_copy_only=False)
            self.wrong += int((~(is_known & is_right)).sum())
            # Never back to zero: no record is archived this often.
            np.add.at(seen, offsets[is_known], np.uint8(1))

    @property
    def lost(self) -> int:
        """Return the number of published records that were not seen."""
        return sum(int((seen == 0).sum()) for seen in self._seen.values())

    @property
    def twice(self) -> int:
        """Return the number of repeated records."""
        return sum(
            int(seen[seen > 1].astype(np.int64).sum() - (seen > 1).sum())
            for seen in self._seen.values()
        )


def by_deltalake(address: str, options: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """Yield the records of the table, read with deltalake."""
    table = DeltaTable(address, storage_options=dict(options) or None)
    for batch in table.to_pyarrow_dataset().to_batches(batch_size=65_536):
        yield _as_archived(batch)


def by_our_source(options: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """Yield the records that the data source reads from archive and stream, by its own classes."""
    from pyspark_liftbridge.source.batch import BatchReader  # noqa: PLC0415 - not in .venv

    reader = BatchReader(read_source({**options, "includeHeaders": "true"}, is_stream=False))
    for task in reader.partitions():
        for batch in reader.read(task):
            yield _as_archived(batch)


def by_spark(spark: SparkSession, store: Store, folder: Path) -> Iterator[pa.RecordBatch]:
    """Yield the records of the files in the log, read with Spark.

    Args:
        spark: A session.
        store: The folder of the table.
        folder: Folder for copies of the files, because Spark has no jars for object stores.
    """
    paths: list[str] = []
    size = 0
    for add in log.load(store).files.values():
        data = store.read(add.object_path, bytes_max=FILE_BYTES_MAX)
        assert data is not None, f"{add.path} is named by the log and not there"
        path = folder / add.object_path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        paths.append(str(path))
        size += len(data)
        if size >= SPARK_BYTES:
            yield from _read_by_spark(spark, paths)
            paths, size = [], 0
    if paths:
        yield from _read_by_spark(spark, paths)


def _read_by_spark(spark: SparkSession, paths: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for batch in spark.read.parquet(*paths).toArrow().to_batches():
        yield _as_archived(batch)


def _as_archived(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return columns in the order and types of the archive; readers use other text types."""
    columns = [batch.column(one.name).cast(one.type) for one in SCHEMA]
    return pa.record_batch(columns, schema=SCHEMA)


def strangers(store: Store) -> Sequence[str]:
    """Return files outside the log that no log entry names, found without our reader."""
    named: Counter[str] = Counter()
    paths = [one.path for one in store.listing("")]
    entries = [path for path in paths if path.startswith(_LOG) and path.endswith(".json")]
    for path in entries:
        data = store.read(path, bytes_max=FILE_BYTES_MAX)
        assert data is not None, path
        for line in data.splitlines():
            action = json.loads(line)
            for kind in ("add", "remove"):
                if kind in action:
                    named[unquote(action[kind]["path"])] += 1
    is_log = (".json", ".checkpoint.parquet", "/_last_checkpoint")
    return [
        path
        for path in paths
        if path not in named and not (path.startswith(_LOG) and path.endswith(is_log))
    ]


def remove_checkpoints(store: Store) -> int:
    """Remove all checkpoints and their hint. Return the number of checkpoints."""
    paths = [one.path for one in store.listing(_LOG)]
    found = [path for path in paths if path.endswith(".checkpoint.parquet")]
    for path in (*found, f"{_LOG}_last_checkpoint"):
        store.delete(path)
    return len(found)
