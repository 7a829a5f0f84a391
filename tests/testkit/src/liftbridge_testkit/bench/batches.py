"""Batch publish and batch read, as an application with large amounts of data does them.

Publishing keeps 20,000 records, or 32 MB, in flight. Reading takes the columns as they come, and
checks every record: offsets and sequences one after the other, and a CRC-32C over keys, values,
offsets and timestamps, so that all bytes were looked at.
"""

from __future__ import annotations

import asyncio
import importlib
import random
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Final

import google_crc32c
import numpy as np

from liftbridge_client import Ack, PublishResult, connect

if TYPE_CHECKING:
    import argparse

    import pyarrow as pa

ROUND_COUNT_MAX: Final = 5_000
ROUND_BYTES_MAX: Final = 8_000_000
"""Records made, published and checked at a time."""

ROUNDS_IN_FLIGHT: Final = 4
"""Rounds whose acks are waited for, so that the next values are made meanwhile."""

Result = dict[str, float | int | str | bool]


class WrongBatchError(Exception):
    """A batch call answered something that cannot be right."""


async def batch_publish(options: argparse.Namespace) -> Result:
    """Publish COUNT values in batches through our client, a result for each of them."""
    round_count = min(ROUND_COUNT_MAX, ROUND_BYTES_MAX // options.size)
    # Never full, so that the rounds go out in the order in which they were begun.
    window = round_count * ROUNDS_IN_FLIGHT
    checked = 0
    waiting: deque[asyncio.Task[list[PublishResult]]] = deque()

    async def check() -> None:
        nonlocal checked
        checked += _count_acked(await waiting.popleft(), checked)

    async with connect(options.server) as client:
        stream = client.streams.get(options.stream)
        start = perf_counter()
        async with (
            stream.publisher(max_in_flight=window, ack_policy=options.policy) as publisher,
            asyncio.TaskGroup() as tasks,
        ):
            for first in range(0, options.count, round_count):
                count = min(round_count, options.count - first)
                values = _values(first, count, options.size)
                waiting.append(tasks.create_task(publisher.publish_batch(values)))
                if len(waiting) == ROUNDS_IN_FLIGHT:
                    await check()
            while waiting:
                await check()
        seconds = perf_counter() - start
    if checked != options.count:
        raise WrongBatchError(f"{checked} of {options.count} acknowledged")
    return {"count": checked, "seconds": seconds, "rate": checked / seconds}


def _values(first: int, count: int, size: int) -> list[bytes]:
    """Values that hold their sequence in the first 8 bytes and do not compress."""
    size = max(size, 8)
    rows = np.empty((count, size), np.uint8)
    rows[:] = np.frombuffer(random.Random(1).randbytes(size), np.uint8)
    rows[:, :8] = np.arange(first, first + count, dtype="<i8").view(np.uint8).reshape(count, 8)
    block = rows.tobytes()
    return [block[start : start + size] for start in range(0, len(block), size)]


def _count_acked(results: list[PublishResult], first: int) -> int:
    """Check that all were stored, one behind the other."""
    offsets = [result.offset for result in results if isinstance(result, Ack)]
    if offsets != list(range(first, first + len(results))):
        raise WrongBatchError(f"not all records from {first} on were stored in order")
    return len(offsets)


async def batch_read(options: argparse.Namespace) -> Result:
    """Read COUNT records as Arrow columns through our client and check them.

    pyarrow is loaded before the clock starts: a quarter of a second once, not for each record.
    """
    importlib.import_module("liftbridge_client.columns")
    check = _Columns(options.size)
    async with connect(options.server) as client:
        stream = client.streams.get(options.stream)
        start = perf_counter()
        async for batch in stream.fetch_arrow(end=options.count):
            check.add(batch)
        seconds = perf_counter() - start
    if check.count != options.count:
        raise WrongBatchError(f"{check.count} of {options.count} records came")
    return {
        "count": check.count,
        "seconds": seconds,
        "rate": check.count / seconds,
        "bytes": check.bytes,
        "crc32c": check.crc,
    }


class _Columns:
    """Takes record batches and checks what is in them."""

    def __init__(self, size: int) -> None:
        self.count = 0
        self.bytes = 0
        self.crc = 0
        self._size = size

    def add(self, batch: pa.RecordBatch) -> None:
        """Check one record batch with the columns offset, timestamp, key, value."""
        rows = batch.num_rows
        offsets = batch.column("offset").to_numpy()
        wanted = np.arange(self.count, self.count + rows, dtype=np.int64)
        if not np.array_equal(offsets, wanted):
            raise WrongBatchError(f"offsets after {self.count} are not consecutive")
        values = batch.column("value")
        self._check_sequences(values, wanted)
        for name in ("offset", "timestamp", "key", "value"):
            for buffer in batch.column(name).buffers():
                if buffer is not None:
                    self.crc = google_crc32c.extend(self.crc, buffer.to_pybytes())
                    self.bytes += buffer.size
        self.count += rows

    def _check_sequences(self, values: pa.Array, wanted: np.ndarray) -> None:
        _, bounds, content = values.buffers()
        starts = np.frombuffer(bounds, dtype=np.int32)[values.offset :][: len(values) + 1]
        if not np.all(np.diff(starts) == self._size):
            raise WrongBatchError(f"values after {self.count} have another size")
        block = np.frombuffer(content, dtype=np.uint8)[starts[0] : starts[-1]]
        first = block.reshape(len(values), self._size)[:, :8].copy().view("<i8").ravel()
        if not np.array_equal(first, wanted):
            raise WrongBatchError(f"values after {self.count} are out of order")
