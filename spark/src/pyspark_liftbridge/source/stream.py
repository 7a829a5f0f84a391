"""A stream: `spark.readStream.format("liftbridge")`."""

import logging
import time
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from liftbridge_client import SyncClient
from pyspark_liftbridge.plan.histories import DivergedError, divergences, with_histories
from pyspark_liftbridge.plan.offsets import Offsets, PartitionId, parse
from pyspark_liftbridge.plan.options import Limits, SourceOptions
from pyspark_liftbridge.plan.places import Bounds, at_latest, offsets_at, times_of
from pyspark_liftbridge.plan.progress import Ends, ends_of, next_end, target_of
from pyspark_liftbridge.plan.ranges import backlog_of, in_history, ranges_between, tasks_of
from pyspark_liftbridge.source import cluster, cursors, weight
from pyspark_liftbridge.source.batch import Task, archive_of, read, tasks_with_parts
from pyspark_liftbridge.source.watch import Watch

if TYPE_CHECKING:
    from pyspark_liftbridge.source.archived import Archive

_log: Final = logging.getLogger(__name__)

_NO_LIMITS: Final = Limits(None, None, 0, None)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads committed records in micro-batches; Spark keeps one reader per query on the driver."""

    def __init__(self, options: SourceOptions) -> None:
        """Keep checked options; no request is sent yet."""
        self._options = options
        self._initial: Offsets | None = None
        self._target: Offsets | None = None
        self._mirrored: Offsets | None = None
        self._latest: Offsets | None = None
        self._watch: Watch | None = None
        self._archive: Archive | None = None
        self._weight: tuple[Offsets, float | None] | None = None
        self._log_starts: dict[PartitionId, int] = {}
        self._seen: set[tuple[str, int, int]] = set()
        self._warned: set[str] = set()
        self._moved_at = time.monotonic_ns()
        self._is_last_run = False

    # -- start ----------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the start of a new query, which stays the same while it runs.

        Raises:
            OptionError: A stream does not exist, or offsets or times do not fit, or the brokers
                store no cursors for `cursorId`.
            PausedError: A partition is paused and must not be resumed.
            LiftbridgeError: No broker answers.
        """
        if self._initial is None:
            self._initial = cluster.ask(self._options, self._first_offsets)
        return self._initial.as_json()

    def _first_offsets(self, client: SyncClient) -> Offsets:
        options, archive = self._options, self._archive_of()
        bounds = cluster.bounds_at_start(client, options)
        if archive is not None:
            bounds = archive.bounds(bounds)
        wanted = times_of(options.start, bounds)
        times = cluster.offsets_by_time(client, wanted)
        if archive is not None:
            times = archive.with_times(times, wanted, bounds)
        offsets = offsets_at(
            options.start,
            bounds,
            times,
            is_latest_without_match=options.is_latest_without_match,
        )
        moving = at_latest(options.start, bounds, times)
        if options.cursor_id:
            return cursors.pinned(client, options.cursor_id, offsets, moving)
        if moving:
            _log.warning(
                "the query starts at latest, which is not stored until its first batch is done: if "
                "stopped earlier, it starts later and misses records in between; set cursorId"
            )
        return offsets

    # -- end ----------------------------------------------------------------------

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return a marker that there are limits; the options contain them."""
        limits = self._options.limits
        if limits.offsets_max is not None:
            return ReadMaxRows(limits.offsets_max)
        if limits.bytes_max is not None:
            return ReadMaxBytes(limits.bytes_max)
        if limits.offsets_min is not None:
            return ReadMinRows(limits.offsets_min)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the end of the next micro-batch; `start` if there is none.

        Raises:
            GoneError: A stream was deleted or created again.
            DivergedError: A log may have other records at offsets that the query has read.
            MissingError: A log may have other records at archived offsets.
            LiftbridgeError: No broker answers.
        """
        begin = parse(start)
        logs = self._bounds(begin.streams.keys())
        bounds = self._with_archive(logs, begin)
        ends = ends_of(bounds, begin, fails_on_loss=self._options.fails_on_loss)
        self._check_histories(begin, logs)
        self._latest = with_histories(ends.latest, begin, logs)
        is_limited = not isinstance(limit, ReadAllAvailable)
        if is_limited and self._options.limits.bytes_max is not None:
            ends = self._weighed(begin, ends)
        now = time.monotonic_ns()
        if self._is_last_run and self._target is None:
            self._target = target_of(bounds, begin)
        end = next_end(
            begin,
            ends,
            self._options.limits if is_limited else _NO_LIMITS,
            now - self._moved_at,
            self._target,
        )
        if end != begin:
            self._moved_at = now
        return with_histories(end, begin, logs).as_json()

    def _check_histories(self, read: Offsets, logs: Bounds) -> None:
        """Check that logs still have the records read from them.

        Raises:
            DivergedError: A log may have other records at these offsets, and `failOnDataLoss` is
                set.
        """
        for text in divergences(read, logs):
            if self._options.fails_on_loss:
                raise DivergedError(
                    f"{text}; set failOnDataLoss=false to continue with what the log has from "
                    "there on, or start with another checkpoint to read all of it again"
                )
            if text not in self._warned:
                self._warned.add(text)
                _log.warning("%s; the query continues (failOnDataLoss=false)", text)

    def _weighed(self, begin: Offsets, ends: Ends) -> Ends:
        """Replace the mean record size of the whole log by that of the next records."""
        if not backlog_of(begin, ends.latest):
            return ends
        if self._weight is None or self._weight[0] != begin:
            mean = cluster.ask(
                self._options,
                lambda client: weight.mean_bytes(client, begin, ends.latest, self._options),
            )
            self._weight = begin, mean
        mean = self._weight[1]
        return ends if mean is None else ends._replace(mean_bytes=mean)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the end of the query at the records that exist now."""
        self._is_last_run = True

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the committed end, for the query's progress."""
        return None if self._latest is None else self._latest.as_json()

    def commit(self, end: dict[str, Any]) -> None:
        """Set the progress cursor of the query; Spark calls this when the next batch starts."""
        options = self._options
        if options.cursor_id:
            read = parse(end)
            client = cluster.planner_of(options)
            cursors.mirror(client, options.cursor_id, self._mirrored, read)
            self._mirrored = read

    def stop(self) -> None:
        """Stop sending requests; Spark does not always call this."""
        if self._watch is not None:
            self._watch.stop()

    # -- reading ------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan the tasks between two offsets.

        Raises:
            OffsetsError: The offsets are not of this source.
            BackwardsError: The end is before the start.
            DivergedError: The batch is repeated, and a log may now have other records for it.
            LiftbridgeError: No broker answers.
            ArchiveError: The archive cannot be read.
        """
        begin, after = parse(start), parse(end)
        ranges = ranges_between(begin, after)
        if ranges:
            logs = self._bounds(after.streams.keys())
            self._check_histories(after, logs)
            ranges = in_history(ranges, logs)
        tasks = tasks_of(ranges, self._options.split, {})
        return list(tasks_with_parts(tasks, self._archive_of(), self._log_starts))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of a task, as `read` does."""
        assert isinstance(partition, Task)
        return read(self._options, partition)

    # -- bounds of logs and archive ------------------------------------------------------------

    def _archive_of(self) -> "Archive | None":
        """Return the archive, opened on first use: Spark first sends readers to other processes."""
        if self._archive is None:
            self._archive = archive_of(self._options)
        return self._archive

    def _with_archive(self, bounds: Bounds, begin: Offsets) -> Bounds:
        """Combine bounds of log and archive; the archive is read again for new partitions."""
        archive = self._archive_of()
        if archive is None:
            return bounds
        self._log_starts = {one: known.earliest for one, known in bounds.items()}
        self._seen |= {
            (one.stream, begin.streams[one.stream].stream_id, one.number)
            for one, _ in begin.partitions()
        }
        found = {(one.stream, known.stream_id, one.number) for one, known in bounds.items()}
        fresh = found - self._seen
        for name in sorted({one[:2] for one in fresh}):
            archive.follow(*name)
        self._seen |= fresh
        return archive.bounds(bounds)

    def _bounds(self, running: Collection[str]) -> Bounds:
        """Return cached bounds; a query that ends fetches them again, since it never idles."""
        options = self._options
        if self._watch is None or self._is_last_run:
            bounds = cluster.ask(
                options, lambda client: cluster.bounds_at_start(client, options, running=running)
            )
            if self._is_last_run:
                return bounds
            self._watch = Watch(options, bounds)
        return self._watch.bounds()
