"""What a task holds while it reads: two answers of a broker and one Arrow batch, whatever comes."""

import tracemalloc

import pyarrow as pa
import pytest

from liftbridge_client import SyncClient
from liftbridge_testkit.processes import Broker
from pyspark_liftbridge.plan.options import read_source
from pyspark_liftbridge.plan.ranges import Range
from pyspark_liftbridge.source.reading import records_of
from pyspark_liftbridge.source.schema import layout_of, resized

FETCH_BYTES = 1 << 20
CALLS = 10
BATCHES, RECORDS, SIZE = 120, 100, 1_000


@pytest.mark.parametrize("partitions", [1, 120])
def test_a_task_holds_two_answers_and_a_batch(
    broker: Broker, lb: SyncClient, name: str, partitions: int
) -> None:
    """Of one range, and of many small ones."""
    stream = lb.streams.create(name, partitions=partitions)
    with stream.publisher() as publisher:
        for at in range(BATCHES):
            publisher.publish_batch([bytes(SIZE)] * RECORDS, partition=at % partitions)
    bounds = stream.bounds()
    given = {"servers": broker.address, "subscribe": name, "fetch.maxBytes": str(FETCH_BYTES)}
    options = read_source(given, is_stream=False)
    layout = layout_of(options.shape)

    def read(offsets: int) -> tuple[int, int, int]:
        """Rows, bytes of the largest batch, and bytes held at most when a batch is given out."""
        rows = largest = most = 0
        before = pa.total_allocated_bytes()
        wanted = [
            Range(name, one.stream_id, one.partition, 0, min(offsets, one.high_watermark))
            for one in bounds
        ]
        for batch in resized(records_of(lb, wanted, layout, options), FETCH_BYTES):
            for _ in range(CALLS):
                stream.bounds(0)  # a slow reader, behind which all waits that may wait
            held = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes() - before
            rows, largest = rows + batch.num_rows, max(largest, batch.nbytes)
            most = max(most, held)
            del batch  # Spark has it then
        return rows, largest, most

    read(RECORDS // 2)  # what is made once in a process is not the task's
    tracemalloc.start()
    try:
        rows, largest, most = read(BATCHES * RECORDS)
    finally:
        tracemalloc.stop()
    assert rows == BATCHES * RECORDS
    assert FETCH_BYTES < most <= 2 * FETCH_BYTES + largest
