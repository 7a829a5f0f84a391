"""Batch publish and batch read, as an application with large amounts of data does them.

Publishing keeps 20,000 records, or 32 MB, in flight. Reading takes the columns as they come, and
checks every record: offsets and sequences one after the other, and a CRC-32C over keys, values,
offsets and timestamps, so that all bytes were looked at. With the mode `varying` values have from
half to one and a half times the size, which depends on their sequence.
"""

from __future__ import annotations

import asyncio
import importlib
import random
import sys
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Final

import google_crc32c
import numpy as np

from liftbridge_client import Ack, PublishResult, Start, Stop, connect

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
                values = _values(first, _sizes(first, count, options))
                waiting.append(tasks.create_task(publisher.publish_batch(values)))
                if len(waiting) == ROUNDS_IN_FLIGHT:
                    await check()
            while waiting:
                await check()
        seconds = perf_counter() - start
    if checked != options.count:
        raise WrongBatchError(f"{checked} of {options.count} acknowledged")
    return {"count": checked, "seconds": seconds, "rate": checked / seconds}


def _sizes(first: int, count: int, options: argparse.Namespace) -> np.ndarray:
    """Return the bytes of values from a sequence on."""
    size = max(int(options.size), 8)
    if options.mode != "varying":
        return np.full(count, size, np.int64)
    spread = np.arange(first, first + count, dtype=np.uint64) * np.uint64(2_654_435_761)
    return np.maximum(size // 2 + (spread % np.uint64(size + 1)).astype(np.int64), 8)


def _values(first: int, sizes: np.ndarray) -> list[bytes]:
    """Return the values that hold their sequence in the first 8 bytes and do not compress."""
    count, width = len(sizes), int(sizes.max())
    rows = np.empty((count, width), np.uint8)
    rows[:] = np.frombuffer(random.Random(1).randbytes(width), np.uint8)
    rows[:, :8] = np.arange(first, first + count, dtype="<i8").view(np.uint8).reshape(count, 8)
    block = rows.tobytes()
    starts = range(0, len(block), width)
    return [block[start : start + size] for start, size in zip(starts, sizes.tolist(), strict=True)]


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
    check = _Columns(options)
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

    def __init__(self, options: argparse.Namespace) -> None:
        self.count = 0
        self.bytes = 0
        self.crc = 0
        self._options = options

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
        sizes = _sizes(self.count, len(values), self._options)
        if not np.array_equal(np.diff(starts), sizes):
            raise WrongBatchError(f"values after {self.count} have another size")
        block = np.frombuffer(content, dtype=np.uint8)
        first = block[starts[:-1, None] + np.arange(8)].copy().view("<i8").ravel()
        if not np.array_equal(first, wanted):
            raise WrongBatchError(f"values after {self.count} are out of order")


async def read_on(options: argparse.Namespace) -> Result:
    """Read COUNT records again and again, until standard input closes.

    The mode is `batches` (columns of stored batches) or `messages` (one by one).
    """
    importlib.import_module("liftbridge_client.columns")
    count = 0
    async with connect(options.server) as client:
        stream = client.streams.get(options.stream)

        async def read() -> None:
            nonlocal count
            while True:
                if options.mode == "batches":
                    async for batch in stream.fetch_arrow(end=options.count):
                        count += batch.num_rows
                else:
                    async for _ in stream.subscribe(start=Start.earliest(), stop=Stop.latest()):
                        count += 1

        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(read())
            sys.stderr.write("ready\n")
            sys.stderr.flush()
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
            reading.cancel()
    return {"count": count}
