"""Write records of one partition as Parquet files of a table.

    data/<partition>/<YYYY-MM-DD>/<first offset>-<end offset>-<random id>.parquet

A file holds ascending offsets of one UTC day. Names are random, so that a task may be repeated, or
run twice at once: a file that no entry of the log names is not part of the table. The `add` action
records the content of a file; the name is never used for that.
"""

import io
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pyspark_liftbridge.archive.delta_log.delta import Add, Origin, Span, Stats
from pyspark_liftbridge.archive.delta_log.schema import SCHEMA
from pyspark_liftbridge.archive.digest import Digest, digest_of
from pyspark_liftbridge.archive.errors import DamagedError, RecordsError, StoreError
from pyspark_liftbridge.archive.fence import Written
from pyspark_liftbridge.archive.stores.store import Store

FOLDER: Final = "data/"
FILE_BYTES: Final = 128 << 20
"""Compressed size at which a file ends, exceeded by at most one row group."""

GROUP_BYTES_MIN: Final = 32 << 20
GROUP_BYTES_MAX: Final = 64 << 20
"""Maximum size of a row group in memory, unless one record is larger."""

MIDNIGHTS_MAX: Final = 400
"""Maximum number of files of a span that end at a new day: over a year.

Times need not ascend with offsets; beyond this bound, records of alternating days share files.
"""

_NAMES_MAX: Final = 3
_DAY_US: Final = 86_400_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DICTIONARIES: Final = ["stream", "subject", "reply_subject"]


class Place(NamedTuple):
    """Stream and span of records.

    Attributes:
        stream: Name of the stream.
        stream_id: Its id.
        span: Offsets to write; a compacted log holds fewer records.
    """

    stream: str
    stream_id: int
    span: Span


class Sizes(NamedTuple):
    """Sizes at which files and row groups end, in bytes."""

    file: int = FILE_BYTES
    group_least: int = GROUP_BYTES_MIN
    group_most: int = GROUP_BYTES_MAX


class Chance(NamedTuple):
    """Sources of values that differ between runs.

    Attributes:
        new_id: Returns a unique word.
        now_ms: Current time in milliseconds since 1970.
    """

    new_id: Callable[[], str]
    now_ms: int


def write_files(
    store: Store,
    place: Place,
    records: Iterable[pa.RecordBatch],
    chance: Chance,
    sizes: Sizes = Sizes(),  # noqa: B008 - an immutable value
) -> Written:
    """Write all records of a span.

    Args:
        store: The folder of the table.
        place: Stream and span of the records.
        records: Records with the columns of an archive, in the order of offsets.
        chance: Random names and the time.
        sizes: Sizes at which files end.

    Returns:
        Actions that add the files to the table.

    Raises:
        RecordsError: Records do not belong to the place, or are not in order.
        StoreError: The files could not be written.
    """
    adds: list[Add] = []
    current: _File | None = None
    midnights = 0
    at = place.span.start
    for batch in records:
        _check(batch, place, at)
        for piece in _by_day(batch):
            first = int(piece.column("offset")[0].as_py())
            is_new_day = current is not None and current.day != _day_of(piece)
            if current is not None and (
                (is_new_day and midnights < MIDNIGHTS_MAX) or current.size >= sizes.file
            ):
                midnights += is_new_day
                adds.append(current.close(store, first, chance))
                current = None
            if current is None:
                start = first if adds else place.span.start
                current = _File(place, start, _day_of(piece), sizes)
            current.write(piece)
            at = int(piece.column("offset")[-1].as_py()) + 1
    if current is not None:
        adds.append(current.close(store, place.span.end, chance))
    return Written(place.span, tuple(adds))


def _check(batch: pa.RecordBatch, place: Place, at: int) -> None:
    """Check that records belong to their place and follow the records written so far."""
    if not batch.schema.equals(SCHEMA):
        raise RecordsError(f"columns {batch.schema.names} are not those of an archive")
    if not batch.num_rows:
        return
    partition, _, end = place.span
    offsets = batch.column("offset").to_numpy()
    if offsets[0] < at or offsets[-1] >= end or (np.diff(offsets) <= 0).any():
        raise RecordsError(
            f"{place.stream}/{partition}: offsets {offsets[0]} to {offsets[-1]} do not increase "
            f"within {at} to {end}; they were read from elsewhere or in another order"
        )
    is_own = pc.and_(
        pc.equal(batch.column("partition"), partition),
        pc.equal(batch.column("stream"), place.stream),
    )
    if not pc.all(is_own).as_py():
        raise RecordsError(
            f"{place.stream}/{partition}: records of another partition are among them"
        )


def _by_day(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split records by UTC day."""
    if not batch.num_rows:
        return
    days = batch.column("timestamp").cast(pa.int64()).to_numpy() // _DAY_US
    edges = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), batch.num_rows]
    for start, end in pairwise(edges):
        yield batch.slice(start, end - start)


def _day_of(batch: pa.RecordBatch) -> int:
    return int(batch.column("timestamp")[0].cast(pa.int64()).as_py() // _DAY_US)


class _File:
    """A file that is being written, in memory."""

    def __init__(self, place: Place, start: int, day: int, sizes: Sizes) -> None:
        self.day = day
        self._place = place
        self._start = start
        self._sizes = sizes
        self._sink = io.BytesIO()
        self._writer = pq.ParquetWriter(
            self._sink,
            SCHEMA,
            compression="zstd",
            compression_level=1,
            use_dictionary=_DICTIONARIES,
            # The digest excludes columns that may differ between replicas.
            write_page_checksum=True,
        )
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._digest = Digest()
        self._times: tuple[int, int] | None = None
        self._offsets = (-1, -1)

    @property
    def size(self) -> int:
        """Size so far in bytes, without the open row group."""
        return self._sink.tell()

    def write(self, batch: pa.RecordBatch) -> None:
        """Append records of the file's day, which follow all earlier ones."""
        self._digest = self._digest.joined(digest_of(batch))
        times = pc.min_max(batch.column("timestamp").cast(pa.int64())).as_py()
        known = self._times or (times["min"], times["max"])
        self._times = (min(known[0], times["min"]), max(known[1], times["max"]))
        offsets = batch.column("offset")
        first = self._offsets[0] if self._offsets[0] >= 0 else offsets[0].as_py()
        self._offsets = (first, offsets[-1].as_py())
        for part in _not_larger(batch, self._sizes.group_most - self._sizes.group_least):
            self._waiting.append(part)
            self._waiting_bytes += part.nbytes
            if self._waiting_bytes >= self._sizes.group_least:
                self._end_group()

    def _end_group(self) -> None:
        table = pa.Table.from_batches(self._waiting, SCHEMA)
        self._writer.write_table(table, row_group_size=table.num_rows)
        self._waiting, self._waiting_bytes = [], 0

    def close(self, store: Store, end: int, chance: Chance) -> Add:
        """Store the file, which covers all offsets before `end`."""
        if self._waiting:
            self._end_group()
        partition = self._place.span.partition
        origin = Origin(partition, self._start, end, self._digest)
        self._writer.add_key_value_metadata(
            {
                "liftbridge.stream": self._place.stream,
                "liftbridge.streamId": str(self._place.stream_id),
                "liftbridge.partition": str(partition),
                "liftbridge.start": str(origin.start),
                "liftbridge.end": str(origin.end),
                "liftbridge.digest": self._digest.text(),
            }
        )
        self._writer.close()
        data = self._sink.getvalue()
        folder = f"{FOLDER}{partition}/{_EPOCH + timedelta(days=self.day):%Y-%m-%d}"
        path = _stored(store, data, f"{folder}/{origin.start}-{origin.end}", chance.new_id)
        assert self._times is not None, "a file holds a record"
        stats = Stats(
            self._digest.records, (partition, partition), self._offsets, _rounded(*self._times)
        )
        return Add(
            path=path,
            size=len(data),
            modified_ms=chance.now_ms,
            is_change=True,
            stats_text=stats.text(),
            stats=stats,
            origin=origin,
        )


def _stored(store: Store, data: bytes, stem: str, new_id: Callable[[], str]) -> str:
    """Write a file under a new name; after an unknown outcome, under another name."""
    failure: StoreError | None = None
    for _ in range(_NAMES_MAX):
        path = f"{stem}-{new_id()}.parquet"
        try:
            if store.create(path, data) or _holds(store, path, data):
                return path
        except StoreError as error:
            failure = error
    cause = failure or "each name was taken"
    raise StoreError(f"{stem}: not written in {_NAMES_MAX} attempts ({cause})") from failure


def _holds(store: Store, path: str, data: bytes) -> bool:
    """Return whether an object has the bytes to write.

    After a lost answer, the store's own retry finds the object that its first attempt wrote.
    """
    try:
        return store.read(path, bytes_max=len(data)) == data
    except DamagedError:
        return False  # larger, so another object


def _not_larger(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Split records into pieces of at most about `bytes_max` bytes; a record is not split."""
    pieces = min(batch.num_rows, -(-batch.nbytes // max(1, bytes_max)))
    for piece in range(pieces):
        start = batch.num_rows * piece // pieces
        yield batch.slice(start, batch.num_rows * (piece + 1) // pieces - start)


def _rounded(least_us: int, most_us: int) -> tuple[str, str]:
    """Format times in milliseconds for statistics; rounds the last up to include all records."""
    return _time(least_us // 1_000), _time(-(-most_us // 1_000))


def _time(milliseconds: int) -> str:
    time = _EPOCH + timedelta(milliseconds=milliseconds)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
