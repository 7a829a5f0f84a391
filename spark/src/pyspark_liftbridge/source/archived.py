"""The archive of a query: its tables, their bounds and their rows."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from pyspark_liftbridge.archive import reading
from pyspark_liftbridge.archive.delta_log import log
from pyspark_liftbridge.archive.delta_log.delta import Add, Span
from pyspark_liftbridge.archive.delta_log.schema import headers_of_client
from pyspark_liftbridge.archive.reading import Part
from pyspark_liftbridge.archive.stores.store import Below, opened
from pyspark_liftbridge.archive.table import Table, find_table
from pyspark_liftbridge.plan.archiving import check_history
from pyspark_liftbridge.plan.offsets import PartitionId
from pyspark_liftbridge.plan.options import ArchivePlace
from pyspark_liftbridge.plan.places import Bounds, Known
from pyspark_liftbridge.plan.ranges import Range
from pyspark_liftbridge.plan.unified import Held, earlier, is_outgrown, with_archive

_log: Final = logging.getLogger(__name__)

_REMEDY: Final = (
    "read the two apart, without the option archive, or start another archive at another root"
)

_COLUMNS: Final = {"timestamp": "timestamp_ns"}
"""Columns of the archive by those of the client, where names differ."""


class _Known(NamedTuple):
    """Latest snapshot of a table, and values derived from it."""

    table: Table
    held: Mapping[int, Held]
    files: Mapping[int | None, Sequence[Add]]


def _known(table: Table) -> _Known:
    snapshot = table.snapshot
    return _Known(table, reading.held_of(snapshot), reading.by_partition(snapshot))


class Archive:
    """The archive of a query; each table is read once, and again if it must have grown.

    Args:
        place: Address and options of the archive.
    """

    def __init__(self, place: ArchivePlace) -> None:
        self._place = place
        self._root = opened(place.root, dict(place.store))
        self._tables: dict[tuple[str, int], _Known | None] = {}
        self._lacking: set[tuple[str, int]] = set()
        self._log: Bounds = {}

    def held(self, stream: str, stream_id: int) -> Mapping[int, Held]:
        """Return the archived offsets of a stream by partition; empty if it has no table.

        Raises:
            ArchiveError: The table cannot be read, or belongs to another stream.
        """
        known = self._table(stream, stream_id)
        return {} if known is None else known.held

    def bounds(self, bounds: Bounds) -> Bounds:
        """Combine the bounds of log and archive.

        Raises:
            MissingError: A log may have other records at archived offsets.
            ArchiveError: As for `held`.
        """
        streams = {(one.stream, known.stream_id) for one, known in bounds.items()}
        self._log = bounds
        for stream, stream_id in streams:
            self._check(stream, stream_id)
        return with_archive(
            bounds,
            {
                PartitionId(stream, number): held
                for stream, stream_id in sorted(streams)
                for number, held in self.held(stream, stream_id).items()
            },
        )

    def follow(self, stream: str, stream_id: int) -> None:
        """Read new entries of a table's log.

        Raises:
            MissingError, ArchiveError: As for `bounds`.
        """
        known = self._tables.pop((stream, stream_id), None)
        if known is not None:
            table = known.table
            newer = log.follow(table.store, table.snapshot)
            is_same = newer.version == table.snapshot.version
            self._tables[stream, stream_id] = (
                known if is_same else _known(table._replace(snapshot=newer))
            )
            self._check(stream, stream_id)

    def _check(self, stream: str, stream_id: int) -> None:
        """Check that archive and log have the same history, for partitions with known bounds."""
        for number, held in self.held(stream, stream_id).items():
            known = self._log.get(PartitionId(stream, number))
            if known is not None and known.stream_id == stream_id:
                check_history(stream, number, held.read, known, _REMEDY)

    def parts(
        self, ranges: Iterable[Range], log_starts: Mapping[PartitionId, int]
    ) -> dict[Range, Part]:
        """Return the archived parts of ranges; omit ranges without archived records.

        Args:
            ranges: Ranges to read.
            log_starts: Known log start offsets.

        Raises:
            ArchiveError: As for `held`.
        """
        parts_by_range: dict[Range, Part] = {}
        followed: set[tuple[str, int]] = set()
        for one in ranges:
            name = (one.stream, one.stream_id)
            start = log_starts.get(PartitionId(one.stream, one.partition))
            held = self.held(*name).get(one.partition)
            if name not in followed and is_outgrown(one, held, start):
                self.follow(*name)
                followed.add(name)
            part = self._part(one)
            if part is not None:
                parts_by_range[one] = part
        return parts_by_range

    def newest_part(self, wanted: Range, known: Known | None) -> Part | None:
        """Return the archived part of a range now, `None` for nothing.

        Args:
            wanted: Range to read.
            known: Current bounds of its log, `None` if the log no longer exists.

        Raises:
            MissingError, ArchiveError: As for `bounds`.
        """
        if known is not None:
            self._log = {**self._log, PartitionId(wanted.stream, wanted.partition): known}
        self.follow(wanted.stream, wanted.stream_id)
        self._check(wanted.stream, wanted.stream_id)
        return self._part(wanted)

    def with_times(
        self, found: Mapping[PartitionId, int], times: Mapping[PartitionId, int], bounds: Bounds
    ) -> dict[PartitionId, int]:
        """Look up the first records at or after given times, in the archive as well.

        Args:
            found: Offsets that the log reports.
            times: Unix nanoseconds by partition.
            bounds: Bounds of all these partitions.

        Raises:
            ArchiveError: As for `held`.
        """
        archived: list[tuple[PartitionId, int]] = []
        for one, time_ns in times.items():
            known = self._table(one.stream, bounds[one].stream_id)
            if known is not None:
                offset = reading.first_at(known.table.store, known.files, one.number, time_ns)
                archived += [] if offset is None else [(one, offset)]
        return earlier(found, archived)

    def rows(
        self, part: Part, wanted: Range, columns: Sequence[str]
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Read records of a range with the client's columns.

        Yield each batch with the offset to continue at.

        Raises:
            ArchiveError: A file cannot be read.
        """
        names = [_COLUMNS.get(name, name) for name in columns]
        span = Span(wanted.partition, wanted.start, wanted.end)
        table = Below(self._root, part.table)
        for batch in reading.records_of(table, part.files, span, names):
            after = int(batch.column("offset")[-1].as_py()) + 1
            made = [_as_of_client(name, batch.column(_COLUMNS.get(name, name))) for name in columns]
            yield pa.RecordBatch.from_arrays(made, list(columns)), after

    def _table(self, stream: str, stream_id: int) -> _Known | None:
        name = (stream, stream_id)
        if name not in self._tables:
            table = find_table(self._root, stream, stream_id)
            self._tables[name] = None if table is None else _known(table)
            if table is None and name not in self._lacking:
                self._lacking.add(name)
                _log.warning(
                    "archive %s holds nothing of stream %s (id %d): all is read from brokers",
                    self._place.root,
                    *name,
                )
        return self._tables[name]

    def _part(self, wanted: Range) -> Part | None:
        known = self._table(wanted.stream, wanted.stream_id)
        held = None if known is None else known.held.get(wanted.partition)
        if known is None or held is None or held.end <= wanted.start:
            return None
        span = Span(wanted.partition, wanted.start, wanted.end)
        return Part(known.table.root, held, reading.files_of(known.files, span))


def _as_of_client(name: str, column: pa.Array) -> pa.Array:
    """Convert a column to the client's type."""
    if name == "timestamp":
        return column.cast(pa.timestamp("ns", "UTC"))
    if name == "headers":
        return headers_of_client(column)
    return column
