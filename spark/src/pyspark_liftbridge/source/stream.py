"""A stream: `spark.readStream.format("liftbridge")`."""

import time
from collections.abc import Iterator
from typing import Any, Final

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
from pyspark_liftbridge.plan.offsets import Offsets, parse
from pyspark_liftbridge.plan.options import Limits, SourceOptions
from pyspark_liftbridge.plan.places import Bounds, offsets_at, times_of
from pyspark_liftbridge.plan.progress import ends_of, next_end
from pyspark_liftbridge.plan.ranges import ranges_between, tasks_of
from pyspark_liftbridge.plan.values import MILLISECOND_NS
from pyspark_liftbridge.source import cluster
from pyspark_liftbridge.source.batch import Task, read

REFRESH_NS: Final = 500 * MILLISECOND_NS
"""How long an answer of the brokers is used: Spark asks a hundred times a second."""

_NO_LIMITS: Final = Limits(None, None, 0, None)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what is committed, a micro-batch at a time; Spark keeps one on the driver a query."""

    def __init__(self, options: SourceOptions) -> None:
        """Begin with checked options; nothing is asked yet."""
        self._options = options
        self._initial: Offsets | None = None
        self._target: Offsets | None = None
        self._bounds: Bounds = {}
        self._asked_at: int | None = None
        self._moved_at = time.monotonic_ns()
        self._is_last_run = False

    # -- where it begins ----------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a new query begins; the same for as long as it runs.

        Raises:
            OptionError: A stream does not exist, or offsets or times do not fit.
            LiftbridgeError: No broker tells.
        """
        if self._initial is None:
            options, bounds = self._options, self._fresh()
            times = cluster.offsets_by_time(self._client(), times_of(options.start, bounds))
            self._initial = offsets_at(
                options.start,
                bounds,
                times,
                is_latest_without_match=options.is_latest_without_match,
            )
        return self._initial.as_json()

    # -- how far it goes ----------------------------------------------------------------------

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """A sign that there are limits; what they are is in the options."""
        limits = self._options.limits
        if limits.offsets_max is not None:
            return ReadMaxRows(limits.offsets_max)
        if limits.bytes_max is not None:
            return ReadMaxBytes(limits.bytes_max)
        if limits.offsets_min is not None:
            return ReadMinRows(limits.offsets_min)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where the next micro-batch ends; `start` when there is none.

        Raises:
            GoneError: A stream is gone or was made anew.
            LiftbridgeError: No broker tells.
        """
        begin = parse(start)
        ends = ends_of(self._recent(), begin, fails_on_loss=self._options.fails_on_loss)
        is_limited = not isinstance(limit, ReadAllAvailable)
        now = time.monotonic_ns()
        if self._is_last_run and self._target is None:
            self._target = ends.latest
        end = next_end(
            begin,
            ends,
            self._options.limits if is_limited else _NO_LIMITS,
            now - self._moved_at,
            self._target,
        )
        if end != begin:
            self._moved_at = now
        return end.as_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """The query ends at what is there now."""
        self._is_last_run, self._asked_at = True, None

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """What is committed, for the query's progress."""
        return None

    # -- reading ------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Tasks between two offsets.

        Raises:
            OffsetsError: They are not of this source.
            BackwardsError: The end lies before the start.
        """
        ranges = ranges_between(parse(start), parse(end))
        return [Task(one) for one in tasks_of(ranges, self._options.split, {})]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of a task, as `read`."""
        assert isinstance(partition, Task)
        return read(self._options, partition)

    # -- what brokers tell --------------------------------------------------------------------

    def _client(self) -> SyncClient:
        return cluster.client_of(self._options.connection, self._options.fetch.timeout_ns)

    def _recent(self) -> Bounds:
        now = time.monotonic_ns()
        if self._asked_at is None or now - self._asked_at >= REFRESH_NS:
            return self._fresh()
        return self._bounds

    def _fresh(self) -> Bounds:
        client, options = self._client(), self._options
        found = cluster.partitions_of(client, options.subscription)
        self._bounds = cluster.bounds_of(client, found, options)
        self._asked_at = time.monotonic_ns()
        return self._bounds
