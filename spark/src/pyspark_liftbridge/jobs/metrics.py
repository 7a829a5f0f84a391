"""Measure a stream by windows of the times of its records, as SQL over the data source."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

from pyspark.sql import SparkSession

from pyspark_liftbridge.jobs.query import frame_of, quoted

WINDOWS_MAX: Final = 10_000
"""Maximum number of windows of an answer."""

TOP: Final = 5
"""Maximum number of keys listed for a window."""

_VIEW: Final = "liftbridge_metrics"

# Timestamps do not decrease in a partition, so offsets missing between two records were removed by
# retention or compaction, or never stored.
_STATEMENT: Final = """
select
  cast(unix_micros(time.start) as bigint) as start_us,
  count(*) as records,
  sum(size + coalesce(length(key), 0)) as bytes,
  percentile_approx(size, array(0.5D, 0.99D)) as sizes,
  approx_count_distinct(key) as keys,
  approx_top_k(name, {top}) filter (where name is not null) as top_keys,
  sum(gap) as gaps
from (
  select
    key,
    length(value) as size,
    if(is_valid_utf8(cast(key as string)), cast(key as string), base64(key)) as name,
    window(timestamp, '{seconds} seconds') as time,
    coalesce(offset - lag(offset) over (partition by partition order by offset) - 1, 0) as gap
  from {view}
)
group by time
order by time.start
limit {limit}
"""


class Range(NamedTuple):
    """Records to measure.

    Attributes:
        stream: Name of the stream.
        window_s: Length of a window, in seconds.
        start_ms: Time of the first record, in milliseconds since 1970; `None` for all.
        end_ms: Time of the first record not measured; `None` for all.
    """

    stream: str
    window_s: int
    start_ms: int | None
    end_ms: int | None


class Measured(NamedTuple):
    """Measurements of a window that has records.

    Attributes:
        start: Start of the window.
        records: Number of records.
        bytes: Size of their keys and values in bytes.
        value_p50: Median size of a value, in bytes.
        value_p99: 99th percentile of the size of a value, in bytes.
        keys: Distinct keys, approximately.
        top_keys: Records of the most frequent keys; keys that are not UTF-8 are in base64.
        gaps: Offsets without a record before the records of the window.
    """

    start: datetime
    records: int
    bytes: int
    value_p50: int
    value_p99: int
    keys: int
    top_keys: Mapping[str, int]
    gaps: int


def metrics(spark: SparkSession, wanted: Range, source: Mapping[str, str]) -> list[Measured]:
    """Measure a stream.

    Args:
        spark: The session.
        wanted: Records to measure.
        source: Options of the data source for the connection to brokers.

    Returns:
        Windows in order, at most one more than `WINDOWS_MAX`.

    Raises:
        PySparkException: Spark cannot measure it.
    """
    options = {**source, "columns": "partition,offset,timestamp,key,value"}
    if wanted.start_ms is not None:
        options["startingTimestamp"] = str(wanted.start_ms)
        options["startingOffsetsByTimestampStrategy"] = "latest"
    if wanted.end_ms is not None:
        options["endingTimestamp"] = str(wanted.end_ms)
    frame_of(spark, wanted.stream, options).createOrReplaceTempView(quoted(_VIEW))
    statement = _STATEMENT.format(
        top=TOP, seconds=wanted.window_s, view=quoted(_VIEW), limit=WINDOWS_MAX + 1
    )
    return [
        Measured(
            datetime.fromtimestamp(row.start_us / 1_000_000, UTC),
            row.records,
            row.bytes,
            row.sizes[0],
            row.sizes[1],
            row.keys,
            {key.item: key["count"] for key in row.top_keys or ()},
            row.gaps,
        )
        for row in spark.sql(statement).collect()
    ]
