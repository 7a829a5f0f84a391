"""Estimate the size of records of the next micro-batch, for `maxBytesPerTrigger`.

Brokers report the mean of a whole log, which may differ much from that of a part of it, and Spark
does not report the size of the last batch to a source. So a few records are fetched at the start of
the largest backlogs, which the next batch reads.
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
    """Estimate the mean size of the next records, in memory; `None` if none could be fetched.

    Args:
        client: Client for the requests.
        start: Start of the micro-batch.
        latest: Next offsets after the committed records.
        options: Options of the query.
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
            sampled = list(batches)
        except LiftbridgeError:
            continue  # the task that reads it reports the error
        if sampled:
            # Offsets that compaction removed have size 0.
            size = sum(batch.records.nbytes for batch in sampled)
            total += size / (sampled[-1].next_offset - first) * backlog[one]
            weight += backlog[one]
    return total / weight if weight else None
