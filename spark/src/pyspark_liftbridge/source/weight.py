"""Estimate the size of records of the next micro-batch, for `maxBytesPerTrigger`.

Brokers tell the mean of a whole log, from which a part of it may be far off; and Spark tells a
source nothing of what its last batch weighed. So a few records at the begin of the largest backlogs
are fetched, which is where the next batch reads.
"""

from typing import Final

from liftbridge_client import LiftbridgeError, SyncClient
from pyspark_liftbridge.plan.offsets import Offsets
from pyspark_liftbridge.plan.options import SourceOptions
from pyspark_liftbridge.plan.ranges import backlog_of

SAMPLES_MAX: Final = 4
SAMPLE_BYTES: Final = 64 << 10
SAMPLE_OFFSETS: Final = 1_000
_COLUMNS: Final = ("offset", "key", "value", "headers")


def mean_bytes(
    client: SyncClient, start: Offsets, latest: Offsets, options: SourceOptions
) -> float | None:
    """Mean size of the records that come next, in memory; `None` if nothing could be fetched.

    Args:
        client: Client for the requests.
        start: Where the micro-batch begins.
        latest: What is committed.
        options: Of the query.
    """
    if not client.has_data:
        return None
    backlog = backlog_of(start, latest)
    chosen = sorted(backlog, key=lambda one: (-backlog[one], one))[:SAMPLES_MAX]
    total = weight = 0.0
    for one in chosen:
        first = start.of(one)
        assert first is not None, "it has a backlog"
        batches = client.streams.get(one.stream).fetch_columns(
            one.number,
            first,
            first + min(backlog[one], SAMPLE_OFFSETS),
            columns=_COLUMNS,
            max_bytes=SAMPLE_BYTES,
            stream_id=start.streams[one.stream].stream_id,
            read_replica=options.fetch.read_replica,
        )
        try:
            found = list(batches)
        except LiftbridgeError:
            continue  # the task that reads it says what is wrong
        if found:
            # Offsets that compaction removed weigh nothing.
            size = sum(batch.records.nbytes for batch in found)
            total += size / (found[-1].next_offset - first) * backlog[one]
            weight += backlog[one]
    return total / weight if weight else None
